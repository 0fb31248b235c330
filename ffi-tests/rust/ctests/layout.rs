//! The layout of the header's types in Rust, in the output format of `abi_layout.c`.

use dist::ffi::backend_types::*;
use dist::ffi::outer_types::*;
use dist::ffi::shard_types::*;
use dist::ffi::train_types::*;
use dist::ffi::types::*;
use std::mem::offset_of;

fn field_size<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// What `abi_layout.c` prints, from the Rust side. The pattern does not compile while a field is
/// missing.
macro_rules! layout {
    ($lines:ident; $($type:ident { $($field:ident),+ $(,)? })+) => {
        $(
            let _complete = |value: $type| {
                let $type { $($field: _),+ } = value;
            };
            $lines.push(format!("{} {}", stringify!($type), size_of::<$type>()));
            $($lines.push(format!(
                "{}.{} {} {}",
                stringify!($type),
                stringify!($field),
                offset_of!($type, $field),
                field_size(|value: &$type| &value.$field),
            ));)+
        )+
    };
}

/// Returns the expected output of `abi_layout.c`.
pub(crate) fn lines() -> Vec<String> {
    let mut lines = vec![
        format!("dist_status_t {}", size_of::<dist_status_t>()),
        format!("dist_dtype_t {}", size_of::<dist_dtype_t>()),
        format!("dist_op_t {}", size_of::<dist_op_t>()),
        format!("dist_log_fn {}", size_of::<dist_log_fn>()),
        format!("dist_store_sink_fn {}", size_of::<dist_store_sink_fn>()),
        format!("dist_work_fn {}", size_of::<dist_work_fn>()),
        format!("dist_bucket_fn {}", size_of::<dist_bucket_fn>()),
        format!("dist_spawn_fn {}", size_of::<dist_spawn_fn>()),
        format!("dist_backend_plugin_fn {}", size_of::<dist_backend_plugin_fn>()),
    ];
    options(&mut lines);
    backends(&mut lines);
    lines
}

fn options(lines: &mut Vec<String>) {
    layout!(lines;
        dist_init_options_t {
            struct_size, fields, backend, init_method, store, rank, world_size, timeout_ms,
            connect_timeout_ms, group_name, backend_options, device, reserved,
        }
        dist_group_options_t {
            struct_size, fields, store, rank, world_size, backend, name, timeout_ms,
            connect_timeout_ms, backend_options, global_ranks, n_global_ranks, device, reserved,
        }
        dist_group_new_options_t {
            struct_size, name, backend, backend_options, timeout_ms, connect_timeout_ms,
            use_local_synchronization,
        }
        dist_shrink_options_t { struct_size, timeout_ms, connect_timeout_ms }
        dist_tensor_t { struct_size, fields, name, data, shape, n_shape, dtype, device }
        dist_spawn_options_t { struct_size, join_timeout_ms, grace_ms }
        dist_recv_status_t { struct_size, source, tag, count, dtype, reserved }
        dist_sampler_options_t { struct_size, fields, num_replicas, rank, seed, flags }
        dist_param_t {
            struct_size, fields, name, data, grad, shape, n_shape, count, dtype, grad_dtype,
            device, reserved, flags, tag,
        }
        dist_reducer_options_t {
            struct_size, flags, bucket_bytes, first_bucket_bytes, divide, missing, timeout_ms,
            layout, layout_bytes, name, stream, hook, hook_settings, hook_function, hook_user,
        }
        dist_bucket_t {
            struct_size, index, n_buckets, data, count, dtype, reserved, params, offsets,
            n_params, step,
        }
        dist_reducer_stats_t {
            struct_size, steps, n_buckets, bytes_reduced, bytes_saved, bytes_copied,
            first_ready_to_last_ready_ns, communication_ns, exposed_ns, step_ns, rebuilds,
            retries,
        }
        dist_shard_options_t { struct_size, states, n_states, copies, reserved, timeout_ms }
        dist_shard_range_t { struct_size, param, begin, count, bucket, offset, data, grad }
        dist_outer_options_t {
            struct_size, every, fragments, optimizer, learning_rate, momentum, function, user,
            timeout_ms, hook, hook_settings, name,
        }
        dist_outer_stats_t {
            struct_size, steps, updates, restores, bytes_reduced, bytes_saved, communication_ns,
        }
        dist_culprit_t { struct_size, rank, kind, pid, host }
        dist_call_options_t {
            struct_size, timeout_ms, premul_scale, algorithm, flags, stream, device, reserved, label,
        }
        dist_store_tcp_options_t {
            struct_size, fields, host, port, is_server, world_size, wait_for_workers, listen_fd,
            multi_tenant, timeout_ms, bind_address, secret, secret_len_bytes,
        }
        dist_store_file_options_t { struct_size, job_id, timeout_ms }
        dist_store_vtable_t {
            struct_size, set, get, add, wait, check, delete_key, destroy, compare_set, append,
            num_keys, list_keys, queue_push, queue_pop, queue_len, clone, interrupt,
        }
    );
}

fn backends(lines: &mut Vec<String>) {
    layout!(lines;
        dist_backend_outcome_t {
            struct_size, culprit, peer, tag, len_bytes, text, text_cap, flags,
        }
        dist_backend_operation_t {
            struct_size, kind, dtype, op, root, peer, device, tag, send, recv, count, send_counts,
            send_displs, recv_counts, recv_displs, send_count, recv_count, factor, timeout_ms,
            sequence, part, stream, flags, ticket, grow, grow_arg,
        }
        dist_backend_query_t {
            struct_size, kind, dtype, op, device,
        }
        dist_backend_host_t {
            struct_size, version, library_version, context, store_set, store_get, store_add,
            store_check, store_delete, log, is_aborted, complete,
        }
        dist_backend_setup_t {
            struct_size, rank, size, epoch, device, group_id, group_name, options, timeout_ms,
            create_timeout_ms, host, exchange, exchange_arg,
        }
        dist_backend_created_t {
            struct_size, part, kinds, serves_device, reserved,
        }
        dist_backend_vtable_t {
            struct_size, create, destroy, submit, release, test, wait, abort, failure, supports,
            allocate, free_memory, describe, run,
        }
        dist_backend_plugin_t {
            struct_size, version, reserved, name, functions, user,
        }
    );
}
