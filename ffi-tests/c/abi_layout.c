/*
 * Prints the size of every public type and the place of every field, as the C compiler sees them. The
 * Rust test compares each line with its own.
 */
#include <dist.h>

#include <stddef.h>
#include <stdio.h>

#define TYPE(type) printf("%s %lu\n", #type, (unsigned long)sizeof(type))
#define FIELD(type, field) \
    printf("%s.%s %lu %lu\n", #type, #field, (unsigned long)offsetof(type, field), \
           (unsigned long)sizeof(((type *)0)->field))

static void options(void)
{
    TYPE(dist_init_options_t);
    FIELD(dist_init_options_t, struct_size);
    FIELD(dist_init_options_t, fields);
    FIELD(dist_init_options_t, backend);
    FIELD(dist_init_options_t, init_method);
    FIELD(dist_init_options_t, store);
    FIELD(dist_init_options_t, rank);
    FIELD(dist_init_options_t, world_size);
    FIELD(dist_init_options_t, timeout_ms);
    FIELD(dist_init_options_t, connect_timeout_ms);
    FIELD(dist_init_options_t, group_name);
    FIELD(dist_init_options_t, backend_options);

    TYPE(dist_group_options_t);
    FIELD(dist_group_options_t, struct_size);
    FIELD(dist_group_options_t, fields);
    FIELD(dist_group_options_t, store);
    FIELD(dist_group_options_t, rank);
    FIELD(dist_group_options_t, world_size);
    FIELD(dist_group_options_t, backend);
    FIELD(dist_group_options_t, name);
    FIELD(dist_group_options_t, timeout_ms);
    FIELD(dist_group_options_t, connect_timeout_ms);
    FIELD(dist_group_options_t, backend_options);
    FIELD(dist_group_options_t, global_ranks);
    FIELD(dist_group_options_t, n_global_ranks);

    TYPE(dist_group_new_options_t);
    FIELD(dist_group_new_options_t, struct_size);
    FIELD(dist_group_new_options_t, name);
    FIELD(dist_group_new_options_t, backend);
    FIELD(dist_group_new_options_t, backend_options);
    FIELD(dist_group_new_options_t, timeout_ms);
    FIELD(dist_group_new_options_t, connect_timeout_ms);
    FIELD(dist_group_new_options_t, use_local_synchronization);
    TYPE(dist_shrink_options_t);
    FIELD(dist_shrink_options_t, struct_size);
    FIELD(dist_shrink_options_t, timeout_ms);
    FIELD(dist_shrink_options_t, connect_timeout_ms);

    TYPE(dist_spawn_options_t);
    FIELD(dist_spawn_options_t, struct_size);
    FIELD(dist_spawn_options_t, join_timeout_ms);
    FIELD(dist_spawn_options_t, grace_ms);

    TYPE(dist_call_options_t);
    FIELD(dist_call_options_t, struct_size);
    FIELD(dist_call_options_t, timeout_ms);
    FIELD(dist_call_options_t, premul_scale);
    FIELD(dist_call_options_t, algorithm);
    FIELD(dist_call_options_t, flags);
}

static void stores(void)
{
    TYPE(dist_store_tcp_options_t);
    FIELD(dist_store_tcp_options_t, struct_size);
    FIELD(dist_store_tcp_options_t, fields);
    FIELD(dist_store_tcp_options_t, host);
    FIELD(dist_store_tcp_options_t, port);
    FIELD(dist_store_tcp_options_t, is_server);
    FIELD(dist_store_tcp_options_t, world_size);
    FIELD(dist_store_tcp_options_t, wait_for_workers);
    FIELD(dist_store_tcp_options_t, listen_fd);
    FIELD(dist_store_tcp_options_t, multi_tenant);
    FIELD(dist_store_tcp_options_t, timeout_ms);
    FIELD(dist_store_tcp_options_t, bind_address);
    FIELD(dist_store_tcp_options_t, secret);
    FIELD(dist_store_tcp_options_t, secret_len_bytes);

    TYPE(dist_store_file_options_t);
    FIELD(dist_store_file_options_t, struct_size);
    FIELD(dist_store_file_options_t, job_id);
    FIELD(dist_store_file_options_t, timeout_ms);

    TYPE(dist_store_vtable_t);
    FIELD(dist_store_vtable_t, struct_size);
    FIELD(dist_store_vtable_t, set);
    FIELD(dist_store_vtable_t, get);
    FIELD(dist_store_vtable_t, add);
    FIELD(dist_store_vtable_t, wait);
    FIELD(dist_store_vtable_t, check);
    FIELD(dist_store_vtable_t, delete_key);
    FIELD(dist_store_vtable_t, destroy);
    FIELD(dist_store_vtable_t, compare_set);
    FIELD(dist_store_vtable_t, append);
    FIELD(dist_store_vtable_t, num_keys);
    FIELD(dist_store_vtable_t, list_keys);
    FIELD(dist_store_vtable_t, queue_push);
    FIELD(dist_store_vtable_t, queue_pop);
    FIELD(dist_store_vtable_t, queue_len);
}

int main(void)
{
    TYPE(dist_status_t);
    TYPE(dist_dtype_t);
    TYPE(dist_op_t);
    TYPE(dist_log_fn);
    TYPE(dist_store_sink_fn);
    TYPE(dist_work_fn);
    TYPE(dist_spawn_fn);
    options();
    stores();
    return 0;
}
