/*
 * A stub of libucc.so.1 for tests of the back end "ucc". It has the functions that libdist uses, and
 * all_reduce (sum of f32 and of i64), broadcast, all_gather and barrier, in host memory and in
 * memory of the stub of CUDA. The ranks of a team share a file, whose name they exchange with the
 * caller's own all_gather, as in UCC.
 *
 * DIST_STUB_UCC selects a fault:
 *
 * - old: the version is 1.1.
 * - no_init, no_context: ucc_init_version or ucc_context_create fails.
 * - no_team: ucc_team_create_test fails, after the exchange. team_hangs: it never ends.
 * - unsupported: ucc_collective_init refuses every call.
 * - post_fails: ucc_collective_post fails.
 * - hangs: no collective ends. fails: every collective ends with an error.
 * - no_destroy: ucc_team_destroy never ends.
 *
 * A misuse (a call after an end, arguments that contradict each other) is written to DIST_STUB_LOG.
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* The stub of CUDA: returns the host's view of device memory. */
extern void *dist_stub_cuda_alias(const void *device, size_t bytes) __attribute__((weak));

typedef int status_t;
enum { OK = 0, IN_PROGRESS = 1, INITIALIZED = 2, NOT_SUPPORTED = -1, FAILED = -6 };
enum { ALL_GATHER = 1, ALL_REDUCE = 1 << 2, BARRIER = 1 << 5, BROADCAST = 1 << 6 };
enum { OP_SUM = 0, IN_PLACE = 1, DT_INT64 = 3 << 3, DT_BYTES = 5 << 3, DT_FLOAT32 = 11 << 3 };
enum { MAX_RANKS = 8, SLOT_BYTES = 8 << 20, NAME_BYTES = 64 };

struct lib_params {
    uint64_t mask;
    int thread_mode;
    uint64_t coll_types, reduction_types;
    int sync_type;
};

struct oob {
    status_t (*allgather)(void *, void *, size_t, void *, void **);
    status_t (*req_test)(void *);
    status_t (*req_free)(void *);
    void *info;
    uint32_t n_eps, ep;
};

struct context_params {
    uint64_t mask;
    int type, sync_type;
    struct oob oob;
    uint64_t id, mem[2];
};

struct team_params {
    uint64_t mask, flags;
    int ordering;
    uint64_t outstanding, ep, *ep_list;
    int ep_range;
    uint64_t size;
    int sync_type;
    struct oob oob;
    void *p2p[5];
    uint64_t mem[2];
    struct {
        int type;
        uint64_t n, map[2];
    } ep_map;
    uint64_t id;
};

struct buffer {
    void *buffer;
    uint64_t count, datatype;
    int mem_type;
    uint64_t rest;
};

struct coll_args {
    uint64_t mask;
    int coll_type;
    struct buffer src, dst;
    int op;
    uint64_t flags, root;
    int error_type;
    uint16_t tag;
    void *work, *cb[2];
    double timeout;
    uint64_t active_set[3];
};

/* The memory that the ranks of a team share. */
struct shared {
    uint64_t posted[MAX_RANKS], finished[MAX_RANKS];
    unsigned char slots[MAX_RANKS][SLOT_BYTES];
};

struct team {
    struct oob oob;
    uint64_t rank, size, sequence;
    struct shared *shared;
    char own_name[NAME_BYTES], names[MAX_RANKS][NAME_BYTES];
    void *request;
    int is_complete;
};

struct request {
    status_t status;
    struct coll_args args;
    struct team *team;
    uint64_t sequence;
    struct request *next;
};

/* The collectives that were posted and are not complete. libdist calls from one thread at a time. */
static struct request *active;

static int has_fault(const char *name)
{
    const char *fault = getenv("DIST_STUB_UCC");
    return fault != NULL && strcmp(fault, name) == 0;
}

static void misuse(const char *text)
{
    const char *path = getenv("DIST_STUB_LOG");
    FILE *log = path != NULL ? fopen(path, "a") : stderr;
    if (log != NULL) {
        fprintf(log, "ucc: %s\n", text);
        fclose(log);
    }
}

EXPORT void ucc_get_version(unsigned *major, unsigned *minor, unsigned *release)
{
    *major = 1;
    *minor = has_fault("old") ? 1 : 2;
    *release = 0;
}

EXPORT const char *ucc_status_string(status_t status)
{
    return status == NOT_SUPPORTED ? "Operation is not supported" : "Unhandled error";
}

EXPORT status_t ucc_lib_config_read(const char *prefix, const char *file, void **config)
{
    (void)prefix;
    (void)file;
    *config = malloc(1);
    return OK;
}

EXPORT void ucc_lib_config_release(void *config)
{
    free(config);
}

EXPORT status_t ucc_init_version(unsigned major, unsigned minor, const struct lib_params *params, void *config,
                                 void **lib)
{
    (void)config;
    if (major != 1 || minor != 2 || params->mask != 1) {
        misuse("ucc_init_version got other arguments");
    }
    *lib = &active;
    return has_fault("no_init") ? FAILED : OK;
}

EXPORT status_t ucc_lib_get_attr(void *lib, struct lib_params *attr)
{
    (void)lib;
    attr->thread_mode = 0;
    attr->coll_types = ALL_GATHER | ALL_REDUCE | BARRIER | BROADCAST;
    return OK;
}

EXPORT status_t ucc_context_config_read(void *lib, const char *file, void **config)
{
    (void)lib;
    return ucc_lib_config_read(NULL, file, config);
}

EXPORT void ucc_context_config_release(void *config)
{
    free(config);
}

EXPORT status_t ucc_context_create(void *lib, const struct context_params *params, void *config, void **context)
{
    (void)lib;
    (void)config;
    if (params->type != 1) {
        misuse("the context is not shared");
    }
    *context = malloc(1);
    return has_fault("no_context") ? FAILED : OK;
}

EXPORT status_t ucc_team_create_post(void **contexts, uint32_t n, const struct team_params *params, struct team **out)
{
    struct team *team = calloc(1, sizeof(*team));
    if (n != 1 || contexts[0] == NULL || params->id == 0 || params->size > MAX_RANKS || params->ep != params->oob.ep) {
        misuse("ucc_team_create_post got arguments that contradict each other");
    }
    team->oob = params->oob;
    team->rank = params->ep;
    team->size = params->size;
    if (team->rank == 0) {
        int fd;
        snprintf(team->own_name, sizeof(team->own_name), "/dist-stub-ucc-%d-%u", (int)getpid(), (unsigned)params->id);
        fd = shm_open(team->own_name, O_RDWR | O_CREAT | O_EXCL, 0600);
        if (fd < 0 || ftruncate(fd, sizeof(struct shared)) != 0) {
            return FAILED;
        }
        close(fd);
    }
    *out = team;
    return team->oob.allgather(team->own_name, team->names, NAME_BYTES, team->oob.info, &team->request);
}

EXPORT status_t ucc_team_create_test(struct team *team)
{
    int fd;
    status_t status;
    if (team->request == NULL) {
        /* All ranks have opened the file when the second exchange ends. */
        return OK;
    }
    status = team->oob.req_test(team->request);
    if (status != OK || has_fault("team_hangs")) {
        return has_fault("team_hangs") ? IN_PROGRESS : status;
    }
    team->oob.req_free(team->request);
    team->request = NULL;
    if (team->shared == NULL) {
        fd = shm_open(team->names[0], O_RDWR, 0600);
        team->shared = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (team->shared == MAP_FAILED) {
            return FAILED;
        }
        status = team->oob.allgather(team->own_name, team->names, 1, team->oob.info, &team->request);
        return status == OK ? IN_PROGRESS : status;
    }
    if (team->rank == 0) {
        shm_unlink(team->own_name);
    }
    team->is_complete = 1;
    return has_fault("no_team") ? FAILED : OK;
}

EXPORT status_t ucc_team_destroy(struct team *team)
{
    struct request *other;
    if (has_fault("no_destroy")) {
        return IN_PROGRESS;
    }
    for (other = active; other != NULL; other = other->next) {
        if (other->team == team) {
            misuse("a team with active collectives is destroyed");
        }
    }
    munmap(team->shared, sizeof(struct shared));
    free(team);
    return OK;
}

static size_t element_bytes(uint64_t datatype)
{
    return datatype == DT_INT64 ? 8 : datatype == DT_FLOAT32 ? 4 : datatype == DT_BYTES ? 1 : 0;
}

static size_t input_bytes(const struct coll_args *args)
{
    return args->coll_type == BARRIER ? 0 : args->src.count * element_bytes(args->src.datatype);
}

EXPORT status_t ucc_collective_init(const struct coll_args *args, struct request **out, struct team *team)
{
    struct request *request;
    int is_sum = args->coll_type != ALL_REDUCE ||
                 (args->op == OP_SUM && (args->src.datatype == DT_INT64 || args->src.datatype == DT_FLOAT32));
    if (!team->is_complete) {
        misuse("a collective of a team that is not complete");
    }
    if (has_fault("unsupported") || !is_sum) {
        return NOT_SUPPORTED;
    }
    if (element_bytes(args->src.datatype) == 0 && args->coll_type != BARRIER) {
        misuse("a collective of an unknown type");
    }
    request = calloc(1, sizeof(*request));
    request->status = INITIALIZED;
    request->args = *args;
    request->team = team;
    *out = request;
    return input_bytes(args) > SLOT_BYTES ? NOT_SUPPORTED : OK;
}

EXPORT status_t ucc_collective_post(struct request *request)
{
    if (request->status != INITIALIZED) {
        misuse("a collective is posted twice");
    }
    if (has_fault("post_fails")) {
        return FAILED;
    }
    request->status = IN_PROGRESS;
    request->sequence = ++request->team->sequence;
    request->next = active;
    active = request;
    return OK;
}

/* The number of buffers in device memory. */
static unsigned long device_buffers;

EXPORT unsigned long dist_stub_ucc_device_buffers(void)
{
    return device_buffers;
}

/* Returns the bytes of a buffer as the host sees them. */
static void *host_view(const struct buffer *buffer, size_t bytes)
{
    if (buffer->mem_type == 0 || bytes == 0) {
        return buffer->buffer;
    }
    device_buffers++;
    if (buffer->mem_type != 1 || dist_stub_cuda_alias == NULL) {
        misuse("a buffer in unknown memory");
        abort();
    }
    return dist_stub_cuda_alias(buffer->buffer, bytes);
}

static void add(const struct coll_args *args, void *sum, const void *other)
{
    uint64_t i;
    for (i = 0; i < args->src.count; i++) {
        if (args->src.datatype == DT_INT64) {
            ((int64_t *)sum)[i] += ((const int64_t *)other)[i];
        } else {
            ((float *)sum)[i] += ((const float *)other)[i];
        }
    }
}

static void write_result(struct request *request)
{
    struct team *team = request->team;
    struct coll_args *args = &request->args;
    size_t bytes = input_bytes(args), rank;
    char *to;
    if (args->coll_type == BARRIER) {
        return;
    }
    to = args->coll_type == BROADCAST ? host_view(&args->src, bytes)
                                      : host_view(&args->dst, args->coll_type == ALL_GATHER ? bytes * team->size : bytes);
    if (args->coll_type == BROADCAST) {
        memcpy(to, team->shared->slots[args->root], bytes);
    } else if (args->coll_type == ALL_GATHER) {
        for (rank = 0; rank < team->size; rank++) {
            memcpy(to + rank * bytes, team->shared->slots[rank], bytes);
        }
    } else {
        memcpy(to, team->shared->slots[0], bytes);
        for (rank = 1; rank < team->size; rank++) {
            add(args, to, team->shared->slots[rank]);
        }
    }
}

/* Returns true if all ranks have reached the sequence number. */
static int all_reached(struct team *team, uint64_t *numbers, uint64_t sequence)
{
    uint64_t rank;
    for (rank = 0; rank < team->size; rank++) {
        if (__atomic_load_n(&numbers[rank], __ATOMIC_ACQUIRE) < sequence) {
            return 0;
        }
    }
    return 1;
}

static void make_progress(struct request *request)
{
    struct team *team = request->team;
    struct shared *shared = team->shared;
    struct coll_args *args = &request->args;
    size_t bytes = input_bytes(args);
    int is_in_place = args->coll_type != BROADCAST && (args->flags & IN_PLACE) != 0;
    if (shared->posted[team->rank] + 1 == request->sequence &&
        all_reached(team, shared->finished, request->sequence - 1)) {
        if (bytes > 0) {
            size_t offset = is_in_place && args->coll_type == ALL_GATHER ? team->rank * bytes : 0;
            const char *from = host_view(is_in_place ? &args->dst : &args->src, offset + bytes);
            memcpy(shared->slots[team->rank], from + offset, bytes);
        }
        __atomic_store_n(&shared->posted[team->rank], request->sequence, __ATOMIC_RELEASE);
    }
    if (shared->posted[team->rank] == request->sequence && all_reached(team, shared->posted, request->sequence)) {
        write_result(request);
        __atomic_store_n(&shared->finished[team->rank], request->sequence, __ATOMIC_RELEASE);
        request->status = has_fault("fails") ? FAILED : OK;
    }
}

EXPORT status_t ucc_context_progress(void *context)
{
    struct request **link = &active;
    (void)context;
    while (*link != NULL && !has_fault("hangs")) {
        make_progress(*link);
        if ((*link)->status == IN_PROGRESS) {
            link = &(*link)->next;
        } else {
            *link = (*link)->next;
        }
    }
    return OK;
}

EXPORT status_t ucc_collective_finalize(struct request *request)
{
    if (request->status == IN_PROGRESS) {
        misuse("a collective in progress is finalised");
    }
    free(request);
    return OK;
}

EXPORT status_t ucc_dt_create_generic(const void *ops, void *context, uint64_t *datatype)
{
    (void)ops;
    (void)context;
    *datatype = 1;
    return OK;
}
