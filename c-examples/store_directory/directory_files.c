/*
 * See directory_files.h.
 */
#define _POSIX_C_SOURCE 200809L
#include "directory_files.h"
#include "directory_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int get_folder(const void *user)
{
    const struct directory *directory = user;
    return directory->folder;
}

dist_status_t status_from_errno(void)
{
    return errno == ENOMEM ? DIST_ERR_OUT_OF_MEMORY : DIST_ERR_SYSTEM;
}

/* ---- Waiting ---- */

#define MIN_INTERVAL_NS 50000
#define MAX_INTERVAL_NS 5000000

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

struct poll_timer start_poll_timer(int64_t timeout_ms)
{
    int64_t now = now_ns();
    int is_forever = timeout_ms == DIST_WAIT_FOREVER || timeout_ms > (INT64_MAX - now) / 1000000;
    struct poll_timer timer = { is_forever ? INT64_MAX : now + timeout_ms * 1000000, MIN_INTERVAL_NS };
    return timer;
}

int sleep_before_poll(struct poll_timer *timer)
{
    int64_t left_ns = timer->deadline_ns - now_ns();
    if (left_ns <= 0) {
        return 0;
    }
    int64_t ns = timer->interval_ns < left_ns ? timer->interval_ns : left_ns;
    struct timespec time = { 0, (long)ns };
    nanosleep(&time, NULL);
    if (timer->interval_ns < MAX_INTERVAL_NS) {
        timer->interval_ns *= 2;
    }
    return 1;
}

/* Each call opens the file again, so that flock excludes threads of one process from each other,
 * as it excludes processes. */
dist_status_t lock_directory(int folder, struct poll_timer *timer, int *lock_fd)
{
    int fd = openat(folder, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) {
        return status_from_errno();
    }
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        dist_status_t status = errno == EWOULDBLOCK || errno == EINTR ? DIST_OK : status_from_errno();
        if (status == DIST_OK && !sleep_before_poll(timer)) {
            status = DIST_ERR_TIMEOUT;
        }
        if (status != DIST_OK) {
            close(fd);
            return status;
        }
    }
    *lock_fd = fd;
    return DIST_OK;
}

void unlock_directory(int lock_fd)
{
    /* A concurrently forked process may hold a copy of the descriptor, so the close alone does
     * not release the lock. */
    flock(lock_fd, LOCK_UN);
    close(lock_fd);
}

/* ---- Names ---- */

/* Converts any byte string to a path: letters, digits, "-" and "_" stay, every other byte
 * becomes %XX. File systems limit the length of a name, so a long key is cut into folders whose
 * names end in "%". The empty key is "%". */
#define NAME_FRAGMENT_BYTES 64
#define UNESCAPED "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

dist_status_t format_path(const char *root, const char *key, char path[PATH_BYTES])
{
    size_t len = strlen(key);
    if (len > DIRECTORY_STORE_LONGEST_KEY) {
        return DIST_ERR_INVALID_ARGUMENT;
    }
    char *end = path + sprintf(path, "%s/%s", root, len == 0 ? "%" : "");
    for (size_t i = 0; i < len; i++) {
        if (i > 0 && i % NAME_FRAGMENT_BYTES == 0) {
            end += sprintf(end, "%%/");
        }
        end += sprintf(end, strchr(UNESCAPED, key[i]) != NULL ? "%c" : "%%%02X", (unsigned char)key[i]);
    }
    return DIST_OK;
}

int is_name_fragment(const char *name)
{
    size_t len = strlen(name);
    return len > 1 && name[len - 1] == '%';
}

size_t decode_name(const char *name, char *key, size_t len)
{
    while (*name != '\0' && strcmp(name, "%") != 0 && len < DIRECTORY_STORE_LONGEST_KEY) {
        if (*name == '%') {
            char digits[3] = { name[1], name[2], '\0' };
            key[len++] = (char)strtol(digits, NULL, 16);
            name += name[2] == '\0' ? 2 : 3;
        } else {
            key[len++] = *name++;
        }
    }
    return len;
}

static dist_status_t make_folders(int folder, char *path)
{
    for (char *slash = strchr(path, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        int result = mkdirat(folder, path, 0777);
        *slash = '/';
        if (result != 0 && errno != EEXIST) {
            return status_from_errno();
        }
    }
    return DIST_OK;
}

/* ---- Files ---- */

static dist_status_t read_all(int fd, struct bytes *bytes)
{
    struct stat file_status;
    size_t n_read = 0;
    if (fstat(fd, &file_status) != 0) {
        return status_from_errno();
    }
    bytes->len = (size_t)file_status.st_size;
    bytes->data = malloc(bytes->len + 1);
    if (bytes->data == NULL) {
        return DIST_ERR_OUT_OF_MEMORY;
    }
    while (n_read < bytes->len) {
        ssize_t n = read(fd, bytes->data + n_read, bytes->len - n_read);
        if (n <= 0 && !(n < 0 && errno == EINTR)) {
            free(bytes->data);
            return DIST_ERR_SYSTEM;
        }
        n_read += n > 0 ? (size_t)n : 0;
    }
    bytes->data[n_read] = '\0';
    return DIST_OK;
}

dist_status_t read_file(int folder, const char *path, struct bytes *bytes)
{
    int fd = openat(folder, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return errno == ENOENT ? DIST_ERR_NOT_FOUND : status_from_errno();
    }
    dist_status_t status = read_all(fd, bytes);
    close(fd);
    return status;
}

static int write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno != EINTR) {
            return -1;
        }
        data += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

dist_status_t write_file(int folder, char *path, struct bytes head, struct bytes tail)
{
    int fd = openat(folder, "new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        return status_from_errno();
    }
    int is_written = write_all(fd, head.data, head.len) == 0 && write_all(fd, tail.data, tail.len) == 0;
    dist_status_t status = is_written ? DIST_OK : status_from_errno();
    if (close(fd) != 0 && status == DIST_OK) {
        status = status_from_errno();
    }
    if (status != DIST_OK || renameat(folder, "new", folder, path) == 0) {
        return status;
    }
    if (errno != ENOENT) {
        return status_from_errno();
    }
    /* This is the first key or queue in its folder. */
    status = make_folders(folder, path);
    if (status == DIST_OK && renameat(folder, "new", folder, path) != 0) {
        status = status_from_errno();
    }
    return status;
}

dist_status_t remove_file(int folder, const char *path)
{
    if (unlinkat(folder, path, 0) == 0) {
        return DIST_OK;
    }
    return errno == ENOENT ? DIST_ERR_NOT_FOUND : status_from_errno();
}

struct bytes borrow_bytes(const void *data, size_t len)
{
    struct bytes bytes = { (char *)data, len };
    return bytes;
}

const struct bytes empty_bytes = { NULL, 0 };
