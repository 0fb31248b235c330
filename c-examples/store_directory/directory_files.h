/*
 * What the store of directory_store.h stands on: patience, a lock, names, and files that are complete or not there.
 * `folder` is a descriptor of the store's directory everywhere.
 */
#ifndef DIRECTORY_FILES_H
#define DIRECTORY_FILES_H

#include <dist.h>

#include <stddef.h>
#include <stdint.h>

/* What libdist hands to each function as `user`. */
struct directory {
    int folder;
};

int folder_of(const void *user);

/* How long a call may still look, and how long it sleeps before it looks again. */
struct patience {
    int64_t until_ns;
    int64_t nap_ns;
};

struct patience patience_of(int64_t timeout_ms);

/* Sleeps a little, longer each time; 0 if the time is over instead. */
int nap(struct patience *patience);

/* Takes the lock of all processes and threads that use the directory; DIST_ERR_TIMEOUT if others keep it too long. */
dist_status_t lock(int folder, struct patience *patience, int *held);
void unlock(int held);

#define PATH_BYTES 4096

/* The path of a key's file or a queue's folder below `under`; DIST_ERR_INVALID_ARGUMENT for too long a key. */
dist_status_t path_of(const char *under, const char *key, char path[PATH_BYTES]);

/* The way back, part by part: adds the bytes that a name stands for to a key; returns the key's new length. */
size_t decode(const char *name, char *key, size_t len);

/* Whether a name is that of a folder with the rest of longer keys. */
int is_part(const char *name);

/* Bytes of a file, with a terminator behind them, released with free; or bytes that a caller lends, only read. */
struct bytes {
    char *data;
    size_t len;
};

extern const struct bytes nothing;

struct bytes lent(const void *data, size_t len);

/* The status of what errno says. */
dist_status_t failure(void);

/* The whole of a file; DIST_ERR_NOT_FOUND if there is none. */
dist_status_t read_file(int folder, const char *path, struct bytes *bytes);

/* Puts a file in its place, complete: `head`, and behind it `tail`. The lock is held. */
dist_status_t write_file(int folder, char *path, struct bytes head, struct bytes tail);

/* DIST_ERR_NOT_FOUND if there is no such file. The lock is held. */
dist_status_t remove_file(int folder, const char *path);

#endif
