/* Operations with NULL for every pointer (null.h). */
#include "null.h"

static dist_group_t *group;

static void ignore_result(dist_status_t status, const char *message, void *user)
{
    (void)status;
    (void)message;
    (void)user;
}

static void check_reductions(void)
{
    static const dist_call_options_t call = DIST_CALL_OPTIONS_INIT;
    const float a[2] = { 1, 2 };
    float b[2];
#define RUN(f, group, send, recv, options) f(group, send, recv, 2, DIST_F32, DIST_SUM, options, NULL)
    REFUSED(dist_all_reduce, group, RUN(dist_all_reduce, NULL, a, b, &call), HANDLE);
    REFUSED(dist_all_reduce, send, RUN(dist_all_reduce, group, NULL, b, &call), ARGUMENT);
    REFUSED(dist_all_reduce, recv, RUN(dist_all_reduce, group, a, NULL, &call), ARGUMENT);
    ACCEPTED(dist_all_reduce, options, RUN(dist_all_reduce, group, a, b, NULL), DIST_OK);
    ACCEPTED(dist_all_reduce, work, RUN(dist_all_reduce, group, a, b, &call), DIST_OK);
    REFUSED(dist_reduce_scatter, group, RUN(dist_reduce_scatter, NULL, a, b, &call), HANDLE);
    REFUSED(dist_reduce_scatter, send, RUN(dist_reduce_scatter, group, NULL, b, &call), ARGUMENT);
    REFUSED(dist_reduce_scatter, recv, RUN(dist_reduce_scatter, group, a, NULL, &call), ARGUMENT);
    ACCEPTED(dist_reduce_scatter, options, RUN(dist_reduce_scatter, group, a, b, NULL), DIST_OK);
    ACCEPTED(dist_reduce_scatter, work, RUN(dist_reduce_scatter, group, a, b, &call), DIST_OK);
    REFUSED(dist_scan, group, RUN(dist_scan, NULL, a, b, &call), HANDLE);
    REFUSED(dist_scan, send, RUN(dist_scan, group, NULL, b, &call), ARGUMENT);
    REFUSED(dist_scan, recv, RUN(dist_scan, group, a, NULL, &call), ARGUMENT);
    ACCEPTED(dist_scan, options, RUN(dist_scan, group, a, b, NULL), DIST_OK);
    ACCEPTED(dist_scan, work, RUN(dist_scan, group, a, b, &call), DIST_OK);
    REFUSED(dist_exscan, group, RUN(dist_exscan, NULL, a, b, &call), HANDLE);
    REFUSED(dist_exscan, send, RUN(dist_exscan, group, NULL, b, &call), ARGUMENT);
    ACCEPTED(dist_exscan, recv, RUN(dist_exscan, group, a, NULL, &call), DIST_OK); /* rank 0 */
    ACCEPTED(dist_exscan, options, RUN(dist_exscan, group, a, b, NULL), DIST_OK);
    ACCEPTED(dist_exscan, work, RUN(dist_exscan, group, a, b, &call), DIST_OK);
#undef RUN
#define RUN(group, send, recv, options) \
    dist_reduce(group, send, recv, 2, DIST_F32, DIST_SUM, 0, options, NULL)
    REFUSED(dist_reduce, group, RUN(NULL, a, b, &call), HANDLE);
    REFUSED(dist_reduce, send, RUN(group, NULL, b, &call), ARGUMENT);
    REFUSED(dist_reduce, recv, RUN(group, a, NULL, &call), ARGUMENT);
    ACCEPTED(dist_reduce, options, RUN(group, a, b, NULL), DIST_OK);
    ACCEPTED(dist_reduce, work, RUN(group, a, b, &call), DIST_OK);
#undef RUN
    CHECK_OK(dist_all_reduce(group, NULL, NULL, 0, DIST_F32, DIST_SUM, NULL, NULL));
}

static void keep_inout(const void *lower, void *inout, size_t count, size_t elem_bytes, void *user)
{
    (void)lower;
    (void)inout;
    (void)count;
    (void)elem_bytes;
    (void)user;
}

static void check_operators(void)
{
    dist_op_t op = 0;
    REFUSED(dist_op_create, name, dist_op_create(NULL, keep_inout, 4, 0, &op, &op), ARGUMENT);
    REFUSED(dist_op_create, function, dist_op_create("null", NULL, 4, 0, &op, &op), ARGUMENT);
    REFUSED(dist_op_create, out, dist_op_create("null", keep_inout, 4, 0, &op, NULL), ARGUMENT);
    ACCEPTED(dist_op_create, user, dist_op_create("null", keep_inout, 4, 0, NULL, &op), DIST_OK);
    CHECK_OK(dist_op_release(op));
}

static void check_copies(void)
{
    static const dist_call_options_t call = DIST_CALL_OPTIONS_INIT;
    const float a[2] = { 1, 2 };
    float b[2];
    REFUSED(dist_broadcast, group, dist_broadcast(NULL, b, 2, DIST_F32, 0, &call, NULL), HANDLE);
    REFUSED(dist_broadcast, buf, dist_broadcast(group, NULL, 2, DIST_F32, 0, &call, NULL), ARGUMENT);
    ACCEPTED(dist_broadcast, options, dist_broadcast(group, b, 2, DIST_F32, 0, NULL, NULL), DIST_OK);
    ACCEPTED(dist_broadcast, work, dist_broadcast(group, b, 2, DIST_F32, 0, &call, NULL), DIST_OK);
#define RUN(group, send, recv, options) dist_all_gather(group, send, recv, 2, DIST_F32, options, NULL)
    REFUSED(dist_all_gather, group, RUN(NULL, a, b, &call), HANDLE);
    REFUSED(dist_all_gather, send, RUN(group, NULL, b, &call), ARGUMENT);
    REFUSED(dist_all_gather, recv, RUN(group, a, NULL, &call), ARGUMENT);
    ACCEPTED(dist_all_gather, options, RUN(group, a, b, NULL), DIST_OK);
    ACCEPTED(dist_all_gather, work, RUN(group, a, b, &call), DIST_OK);
#undef RUN
    REFUSED(dist_barrier, group, dist_barrier(NULL, &call, NULL), HANDLE);
    ACCEPTED(dist_barrier, options, dist_barrier(group, NULL, NULL), DIST_OK);
    ACCEPTED(dist_barrier, work, dist_barrier(group, &call, NULL), DIST_OK);
}

static void check_moves(void)
{
    static const dist_call_options_t call = DIST_CALL_OPTIONS_INIT;
    const float a[2] = { 1, 2 };
    float b[2];
#define RUN(group, send, recv, options) dist_gather(group, send, recv, 2, DIST_F32, 0, options, NULL)
    REFUSED(dist_gather, group, RUN(NULL, a, b, &call), HANDLE);
    REFUSED(dist_gather, send, RUN(group, NULL, b, &call), ARGUMENT);
    REFUSED(dist_gather, recv, RUN(group, a, NULL, &call), ARGUMENT);
    ACCEPTED(dist_gather, options, RUN(group, a, b, NULL), DIST_OK);
    ACCEPTED(dist_gather, work, RUN(group, a, b, &call), DIST_OK);
#undef RUN
#define RUN(group, send, recv, options) dist_scatter(group, send, recv, 2, DIST_F32, 0, options, NULL)
    REFUSED(dist_scatter, group, RUN(NULL, a, b, &call), HANDLE);
    REFUSED(dist_scatter, send, RUN(group, NULL, b, &call), ARGUMENT);
    REFUSED(dist_scatter, recv, RUN(group, a, NULL, &call), ARGUMENT);
    ACCEPTED(dist_scatter, options, RUN(group, a, b, NULL), DIST_OK);
    ACCEPTED(dist_scatter, work, RUN(group, a, b, &call), DIST_OK);
#undef RUN
#define RUN(group, send, recv, options) dist_all_to_all(group, send, recv, 2, DIST_F32, options, NULL)
    REFUSED(dist_all_to_all, group, RUN(NULL, a, b, &call), HANDLE);
    REFUSED(dist_all_to_all, send, RUN(group, NULL, b, &call), ARGUMENT);
    REFUSED(dist_all_to_all, recv, RUN(group, a, NULL, &call), ARGUMENT);
    ACCEPTED(dist_all_to_all, options, RUN(group, a, b, NULL), DIST_OK);
    ACCEPTED(dist_all_to_all, work, RUN(group, a, b, &call), DIST_OK);
#undef RUN
}

static void check_one_buffer_calls(void)
{
    static const dist_call_options_t call = DIST_CALL_OPTIONS_INIT;
    static const size_t counts[1] = { 2 }, displs[1] = { 0 };
    const float x[2] = { 1, 2 };
    float y[2];
    size_t all[1];
    int32_t equal, differing;
#define RUN(group, send, recv, counts, displs, options) \
    dist_all_gather_v_at(group, send, recv, counts, displs, DIST_F32, options, NULL)
    REFUSED(dist_all_gather_v_at, group, RUN(NULL, x, y, counts, displs, &call), HANDLE);
    REFUSED(dist_all_gather_v_at, send, RUN(group, NULL, y, counts, displs, &call), ARGUMENT);
    REFUSED(dist_all_gather_v_at, recv, RUN(group, x, NULL, counts, displs, &call), ARGUMENT);
    REFUSED(dist_all_gather_v_at, counts, RUN(group, x, y, NULL, displs, &call), ARGUMENT);
    ACCEPTED(dist_all_gather_v_at, displs, RUN(group, x, y, counts, NULL, &call), DIST_OK);
    ACCEPTED(dist_all_gather_v_at, options, RUN(group, x, y, counts, displs, NULL), DIST_OK);
    ACCEPTED(dist_all_gather_v_at, work, RUN(group, x, y, counts, displs, &call), DIST_OK);
#undef RUN
    REFUSED(dist_all_gather_counts, group, dist_all_gather_counts(NULL, 1, all, &call, NULL), HANDLE);
    REFUSED(dist_all_gather_counts, counts, dist_all_gather_counts(group, 1, NULL, &call, NULL), ARGUMENT);
    ACCEPTED(dist_all_gather_counts, options, dist_all_gather_counts(group, 1, all, NULL, NULL), DIST_OK);
    ACCEPTED(dist_all_gather_counts, work, dist_all_gather_counts(group, 1, all, &call, NULL), DIST_OK);
#define RUN(group, bytes, equal, differing, options) dist_all_equal(group, bytes, 8, equal, differing, options)
    REFUSED(dist_all_equal, group, RUN(NULL, x, &equal, &differing, &call), HANDLE);
    REFUSED(dist_all_equal, bytes, RUN(group, NULL, &equal, &differing, &call), ARGUMENT);
    ACCEPTED(dist_all_equal, equal, RUN(group, x, NULL, &differing, &call), DIST_OK);
    ACCEPTED(dist_all_equal, differing_rank, RUN(group, x, &equal, NULL, &call), DIST_OK);
    ACCEPTED(dist_all_equal, options, RUN(group, x, &equal, &differing, NULL), DIST_OK);
#undef RUN
}

static void check_lists(void)
{
    static const dist_call_options_t call = DIST_CALL_OPTIONS_INIT;
    static const size_t counts[1] = { 2 };
    const float x[2] = { 1, 2 };
    float y[2];
    const void *const a[1] = { x };
    void *const b[1] = { y };
#define RUN(group, send, recv, n, options) dist_all_gather_v(group, send, recv, n, DIST_F32, options, NULL)
    REFUSED(dist_all_gather_v, group, RUN(NULL, x, b, counts, &call), HANDLE);
    REFUSED(dist_all_gather_v, send, RUN(group, NULL, b, counts, &call), ARGUMENT);
    REFUSED(dist_all_gather_v, recv, RUN(group, x, NULL, counts, &call), ARGUMENT);
    REFUSED(dist_all_gather_v, counts, RUN(group, x, b, NULL, &call), ARGUMENT);
    ACCEPTED(dist_all_gather_v, options, RUN(group, x, b, counts, NULL), DIST_OK);
    ACCEPTED(dist_all_gather_v, work, RUN(group, x, b, counts, &call), DIST_OK);
#undef RUN
#define RUN(group, send, recv, n, options) dist_gather_v(group, send, 2, recv, n, DIST_F32, 0, options, NULL)
    REFUSED(dist_gather_v, group, RUN(NULL, x, b, counts, &call), HANDLE);
    REFUSED(dist_gather_v, send, RUN(group, NULL, b, counts, &call), ARGUMENT);
    REFUSED(dist_gather_v, recv, RUN(group, x, NULL, counts, &call), ARGUMENT);
    REFUSED(dist_gather_v, counts, RUN(group, x, b, NULL, &call), ARGUMENT);
    ACCEPTED(dist_gather_v, options, RUN(group, x, b, counts, NULL), DIST_OK);
    ACCEPTED(dist_gather_v, work, RUN(group, x, b, counts, &call), DIST_OK);
#undef RUN
#define RUN(group, send, recv, n, options) dist_scatter_v(group, send, n, recv, 2, DIST_F32, 0, options, NULL)
    REFUSED(dist_scatter_v, group, RUN(NULL, a, y, counts, &call), HANDLE);
    REFUSED(dist_scatter_v, send, RUN(group, NULL, y, counts, &call), ARGUMENT);
    REFUSED(dist_scatter_v, recv, RUN(group, a, NULL, counts, &call), ARGUMENT);
    REFUSED(dist_scatter_v, counts, RUN(group, a, y, NULL, &call), ARGUMENT);
    ACCEPTED(dist_scatter_v, options, RUN(group, a, y, counts, NULL), DIST_OK);
    ACCEPTED(dist_scatter_v, work, RUN(group, a, y, counts, &call), DIST_OK);
#undef RUN
#define RUN(group, send, recv, n, options) dist_reduce_scatter_v(group, send, n, recv, DIST_F32, DIST_SUM, options, NULL)
    REFUSED(dist_reduce_scatter_v, group, RUN(NULL, a, y, counts, &call), HANDLE);
    REFUSED(dist_reduce_scatter_v, send, RUN(group, NULL, y, counts, &call), ARGUMENT);
    REFUSED(dist_reduce_scatter_v, recv, RUN(group, a, NULL, counts, &call), ARGUMENT);
    REFUSED(dist_reduce_scatter_v, counts, RUN(group, a, y, NULL, &call), ARGUMENT);
    ACCEPTED(dist_reduce_scatter_v, options, RUN(group, a, y, counts, NULL), DIST_OK);
    ACCEPTED(dist_reduce_scatter_v, work, RUN(group, a, y, counts, &call), DIST_OK);
#undef RUN
#define RUN(group, send, recv, n, options) dist_all_to_all_v(group, send, n, recv, counts, DIST_F32, options, NULL)
    REFUSED(dist_all_to_all_v, group, RUN(NULL, a, b, counts, &call), HANDLE);
    REFUSED(dist_all_to_all_v, send, RUN(group, NULL, b, counts, &call), ARGUMENT);
    REFUSED(dist_all_to_all_v, recv, RUN(group, a, NULL, counts, &call), ARGUMENT);
    REFUSED(dist_all_to_all_v, send_counts, RUN(group, a, b, NULL, &call), ARGUMENT);
    ACCEPTED(dist_all_to_all_v, options, RUN(group, a, b, counts, NULL), DIST_OK);
    ACCEPTED(dist_all_to_all_v, work, RUN(group, a, b, counts, &call), DIST_OK);
#undef RUN
    REFUSED(dist_all_to_all_v, recv_counts,
        dist_all_to_all_v(group, a, counts, b, NULL, DIST_F32, &call, NULL), ARGUMENT);
}

/* A message to the rank itself that a probe has found. */
static dist_message_t *find_own_message(int32_t value)
{
    dist_message_t *message = NULL;
    REQUIRE_OK(dist_send(group, &value, 1, DIST_I32, 0, 0, NULL, NULL));
    REQUIRE_OK(dist_probe(group, 0, 0, NULL, NULL, &message));
    return message;
}

static void check_probed_messages(const dist_call_options_t *call)
{
    dist_recv_status_t status = DIST_RECV_STATUS_INIT;
    int32_t x = 0;
    dist_message_t *message = find_own_message(1);
#define RECV(message, buf, status, options) dist_recv_message(message, buf, 1, DIST_I32, status, options, NULL)
    REFUSED(dist_recv_message, message, RECV(NULL, &x, &status, call), HANDLE);
    REFUSED(dist_recv_message, buf, RECV(message, NULL, &status, call), ARGUMENT);
    ACCEPTED(dist_recv_message, status, RECV(message, &x, NULL, call), DIST_OK);
    ACCEPTED(dist_recv_message, options, RECV(find_own_message(2), &x, &status, NULL), DIST_OK);
    ACCEPTED(dist_recv_message, work, RECV(find_own_message(3), &x, &status, call), DIST_OK);
    CHECK(x == 3 && status.count == 1);
    ACCEPTED(dist_message_release, message, dist_message_release(NULL), DIST_OK);
#undef RECV
}

static void check_messages(void)
{
    dist_message_t *message = NULL;
    static const dist_call_options_t call = DIST_CALL_OPTIONS_INIT;
    dist_call_options_t deadline_options = DIST_CALL_OPTIONS_INIT;
    int32_t x = 0;
    dist_recv_status_t status = DIST_RECV_STATUS_INIT;
    /* The rank does not exist, so every call returns immediately. */
#define SEND(group, buf, options, work) dist_send(group, buf, 1, DIST_I32, 1, 0, options, work)
#define RECV(group, buf, status, options, work) \
    dist_recv(group, buf, 1, DIST_I32, 1, 0, status, options, work)
    deadline_options.timeout_ms = 1;
    REFUSED(dist_send, group, SEND(NULL, &x, &call, NULL), HANDLE);
    REFUSED(dist_send, buf, SEND(group, NULL, &call, NULL), ARGUMENT);
    ACCEPTED(dist_send, options, SEND(group, &x, NULL, NULL), ARGUMENT);
    ACCEPTED(dist_send, work, SEND(group, &x, &call, NULL), ARGUMENT);
    CHECK_MESSAGE("rank 1 does not exist");
    REFUSED(dist_recv, group, RECV(NULL, &x, &status, &call, NULL), HANDLE);
    REFUSED(dist_recv, buf, RECV(group, NULL, &status, &call, NULL), ARGUMENT);
    ACCEPTED(dist_recv, status, RECV(group, &x, NULL, &deadline_options, NULL), ARGUMENT);
    ACCEPTED(dist_recv, options, RECV(group, &x, &status, NULL, NULL), ARGUMENT);
    ACCEPTED(dist_recv, work, RECV(group, &x, &status, &call, NULL), ARGUMENT);
    CHECK_MESSAGE("rank 1 does not exist");
#undef SEND
#undef RECV
#define PROBE(group, status, options, message) dist_probe(group, 1, 0, status, options, message)
    REFUSED(dist_probe, group, PROBE(NULL, &status, &call, &message), HANDLE);
    ACCEPTED(dist_probe, status, PROBE(group, NULL, &call, &message), ARGUMENT);
    ACCEPTED(dist_probe, options, PROBE(group, &status, NULL, &message), ARGUMENT);
    ACCEPTED(dist_probe, message, PROBE(group, &status, &call, NULL), ARGUMENT);
    CHECK_MESSAGE("rank 1 does not exist");
#undef PROBE
#define SENDRECV(group, send, recv, status, options, work) \
    dist_sendrecv(group, send, 1, 1, 0, recv, 1, 0, 0, DIST_I32, status, options, work)
    REFUSED(dist_sendrecv, group, SENDRECV(NULL, &x, &x, &status, &call, NULL), HANDLE);
    REFUSED(dist_sendrecv, send, SENDRECV(group, NULL, &x, &status, &call, NULL), ARGUMENT);
    REFUSED(dist_sendrecv, recv, SENDRECV(group, &x, NULL, &status, &call, NULL), ARGUMENT);
    ACCEPTED(dist_sendrecv, status, SENDRECV(group, &x, &x, NULL, &call, NULL), ARGUMENT);
    ACCEPTED(dist_sendrecv, options, SENDRECV(group, &x, &x, &status, NULL, NULL), ARGUMENT);
    ACCEPTED(dist_sendrecv, work, SENDRECV(group, &x, &x, &status, &call, NULL), ARGUMENT);
    CHECK_MESSAGE("rank 1 does not exist");
#undef SENDRECV
    check_probed_messages(&call);
}

static void check_tensor_lists(void)
{
    static const dist_call_options_t call = DIST_CALL_OPTIONS_INIT;
    static const int64_t shape[1] = { 2 };
    dist_tensor_t list = DIST_TENSOR_INIT;
    float x[2] = { 1, 2 };
    list.name = "x";
    list.data = x;
    list.shape = shape;
    list.n_shape = 1;
    list.dtype = DIST_F32;
#define RUN(group, tensors, options) dist_broadcast_list(group, tensors, 1, 0, options, NULL)
    REFUSED(dist_broadcast_list, group, RUN(NULL, &list, &call), HANDLE);
    REFUSED(dist_broadcast_list, tensors, RUN(group, NULL, &call), ARGUMENT);
    ACCEPTED(dist_broadcast_list, options, RUN(group, &list, NULL), DIST_OK);
    ACCEPTED(dist_broadcast_list, work, RUN(group, &list, &call), DIST_OK);
#undef RUN
#define RUN(group, tensors, options) dist_all_gather_list(group, tensors, 1, options, NULL)
    REFUSED(dist_all_gather_list, group, RUN(NULL, &list, &call), HANDLE);
    REFUSED(dist_all_gather_list, tensors, RUN(group, NULL, &call), ARGUMENT);
    ACCEPTED(dist_all_gather_list, options, RUN(group, &list, NULL), DIST_OK);
    ACCEPTED(dist_all_gather_list, work, RUN(group, &list, &call), DIST_OK);
#undef RUN
#define RUN(f, group, tensors, options) f(group, tensors, 1, DIST_SUM, options, NULL)
    REFUSED(dist_all_reduce_list, group, RUN(dist_all_reduce_list, NULL, &list, &call), HANDLE);
    REFUSED(dist_all_reduce_list, tensors, RUN(dist_all_reduce_list, group, NULL, &call), ARGUMENT);
    ACCEPTED(dist_all_reduce_list, options, RUN(dist_all_reduce_list, group, &list, NULL), DIST_OK);
    ACCEPTED(dist_all_reduce_list, work, RUN(dist_all_reduce_list, group, &list, &call), DIST_OK);
    REFUSED(dist_reduce_scatter_list, group, RUN(dist_reduce_scatter_list, NULL, &list, &call), HANDLE);
    REFUSED(dist_reduce_scatter_list, tensors, RUN(dist_reduce_scatter_list, group, NULL, &call), ARGUMENT);
    ACCEPTED(dist_reduce_scatter_list, options, RUN(dist_reduce_scatter_list, group, &list, NULL), DIST_OK);
    ACCEPTED(dist_reduce_scatter_list, work, RUN(dist_reduce_scatter_list, group, &list, &call), DIST_OK);
#undef RUN
    CHECK_OK(dist_broadcast_list(group, NULL, 0, 0, NULL, NULL));
}

static void check_byte_strings(void)
{
    static const dist_call_options_t call = DIST_CALL_OPTIONS_INIT;
    static const size_t lens[1] = { 2 };
    static const char x[2] = { 'x', 'y' };
    const void *const all[1] = { x };
    dist_blob_t *blob = NULL;
    dist_recv_status_t status = DIST_RECV_STATUS_INIT;
#define RUN(group, data, out, options) dist_broadcast_bytes(group, data, 2, 0, out, options, NULL)
    REFUSED(dist_broadcast_bytes, group, RUN(NULL, x, &blob, &call), HANDLE);
    CHECK_OK(dist_blob_release(blob));
    REFUSED(dist_broadcast_bytes, data, RUN(group, NULL, &blob, &call), ARGUMENT);
    REFUSED(dist_broadcast_bytes, out, RUN(group, x, NULL, &call), ARGUMENT);
    ACCEPTED(dist_broadcast_bytes, options, RUN(group, x, &blob, NULL), DIST_OK);
    CHECK_OK(dist_blob_release(blob));
    ACCEPTED(dist_broadcast_bytes, work, RUN(group, x, &blob, &call), DIST_OK);
    CHECK_OK(dist_blob_release(blob));
#undef RUN
#define RUN(group, data, out, options) dist_all_gather_bytes(group, data, 2, out, options, NULL)
    REFUSED(dist_all_gather_bytes, group, RUN(NULL, x, &blob, &call), HANDLE);
    CHECK_OK(dist_blob_release(blob));
    REFUSED(dist_all_gather_bytes, data, RUN(group, NULL, &blob, &call), ARGUMENT);
    REFUSED(dist_all_gather_bytes, out, RUN(group, x, NULL, &call), ARGUMENT);
    ACCEPTED(dist_all_gather_bytes, options, RUN(group, x, &blob, NULL), DIST_OK);
    CHECK_OK(dist_blob_release(blob));
    ACCEPTED(dist_all_gather_bytes, work, RUN(group, x, &blob, &call), DIST_OK);
    CHECK_OK(dist_blob_release(blob));
#undef RUN
#define RUN(group, data, out, options) dist_gather_bytes(group, data, 2, 0, out, options, NULL)
    REFUSED(dist_gather_bytes, group, RUN(NULL, x, &blob, &call), HANDLE);
    CHECK_OK(dist_blob_release(blob));
    REFUSED(dist_gather_bytes, data, RUN(group, NULL, &blob, &call), ARGUMENT);
    REFUSED(dist_gather_bytes, out, RUN(group, x, NULL, &call), ARGUMENT);
    ACCEPTED(dist_gather_bytes, options, RUN(group, x, &blob, NULL), DIST_OK);
    CHECK_OK(dist_blob_release(blob));
    ACCEPTED(dist_gather_bytes, work, RUN(group, x, &blob, &call), DIST_OK);
    CHECK_OK(dist_blob_release(blob));
#undef RUN
#define RUN(group, data, lens, out, options) dist_scatter_bytes(group, data, lens, 0, out, options, NULL)
    REFUSED(dist_scatter_bytes, group, RUN(NULL, all, lens, &blob, &call), HANDLE);
    CHECK_OK(dist_blob_release(blob));
    REFUSED(dist_scatter_bytes, data, RUN(group, NULL, lens, &blob, &call), ARGUMENT);
    REFUSED(dist_scatter_bytes, lens_bytes, RUN(group, all, NULL, &blob, &call), ARGUMENT);
    REFUSED(dist_scatter_bytes, out, RUN(group, all, lens, NULL, &call), ARGUMENT);
    ACCEPTED(dist_scatter_bytes, options, RUN(group, all, lens, &blob, NULL), DIST_OK);
    CHECK_OK(dist_blob_release(blob));
    ACCEPTED(dist_scatter_bytes, work, RUN(group, all, lens, &blob, &call), DIST_OK);
    CHECK_OK(dist_blob_release(blob));
#undef RUN
    /* The rank does not exist, so every call returns immediately. */
#define RUN(group, data, options) dist_send_bytes(group, data, 2, 1, 0, options, NULL)
    REFUSED(dist_send_bytes, group, RUN(NULL, x, &call), HANDLE);
    REFUSED(dist_send_bytes, data, RUN(group, NULL, &call), ARGUMENT);
    ACCEPTED(dist_send_bytes, options, RUN(group, x, NULL), ARGUMENT);
    ACCEPTED(dist_send_bytes, work, RUN(group, x, &call), ARGUMENT);
#undef RUN
#define RUN(group, out, status, options) dist_recv_bytes(group, out, 0, 1, 0, status, options, NULL)
    REFUSED(dist_recv_bytes, group, RUN(NULL, &blob, &status, &call), HANDLE);
    REFUSED(dist_recv_bytes, out, RUN(group, NULL, &status, &call), ARGUMENT);
    ACCEPTED(dist_recv_bytes, status, RUN(group, &blob, NULL, &call), ARGUMENT);
    ACCEPTED(dist_recv_bytes, options, RUN(group, &blob, &status, NULL), ARGUMENT);
    ACCEPTED(dist_recv_bytes, work, RUN(group, &blob, &status, &call), ARGUMENT);
    CHECK_MESSAGE("rank 1 does not exist");
#undef RUN
}

static void check_monitored_barrier(void)
{
    int32_t missing[1] = { -7 };
    size_t n = 1;
    REFUSED(dist_monitored_barrier, group, dist_monitored_barrier(NULL, 0, 1, missing, &n), HANDLE);
    ACCEPTED(dist_monitored_barrier, missing, dist_monitored_barrier(group, 0, 1, NULL, &n), DIST_OK);
    REFUSED(dist_monitored_barrier, n_missing, dist_monitored_barrier(group, 0, 1, missing, NULL), ARGUMENT);
}

static void check_batches(void)
{
    ACCEPTED(dist_batch_begin, groups, dist_batch_begin(NULL, 0), DIST_OK);
    ACCEPTED(dist_batch_end, work, dist_batch_end(NULL), DIST_OK);
    REFUSED(dist_batch_begin, groups, dist_batch_begin(NULL, 1), ARGUMENT);
}

/* A callback that is never registered with a work. */
static void unused_callback(dist_status_t status, const char *message, void *user)
{
    (void)status;
    (void)message;
    (void)user;
}

static void check_works(void)
{
    char text[64];
    dist_culprit_t culprit = DIST_CULPRIT_INIT;
    dist_work_t *work = NULL;
    size_t index = 0;
    int32_t done = 7;
    REQUIRE_OK(dist_barrier(group, NULL, &work));
    CHECK_OK(dist_work_wait(work, 0));
    REFUSED(dist_work_wait, work, dist_work_wait(NULL, 0), HANDLE);
    CHECK_OK(dist_work_wait_slice(work, 0, 0));
    CHECK_STATUS(dist_work_wait_slice(work, 0, -5), DIST_ERR_INVALID_ARGUMENT);
    REFUSED(dist_work_wait_slice, work, dist_work_wait_slice(NULL, 0, 0), HANDLE);
    CHECK_OK(dist_work_synchronize(work, 0));
    REFUSED(dist_work_synchronize, work, dist_work_synchronize(NULL, 0), HANDLE);
    REFUSED(dist_work_test, work, dist_work_test(NULL, &done), HANDLE);
    CHECK(done == 0);
    REFUSED(dist_work_test, done, dist_work_test(work, NULL), ARGUMENT);
    REFUSED(dist_work_error, work, dist_work_error(NULL, text, sizeof(text)), 0);
    REFUSED(dist_work_error, buf, dist_work_error(work, NULL, 8), 0);
    REFUSED(dist_work_on_complete, work, dist_work_on_complete(NULL, ignore_result, text), HANDLE);
    REFUSED(dist_work_on_complete, function, dist_work_on_complete(work, NULL, text), ARGUMENT);
    ACCEPTED(dist_work_on_complete, user, dist_work_on_complete(work, ignore_result, NULL), DIST_OK);
    REFUSED(dist_work_sequence, work, dist_work_sequence(NULL), 0);
    REFUSED(dist_work_start_ns, work, dist_work_start_ns(NULL), 0);
    REFUSED(dist_work_remove_callback, work, dist_work_remove_callback(NULL, ignore_result, text), HANDLE);
    REFUSED(dist_work_remove_callback, function, dist_work_remove_callback(work, NULL, text), ARGUMENT);
    ACCEPTED(dist_work_remove_callback, user, dist_work_remove_callback(work, unused_callback, NULL),
             DIST_ERR_NOT_FOUND);
    REFUSED(dist_work_culprit, work, dist_work_culprit(NULL, &culprit), HANDLE);
    REFUSED(dist_work_culprit, out, dist_work_culprit(work, NULL), ARGUMENT);
    REFUSED(dist_work_wait_all, works, dist_work_wait_all(NULL, 1, 0), ARGUMENT);
    ACCEPTED(dist_work_wait_all, works, dist_work_wait_all(NULL, 0, 0), DIST_OK);
    REFUSED(dist_work_wait_any, works, dist_work_wait_any(NULL, 1, 0, &index), ARGUMENT);
    REFUSED(dist_work_wait_any_slice, works, dist_work_wait_any_slice(NULL, 1, 0, 0, &index), ARGUMENT);
    REFUSED(dist_work_wait_any_slice, index, dist_work_wait_any_slice(&work, 1, 0, 0, NULL), ARGUMENT);
    REFUSED(dist_work_wait_any, index, dist_work_wait_any(&work, 1, 0, NULL), ARGUMENT);
    REFUSED(dist_work_test_any, works, dist_work_test_any(NULL, 1, &index), ARGUMENT);
    REFUSED(dist_work_test_any, index, dist_work_test_any(&work, 1, NULL), ARGUMENT);
    REFUSED(dist_work_elapsed_ns, work, dist_work_elapsed_ns(NULL), 0);
    REFUSED(dist_work_source, work, dist_work_source(NULL), -1);
    REFUSED(dist_work_tag, work, dist_work_tag(NULL), -1);
    REFUSED(dist_work_received_count, work, dist_work_received_count(NULL), 0);
    ACCEPTED(dist_work_release, work, dist_work_release(NULL), DIST_OK);
    CHECK_OK(dist_work_release(work));
}

int main(void)
{
    dist_store_t *store = new_store();
    start_world();
    REQUIRE_OK(join_group(store, "null", 0, 1, &group));
    check_reductions();
    check_operators();
    check_copies();
    check_moves();
    check_lists();
    check_one_buffer_calls();
    check_messages();
    check_tensor_lists();
    check_byte_strings();
    check_monitored_barrier();
    check_batches();
    check_works();
    CHECK_OK(dist_group_release(group));
    CHECK_OK(dist_store_release(store));
    CHECK_OK(dist_finalize());
    return check_report();
}
