/*
 * The parts of the store in directory_store.h: deadlines, a lock, names, and files that are
 * either complete or absent. `folder` is always a descriptor of the store's directory.
 */
#ifndef DIRECTORY_FILES_H
#define DIRECTORY_FILES_H

#include <dist.h>

#include <stddef.h>
#include <stdint.h>

/* The structure that libdist passes to each function as `user`. */
struct directory {
    int folder;
};

int get_folder(const void *user);

/* The deadline of a call, and the interval until its next poll. */
struct poll_timer {
    int64_t deadline_ns;
    int64_t interval_ns;
};

struct poll_timer start_poll_timer(int64_t timeout_ms);

/* Sleeps before the next poll, longer each time. Returns 0 if the deadline has passed. */
int sleep_before_poll(struct poll_timer *timer);

/* Takes the lock of all processes and threads that use the directory. Returns DIST_ERR_TIMEOUT
 * if another process or thread holds the lock until the deadline. */
dist_status_t lock_directory(int folder, struct poll_timer *timer, int *lock_fd);
void unlock_directory(int lock_fd);

#define PATH_BYTES 4096

/* Writes the path of a key's file or a queue's folder below `root`. Returns
 * DIST_ERR_INVALID_ARGUMENT if the key is too long. */
dist_status_t format_path(const char *root, const char *key, char path[PATH_BYTES]);

/* Decodes one part of a path: appends the bytes of a name to a key, and returns the key's new
 * length. */
size_t decode_name(const char *name, char *key, size_t len);

/* Returns true if the name is a folder with the rest of longer keys. */
int is_name_fragment(const char *name);

/* The bytes of a file with a terminator, which the owner releases with free; or bytes that the
 * caller owns and that are only read. */
struct bytes {
    char *data;
    size_t len;
};

extern const struct bytes empty_bytes;

struct bytes borrow_bytes(const void *data, size_t len);

/* Returns the status for errno. */
dist_status_t status_from_errno(void);

/* Reads a whole file; DIST_ERR_NOT_FOUND if it does not exist. */
dist_status_t read_file(int folder, const char *path, struct bytes *bytes);

/* Replaces a file atomically with the content `head` and `tail`. The caller holds the lock. */
dist_status_t write_file(int folder, char *path, struct bytes head, struct bytes tail);

/* Removes a file; DIST_ERR_NOT_FOUND if it does not exist. The caller holds the lock. */
dist_status_t remove_file(int folder, const char *path);

#endif
