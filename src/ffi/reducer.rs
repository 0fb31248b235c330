//! Reducers: creation, memory, values, and figures.

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
    /// The ranks compare their parameters and options, agree on the buckets, and get the values of
    /// rank 0. A rank that creates a reducer while the other ranks call dist_reducer_regroup joins
    /// them: it gets their buckets, their number of steps, and the values of the lowest of them.
    ///
    /// @param group in: the group. The reducer does not keep it: release the reducer first.
    /// @param params in: `n_params` parameters; the array, names and shapes are borrowed for the
    ///   call, the values and gradients until dist_reducer_release. NULL only if `n_params` is 0.
    /// @param n_params in: the number of parameters.
    /// @param options in, optional: NULL for all defaults; borrowed for the call.
    /// @param out out: the reducer, owned by the caller, released with dist_reducer_release; NULL
    ///   on failure.
    /// @agree the parameters but for their addresses and the index of the device, in the same
    ///   order; the options but for `timeout_ms`, `layout` and `name`. If ranks give different
    ///   layouts, that of the lowest of them counts.
    /// @blocks until all ranks have called, until the deadlines of its operations at the latest.
    /// @return DIST_OK. With nothing done: DIST_ERR_INVALID_ARGUMENT, also inside a completion
    ///   callback; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED; DIST_ERR_UNSUPPORTED if the
    ///   group does not serve the device of a gradient, for an element type that cannot be divided,
    ///   or for a field or flag that this version does not know. DIST_ERR_MISMATCH on all ranks if
    ///   parameters or options differ, with the first difference. The errors of
    ///   dist_all_gather_bytes and dist_broadcast.
    /// @threads any.
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
    /// Gives the place where a gradient is to be written.
    ///
    /// The caller adds to or overwrites the gradient there before it marks the parameter. A place
    /// in memory of the reducer is valid until dist_reducer_release. With DIST_REDUCER_MOVE_GRADS,
    /// ask again after the first step. The memory is filled with zeros at first.
    ///
    /// @param reducer in: the reducer.
    /// @param param in: the index of the parameter in the list of dist_reducer_create.
    /// @param grad out: the caller's gradient, if the parameter has one, else memory of the
    ///   reducer; NULL on failure and for a parameter without elements.
    /// @param count out, optional: the number of elements; not written on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if the parameter does
    ///   not exist or has no gradient.
    /// @threads any.
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
    /// It is that of dist_reducer_grad, unless the reducer has DIST_REDUCER_RETRYABLE and provides
    /// the memory.
    ///
    /// @param reducer in: the reducer.
    /// @param param in: the index of the parameter.
    /// @param grad out: the reduced gradient, valid as for dist_reducer_grad; NULL on failure and
    ///   for a parameter without elements.
    /// @param count out, optional: the number of elements; not written on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return as dist_reducer_grad.
    /// @threads any.
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
    /// Gives the reduced rows of a sparse gradient after the end of a step.
    ///
    /// @param reducer in: the reducer.
    /// @param param in: the index of the parameter, which has DIST_PARAM_SPARSE_ROWS.
    /// @param rows out: the indices of the rows that a rank passed, in ascending order, each once;
    ///   owned by the reducer, valid until the next step with communication ends or
    ///   dist_reducer_release; NULL on failure and if there are none.
    /// @param values out: the rows, one after the other, valid as long; NULL on failure and if
    /// there
    ///   are none.
    /// @param n_rows out: the number of rows; not written on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if the parameter does
    ///   not exist or its gradient is not sparse.
    /// @threads any.
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
    /// Copies the values of one rank to all ranks.
    ///
    /// @param reducer in: the reducer.
    /// @param root in: the rank that has the values.
    /// @param what in: the sum of DIST_REDUCER_PARAMS and DIST_REDUCER_BUFFERS, or one of them.
    /// @agree the order of calls on the group, root and what.
    /// @blocks until the values are there, until the deadlines of the broadcasts at the latest.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT, also inside a step or a completion callback;
    ///   DIST_ERR_INVALID_HANDLE, also if the group was released; the errors of dist_broadcast.
    /// @threads one at a time.
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
    /// @param what in: the sum of DIST_REDUCER_PARAMS, DIST_REDUCER_BUFFERS and DIST_REDUCER_GRADS,
    ///   or some of them.
    /// @param differences out: one text for each parameter whose bytes are not the same on all
    ///   ranks, with the ranks; empty if all are the same. The same on all ranks; owned by the
    ///   caller, released with dist_blob_release; NULL on failure.
    /// @agree the order of calls on the group and what.
    /// @blocks until all ranks have called, until the deadlines of its operations at the latest.
    /// @return DIST_OK, also if values differ; DIST_ERR_UNSUPPORTED if a parameter is in device
    ///   memory; DIST_ERR_INVALID_ARGUMENT, also inside a step or a completion callback;
    ///   DIST_ERR_INVALID_HANDLE, also if the group was released; the errors of
    ///   dist_all_gather_bytes.
    /// @threads one at a time.
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
    /// Goes on in another group, for instance in that of dist_group_shrink.
    ///
    /// If a step had failed, it is open again after this call: with DIST_REDUCER_RETRYABLE the next
    /// dist_reducer_end sends the same gradients again, divided for the new group, and nothing is
    /// computed again. If another rank had seen the step end before the failure, dist_reducer_end
    /// returns what that rank got. Without DIST_REDUCER_RETRYABLE a failed step is given up;
    /// `steps` of dist_reducer_stats shows whether it had ended.
    ///
    /// @param reducer in: the reducer.
    /// @param group in: the new group. The reducer does not keep it.
    /// @agree all ranks of the new group call it, or dist_reducer_create with the same parameters
    ///   and options.
    /// @blocks until all ranks have called, until the deadlines of its operations at the latest.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if a step is open in a group that has not failed,
    ///   or inside a completion callback; DIST_ERR_INVALID_HANDLE; DIST_ERR_MISMATCH on all ranks
    ///   if parameters, options or steps differ, or a rank joins while a step is to be repeated;
    ///   the errors of dist_all_gather_bytes and dist_broadcast.
    /// @threads one at a time.
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
    /// Gives the layout of a reducer: which gradients are reduced together, and in which order.
    ///
    /// Results of the same gradients on the same ranks are the same bits only with the same
    /// layout, or with DIST_REDUCER_CANONICAL. So a checkpoint has the layout, and passes it to
    /// dist_reducer_create after a restart.
    ///
    /// @param reducer in: the reducer.
    /// @param out out: one byte string, a text in JSON with the names of the parameters; owned by
    ///   the caller, released with dist_blob_release; NULL on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `out` is NULL;
    ///   DIST_ERR_OUT_OF_MEMORY.
    /// @threads any.
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
    /// Gives figures of the last step.
    ///
    /// @param reducer in: the reducer.
    /// @param out out: the figures; `struct_size` is set by the caller.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `out` is NULL or its
    ///   `struct_size` is wrong.
    /// @threads any.
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
    /// @threads any.
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
    /// If operations of a step are in flight, the call waits until they have ended. It also waits
    /// for functions of dist_reducer_on_bucket that run, but not inside a completion callback.
    ///
    /// @param reducer in, optional: the reducer; NULL does nothing.
    /// @agree nothing.
    /// @blocks until the operations of the step have ended, until their deadlines at the latest,
    /// and
    ///   until the functions have returned.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE.
    /// @threads one; no other call uses the reducer.
    /// @since 0.1
    pub fn dist_reducer_release(reducer: *mut dist_reducer_t) -> dist_status_t {
        REDUCERS.release_handle(reducer, |it| it.retire())
    }
}
