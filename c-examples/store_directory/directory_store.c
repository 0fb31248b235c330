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
    struct patience patience = patience_of(timeout_ms);
    char path[PATH_BYTES];
    struct bytes value;
    dist_status_t status = path_of("keys", key, path);
    if (status != DIST_OK) {
        return status;
    }
    while ((status = read_file(folder_of(user), path, &value)) == DIST_ERR_NOT_FOUND) {
        if (!nap(&patience)) {
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
    struct stat about;
    (void)timeout_ms;
    *all_present = 0;
    for (size_t i = 0; i < n; i++) {
        dist_status_t status = path_of("keys", keys[i], path);
        if (status != DIST_OK) {
            return status;
        }
        if (fstatat(folder_of(user), path, &about, 0) != 0) {
            return errno == ENOENT ? DIST_OK : failure();
        }
    }
    *all_present = 1;
    return DIST_OK;
}

static dist_status_t wait_for(void *user, const char *const *keys, size_t n, int64_t timeout_ms)
{
    struct patience patience = patience_of(timeout_ms);
    int32_t all_present;
    dist_status_t status;
    while ((status = check(user, keys, n, &all_present, timeout_ms)) == DIST_OK && !all_present) {
        if (!nap(&patience)) {
            return DIST_ERR_TIMEOUT;
        }
    }
    return status;
}

/* Begins a change of a key; unlock(*held) ends it. */
static dist_status_t begin_change(void *user, const char *key, int64_t timeout_ms, char path[PATH_BYTES], int *held)
{
    struct patience patience = patience_of(timeout_ms);
    dist_status_t status = path_of("keys", key, path);
    return status == DIST_OK ? lock(folder_of(user), &patience, held) : status;
}

static dist_status_t set(void *user, const char *key, const void *value, size_t len, int64_t timeout_ms)
{
    char path[PATH_BYTES];
    int held;
    dist_status_t status = begin_change(user, key, timeout_ms, path, &held);
    if (status == DIST_OK) {
        status = write_file(folder_of(user), path, lent(value, len), nothing);
        unlock(held);
    }
    return status;
}

/* Parses the number at the start of a value, after blanks. */
static dist_status_t parse(const char *text, int64_t *number)
{
    char *end;
    errno = 0;
    *number = strtoll(text, &end, 10);
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
        status = parse(value.data, &before);
        free(value.data);
    } else if (status == DIST_ERR_NOT_FOUND) {
        status = DIST_OK;
    }
    if (status != DIST_OK) {
        return status;
    }
    *result = wrapping_sum(before, amount);
    int len = sprintf(text, "%" PRId64, *result);
    return write_file(folder, path, lent(text, (size_t)len), nothing);
}

static dist_status_t add(void *user, const char *key, int64_t amount, int64_t *result, int64_t timeout_ms)
{
    char path[PATH_BYTES];
    int held;
    dist_status_t status = begin_change(user, key, timeout_ms, path, &held);
    if (status == DIST_OK) {
        status = add_locked(folder_of(user), path, amount, result);
        unlock(held);
    }
    return status;
}

static dist_status_t delete_key(void *user, const char *key, int32_t *deleted, int64_t timeout_ms)
{
    char path[PATH_BYTES];
    int held;
    dist_status_t status = begin_change(user, key, timeout_ms, path, &held);
    if (status == DIST_OK) {
        status = remove_file(folder_of(user), path);
        *deleted = status == DIST_OK;
        status = status == DIST_ERR_NOT_FOUND ? DIST_OK : status;
        unlock(held);
    }
    return status;
}

/* For a missing key c10d returns the expected value, so that its caller assumes success; this
 * store does the same. */
static dist_status_t compare_locked(int folder, char *path, struct bytes expected, struct bytes desired,
                                    dist_store_sink_fn sink, void *sink_arg)
{
    struct bytes value = nothing;
    struct bytes after = expected;
    int stores;
    dist_status_t status = read_file(folder, path, &value);
    if (status == DIST_OK) {
        stores = value.len == expected.len && (value.len == 0 || memcmp(value.data, expected.data, value.len) == 0);
        after = value;
    } else if (status == DIST_ERR_NOT_FOUND) {
        stores = expected.len == 0;
    } else {
        return status;
    }
    status = DIST_OK;
    if (stores) {
        after = desired;
        status = write_file(folder, path, desired, nothing);
    }
    if (status == DIST_OK) {
        sink(sink_arg, after.data, after.len);
    }
    free(value.data);
    return status;
}

static dist_status_t compare_set(void *user, const char *key, const void *expected, size_t expected_len,
                                 const void *desired, size_t desired_len, dist_store_sink_fn sink, void *sink_arg,
                                 int64_t timeout_ms)
{
    char path[PATH_BYTES];
    int held;
    dist_status_t status = begin_change(user, key, timeout_ms, path, &held);
    if (status == DIST_OK) {
        status = compare_locked(folder_of(user), path, lent(expected, expected_len), lent(desired, desired_len), sink,
                                sink_arg);
        unlock(held);
    }
    return status;
}

static dist_status_t append(void *user, const char *key, const void *value, size_t len, int64_t timeout_ms)
{
    char path[PATH_BYTES];
    int held;
    dist_status_t status = begin_change(user, key, timeout_ms, path, &held);
    if (status == DIST_OK) {
        struct bytes before = nothing;
        status = read_file(folder_of(user), path, &before);
        if (status == DIST_OK || status == DIST_ERR_NOT_FOUND) {
            status = write_file(folder_of(user), path, before, lent(value, len));
        }
        free(before.data);
        unlock(held);
    }
    return status;
}

/* ---- All keys ---- */

struct walk {
    char key[DIRECTORY_STORE_LONGEST_KEY + 1];
    int64_t count;
    /* NULL if the keys are only counted. */
    dist_store_sink_fn sink;
    void *sink_arg;
};

/* Visits the keys in a folder; the parent folders give the first `len` bytes of their names. */
static dist_status_t walk_folder(struct walk *walk, int parent, const char *name, size_t len)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    dist_status_t status = folder != NULL ? DIST_OK : failure();
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
        size_t total = decode(entry->d_name, walk->key, len);
        if (is_part(entry->d_name)) {
            status = walk_folder(walk, fd, entry->d_name, total);
        } else {
            walk->count++;
            if (walk->sink != NULL) {
                walk->sink(walk->sink_arg, walk->key, total);
            }
        }
    }
    closedir(folder);
    return status;
}

/* Walks the keys with the lock, so that a key that is being replaced is visited once. */
static dist_status_t walk_keys(int folder, struct walk *walk, int64_t timeout_ms)
{
    struct patience patience = patience_of(timeout_ms);
    int held;
    dist_status_t status = lock(folder, &patience, &held);
    if (status == DIST_OK) {
        status = walk_folder(walk, folder, "keys", 0);
        unlock(held);
    }
    return status;
}

static dist_status_t num_keys(void *user, int64_t *result, int64_t timeout_ms)
{
    struct walk walk = { "", 0, NULL, NULL };
    dist_status_t status = walk_keys(folder_of(user), &walk, timeout_ms);
    *result = walk.count;
    return status;
}

static dist_status_t list_keys(void *user, dist_store_sink_fn sink, void *sink_arg, int64_t timeout_ms)
{
    struct walk walk = { "", 0, sink, sink_arg };
    return walk_keys(folder_of(user), &walk, timeout_ms);
}

/* ---- The store ---- */

static void destroy(void *user)
{
    close(folder_of(user));
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
