/*
 * Groups that stage device memory through host memory. Some cases use lengths around the piece
 * length, in place and not, and check the order of streams. Others send messages with tags, from
 * any source, in any order, too long and too late. One case runs all ranks on one thread. The
 * argument is the name of a case.
 */
#include "staged.h"

#include <stdint.h>

static const size_t lengths[] = { 1, 64, 1365, 2048, 4095, 4096, 4097, 8192, 8193, 12289, MAX_BYTES };
#define LENGTHS (sizeof lengths / sizeof lengths[0])

static unsigned char expected_byte(int from, int to, size_t index)
{
    return (unsigned char)(from * 59 + to * 23 + (int)(index * 7 + index / 251) + 1);
}

/* Returns `size` blocks of a rank, one for each rank. */
static unsigned char *make_blocks(const struct rank *self, size_t length, int is_shared)
{
    static _Thread_local unsigned char bytes[MAX_RANKS * MAX_BYTES];
    for (int to = 0; to < self->size; to++) {
        for (size_t i = 0; i < length; i++) {
            bytes[(size_t)to * length + i] = expected_byte(self->rank, is_shared ? 0 : to, i);
        }
    }
    return bytes;
}

static void check_block(const struct rank *self, const char *call, const unsigned char *block, int from, int to,
                        size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (!CHECK(block[i] == expected_byte(from, to, i))) {
            printf("  %s of %zu: rank %d of %d, byte %zu of rank %d\n", call, length, self->rank, self->size, i, from);
            return;
        }
    }
}

static void check_sums(const struct rank *self, const char *call, const unsigned char *block, int to, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        unsigned char sum = 0;
        for (int from = 0; from < self->size; from++) {
            sum = (unsigned char)(sum + expected_byte(from, to, i));
        }
        if (!CHECK(block[i] == sum)) {
            printf("  %s of %zu: rank %d of %d, byte %zu\n", call, length, self->rank, self->size, i);
            return;
        }
    }
}

static void check_length(struct rank *self, size_t length)
{
    dist_group_t *group = self->group;
    size_t all = length * (size_t)self->size;
    size_t own = length * (size_t)self->rank;
    int root = (int)(length % (size_t)self->size);
    unsigned char *memory = device_memory(all, make_blocks(self, length, 0));
    unsigned char *other = device_memory(all, NULL);
    CHECK_OK(dist_all_to_all(group, memory, other, length, DIST_U8, NULL, NULL));
    for (int from = 0; from < self->size; from++) {
        check_block(self, "all_to_all", bytes_at(other, all) + length * (size_t)from, from, self->rank, length);
    }
    CHECK_OK(dist_reduce_scatter(group, memory, memory + own, length, DIST_U8, DIST_SUM, NULL, NULL));
    check_sums(self, "reduce_scatter", bytes_at(memory, all) + own, self->rank, length);
    memcpy(bytes_at(memory, all), make_blocks(self, length, 1), all);
    CHECK_OK(dist_all_gather(group, memory + own, memory, length, DIST_U8, NULL, NULL));
    for (int from = 0; from < self->size; from++) {
        check_block(self, "all_gather", bytes_at(memory, all) + length * (size_t)from, from, 0, length);
    }
    memcpy(bytes_at(memory, all), make_blocks(self, length, 1), all);
    CHECK_OK(dist_all_reduce(group, memory, memory, length, DIST_U8, DIST_SUM, NULL, NULL));
    check_sums(self, "all_reduce", bytes_at(memory, all), 0, length);
    memcpy(bytes_at(memory, all), make_blocks(self, length, 1), all);
    CHECK_OK(dist_reduce(group, memory, other, length, DIST_U8, DIST_SUM, root, NULL, NULL));
    if (self->rank == root) {
        check_sums(self, "reduce", bytes_at(other, all), 0, length);
    }
    CHECK_OK(dist_broadcast(group, memory, length, DIST_U8, root, NULL, NULL));
    check_block(self, "broadcast", bytes_at(memory, all), root, 0, length);
    free_device(memory);
    free_device(other);
}

/* A ring of messages in a batch, with works. */
static void check_message_ring(struct rank *self, size_t length)
{
    int next = (self->rank + 1) % self->size, before = (self->rank + self->size - 1) % self->size;
    unsigned char *send = device_memory(length, make_blocks(self, length, 1)), *recv = device_memory(length, NULL);
    dist_work_t *work = NULL;
    CHECK_OK(dist_batch_begin(NULL, 0));
    CHECK_OK(dist_send(self->group, send, length, DIST_U8, next, 9, NULL, NULL));
    CHECK_OK(dist_recv(self->group, recv, length, DIST_U8, before, 9, NULL, NULL, NULL));
    REQUIRE_OK(dist_batch_end(&work));
    CHECK_OK(dist_work_wait(work, LIMIT_MS));
    CHECK_OK(dist_work_release(work));
    check_block(self, "a message", bytes_at(recv, length), before, 0, length);
    free_device(send);
    free_device(recv);
}

static void check_boundary_lengths(struct rank *self)
{
    for (size_t i = 0; i < LENGTHS; i++) {
        check_length(self, lengths[i]);
        check_message_ring(self, lengths[i]);
    }
}

/* A call waits for the earlier work on the caller's stream, but not for work that the caller
 * enqueues later. */
static void stream_order_is_kept(struct rank *self)
{
    unsigned char *memory = device_memory(MAX_BYTES, NULL), *other = device_memory(MAX_BYTES, NULL);
    dist_call_options_t options = stream_options(self);
    struct delay before = { 0 }, after = { 0 };
    dist_work_t *work = NULL;
    before.fill = bytes_at(memory, MAX_BYTES);
    before.value = (unsigned char)(self->rank + 1);
    before.length = MAX_BYTES;
    for (int is_message = 0; is_message < 2; is_message++) {
        memset(before.fill, 0, MAX_BYTES);
        atomic_store(&before.may_continue, 0);
        atomic_store(&after.may_continue, 0);
        REQUIRE(cuLaunchHostFunc(self->stream, hold_stream, &before) == CUDA_SUCCESS);
        if (is_message) {
            int next = (self->rank + 1) % self->size, last = (self->rank + self->size - 1) % self->size;
            REQUIRE_OK(dist_batch_begin(NULL, 0));
            CHECK_OK(dist_send(self->group, memory, MAX_BYTES, DIST_U8, next, 0, &options, NULL));
            CHECK_OK(dist_recv(self->group, other, MAX_BYTES, DIST_U8, last, 0, NULL, &options, NULL));
            REQUIRE_OK(dist_batch_end(&work));
        } else {
            REQUIRE_OK(dist_all_reduce(self->group, memory, other, MAX_BYTES, DIST_U8, DIST_SUM, &options, &work));
        }
        REQUIRE(cuLaunchHostFunc(self->stream, hold_stream, &after) == CUDA_SUCCESS);
        CHECK_STATUS(dist_work_wait(work, 50), DIST_IN_PROGRESS);
        atomic_store(&before.may_continue, 1);
        CHECK_OK(dist_work_wait(work, LIMIT_MS));
        CHECK_OK(dist_work_synchronize(work, LIMIT_MS));
        CHECK_OK(dist_work_release(work));
        int last = (self->rank + self->size - 1) % self->size;
        int expected = is_message ? last + 1 : self->size * (self->size + 1) / 2;
        CHECK(bytes_at(other, MAX_BYTES)[0] == expected && bytes_at(other, MAX_BYTES)[MAX_BYTES - 1] == expected);
        atomic_store(&after.may_continue, 1);
        REQUIRE(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    }
    free_device(memory);
    free_device(other);
}

/* Messages by tag and from any source, received in another order than sent, in both directions
 * at the same time. */
static void messages_match_by_tag_and_source(struct rank *self)
{
    enum { MESSAGES_PER_PEER = 6 };
    size_t length = 9000;
    unsigned char *out[MESSAGES_PER_PEER], *in[MESSAGES_PER_PEER];
    dist_work_t *works[2 * MESSAGES_PER_PEER];
    int peer = 1 - self->rank;
    for (int i = 0; i < MESSAGES_PER_PEER; i++) {
        out[i] = device_memory(length, NULL);
        in[i] = device_memory(length, NULL);
        memset(bytes_at(out[i], length), 10 * self->rank + i, length);
    }
    /* Both ranks send first; a send does not wait for the peer to post its receive. */
    for (int i = 0; i < MESSAGES_PER_PEER; i++) {
        REQUIRE_OK(dist_send(self->group, out[i], length - (size_t)i, DIST_U8, peer, (uint32_t)i, NULL,
                             &works[i]));
    }
    /* The receives take the last tags first; the last two receives take any tag, one of them
     * from any source. */
    for (int i = MESSAGES_PER_PEER - 1; i >= 0; i--) {
        int32_t from = i == 0 ? DIST_ANY_SOURCE : peer;
        if (i > 1) {
            REQUIRE_OK(dist_recv(self->group, in[i], length, DIST_U8, from, i, NULL, NULL,
                                 &works[MESSAGES_PER_PEER + i]));
        } else {
            REQUIRE_OK(dist_recv(self->group, in[1 - i], length, DIST_U8, from, DIST_ANY_TAG, NULL, NULL,
                                 &works[MESSAGES_PER_PEER + 1 - i]));
        }
    }
    for (int i = 0; i < 2 * MESSAGES_PER_PEER; i++) {
        CHECK_OK(dist_work_wait(works[i], LIMIT_MS));
        if (i >= MESSAGES_PER_PEER) {
            int tag = i - MESSAGES_PER_PEER;
            CHECK(dist_work_source(works[i]) == peer && dist_work_tag(works[i]) == tag);
            unsigned char *actual = bytes_at(in[tag], length);
            CHECK(actual[0] == 10 * peer + tag && actual[length - (size_t)tag - 1] == 10 * peer + tag);
            CHECK(tag == 0 || actual[length - 1] == 0xA5);
        }
        CHECK_OK(dist_work_release(works[i]));
    }
    /* A message to the rank itself, and an empty message. */
    REQUIRE_OK(dist_send(self->group, out[0], length, DIST_U8, self->rank, 3, NULL, &works[0]));
    CHECK_OK(dist_recv(self->group, in[0], length, DIST_U8, self->rank, 3, NULL, NULL, NULL));
    CHECK_OK(dist_work_wait(works[0], LIMIT_MS));
    CHECK_OK(dist_work_release(works[0]));
    CHECK(bytes_at(in[0], length)[length - 1] == 10 * self->rank);
    for (int i = 0; i < MESSAGES_PER_PEER; i++) {
        free_device(out[i]);
        free_device(in[i]);
    }
}

/* A message that is too long fails the receive and stays for the next one. A message without a
 * receive reaches its deadline, and the group stays usable. */
static void too_long_message_fails_only_its_receive(struct rank *self)
{
    float *memory = device_memory(MAX_BYTES, NULL);
    dist_call_options_t deadline_options = DIST_CALL_OPTIONS_INIT;
    deadline_options.timeout_ms = 200;
    if (self->rank == 0) {
        CHECK_STATUS(dist_send(self->group, memory, 10, DIST_F32, 1, 7, &deadline_options, NULL), DIST_ERR_TIMEOUT);
        CHECK_MESSAGE("not matched");
        CHECK_OK(dist_barrier(self->group, NULL, NULL));
        memset(bytes_at((unsigned char *)memory, MAX_BYTES), 3, MAX_BYTES);
        CHECK_OK(dist_send(self->group, memory, 2000, DIST_F32, 1, 7, NULL, NULL));
    } else {
        CHECK_STATUS(dist_recv(self->group, memory, 10, DIST_F32, 0, 8, NULL, &deadline_options, NULL),
                     DIST_ERR_TIMEOUT);
        CHECK_OK(dist_barrier(self->group, NULL, NULL));
        CHECK_REFUSED(dist_recv(self->group, memory, 1999, DIST_F32, 0, 7, NULL, NULL, NULL), DIST_ERR_MISMATCH, "7996");
        CHECK_REFUSED(dist_recv(self->group, memory, 9000, DIST_U8, 0, 7, NULL, NULL, NULL), DIST_ERR_MISMATCH, "f32");
        CHECK(bytes_at((unsigned char *)memory, MAX_BYTES)[0] == 0xA5);
        CHECK_OK(dist_recv(self->group, memory, 2001, DIST_F32, 0, 7, NULL, NULL, NULL));
        unsigned char *actual = bytes_at((unsigned char *)memory, MAX_BYTES);
        CHECK(actual[0] == 3 && actual[7999] == 3 && actual[8000] == 0xA5);
    }
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
    free_device(memory);
}

/* A receive matches a message, but its stream is blocked, so the transfer does not start. The
 * sender gives up, and the receive waits for the next message. */
static void receive_waits_after_a_withdrawn_send(struct rank *self)
{
    unsigned char *memory = device_memory(MAX_BYTES, NULL);
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    struct delay delay = { 0 };
    if (self->rank == 0) {
        options.timeout_ms = 300;
        memset(bytes_at(memory, MAX_BYTES), 1, MAX_BYTES);
        CHECK_OK(dist_barrier(self->group, NULL, NULL));
        CHECK_STATUS(dist_send(self->group, memory, MAX_BYTES, DIST_U8, 1, 7, &options, NULL), DIST_ERR_TIMEOUT);
        memset(bytes_at(memory, MAX_BYTES), 2, MAX_BYTES);
        CHECK_OK(dist_barrier(self->group, NULL, NULL));
        CHECK_OK(dist_barrier(self->group, NULL, NULL));
        CHECK_OK(dist_send(self->group, memory, MAX_BYTES, DIST_U8, 1, 7, NULL, NULL));
    } else {
        dist_work_t *work = NULL;
        options = stream_options(self);
        REQUIRE(cuLaunchHostFunc(self->stream, hold_stream, &delay) == CUDA_SUCCESS);
        REQUIRE_OK(dist_recv(self->group, memory, MAX_BYTES, DIST_U8, 0, 7, NULL, &options, &work));
        CHECK_OK(dist_barrier(self->group, NULL, NULL));
        CHECK_OK(dist_barrier(self->group, NULL, NULL));
        atomic_store(&delay.may_continue, 1);
        CHECK_STATUS(dist_work_wait(work, 100), DIST_IN_PROGRESS);
        CHECK_OK(dist_barrier(self->group, NULL, NULL));
        CHECK_OK(dist_work_wait(work, LIMIT_MS));
        CHECK_OK(dist_work_release(work));
        CHECK(bytes_at(memory, MAX_BYTES)[0] == 2 && bytes_at(memory, MAX_BYTES)[MAX_BYTES - 1] == 2);
    }
    free_device(memory);
}

static void check_works(struct rank *self)
{
    enum { N_WORKS = 20 };
    unsigned char *memory[N_WORKS];
    dist_work_t *all[N_WORKS];
    for (int i = 0; i < N_WORKS; i++) {
        memory[i] = device_memory(MAX_BYTES, NULL);
        memset(bytes_at(memory[i], MAX_BYTES), self->rank + i, MAX_BYTES);
        REQUIRE_OK(dist_all_reduce(self->group, memory[i], memory[i], MAX_BYTES, DIST_U8, DIST_MAX, NULL, &all[i]));
    }
    for (int i = N_WORKS - 1; i >= 0; i--) {
        CHECK_OK(dist_work_synchronize(all[i], LIMIT_MS));
        CHECK_OK(dist_work_release(all[i]));
        CHECK(bytes_at(memory[i], MAX_BYTES)[MAX_BYTES - 1] == self->size - 1 + i);
        free_device(memory[i]);
    }
}

static void wrong_options_are_refused(struct rank *self)
{
    dist_group_t *group = NULL;
    self->backend_options = "staging.chunk_bytes=1";
    CHECK_REFUSED(make_group(self, "wrong", &group), DIST_ERR_INVALID_ARGUMENT, "staging.chunk_bytes=4096");
    self->backend_options = NULL;
    self->backend = "cpu:native,cuda:other";
    CHECK_REFUSED(make_group(self, "wrong", &group), DIST_ERR_NOT_FOUND, "\"other\"");
    self->backend = "cpu:other,cuda:native";
    CHECK_REFUSED(make_group(self, "wrong", &group), DIST_ERR_NOT_FOUND, "\"other\"");
    self->backend = "native";
    self->device = 77;
    CHECK_REFUSED(make_group(self, "wrong", &group), DIST_ERR_BACKEND, "device 77");
}

/* If the device of one rank does not exist, all ranks get the same status and the same reason. */
static void missing_device_is_reported_on_all_ranks(struct rank *self)
{
    dist_group_t *group = NULL;
    self->device = self->rank == 1 ? 77 : self->gpu;
    CHECK_REFUSED(make_group(self, "missing", &group), DIST_ERR_BACKEND, "rank 1 has no device: device 77 does not exist");
    CHECK(group == NULL);
}

/* Several ranks share one device. */
static void check_shared_device(struct rank *self)
{
    self->device = 0;
}

static void ranks_may_share_a_device(struct rank *self)
{
    CHECK(cuCtxSetCurrent(NULL) == CUDA_SUCCESS);
    CUcontext context;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS && cuCtxSetCurrent(context) == CUDA_SUCCESS);
    REQUIRE_OK(make_group(self, "shared", &self->group));
    check_length(self, 5000);
    CHECK_OK(dist_group_release(self->group));
    CHECK(cuCtxSetCurrent(self->context) == CUDA_SUCCESS && cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
}

/* One thread drives the groups of all ranks, each with its device; the calls complete only
 * together. */
static struct rank *all_ranks[MAX_RANKS];
static pthread_barrier_t rank_barrier;

static void one_thread_drives_all_ranks(struct rank *self)
{
    all_ranks[self->rank] = self;
    if (self->rank == 0) {
        pthread_barrier_init(&rank_barrier, NULL, (unsigned)self->size);
    }
    /* After this barrier all ranks and the threads' barrier exist. */
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
    unsigned char *memory = device_memory(MAX_BYTES, NULL), *other = device_memory(MAX_BYTES, NULL);
    static unsigned char *memories[MAX_RANKS], *others[MAX_RANKS];
    memset(bytes_at(memory, MAX_BYTES), self->rank + 1, MAX_BYTES);
    memories[self->rank] = memory;
    others[self->rank] = other;
    pthread_barrier_wait(&rank_barrier);
    for (int round = 0; round < 2 && self->rank == 0; round++) {
        dist_work_t *work = NULL;
        REQUIRE_OK(dist_batch_begin(NULL, 0));
        for (int i = 0; i < self->size; i++) {
            dist_group_t *group = all_ranks[i]->group;
            if (round == 0) {
                CHECK_OK(dist_all_reduce(group, memories[i], memories[i], MAX_BYTES, DIST_U8, DIST_SUM, NULL, NULL));
            } else {
                CHECK_OK(dist_send(group, memories[i], MAX_BYTES, DIST_U8, (i + 1) % self->size, 0, NULL, NULL));
                CHECK_OK(dist_recv(group, others[i], MAX_BYTES, DIST_U8, (i + self->size - 1) % self->size, 0, NULL,
                                   NULL, NULL));
            }
        }
        REQUIRE_OK(dist_batch_end(&work));
        CHECK_OK(dist_work_synchronize(work, LIMIT_MS));
        CHECK_OK(dist_work_release(work));
    }
    pthread_barrier_wait(&rank_barrier);
    int expected = self->size * (self->size + 1) / 2;
    CHECK(bytes_at(memory, MAX_BYTES)[0] == expected && bytes_at(memory, MAX_BYTES)[MAX_BYTES - 1] == expected);
    CHECK(bytes_at(other, MAX_BYTES)[0] == expected && bytes_at(other, MAX_BYTES)[MAX_BYTES - 1] == expected);
    free_device(memory);
    free_device(other);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*body)(struct rank *self);
        int min_ranks;
        int max_ranks;
        const char *options;
    } cases[] = {
        { "boundaries", check_boundary_lengths, 1, MAX_RANKS, OPTIONS },
        { "between_hosts", check_boundary_lengths, 2, MAX_RANKS, OPTIONS ";transport=tcp" },
        { "between_hosts", check_boundary_lengths, 3, MAX_RANKS, OPTIONS ";host_id=" },
        { "streams", stream_order_is_kept, 1, 3, OPTIONS },
        { "messages", messages_match_by_tag_and_source, 2, 2, OPTIONS },
        { "messages", messages_match_by_tag_and_source, 2, 2, OPTIONS ";transport=tcp" },
        { "misfits", too_long_message_fails_only_its_receive, 2, 2, OPTIONS },
        { "misfits", receive_waits_after_a_withdrawn_send, 2, 2, OPTIONS },
        { "works", check_works, 1, 3, OPTIONS },
        { "works", check_works, 3, 3, OPTIONS ";transport=tcp" },
        { "one_thread", one_thread_drives_all_ranks, 1, MAX_RANKS, OPTIONS },
    };
    REQUIRE(argc == 2);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int size = cases[i].min_ranks; size <= cases[i].max_ranks && strcmp(argv[1], cases[i].name) == 0; size++) {
            run_on_ranks_with_options(size, "native", cases[i].options, cases[i].body);
        }
    }
    if (strcmp(argv[1], "groups") == 0) {
        run_on_bare_ranks(1, "native", NULL, wrong_options_are_refused);
        run_on_bare_ranks(3, "native", NULL, missing_device_is_reported_on_all_ranks);
        run_on_bare_ranks(3, "native", check_shared_device, ranks_may_share_a_device);
    }
    check_nothing_leaked();
    return check_report();
}
