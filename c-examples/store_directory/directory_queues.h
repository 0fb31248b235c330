/*
 * The queue functions of the store in directory_store.h, as dist_store_vtable_t describes them.
 */
#ifndef DIRECTORY_QUEUES_H
#define DIRECTORY_QUEUES_H

#include <dist.h>

dist_status_t directory_queue_push(void *user, const char *queue, const void *item, size_t len, int64_t timeout_ms);

dist_status_t directory_queue_pop(void *user, const char *queue, int32_t block, dist_store_sink_fn sink,
                                  void *sink_arg, int64_t timeout_ms);

dist_status_t directory_queue_len(void *user, const char *queue, int64_t *result, int64_t timeout_ms);

#endif
