/*
 * A store that the caller implements over a directory, with one file per key. Any number of
 * processes may use the directory at the same time, and its content outlives them.
 *
 * The code uses only libdist's public interface. Any program can give libdist a store over an
 * existing system in this way.
 */
#ifndef DIRECTORY_STORE_H
#define DIRECTORY_STORE_H

#include <dist.h>

/* The longest key, in bytes; a longer one is DIST_ERR_INVALID_ARGUMENT. */
#define DIRECTORY_STORE_LONGEST_KEY 1024

/*
 * Opens the store in a directory, which is created if it is missing (its parent must exist). The
 * caller releases the handle with dist_store_release; it is NULL on failure. After
 * DIST_ERR_SYSTEM, errno has the reason.
 */
dist_status_t directory_store_create(const char *folder, dist_store_t **out);

/*
 * As directory_store_create, without queue functions, so that libdist composes queues from keys.
 * Both kinds share keys, but each has separate queues. So all users of a directory must open it
 * in the same way.
 */
dist_status_t directory_store_create_without_queues(const char *folder, dist_store_t **out);

#endif
