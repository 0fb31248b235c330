/*
 * The store of directory_store.h. Its directory contains:
 *
 *     lock               locked with flock by each process that changes something
 *     new                the value that a process is writing; renamed when it is complete
 *     keys/NAME          the value of a key
 *     queues/NAME/ends   the number of taken and of pushed items of a queue
 *     queues/NAME/12     the twelfth item
 *
 * Readers take no lock: a file under its final name is complete, and it is only replaced, never
 * written to. Writers take the lock. So an operation that reads and then writes (add,
 * compare_set, append, the queues) cannot lose a concurrent change, and one name for new files
 * suffices. The kernel releases the lock of a killed process, and no partial value remains. No
 * process can wake a waiter, so a waiter polls, with a growing interval.
 *
 * The store does not force its files to the disk. Processes always see the newest state; after a
 * power failure the state may be older.
 */
#define _POSIX_C_SOURCE 200809L
#include "directory_store.h"
#include "directory_files.h"
#include "directory_queues.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Keys ---- */

static dist_status_t get(void *user, const char *key, dist_store_sink_fn sink, void *sink_arg, int64_t timeout_ms)
{
    struct poll_timer timer = start_poll_timer(timeout_ms);
    char path[PATH_BYTES];
    struct bytes value;
    dist_status_t status = format_path("keys", key, path);
    if (status != DIST_OK) {
        return status;
    }
    while ((status = read_file(get_folder(user), path, &value)) == DIST_ERR_NOT_FOUND) {
        if (!sleep_before_poll(&timer)) {
            return DIST_ERR_TIMEOUT;
        }
    }
    if (status == DIST_OK) {
        sink(sink_arg, value.data, value.len);
        free(value.data);
    }
    return status;
}

static dist_status_t check(void *user, const char *const *keys, size_t n, int32_t *all_present, int64_t timeout_ms)
{
    char path[PATH_BYTES];
    struct stat file_status;
    (void)timeout_ms;
    *all_present = 0;
    for (size_t i = 0; i < n; i++) {
        dist_status_t status = format_path("keys", keys[i], path);
        if (status != DIST_OK) {
            return status;
        }
        if (fstatat(get_folder(user), path, &file_status, 0) != 0) {
            return errno == ENOENT ? DIST_OK : status_from_errno();
        }
    }
    *all_present = 1;
    return DIST_OK;
}

static dist_status_t wait_for(void *user, const char *const *keys, size_t n, int64_t timeout_ms)
{
    struct poll_timer timer = start_poll_timer(timeout_ms);
    int32_t all_present;
    dist_status_t status;
    while ((status = check(user, keys, n, &all_present, timeout_ms)) == DIST_OK && !all_present) {
        if (!sleep_before_poll(&timer)) {
            return DIST_ERR_TIMEOUT;
        }
    }
    return status;
}

/* Takes the lock to change a key; the caller releases it with unlock_directory. */
static dist_status_t lock_key(void *user, const char *key, int64_t timeout_ms, char path[PATH_BYTES], int *lock_fd)
{
    struct poll_timer timer = start_poll_timer(timeout_ms);
    dist_status_t status = format_path("keys", key, path);
    return status == DIST_OK ? lock_directory(get_folder(user), &timer, lock_fd) : status;
}

static dist_status_t set(void *user, const char *key, const void *value, size_t len, int64_t timeout_ms)
{
    char path[PATH_BYTES];
    int lock_fd;
    dist_status_t status = lock_key(user, key, timeout_ms, path, &lock_fd);
    if (status == DIST_OK) {
        status = write_file(get_folder(user), path, borrow_bytes(value, len), empty_bytes);
        unlock_directory(lock_fd);
    }
    return status;
}

/* Parses the number at the start of a value, after blanks. */
static dist_status_t parse_integer(const char *text, int64_t *value)
{
    char *end;
    errno = 0;
    *value = strtoll(text, &end, 10);
    return end == text || errno == ERANGE ? DIST_ERR_NOT_A_NUMBER : DIST_OK;
}

static int64_t wrapping_sum(int64_t a, int64_t b)
{
    uint64_t sum = (uint64_t)a + (uint64_t)b;
    int64_t result;
    memcpy(&result, &sum, sizeof(result));
    return result;
}

static dist_status_t add_locked(int folder, char *path, int64_t amount, int64_t *result)
{
    struct bytes value;
    char text[32];
    int64_t before = 0;
    dist_status_t status = read_file(folder, path, &value);
    if (status == DIST_OK) {
        status = parse_integer(value.data, &before);
        free(value.data);
    } else if (status == DIST_ERR_NOT_FOUND) {
        status = DIST_OK;
    }
    if (status != DIST_OK) {
        return status;
    }
    *result = wrapping_sum(before, amount);
    int len = sprintf(text, "%" PRId64, *result);
    return write_file(folder, path, borrow_bytes(text, (size_t)len), empty_bytes);
}

static dist_status_t add(void *user, const char *key, int64_t amount, int64_t *result, int64_t timeout_ms)
{
    char path[PATH_BYTES];
    int lock_fd;
    dist_status_t status = lock_key(user, key, timeout_ms, path, &lock_fd);
    if (status == DIST_OK) {
        status = add_locked(get_folder(user), path, amount, result);
        unlock_directory(lock_fd);
    }
    return status;
}

static dist_status_t delete_key(void *user, const char *key, int32_t *deleted, int64_t timeout_ms)
{
    char path[PATH_BYTES];
    int lock_fd;
    dist_status_t status = lock_key(user, key, timeout_ms, path, &lock_fd);
    if (status == DIST_OK) {
        status = remove_file(get_folder(user), path);
        *deleted = status == DIST_OK;
        status = status == DIST_ERR_NOT_FOUND ? DIST_OK : status;
        unlock_directory(lock_fd);
    }
    return status;
}

/* For a missing key c10d returns the expected value, so that its caller assumes success; this
 * store does the same. */
static dist_status_t compare_locked(int folder, char *path, struct bytes expected, struct bytes desired,
                                    dist_store_sink_fn sink, void *sink_arg)
{
    struct bytes value = empty_bytes;
    struct bytes result = expected;
    int is_match;
    dist_status_t status = read_file(folder, path, &value);
    if (status == DIST_OK) {
        is_match = value.len == expected.len && (value.len == 0 || memcmp(value.data, expected.data, value.len) == 0);
        result = value;
    } else if (status == DIST_ERR_NOT_FOUND) {
        is_match = expected.len == 0;
    } else {
        return status;
    }
    status = DIST_OK;
    if (is_match) {
        result = desired;
        status = write_file(folder, path, desired, empty_bytes);
    }
    if (status == DIST_OK) {
        sink(sink_arg, result.data, result.len);
    }
    free(value.data);
    return status;
}

static dist_status_t compare_set(void *user, const char *key, const void *expected, size_t expected_len,
                                 const void *desired, size_t desired_len, dist_store_sink_fn sink, void *sink_arg,
                                 int64_t timeout_ms)
{
    char path[PATH_BYTES];
    int lock_fd;
    dist_status_t status = lock_key(user, key, timeout_ms, path, &lock_fd);
    if (status == DIST_OK) {
        status = compare_locked(get_folder(user), path, borrow_bytes(expected, expected_len),
                                borrow_bytes(desired, desired_len), sink, sink_arg);
        unlock_directory(lock_fd);
    }
    return status;
}

static dist_status_t append(void *user, const char *key, const void *value, size_t len, int64_t timeout_ms)
{
    char path[PATH_BYTES];
    int lock_fd;
    dist_status_t status = lock_key(user, key, timeout_ms, path, &lock_fd);
    if (status == DIST_OK) {
        struct bytes before = empty_bytes;
        status = read_file(get_folder(user), path, &before);
        if (status == DIST_OK || status == DIST_ERR_NOT_FOUND) {
            status = write_file(get_folder(user), path, before, borrow_bytes(value, len));
        }
        free(before.data);
        unlock_directory(lock_fd);
    }
    return status;
}

/* ---- All keys ---- */

struct key_walk {
    char key[DIRECTORY_STORE_LONGEST_KEY + 1];
    int64_t count;
    /* NULL if the keys are only counted. */
    dist_store_sink_fn sink;
    void *sink_arg;
};

/* Visits the keys in a folder; the parent folders give the first `len` bytes of their names. */
static dist_status_t walk_folder(struct key_walk *key_walk, int parent, const char *name, size_t len)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    dist_status_t status = folder != NULL ? DIST_OK : status_from_errno();
    if (folder == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        return status;
    }
    struct dirent *entry;
    while (status == DIST_OK && (entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] == '.') {
            continue;
        }
        size_t total = decode_name(entry->d_name, key_walk->key, len);
        if (is_name_fragment(entry->d_name)) {
            status = walk_folder(key_walk, fd, entry->d_name, total);
        } else {
            key_walk->count++;
            if (key_walk->sink != NULL) {
                key_walk->sink(key_walk->sink_arg, key_walk->key, total);
            }
        }
    }
    closedir(folder);
    return status;
}

/* Walks the keys with the lock, so that a key that is being replaced is visited once. */
static dist_status_t walk_keys(int folder, struct key_walk *key_walk, int64_t timeout_ms)
{
    struct poll_timer timer = start_poll_timer(timeout_ms);
    int lock_fd;
    dist_status_t status = lock_directory(folder, &timer, &lock_fd);
    if (status == DIST_OK) {
        status = walk_folder(key_walk, folder, "keys", 0);
        unlock_directory(lock_fd);
    }
    return status;
}

static dist_status_t num_keys(void *user, int64_t *result, int64_t timeout_ms)
{
    struct key_walk key_walk = { "", 0, NULL, NULL };
    dist_status_t status = walk_keys(get_folder(user), &key_walk, timeout_ms);
    *result = key_walk.count;
    return status;
}

static dist_status_t list_keys(void *user, dist_store_sink_fn sink, void *sink_arg, int64_t timeout_ms)
{
    struct key_walk key_walk = { "", 0, sink, sink_arg };
    return walk_keys(get_folder(user), &key_walk, timeout_ms);
}

/* ---- The store ---- */

static void destroy(void *user)
{
    close(get_folder(user));
    free(user);
}

static dist_status_t open_folder(const char *path, struct directory **out)
{
    struct directory *directory = malloc(sizeof(*directory));
    if (directory == NULL) {
        return DIST_ERR_OUT_OF_MEMORY;
    }
    if (mkdir(path, 0777) == 0 || errno == EEXIST) {
        directory->folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (directory->folder >= 0 && (mkdirat(directory->folder, "keys", 0777) == 0 || errno == EEXIST)) {
            *out = directory;
            return DIST_OK;
        }
        if (directory->folder >= 0) {
            close(directory->folder);
        }
    }
    free(directory);
    return DIST_ERR_SYSTEM;
}

static dist_status_t create(const char *path, dist_store_vtable_t functions, dist_store_t **out)
{
    struct directory *directory = NULL;
    *out = NULL;
    dist_status_t status = open_folder(path, &directory);
    if (status == DIST_OK) {
        status = dist_store_custom_create(&functions, directory, out);
        if (status != DIST_OK) {
            destroy(directory);
        }
    }
    return status;
}

static dist_store_vtable_t key_functions(void)
{
    dist_store_vtable_t functions = DIST_STORE_VTABLE_INIT;
    functions.set = set;
    functions.get = get;
    functions.add = add;
    functions.wait = wait_for;
    functions.check = check;
    functions.delete_key = delete_key;
    functions.destroy = destroy;
    functions.compare_set = compare_set;
    functions.append = append;
    functions.num_keys = num_keys;
    functions.list_keys = list_keys;
    return functions;
}

dist_status_t directory_store_create_without_queues(const char *folder, dist_store_t **out)
{
    return create(folder, key_functions(), out);
}

dist_status_t directory_store_create(const char *folder, dist_store_t **out)
{
    dist_store_vtable_t functions = key_functions();
    functions.queue_push = directory_queue_push;
    functions.queue_pop = directory_queue_pop;
    functions.queue_len = directory_queue_len;
    return create(folder, functions, out);
}
