#define _POSIX_C_SOURCE 200809L

#include "checkpoint.h"

#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

static const char magic[16] = "libdist gpt 1\n";

checkpoint_t checkpoint_of(const gpt_options_t *options)
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

static void fail(const char *path, const char *what)
{
    fprintf(stderr, "gpt: %s: %s: %s\n", path, what, strerror(errno));
    exit(2);
}

static void refuse(const char *path, const char *why)
{
    fprintf(stderr, "gpt: %s: %s\n", path, why);
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
    int opened = open(folder, O_RDONLY);
    if (opened >= 0) {
        (void)fsync(opened); /* some file systems cannot do it for folders */
        (void)close(opened);
    }
    free(folder);
}

void checkpoint_write(const char *path, const checkpoint_t *checkpoint, const float *values, size_t count, const void *states)
{
    char *unfinished = allocate(strlen(path) + sizeof ".tmp", 1);
    sprintf(unfinished, "%s.tmp", path);
    FILE *file = fopen(unfinished, "wb");
    if (file == NULL) {
        fail(unfinished, "cannot create the file");
    }
    const size_t bytes = (size_t)checkpoint->state_bytes;
    const int is_written = fwrite(magic, sizeof magic, 1, file) == 1 && fwrite(checkpoint, sizeof *checkpoint, 1, file) == 1 &&
                           fwrite(values, sizeof *values, count, file) == count && fwrite(states, 1, bytes, file) == bytes &&
                           fflush(file) == 0 && fsync(fileno(file)) == 0;
    if (!is_written || fclose(file) != 0) {
        fail(unfinished, "cannot write the file");
    }
    if (rename(unfinished, path) != 0) {
        fail(path, "cannot replace the file");
    }
    sync_folder(path);
    free(unfinished);
}

static void compare(const char *path, const char *option, uint64_t saved, uint64_t expected)
{
    if (saved != expected) {
        fprintf(stderr, "gpt: %s: the checkpoint is of %s %" PRIu64 ", not %" PRIu64 "\n", path, option, saved, expected);
        exit(2);
    }
}

static void compare_all(const char *path, const checkpoint_t *saved, const checkpoint_t *expected)
{
    compare(path, "--layers", saved->layers, expected->layers);
    compare(path, "--heads", saved->heads, expected->heads);
    compare(path, "--width", saved->width, expected->width);
    compare(path, "--context", saved->context, expected->context);
    compare(path, "--batch", saved->batch, expected->batch);
    compare(path, "--seed", saved->seed, expected->seed);
    if (saved->form != expected->form) {
        refuse(path, saved->form == STATES_WHOLE ? "the checkpoint is of --zero 0: continue with --zero 0"
                                                 : "the checkpoint is of --zero 1 or 2: continue with one of these");
    }
}

int checkpoint_read(const char *path, checkpoint_t *checkpoint, float *values, size_t count, void **states)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        if (errno != ENOENT) {
            fail(path, "cannot open the file");
        }
        return 0;
    }
    char start[sizeof magic];
    checkpoint_t saved;
    if (fread(start, sizeof start, 1, file) != 1 || memcmp(start, magic, sizeof magic) != 0) {
        refuse(path, "the file is no checkpoint of this version of gpt");
    }
    if (fread(&saved, sizeof saved, 1, file) != 1) {
        refuse(path, "the checkpoint is too short");
    }
    compare_all(path, &saved, checkpoint);
    if (saved.form == STATES_WHOLE && saved.state_bytes != 2 * count * sizeof *values) {
        refuse(path, "the states have a wrong size");
    }
    *states = allocate((size_t)saved.state_bytes, 1);
    if (fread(values, sizeof *values, count, file) != count ||
        fread(*states, 1, (size_t)saved.state_bytes, file) != saved.state_bytes || fgetc(file) != EOF) {
        refuse(path, "the checkpoint is too short or too long");
    }
    fclose(file);
    *checkpoint = saved;
    return 1;
}
