//! Functions of reducers: creation, gradient memory, values of parameters, and figures.
//!
//! A reducer averages the gradients of a model over the ranks of a group. It reduces them in
//! *buckets*: groups of gradients that are reduced by one operation. The assignment of gradients to
//! buckets is the *layout*. `reducer_step` has the functions of a training step and shows their
//! order. The implementation is in `api::reducer`.

use super::args::{OutPtr, index};
use super::blob;
use super::group::group;
use super::handle::{HandleKind, HandleTable};
use super::reducer_args::{read_params, reducer_options, value_selection};
use super::sized_struct;
use super::train_types::*;
use super::types::*;
use crate::api::reducer::Reducer;
use std::ffi::c_void;

pub(super) static REDUCERS: HandleTable<Reducer> = HandleTable::new(HandleKind::Reducer);

dist_export! {
    /// Creates a reducer, which averages gradients over the ranks of a group.
    ///
    /// The ranks compare their parameters and options and agree on the buckets (the groups of
    /// gradients that one operation reduces). Then all ranks get the values of rank 0.
    ///
    /// A rank that joins a training creates its reducer while the other ranks call
    /// dist_reducer_regroup. It gets their buckets, their number of steps, and the values of the
    /// lowest of these ranks.
    ///
    /// @param group in: the group. The reducer does not keep the group alive: release the reducer
    ///   first.
    /// @param params in: `n_params` parameters. The array, names and shapes are borrowed for the
    ///   call. The values and gradients are borrowed until dist_reducer_release. NULL only if
    ///   `n_params` is 0.
    /// @param n_params in: the number of parameters.
    /// @param options in, optional: NULL for all defaults; borrowed for the call.
    /// @param out out: the reducer, owned by the caller, released with dist_reducer_release; NULL
    ///   on failure.
    /// @agree the parameters in the same order, except their addresses and the index of the device;
    ///   the options except `timeout_ms`, `layout` and `name`. If ranks pass different layouts, all
    ///   ranks use the layout of the lowest of these ranks.
    /// @blocks Until every rank has called, but at most until the deadlines of the call's
    ///   operations.
    /// @return DIST_OK. If the call has had no effect: DIST_ERR_INVALID_ARGUMENT if an argument is
    ///   wrong or inside a completion callback; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED;
    ///   DIST_ERR_UNSUPPORTED if the group does not serve the device of a gradient, for an element
    ///   type that cannot be divided, or for a field or flag that this version does not know. If
    ///   parameters or options differ, all ranks return DIST_ERR_MISMATCH, and the message has the
    ///   first difference. The call also returns the errors of dist_all_gather_bytes and
    ///   dist_broadcast.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_reducer_create(
        group: *mut dist_group_t,
        params: *const dist_param_t,
        n_params: usize,
        options: *const dist_reducer_options_t,
        out: *mut *mut dist_reducer_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        let options = reducer_options(&sized_struct::read(options)?)?;
        let group = self::group(group)?;
        let params = read_params(params, n_params)?;
        let reducer = Reducer::create(&group, params, options)?;
        out.write(REDUCERS.insert(reducer)?);
        Ok(())
    }
}

dist_export! {
    /// Returns the address to which the caller writes a gradient.
    ///
    /// The caller overwrites the gradient at this address or adds to it, and then marks the
    /// parameter (dist_reducer_ready). Memory of the reducer is initially filled with zeros and
    /// valid until dist_reducer_release. With DIST_REDUCER_MOVE_GRADS the address may change once,
    /// at the end of the first step: call this function again after that step.
    ///
    /// @param reducer in: the reducer.
    /// @param param in: the index of the parameter in the list of dist_reducer_create.
    /// @param grad out: the caller's gradient if the parameter has one, otherwise memory of the
    ///   reducer; NULL on failure and for a parameter without elements.
    /// @param count out, optional: the number of elements; not written on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if the parameter does
    ///   not exist or has no gradient.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_reducer_grad(
        reducer: *mut dist_reducer_t,
        param: usize,
        grad: *mut *mut c_void,
        count: *mut usize,
    ) -> dist_status_t {
        let out = OutPtr::handle(grad, "grad")?;
        let (view, elements) = REDUCERS.get(reducer)?.grad(param)?;
        write_view(&out, view, count, elements);
        Ok(())
    }
}

dist_export! {
    /// Returns the address of a reduced gradient after the end of a step.
    ///
    /// Usually this is the address that dist_reducer_grad returns. It is another address if the
    /// reducer has DIST_REDUCER_RETRYABLE and provides the memory of the gradient.
    ///
    /// @param reducer in: the reducer.
    /// @param param in: the index of the parameter.
    /// @param grad out: the reduced gradient, valid as long as the memory of dist_reducer_grad;
    ///   NULL on failure and for a parameter without elements.
    /// @param count out, optional: the number of elements; not written on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return The results of dist_reducer_grad.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_reducer_result(
        reducer: *mut dist_reducer_t,
        param: usize,
        grad: *mut *mut c_void,
        count: *mut usize,
    ) -> dist_status_t {
        let out = OutPtr::handle(grad, "grad")?;
        let (view, elements) = REDUCERS.get(reducer)?.result(param)?;
        write_view(&out, view, count, elements);
        Ok(())
    }
}

fn write_view(
    out: &OutPtr<*mut c_void>,
    view: crate::base::buffer::Dst<'static>,
    count: *mut usize,
    elements: usize,
) {
    if !view.is_empty() {
        out.write(view.as_mut_ptr().cast());
    }
    OutPtr::write_optional(count, elements);
}

dist_export! {
    /// Returns the reduced rows of a sparse gradient after the end of a step.
    ///
    /// @param reducer in: the reducer.
    /// @param param in: the index of the parameter, which has DIST_PARAM_SPARSE_ROWS.
    /// @param rows out: the indices of the rows that any rank passed to dist_reducer_ready_rows, in
    ///   ascending order, each index once. The reducer owns the memory, which is valid until the
    ///   end of the next step with communication, or until dist_reducer_release. NULL on failure
    ///   and if there are no rows.
    /// @param values out: the reduced rows, one after the other, valid as long as `rows`; NULL on
    ///   failure and if there are no rows.
    /// @param n_rows out: the number of rows; not written on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if the parameter does
    ///   not exist or its gradient is not sparse.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_reducer_rows(
        reducer: *mut dist_reducer_t,
        param: usize,
        rows: *mut *const i64,
        values: *mut *mut c_void,
        n_rows: *mut usize,
    ) -> dist_status_t {
        let rows = OutPtr::required(rows, "rows")?;
        rows.write(std::ptr::null());
        let values = OutPtr::handle(values, "values")?;
        let n_rows = OutPtr::required(n_rows, "n_rows")?;
        let (indices, reduced) = REDUCERS.get(reducer)?.rows(param)?;
        if !indices.is_empty() {
            rows.write(indices.as_ptr().cast());
            values.write(reduced.as_mut_ptr().cast());
        }
        n_rows.write(indices.len() / size_of::<i64>());
        Ok(())
    }
}

dist_export! {
    /// Copies the parameters or buffers of one rank to all ranks.
    ///
    /// @param reducer in: the reducer.
    /// @param root in: the rank that has the values.
    /// @param what in: DIST_REDUCER_PARAMS, DIST_REDUCER_BUFFERS, or the sum of both.
    /// @agree the order of calls on the group, `root` and `what`.
    /// @blocks Until this rank has the values, but at most until the deadlines of the broadcasts.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if an argument is wrong, inside a step, or inside
    ///   a completion callback; DIST_ERR_INVALID_HANDLE if the handle is wrong or the group was
    ///   released; the errors of dist_broadcast.
    /// @threads Only one thread at a time may call this (see dist_reducer_t).
    /// @since 0.1
    pub fn dist_reducer_broadcast(
        reducer: *mut dist_reducer_t,
        root: i32,
        what: u64,
    ) -> dist_status_t {
        REDUCERS.get(reducer)?.broadcast(index(root, "root")?, value_selection(what)?)
    }
}

dist_export! {
    /// Compares values that should be the same on all ranks.
    ///
    /// @param reducer in: the reducer.
    /// @param what in: one of DIST_REDUCER_PARAMS, DIST_REDUCER_BUFFERS and DIST_REDUCER_GRADS, or
    ///   a sum of them.
    /// @param differences out: one text for each parameter whose bytes differ between ranks; the
    ///   text names the ranks. The list is equal on all ranks, and empty if all bytes are the same.
    ///   Owned by the caller, released with dist_blob_release; NULL on failure.
    /// @agree the order of calls on the group, and `what`.
    /// @blocks Until every rank has called, but at most until the deadlines of the call's
    ///   operations.
    /// @return DIST_OK, also if values differ; DIST_ERR_UNSUPPORTED if a parameter is in device
    ///   memory; DIST_ERR_INVALID_ARGUMENT if an argument is wrong, inside a step, or inside a
    ///   completion callback; DIST_ERR_INVALID_HANDLE if the handle is wrong or the group was
    ///   released; the errors of dist_all_gather_bytes.
    /// @threads Only one thread at a time may call this (see dist_reducer_t).
    /// @since 0.1
    pub fn dist_reducer_check(
        reducer: *mut dist_reducer_t,
        what: u64,
        differences: *mut *mut dist_blob_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(differences, "differences")?;
        let lines = REDUCERS.get(reducer)?.check(value_selection(what)?)?;
        blob::write_blob(&out, lines.into_iter().map(String::into_bytes).collect())
    }
}

dist_export! {
    /// Continues in another group, for instance in the group that dist_group_shrink returns.
    ///
    /// If the last step has failed, the effect on this step depends on DIST_REDUCER_RETRYABLE:
    ///
    /// - With the flag, the step is open again, and the caller computes no gradient again. The next
    ///   dist_reducer_end sends the same gradients again, divided for the new group. If another
    ///   rank had already seen the end of the step, dist_reducer_end instead returns the results of
    ///   that rank.
    /// - Without the flag, the failed step is abandoned. `steps` of dist_reducer_stats shows
    ///   whether the step had ended.
    ///
    /// @param reducer in: the reducer.
    /// @param group in: the new group. The reducer does not keep the group alive.
    /// @agree every rank of the new group calls dist_reducer_regroup, or dist_reducer_create with
    ///   the same parameters and options.
    /// @blocks Until every rank has called, but at most until the deadlines of the call's
    ///   operations.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if a step is open in a group that has not failed,
    ///   or inside a completion callback; DIST_ERR_INVALID_HANDLE. All ranks return
    ///   DIST_ERR_MISMATCH if parameters, options or steps differ, or if a rank joins while a step
    ///   must be repeated. The call also returns the errors of dist_all_gather_bytes and
    ///   dist_broadcast.
    /// @threads Only one thread at a time may call this (see dist_reducer_t).
    /// @since 0.1
    pub fn dist_reducer_regroup(
        reducer: *mut dist_reducer_t,
        group: *mut dist_group_t,
    ) -> dist_status_t {
        let reducer = REDUCERS.get(reducer)?;
        let group = self::group(group)?;
        reducer.regroup(&group)
    }
}

dist_export! {
    /// Returns the layout: which gradients are reduced together, and in which order.
    ///
    /// The same gradients on the same ranks give the same bits only with the same layout, or with
    /// DIST_REDUCER_CANONICAL. Therefore, store the layout in a checkpoint, and pass it to
    /// dist_reducer_create after a restart.
    ///
    /// @param reducer in: the reducer.
    /// @param out out: one byte string, a text in JSON with the names of the parameters; owned by
    ///   the caller, released with dist_blob_release; NULL on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `out` is NULL;
    ///   DIST_ERR_OUT_OF_MEMORY.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_reducer_layout(
        reducer: *const dist_reducer_t,
        out: *mut *mut dist_blob_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        blob::write_blob(&out, vec![REDUCERS.get(reducer)?.layout()])
    }
}

dist_export! {
    /// Returns figures of the last step, and a few counters since the creation.
    ///
    /// @param reducer in: the reducer.
    /// @param out out: the figures; `struct_size` is set by the caller.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `out` is NULL or its
    ///   `struct_size` is wrong.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_reducer_stats(
        reducer: *const dist_reducer_t,
        out: *mut dist_reducer_stats_t,
    ) -> dist_status_t {
        sized_struct::write_required(out, "out", || {
            let stats = REDUCERS.get(reducer)?.stats();
            Ok(dist_reducer_stats_t {
                struct_size: size_of::<dist_reducer_stats_t>(),
                steps: stats.steps,
                n_buckets: stats.n_buckets,
                bytes_reduced: stats.bytes_reduced,
                bytes_saved: stats.bytes_saved,
                bytes_copied: stats.bytes_copied,
                first_ready_to_last_ready_ns: stats.first_ready_to_last_ready_ns,
                communication_ns: stats.communication_ns,
                exposed_ns: stats.exposed_ns,
                step_ns: stats.step_ns,
                rebuilds: stats.rebuilds,
                retries: stats.retries,
            })
        })
    }
}

dist_export! {
    /// Describes a reducer: parameters, buckets, options, and sums over all steps.
    ///
    /// @param reducer in: the reducer.
    /// @param json out: one byte string, a text in JSON; owned by the caller, released with
    ///   dist_blob_release; NULL on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `json` is NULL;
    ///   DIST_ERR_OUT_OF_MEMORY.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_reducer_describe(
        reducer: *const dist_reducer_t,
        json: *mut *mut dist_blob_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(json, "json")?;
        let text = REDUCERS.get(reducer)?.describe().to_string();
        blob::write_blob(&out, vec![text.into_bytes()])
    }
}

dist_export! {
    /// Releases a reducer and the memory that it provides.
    ///
    /// The call waits until all operations of the last step have ended and all functions of
    /// dist_reducer_on_bucket have returned. Inside a completion callback, it does not wait for
    /// these functions.
    ///
    /// @param reducer in, optional: the reducer; NULL does nothing.
    /// @agree nothing.
    /// @blocks Until the operations have ended, but at most until their deadlines, and until the
    ///   functions have returned.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE.
    /// @threads Any thread may call this, but no other call may use the reducer at the same time.
    /// @since 0.1
    pub fn dist_reducer_release(reducer: *mut dist_reducer_t) -> dist_status_t {
        REDUCERS.release_handle(reducer, |it| it.retire())
    }
}
