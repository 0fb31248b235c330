//! The steps of a reducer.

use super::args::{OutPtr, slice, src};
use super::hook::with_bucket;
use super::reducer::REDUCERS;
use super::reducer_args::check_flags;
use super::submit::WorkOut;
use super::train_types::*;
use super::types::*;
use super::work;
use crate::api::collective::call::buffer_bytes;
use crate::api::reducer::{BucketView, NormType, OnBucket, VoteDelivery};
use crate::api::work::callbacks::CallbackKey;
use crate::base::dtype::DataType;
use std::ffi::c_void;
use std::sync::Arc;

dist_export! {
    /// Begins a step.
    ///
    /// @param reducer in: the reducer.
    /// @param weight in: with DIST_DIVIDE_WEIGHTED the weight of this rank's gradients, for
    ///   instance its number of samples; else not used. Not negative.
    /// @param flags in: DIST_STEP_NO_SYNC for a step without communication; or 0.
    /// @agree with communication: the order of calls on the group. Ranks may make different numbers
    ///   of steps without communication.
    /// @blocks no; with DIST_REDUCER_BROADCAST_BUFFERS until the buffers are there.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if a step is open, the last one has failed, or
    ///   the weight is wrong; DIST_ERR_INVALID_HANDLE, also if the group was released;
    ///   DIST_ERR_UNSUPPORTED for a flag that this version does not know; without
    ///   DIST_REDUCER_RETRYABLE the failure of the group.
    /// @threads one at a time.
    /// @since 0.1
    pub fn dist_reducer_begin(
        reducer: *mut dist_reducer_t,
        weight: f64,
        flags: u64,
    ) -> dist_status_t {
        check_flags(flags, DIST_STEP_NO_SYNC)?;
        REDUCERS.get(reducer)?.begin(weight, flags & DIST_STEP_NO_SYNC == 0)
    }
}

dist_export! {
    /// Marks a gradient that is complete.
    ///
    /// Once all gradients of a bucket are marked, and the buckets before it were sent, the bucket
    /// is reduced while the caller goes on. The caller does not touch the gradient until the end of
    /// the step.
    ///
    /// @param reducer in: the reducer.
    /// @param param in: the index of the parameter.
    /// @agree nothing: the order may be another one on each rank.
    /// @blocks no.
    /// @return DIST_OK, with DIST_REDUCER_RETRYABLE also after a failure, which dist_reducer_end
    ///   reports; DIST_ERR_INVALID_ARGUMENT outside of a step, and if the parameter does not exist,
    ///   has no gradient or was marked before; DIST_ERR_INVALID_HANDLE; the failure of the group;
    ///   DIST_ERR_OUT_OF_MEMORY and DIST_ERR_SYSTEM if a bucket cannot be sent, which fail the
    ///   group.
    /// @threads any.
    /// @since 0.1
    pub fn dist_reducer_ready(reducer: *mut dist_reducer_t, param: usize) -> dist_status_t {
        REDUCERS.get(reducer)?.ready(&[param])
    }
}

dist_export! {
    /// Marks several gradients that are complete, in one call.
    ///
    /// @param reducer in: the reducer.
    /// @param params in: `n` indices of parameters; borrowed for the call; NULL only if `n` is 0.
    /// @param n in: the number of parameters.
    /// @agree nothing.
    /// @blocks no.
    /// @return as dist_reducer_ready. After an error the parameters before the wrong one are
    ///   marked.
    /// @threads any.
    /// @since 0.1
    pub fn dist_reducer_ready_many(
        reducer: *mut dist_reducer_t,
        params: *const usize,
        n: usize,
    ) -> dist_status_t {
        let params = slice(params, n, "params")?;
        REDUCERS.get(reducer)?.ready(params)
    }
}

dist_export! {
    /// Marks a sparse gradient, with its rows.
    ///
    /// All ranks get the sums of the rows of all ranks (dist_reducer_rows). In a step without
    /// communication the rows are not used: pass those of all steps in the step that communicates.
    ///
    /// @param reducer in: the reducer.
    /// @param param in: the index of the parameter, which has DIST_PARAM_SPARSE_ROWS.
    /// @param rows in: the indices of `n_rows` rows, in any order. Rows that appear several times
    ///   are added. Borrowed until the step has ended; NULL only if `n_rows` is 0.
    /// @param values in: the rows, one after the other, of the gradient's element type; borrowed
    ///   until the step has ended; NULL only if `n_rows` is 0.
    /// @param n_rows in: the number of rows.
    /// @agree nothing.
    /// @blocks no.
    /// @return as dist_reducer_ready; also DIST_ERR_INVALID_ARGUMENT if the gradient is not sparse
    ///   or the parameter has no such row.
    /// @threads any.
    /// @since 0.1
    pub fn dist_reducer_ready_rows(
        reducer: *mut dist_reducer_t,
        param: usize,
        rows: *const i64,
        values: *const c_void,
        n_rows: usize,
    ) -> dist_status_t {
        let row_len = buffer_bytes(n_rows, DataType::I64, 1)?;
        let rows = src(rows.cast(), row_len, "rows")?;
        let values = |row_bytes| {
            src(values, buffer_bytes(n_rows, DataType::U8, row_bytes)?, "values")
        };
        REDUCERS.get(reducer)?.ready_rows(param, rows, values)
    }
}

dist_export! {
    /// Marks a parameter that this rank does not use in the step.
    ///
    /// The rank contributes zeros. If another rank uses the parameter, this rank gets the result,
    /// else the gradient stays as it is.
    ///
    /// @param reducer in: the reducer.
    /// @param param in: the index of the parameter.
    /// @agree nothing.
    /// @blocks no.
    /// @return as dist_reducer_ready.
    /// @threads any.
    /// @since 0.1
    pub fn dist_reducer_unused(reducer: *mut dist_reducer_t, param: usize) -> dist_status_t {
        REDUCERS.get(reducer)?.unused(param)
    }
}

/// The caller's variable for the votes of all ranks.
struct VotesOut(*mut u64);

// SAFETY: the caller lends the variable until the step has ended; one thread writes it.
unsafe impl Send for VotesOut {}

impl VotesOut {
    fn write(&self, votes: u64) {
        OutPtr::write_optional(self.0, votes);
    }

    fn into_delivery(self) -> VoteDelivery {
        VoteDelivery::new(move |votes| self.write(votes))
    }
}

dist_export! {
    /// Ends a step.
    ///
    /// The buckets that are left are sent, and the ranks agree on the step: on their votes, and on
    /// which parameters were used. After DIST_OK all ranks have the same gradients
    /// (dist_reducer_result) and the same `all_votes`. It is for the caller to leave out the update
    /// if that is not DIST_VOTE_COMMIT. The end of a step without communication changes nothing.
    ///
    /// @param reducer in: the reducer.
    /// @param vote in: DIST_VOTE_COMMIT, or the sum of other DIST_VOTE_ constants and of numbers
    ///   from 256 on, which are the caller's. A rank that votes against the step need not mark its
    ///   parameters.
    /// @param all_votes out, optional: the votes of all ranks, combined by bitwise or; borrowed
    ///   until the step has ended.
    /// @param work out, optional: NULL to wait; else a work that ends with the step, owned by the
    ///   caller, released with dist_work_release; NULL on failure.
    /// @agree the order of calls on the group.
    /// @blocks until the gradients are reduced and the functions of dist_reducer_on_bucket have
    ///   returned, until the deadlines of the operations at the latest; not with a work.
    /// @return DIST_OK. DIST_ERR_INVALID_ARGUMENT if no step is open or inside a completion
    ///   callback. With DIST_MISSING_ERROR also DIST_ERR_INVALID_ARGUMENT on all ranks if a rank
    ///   voted DIST_VOTE_COMMIT and did not mark a parameter: the step has ended, and its gradients
    ///   must not be used. DIST_ERR_INVALID_HANDLE, also if the group was released. The errors of
    ///   dist_all_reduce: then the step has failed (dist_reducer_regroup). With a work these are
    ///   the work's.
    /// @threads one at a time.
    /// @since 0.1
    pub fn dist_reducer_end(
        reducer: *mut dist_reducer_t,
        vote: u64,
        all_votes: *mut u64,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let out = WorkOut::new(work);
        let reducer = REDUCERS.get(reducer)?;
        let deliver = VotesOut(all_votes).into_delivery();
        let Some(out) = out.into_handle() else { return reducer.end(vote, deliver) };
        let new_work = reducer.new_work()?;
        let handle = work::create_handle(&new_work)?;
        if let Err(error) = reducer.end_with(vote, deliver, &new_work) {
            drop(work::remove_handle(handle));
            return Err(error);
        }
        out.write(handle);
        Ok(())
    }
}

dist_export! {
    /// Scales the gradients of the last step so that their norm is at most `max_norm`.
    ///
    /// The norm is that of all gradients together, as in PyTorch's clip_grad_norm_, in f64, and the
    /// same on all ranks. Gradients with an infinite or NaN norm stay as they are, and those of
    /// parameters that no rank used do not count.
    ///
    /// @param reducer in: the reducer.
    /// @param max_norm in: the largest norm; infinity to compute the norm only.
    /// @param norm_type in: the exponent of the norm, for instance 2; infinity for the largest
    ///   absolute value.
    /// @param norm out, optional: the norm before the gradients were scaled.
    /// @agree the order of calls on the group, max_norm and norm_type.
    /// @blocks until all ranks have called, until the deadline at the latest.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT for wrong numbers, inside a step, before the
    ///   first one, or inside a completion callback; DIST_ERR_INVALID_HANDLE, also if the group was
    ///   released; DIST_ERR_UNSUPPORTED for gradients of integers or in device memory; the errors
    ///   of dist_all_reduce.
    /// @threads one at a time.
    /// @since 0.1
    pub fn dist_reducer_clip(
        reducer: *mut dist_reducer_t,
        max_norm: f64,
        norm_type: f64,
        norm: *mut f64,
    ) -> dist_status_t {
        let found = REDUCERS.get(reducer)?.clip(max_norm, NormType::of(norm_type)?)?;
        OutPtr::write_optional(norm, found);
        Ok(())
    }
}

/// A caller's function with its argument.
struct CBucketCallback {
    function: unsafe extern "C" fn(bucket: *const dist_bucket_t, user: *mut c_void),
    user: *mut c_void,
}

// SAFETY: the caller promises that the function may be called on another thread with that pointer.
unsafe impl Send for CBucketCallback {}
// SAFETY: as above, and the library's calls come one after the other.
unsafe impl Sync for CBucketCallback {}

impl CBucketCallback {
    fn call(&self, view: &BucketView<'_>) {
        // SAFETY: the caller's function, with the caller's pointer and a bucket that outlives the
        // call.
        with_bucket(view, |bucket| unsafe { (self.function)(bucket, self.user) });
    }
}

dist_export! {
    /// Registers a function that is called with each bucket whose gradients are reduced.
    ///
    /// So the optimizer updates the parameters of one bucket while the next one is reduced. The
    /// function must not throw and must not call functions that may block: it runs on the thread of
    /// completion callbacks (dist_work_on_complete). dist_reducer_end returns after the last call.
    /// A work of dist_reducer_end may end before the last call has returned.
    /// The function is called before the ranks agree on the step: use votes or dist_reducer_clip
    /// only without it. With DIST_REDUCER_RETRYABLE the function is called for all buckets after
    /// the agreement, and only if no rank voted against the step.
    ///
    /// @param reducer in: the reducer.
    /// @param function in, optional: the function; NULL for none.
    /// @param user in, optional: passed to the function; valid until another function is set or the
    ///   reducer is released.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT inside a step.
    /// @threads one at a time.
    /// @since 0.1
    pub fn dist_reducer_on_bucket(
        reducer: *mut dist_reducer_t,
        function: dist_bucket_fn,
        user: *mut c_void,
    ) -> dist_status_t {
        let on_bucket = function.map(|function| {
            let key = CallbackKey { function: function as usize, user: user.addr() };
            let callback = CBucketCallback { function, user };
            OnBucket { key, function: Arc::new(move |view: &BucketView<'_>| callback.call(view)) }
        });
        REDUCERS.get(reducer)?.on_bucket(on_bucket)
    }
}

dist_export! {
    /// Takes part in the steps of the other ranks after this rank has run out of data.
    ///
    /// The rank contributes zeros until no rank has data. Then all ranks get the parameters and
    /// buffers of the lowest rank that had data last. All ranks call it at the end of their data.
    ///
    /// @param reducer in: the reducer, with DIST_REDUCER_UNEVEN.
    /// @param steps out, optional: the number of steps in which this rank took part without data.
    /// @agree all ranks call it.
    /// @blocks until all ranks have called, until the deadlines of the operations at the latest.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT inside a step, without DIST_REDUCER_UNEVEN, or
    ///   inside a completion callback; DIST_ERR_INVALID_HANDLE, also if the group was released; the
    ///   errors of dist_all_reduce and dist_broadcast. After dist_reducer_regroup the call may be
    ///   repeated.
    /// @threads one at a time.
    /// @since 0.1
    pub fn dist_reducer_join(reducer: *mut dist_reducer_t, steps: *mut u64) -> dist_status_t {
        let joined_steps = REDUCERS.get(reducer)?.join()?;
        OutPtr::write_optional(steps, joined_steps);
        Ok(())
    }
}
