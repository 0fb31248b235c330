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
struct queue_range {
    int64_t taken;
    int64_t pushed;
};

/* Writes the path of a file in a queue's folder. */
static dist_status_t queue_path(const char *queue, const char *name, char path[PATH_BYTES])
{
    dist_status_t status = format_path("queues", queue, path);
    if (status == DIST_OK) {
        sprintf(path + strlen(path), "/%s", name);
    }
    return status;
}

static dist_status_t item_path(const char *queue, int64_t item_number, char path[PATH_BYTES])
{
    char name[32];
    sprintf(name, "%" PRId64, item_number);
    return queue_path(queue, name, path);
}

static dist_status_t read_range(int folder, const char *queue, struct queue_range *range)
{
    char path[PATH_BYTES];
    struct bytes text;
    dist_status_t status = queue_path(queue, "ends", path);
    range->taken = 0;
    range->pushed = 0;
    if (status == DIST_OK) {
        status = read_file(folder, path, &text);
    }
    if (status == DIST_ERR_NOT_FOUND) {
        return DIST_OK;
    }
    if (status == DIST_OK) {
        int numbers = sscanf(text.data, "%" SCNd64 " %" SCNd64, &range->taken, &range->pushed);
        status = numbers == 2 ? DIST_OK : DIST_ERR_SYSTEM;
        free(text.data);
    }
    return status;
}

static dist_status_t write_range(int folder, const char *queue, struct queue_range range)
{
    char path[PATH_BYTES];
    char text[64];
    int len = sprintf(text, "%" PRId64 " %" PRId64 "\n", range.taken, range.pushed);
    dist_status_t status = queue_path(queue, "ends", path);
    return status == DIST_OK ? write_file(folder, path, borrow_bytes(text, (size_t)len), empty_bytes) : status;
}

/* Writes the item first and then its number. If the process is killed in between, nothing was
 * pushed, and the number is used again. */
static dist_status_t push_locked(int folder, const char *queue, struct bytes item)
{
    char path[PATH_BYTES];
    struct queue_range range;
    dist_status_t status = read_range(folder, queue, &range);
    range.pushed++;
    if (status == DIST_OK && (status = item_path(queue, range.pushed, path)) == DIST_OK) {
        status = write_file(folder, path, item, empty_bytes);
    }
    return status == DIST_OK ? write_range(folder, queue, range) : status;
}

/* Returns DIST_ERR_QUEUE_EMPTY if there is no item. */
static dist_status_t pop_locked(int folder, const char *queue, struct bytes *item)
{
    char path[PATH_BYTES];
    struct queue_range range;
    dist_status_t status = read_range(folder, queue, &range);
    if (status != DIST_OK || range.taken == range.pushed) {
        return status == DIST_OK ? DIST_ERR_QUEUE_EMPTY : status;
    }
    range.taken++;
    status = item_path(queue, range.taken, path);
    if (status == DIST_OK) {
        status = read_file(folder, path, item);
    }
    if (status != DIST_OK) {
        return status;
    }
    status = write_range(folder, queue, range);
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
    struct poll_timer timer = start_poll_timer(timeout_ms);
    int lock_fd;
    dist_status_t status = lock_directory(get_folder(user), &timer, &lock_fd);
    if (status == DIST_OK) {
        status = push_locked(get_folder(user), queue, borrow_bytes(item, len));
        unlock_directory(lock_fd);
    }
    return status;
}

/* Takes the lock only if there seems to be an item, so that waiting callers do not delay pushes. */
static dist_status_t try_pop(int folder, const char *queue, struct poll_timer *timer, struct bytes *item)
{
    struct queue_range range;
    int lock_fd;
    dist_status_t status = read_range(folder, queue, &range);
    if (status != DIST_OK || range.taken == range.pushed) {
        return status == DIST_OK ? DIST_ERR_QUEUE_EMPTY : status;
    }
    status = lock_directory(folder, timer, &lock_fd);
    if (status == DIST_OK) {
        status = pop_locked(folder, queue, item);
        unlock_directory(lock_fd);
    }
    return status;
}

dist_status_t directory_queue_pop(void *user, const char *queue, int32_t block, dist_store_sink_fn sink,
                                  void *sink_arg, int64_t timeout_ms)
{
    struct poll_timer timer = start_poll_timer(timeout_ms);
    struct bytes item;
    dist_status_t status;
    while ((status = try_pop(get_folder(user), queue, &timer, &item)) == DIST_ERR_QUEUE_EMPTY && block) {
        if (!sleep_before_poll(&timer)) {
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
    struct queue_range range;
    dist_status_t status = read_range(get_folder(user), queue, &range);
    (void)timeout_ms;
    *result = range.pushed - range.taken;
    return status;
}
