/*
 * The meeting of a communicator's ranks in the stub libnccl: a file that all ranks map, in a
 * folder that the unique id names. Both are removed when all ranks have joined or one gives up.
 *
 * As with NCCL on one host, the death of a rank is not detected. An abort of the communicator
 * ends every wait.
 */
#include "nccl_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The interval at which a waiter checks for an abort. */
#define POLL_INTERVAL_NS 20000000

_Static_assert(sizeof(_Atomic uint32_t) == sizeof(uint32_t), "a futex word");

static size_t header_bytes(void)
{
    return (sizeof(struct region) + 4095) / 4096 * 4096;
}

static size_t region_bytes(int nranks)
{
    size_t n = (size_t)nranks;
    return header_bytes() + n * CHUNK_BYTES + n * n * MESSAGE_BYTES;
}

char *meet_chunk(struct comm *comm, int rank)
{
    return (char *)comm->region + header_bytes() + (size_t)rank * CHUNK_BYTES;
}

struct channel *meet_channel(struct comm *comm, int from, int to)
{
    return &comm->region->channels[from * MAX_RANKS + to];
}

char *meet_message(struct comm *comm, int from, int to)
{
    size_t n = (size_t)comm->nranks;
    size_t channel = (size_t)from * n + (size_t)to;
    return (char *)comm->region + header_bytes() + n * CHUNK_BYTES + channel * MESSAGE_BYTES;
}

ncclResult_t meet_new_path(char *path)
{
    const char *folder = getenv("DIST_STUB_DIR");
    if (folder == NULL) {
        folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    }
    int length = snprintf(path, PATH_BYTES, "%s/dist_stub_nccl.XXXXXX", folder);
    if (length >= PATH_BYTES || mkdtemp(path) == NULL) {
        return fail(ncclSystemError, "no folder can be made in %s: %s", folder, strerror(errno));
    }
    return ncclSuccess;
}

static void format_file_path(const char *path, char *file)
{
    snprintf(file, PATH_BYTES + 16, "%s/region", path);
}

void meet_remove(const char *path)
{
    char file[PATH_BYTES + 16];
    format_file_path(path, file);
    unlink(file);
    rmdir(path);
}

/* The first rank determines the size of the region; a rank with another size gets an error. */
static ncclResult_t map_region(struct comm *comm, int fd)
{
    struct stat status;
    size_t bytes = region_bytes(comm->nranks);
    if (flock(fd, LOCK_EX) != 0 || fstat(fd, &status) != 0) {
        return fail(ncclSystemError, "the region cannot be locked: %s", strerror(errno));
    }
    if (status.st_size == 0 && ftruncate(fd, (off_t)bytes) != 0) {
        return fail(ncclSystemError, "the region cannot be made: %s", strerror(errno));
    }
    if (status.st_size != 0 && (size_t)status.st_size != bytes) {
        return refuse_call(ncclInvalidUsage, "rank %d says that there are %d ranks, and others say otherwise",
                           comm->rank, comm->nranks);
    }
    void *region = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (region == MAP_FAILED) {
        return fail(ncclSystemError, "the region cannot be mapped: %s", strerror(errno));
    }
    comm->region = region;
    comm->region->nranks = (uint32_t)comm->nranks;
    return ncclSuccess;
}

ncclResult_t meet_open(struct comm *comm)
{
    char file[PATH_BYTES + 16];
    format_file_path(comm->path, file);
    int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        return fail(ncclSystemError, "nobody waits under this id any more, %s: %s", file, strerror(errno));
    }
    ncclResult_t result = map_region(comm, fd);
    /* A mapping keeps the file open, and so also the lock; therefore the lock is released
     * explicitly. */
    flock(fd, LOCK_UN);
    close(fd);
    if (result != ncclSuccess) {
        return result;
    }
    struct rank_slot *rank_slot = &comm->region->rank_slots[comm->rank];
    if (atomic_load(&rank_slot->is_taken) != 0) {
        return refuse_call(ncclInvalidUsage, "two say that they are rank %d", comm->rank);
    }
    rank_slot->version = stub_version();
    rank_slot->device = comm->device;
    if (cuDeviceGetUuid_v2(&rank_slot->uuid, comm->device) != CUDA_SUCCESS) {
        return fail(ncclUnhandledCudaError, "the device has no uuid");
    }
    if (atomic_exchange(&rank_slot->is_taken, 1) != 0) {
        return refuse_call(ncclInvalidUsage, "two say that they are rank %d", comm->rank);
    }
    meet_notify(comm);
    return ncclSuccess;
}

void meet_close(struct comm *comm)
{
    if (comm->region != NULL) {
        munmap(comm->region, region_bytes(comm->nranks));
        comm->region = NULL;
    }
}

void meet_notify(struct comm *comm)
{
    if (comm->region != NULL) {
        atomic_fetch_add(&comm->region->doorbell, 1);
        syscall(SYS_futex, &comm->region->doorbell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
}

uint32_t meet_doorbell(struct comm *comm)
{
    return atomic_load(&comm->region->doorbell);
}

void meet_sleep(struct comm *comm, uint32_t seen)
{
    struct timespec poll_interval = { 0, POLL_INTERVAL_NS };
    syscall(SYS_futex, &comm->region->doorbell, FUTEX_WAIT, seen, &poll_interval, NULL, 0);
}

int meet_is_over(struct comm *comm)
{
    struct comm *parent = atomic_load(&comm->parent);
    int is_parent_over = parent != NULL && atomic_load(&parent->wait_state) == WAIT_ABORTED;
    return atomic_load(&comm->wait_state) != WAIT_CONTINUES || is_parent_over;
}

static int have_all_posted(struct comm *comm, enum step_kind step_kind, uint64_t step)
{
    for (int rank = 0; rank < comm->nranks; rank++) {
        if (atomic_load(&comm->region->rank_slots[rank].posted[step_kind]) < step) {
            return 0;
        }
    }
    return 1;
}

static int have_all_taken(struct comm *comm, enum step_kind step_kind, uint64_t step)
{
    for (int rank = 0; rank < comm->nranks; rank++) {
        if (atomic_load(&comm->region->rank_slots[rank].taken[step_kind]) < step) {
            return 0;
        }
    }
    return 1;
}

static int await_condition(struct comm *comm, enum step_kind step_kind, uint64_t step,
                           int (*condition)(struct comm *comm, enum step_kind step_kind, uint64_t step))
{
    for (;;) {
        uint32_t seen = meet_doorbell(comm);
        if (condition(comm, step_kind, step)) {
            return 1;
        }
        if (meet_is_over(comm)) {
            return 0;
        }
        meet_sleep(comm, seen);
    }
}

int meet_begin(struct comm *comm, enum step_kind step_kind)
{
    uint64_t step = ++comm->step[step_kind];
    return await_condition(comm, step_kind, step - 1, have_all_taken);
}

int meet_post(struct comm *comm, enum step_kind step_kind)
{
    uint64_t step = comm->step[step_kind];
    atomic_store(&comm->region->rank_slots[comm->rank].posted[step_kind], step);
    meet_notify(comm);
    return await_condition(comm, step_kind, step, have_all_posted);
}

void meet_end(struct comm *comm, enum step_kind step_kind)
{
    atomic_store(&comm->region->rank_slots[comm->rank].taken[step_kind], comm->step[step_kind]);
    meet_notify(comm);
}

void meet_hang(struct comm *comm)
{
    while (!meet_is_over(comm)) {
        meet_sleep(comm, meet_doorbell(comm));
    }
}

void meet_connect(struct comm *comm)
{
    atomic_store(&comm->region->rank_slots[comm->rank].is_connected, 1);
    meet_notify(comm);
}

static int are_all_connected(struct comm *comm)
{
    int connected = 0;
    for (int rank = 0; rank < comm->nranks; rank++) {
        connected += atomic_load(&comm->region->rank_slots[rank].is_connected) != 0;
    }
    return connected == comm->nranks;
}

void meet_await_connected(struct comm *comm)
{
    for (;;) {
        uint32_t seen = meet_doorbell(comm);
        if (meet_is_over(comm) || are_all_connected(comm)) {
            return;
        }
        meet_sleep(comm, seen);
    }
}
