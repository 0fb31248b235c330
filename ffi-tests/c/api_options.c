/*
 * Options of callers that were compiled with another version of the header, and invalid values
 * in options.
 */
#include "check.h"

#include <limits.h>

/* An options struct of a newer version: the present struct with an additional field. */
#define NEWER(type) \
    struct { \
        type known; \
        uint64_t unknown; \
    }

#define INVALID DIST_ERR_INVALID_ARGUMENT

static const size_t wrong_sizes[] = { 0, 1, 8, 4097, (size_t)-1 };
#define WRONG_SIZES (sizeof(wrong_sizes) / sizeof(wrong_sizes[0]))

static void check_call_sizes(void)
{
    static const dist_call_options_t init = DIST_CALL_OPTIONS_INIT;
    NEWER(dist_call_options_t) call;
    size_t i;
    call.known = init;
    for (i = 0; i < WRONG_SIZES; i++) {
        call.known.struct_size = wrong_sizes[i];
        CHECK_REFUSED(dist_barrier(dist_world(), &call.known, NULL), INVALID, "dist_call_options_t");
    }
    call.known.struct_size = sizeof(call);
    call.unknown = 0;
    CHECK_OK(dist_barrier(dist_world(), &call.known, NULL));
    call.unknown = 1;
    CHECK_REFUSED(dist_barrier(dist_world(), &call.known, NULL), DIST_ERR_UNSUPPORTED, "does not know");
}

static void check_group_sizes(dist_store_t *store)
{
    static const dist_group_options_t init = DIST_GROUP_OPTIONS_INIT;
    NEWER(dist_group_options_t) options;
    dist_group_t *group = NULL;
    size_t i;
    options.known = init;
    options.known.store = store;
    options.known.name = "sizes";
    options.known.fields = DIST_FIELD_RANK;
    options.known.world_size = 1;
    for (i = 0; i < WRONG_SIZES; i++) {
        options.known.struct_size = wrong_sizes[i];
        CHECK_REFUSED(dist_group_create(&options.known, &group), INVALID, "dist_group_options_t");
    }
    options.known.struct_size = sizeof(options);
    options.unknown = 1;
    CHECK_REFUSED(dist_group_create(&options.known, &group), DIST_ERR_UNSUPPORTED, "does not know");
    CHECK(group == NULL);
    options.unknown = 0;
    CHECK_OK(dist_group_create(&options.known, &group));
    CHECK_OK(dist_group_release(group));
}

static void check_init_sizes(dist_store_t *store)
{
    static const dist_init_options_t init = DIST_INIT_OPTIONS_INIT;
    NEWER(dist_init_options_t) options;
    size_t i;
    options.known = init;
    options.known.store = store;
    options.known.fields = DIST_FIELD_RANK;
    options.known.world_size = 1;
    for (i = 0; i < WRONG_SIZES; i++) {
        options.known.struct_size = wrong_sizes[i];
        CHECK_REFUSED(dist_init(&options.known), INVALID, "dist_init_options_t");
    }
    options.known.struct_size = sizeof(options);
    options.unknown = UINT64_C(1) << 63;
    CHECK_REFUSED(dist_init(&options.known), DIST_ERR_UNSUPPORTED, "does not know");
    options.unknown = 0;
    CHECK_OK(dist_init(&options.known));
}

static void check_store_sizes(void)
{
    static const dist_store_tcp_options_t init = DIST_STORE_TCP_OPTIONS_INIT;
    static const dist_store_file_options_t no_job = DIST_STORE_FILE_OPTIONS_INIT;
    static const dist_store_vtable_t no_functions = DIST_STORE_VTABLE_INIT;
    NEWER(dist_store_tcp_options_t) tcp;
    NEWER(dist_store_file_options_t) file;
    NEWER(dist_store_vtable_t) table;
    dist_store_t *store = NULL;
    size_t i;
    tcp.known = init;
    tcp.known.host = "127.0.0.1";
    tcp.known.is_server = 1;
    file.known = no_job;
    table.known = no_functions;
    for (i = 0; i < WRONG_SIZES; i++) {
        tcp.known.struct_size = wrong_sizes[i];
        CHECK_REFUSED(dist_store_tcp_create(&tcp.known, &store), INVALID, "dist_store_tcp_options_t");
        file.known.struct_size = wrong_sizes[i];
        CHECK_REFUSED(dist_store_file_create("file", 1, &file.known, &store), INVALID,
                      "dist_store_file_options_t");
        table.known.struct_size = wrong_sizes[i];
        CHECK_REFUSED(dist_store_custom_create(&table.known, NULL, &store), INVALID,
                      "dist_store_vtable_t");
    }
    tcp.known.struct_size = sizeof(tcp);
    tcp.unknown = 7;
    CHECK_REFUSED(dist_store_tcp_create(&tcp.known, &store), DIST_ERR_UNSUPPORTED, "does not know");
    CHECK(store == NULL);
    tcp.unknown = 0;
    CHECK_OK(dist_store_tcp_create(&tcp.known, &store));
    CHECK(dist_store_port(store) > 0);
    CHECK_OK(dist_store_release(store));
}

static void wrong_tcp_options_are_refused(void)
{
    static const dist_store_tcp_options_t init = DIST_STORE_TCP_OPTIONS_INIT;
    static const char too_long[4097];
    dist_store_tcp_options_t options = init;
    dist_store_t *store = NULL;
    options.host = "127.0.0.1";
    options.port = 65536;
    CHECK_REFUSED(dist_store_tcp_create(&options, &store), INVALID, "65536");
    options.port = -1;
    CHECK_REFUSED(dist_store_tcp_create(&options, &store), INVALID, "-1");
    options.port = 0;
    options.world_size = -2;
    CHECK_REFUSED(dist_store_tcp_create(&options, &store), INVALID, "world_size");
    options.world_size = 0;
    options.timeout_ms = -5;
    CHECK_REFUSED(dist_store_tcp_create(&options, &store), INVALID, "timeout_ms");
    options.timeout_ms = 0;
    options.secret_len_bytes = 1;
    CHECK_REFUSED(dist_store_tcp_create(&options, &store), INVALID, "secret");
    options.secret = "x";
    options.secret_len_bytes = 0;
    CHECK_REFUSED(dist_store_tcp_create(&options, &store), INVALID, "secret is empty");
    options.secret = too_long;
    options.secret_len_bytes = sizeof(too_long);
    CHECK_REFUSED(dist_store_tcp_create(&options, &store), INVALID, "longer than 4096");
    options.secret = NULL;
    options.secret_len_bytes = 0;
    options.is_server = 1;
    options.fields = DIST_FIELD_LISTEN_FD;
    options.listen_fd = -1;
    CHECK_REFUSED(dist_store_tcp_create(&options, &store), INVALID, "listen_fd");
    CHECK(store == NULL);
}

static dist_status_t create_group(const dist_group_options_t *options)
{
    dist_group_t *group = NULL;
    dist_status_t status = dist_group_create(options, &group);
    CHECK(group == NULL);
    return status;
}

static void wrong_group_options_are_refused(dist_store_t *store)
{
    char long_name[300];
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    options.store = store;
    options.name = "wrong";
    options.world_size = 1;
    CHECK_REFUSED(create_group(&options), INVALID, "DIST_FIELD_RANK");
    options.fields = DIST_FIELD_RANK;
    options.rank = 1;
    CHECK_REFUSED(create_group(&options), INVALID, "rank 1");
    options.rank = -1;
    CHECK_REFUSED(create_group(&options), INVALID, "rank is -1");
    options.rank = 0;
    options.world_size = 0;
    CHECK_REFUSED(create_group(&options), INVALID, "world size 0");
    options.world_size = -3;
    CHECK_REFUSED(create_group(&options), INVALID, "-3");
    options.world_size = INT_MAX;
    CHECK_REFUSED(create_group(&options), INVALID, "world size");
    options.world_size = 1;
    options.backend = "nonesuch";
    CHECK_REFUSED(create_group(&options), DIST_ERR_NOT_FOUND, "nonesuch");
    options.backend = "\xff";
    CHECK_REFUSED(create_group(&options), INVALID, "backend");
    options.backend = "Native";
    options.timeout_ms = -2;
    CHECK_REFUSED(create_group(&options), INVALID, "timeout_ms");
    options.timeout_ms = 0;
    options.name = "a/b";
    CHECK_REFUSED(create_group(&options), INVALID, "a/b");
    options.name = "";
    CHECK_REFUSED(create_group(&options), INVALID, "group name");
    memset(long_name, 'n', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    options.name = long_name;
    CHECK_REFUSED(create_group(&options), INVALID, "group name");
}

int main(void)
{
    dist_store_t *store = new_store();
    check_init_sizes(store);
    check_call_sizes();
    check_group_sizes(store);
    check_store_sizes();
    wrong_tcp_options_are_refused();
    wrong_group_options_are_refused(store);
    CHECK_REFUSED(dist_group_set_timeout(dist_world(), -2), INVALID, "timeout_ms");
    CHECK_REFUSED(dist_store_set_timeout(store, -3), INVALID, "timeout_ms");
    CHECK_OK(dist_store_set_timeout(store, DIST_WAIT_FOREVER));
    CHECK(dist_store_get_timeout(store) == DIST_WAIT_FOREVER);
    CHECK_OK(dist_store_set_timeout(store, 1234));
    CHECK(dist_store_get_timeout(store) == 1234);
    CHECK_OK(dist_finalize());
    CHECK_OK(dist_store_release(store));
    return check_report();
}
