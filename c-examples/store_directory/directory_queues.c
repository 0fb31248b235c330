/*
 * See directory_queues.h. Items are numbered from 1 in push order; the file `ends` contains the
 * range of the present items. A thread that changes a queue holds the lock; a thread that only
 * reads it reads `ends` without the lock.
 */
#include "directory_queues.h"
#include "directory_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Items `taken` + 1 to `pushed` are present. */
struct ends {
    int64_t taken;
    int64_t pushed;
};

/* Writes the path of a file in a queue's folder. */
static dist_status_t queue_path(const char *queue, const char *name, char path[PATH_BYTES])
{
    dist_status_t status = path_of("queues", queue, path);
    if (status == DIST_OK) {
        sprintf(path + strlen(path), "/%s", name);
    }
    return status;
}

static dist_status_t item_path(const char *queue, int64_t number, char path[PATH_BYTES])
{
    char name[32];
    sprintf(name, "%" PRId64, number);
    return queue_path(queue, name, path);
}

static dist_status_t read_ends(int folder, const char *queue, struct ends *ends)
{
    char path[PATH_BYTES];
    struct bytes text;
    dist_status_t status = queue_path(queue, "ends", path);
    ends->taken = 0;
    ends->pushed = 0;
    if (status == DIST_OK) {
        status = read_file(folder, path, &text);
    }
    if (status == DIST_ERR_NOT_FOUND) {
        return DIST_OK;
    }
    if (status == DIST_OK) {
        int numbers = sscanf(text.data, "%" SCNd64 " %" SCNd64, &ends->taken, &ends->pushed);
        status = numbers == 2 ? DIST_OK : DIST_ERR_SYSTEM;
        free(text.data);
    }
    return status;
}

static dist_status_t write_ends(int folder, const char *queue, struct ends ends)
{
    char path[PATH_BYTES];
    char text[64];
    int len = sprintf(text, "%" PRId64 " %" PRId64 "\n", ends.taken, ends.pushed);
    dist_status_t status = queue_path(queue, "ends", path);
    return status == DIST_OK ? write_file(folder, path, lent(text, (size_t)len), nothing) : status;
}

/* Writes the item first and then its number. If the process is killed in between, nothing was
 * pushed, and the number is used again. */
static dist_status_t push_locked(int folder, const char *queue, struct bytes item)
{
    char path[PATH_BYTES];
    struct ends ends;
    dist_status_t status = read_ends(folder, queue, &ends);
    ends.pushed++;
    if (status == DIST_OK && (status = item_path(queue, ends.pushed, path)) == DIST_OK) {
        status = write_file(folder, path, item, nothing);
    }
    return status == DIST_OK ? write_ends(folder, queue, ends) : status;
}

/* Returns DIST_ERR_QUEUE_EMPTY if there is no item. */
static dist_status_t take_locked(int folder, const char *queue, struct bytes *item)
{
    char path[PATH_BYTES];
    struct ends ends;
    dist_status_t status = read_ends(folder, queue, &ends);
    if (status != DIST_OK || ends.taken == ends.pushed) {
        return status == DIST_OK ? DIST_ERR_QUEUE_EMPTY : status;
    }
    ends.taken++;
    status = item_path(queue, ends.taken, path);
    if (status == DIST_OK) {
        status = read_file(folder, path, item);
    }
    if (status != DIST_OK) {
        return status;
    }
    status = write_ends(folder, queue, ends);
    if (status != DIST_OK) {
        free(item->data);
        return status;
    }
    /* The item belongs to this caller, even if its file cannot be removed. */
    remove_file(folder, path);
    return DIST_OK;
}

dist_status_t directory_queue_push(void *user, const char *queue, const void *item, size_t len, int64_t timeout_ms)
{
    struct patience patience = patience_of(timeout_ms);
    int held;
    dist_status_t status = lock(folder_of(user), &patience, &held);
    if (status == DIST_OK) {
        status = push_locked(folder_of(user), queue, lent(item, len));
        unlock(held);
    }
    return status;
}

/* Takes the lock only if there seems to be an item, so that waiting callers do not delay pushes. */
static dist_status_t try_take(int folder, const char *queue, struct patience *patience, struct bytes *item)
{
    struct ends ends;
    int held;
    dist_status_t status = read_ends(folder, queue, &ends);
    if (status != DIST_OK || ends.taken == ends.pushed) {
        return status == DIST_OK ? DIST_ERR_QUEUE_EMPTY : status;
    }
    status = lock(folder, patience, &held);
    if (status == DIST_OK) {
        status = take_locked(folder, queue, item);
        unlock(held);
    }
    return status;
}

dist_status_t directory_queue_pop(void *user, const char *queue, int32_t block, dist_store_sink_fn sink,
                                  void *sink_arg, int64_t timeout_ms)
{
    struct patience patience = patience_of(timeout_ms);
    struct bytes item;
    dist_status_t status;
    while ((status = try_take(folder_of(user), queue, &patience, &item)) == DIST_ERR_QUEUE_EMPTY && block) {
        if (!nap(&patience)) {
            return DIST_ERR_TIMEOUT;
        }
    }
    if (status == DIST_OK) {
        sink(sink_arg, item.data, item.len);
        free(item.data);
    }
    return status;
}

dist_status_t directory_queue_len(void *user, const char *queue, int64_t *result, int64_t timeout_ms)
{
    struct ends ends;
    dist_status_t status = read_ends(folder_of(user), queue, &ends);
    (void)timeout_ms;
    *result = ends.pushed - ends.taken;
    return status;
}
