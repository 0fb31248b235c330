/*
 * Reads and writes the checkpoint file. A new checkpoint is written to FILE.tmp and renamed, so
 * that a crash leaves a complete file.
 */
#define _POSIX_C_SOURCE 200809L

#include "checkpoint.h"

#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

static const char magic[16] = "libdist gpt 1\n";

checkpoint_t checkpoint_for_options(const gpt_options_t *options)
{
    checkpoint_t checkpoint = {0};
    checkpoint.layers = options->layers;
    checkpoint.heads = options->heads;
    checkpoint.width = options->width;
    checkpoint.context = options->context;
    checkpoint.batch = options->batch;
    checkpoint.seed = options->seed;
    return checkpoint;
}

static void fail_with_errno(const char *path, const char *message)
{
    fprintf(stderr, "gpt: %s: %s: %s\n", path, message, strerror(errno));
    exit(2);
}

static void reject_checkpoint(const char *path, const char *reason)
{
    fprintf(stderr, "gpt: %s: %s\n", path, reason);
    exit(2);
}

/* Makes a new name in a folder survive a crash of the host. */
static void sync_folder(const char *path)
{
    char *folder = allocate(strlen(path) + 2, 1);
    const char *slash = strrchr(path, '/');
    if (slash == NULL) {
        strcpy(folder, ".");
    } else {
        memcpy(folder, path, (size_t)(slash - path) + 1);
    }
    int folder_fd = open(folder, O_RDONLY);
    if (folder_fd >= 0) {
        (void)fsync(folder_fd); /* some file systems cannot do it for folders */
        (void)close(folder_fd);
    }
    free(folder);
}

void checkpoint_write(const char *path, const checkpoint_t *checkpoint, const float *values, size_t count, const void *states)
{
    char *temporary_path = allocate(strlen(path) + sizeof ".tmp", 1);
    sprintf(temporary_path, "%s.tmp", path);
    FILE *file = fopen(temporary_path, "wb");
    if (file == NULL) {
        fail_with_errno(temporary_path, "cannot create the file");
    }
    const size_t bytes = (size_t)checkpoint->state_bytes;
    const int is_written = fwrite(magic, sizeof magic, 1, file) == 1 && fwrite(checkpoint, sizeof *checkpoint, 1, file) == 1 &&
                           fwrite(values, sizeof *values, count, file) == count && fwrite(states, 1, bytes, file) == bytes &&
                           fflush(file) == 0 && fsync(fileno(file)) == 0;
    if (!is_written || fclose(file) != 0) {
        fail_with_errno(temporary_path, "cannot write the file");
    }
    if (rename(temporary_path, path) != 0) {
        fail_with_errno(path, "cannot replace the file");
    }
    sync_folder(path);
    free(temporary_path);
}

static void check_option(const char *path, const char *option, uint64_t saved, uint64_t expected)
{
    if (saved != expected) {
        fprintf(stderr, "gpt: %s: the checkpoint is of %s %" PRIu64 ", not %" PRIu64 "\n", path, option, saved, expected);
        exit(2);
    }
}

static void check_options(const char *path, const checkpoint_t *saved, const checkpoint_t *expected)
{
    check_option(path, "--layers", saved->layers, expected->layers);
    check_option(path, "--heads", saved->heads, expected->heads);
    check_option(path, "--width", saved->width, expected->width);
    check_option(path, "--context", saved->context, expected->context);
    check_option(path, "--batch", saved->batch, expected->batch);
    check_option(path, "--seed", saved->seed, expected->seed);
    if (saved->state_format != expected->state_format) {
        reject_checkpoint(path,
                          saved->state_format == STATES_WHOLE ? "the checkpoint is of --zero 0: continue with --zero 0"
                                                 : "the checkpoint is of --zero 1 or 2: continue with one of these");
    }
}

int checkpoint_read(const char *path, checkpoint_t *checkpoint, float *values, size_t count, void **states)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        if (errno != ENOENT) {
            fail_with_errno(path, "cannot open the file");
        }
        return 0;
    }
    char file_magic[sizeof magic];
    checkpoint_t saved;
    if (fread(file_magic, sizeof file_magic, 1, file) != 1 || memcmp(file_magic, magic, sizeof magic) != 0) {
        reject_checkpoint(path, "the file is no checkpoint of this version of gpt");
    }
    if (fread(&saved, sizeof saved, 1, file) != 1) {
        reject_checkpoint(path, "the checkpoint is too short");
    }
    check_options(path, &saved, checkpoint);
    if (saved.state_format == STATES_WHOLE && saved.state_bytes != 2 * count * sizeof *values) {
        reject_checkpoint(path, "the states have a wrong size");
    }
    *states = allocate((size_t)saved.state_bytes, 1);
    if (fread(values, sizeof *values, count, file) != count ||
        fread(*states, 1, (size_t)saved.state_bytes, file) != saved.state_bytes || fgetc(file) != EOF) {
        reject_checkpoint(path, "the checkpoint is too short or too long");
    }
    fclose(file);
    *checkpoint = saved;
    return 1;
}
