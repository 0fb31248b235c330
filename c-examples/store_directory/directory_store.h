/*
 * A store of the caller's own, over a directory: one file per key. Any number of processes may use the directory at
 * once, and what is in it outlives them all.
 *
 * Only libdist's public interface is used: this is how any program gives it a store over something that it has already.
 */
#ifndef DIRECTORY_STORE_H
#define DIRECTORY_STORE_H

#include <dist.h>

/* The longest key, in bytes; a longer one is DIST_ERR_INVALID_ARGUMENT. */
#define DIRECTORY_STORE_LONGEST_KEY 1024

/*
 * Opens the store in a directory, which is made if it is missing (its parent must exist). The handle is released with
 * dist_store_release; NULL on failure. DIST_ERR_SYSTEM leaves the reason in errno.
 */
dist_status_t directory_store_create(const char *folder, dist_store_t **out);

/*
 * The same without queue functions, so that libdist composes queues out of keys. The two kinds share keys, but each has
 * queues that the other does not see: all users of a directory open it in the same way.
 */
dist_status_t directory_store_create_without_queues(const char *folder, dist_store_t **out);

#endif
