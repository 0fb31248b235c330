//! Functions of a training step of a reducer.
//!
//! The functions are called in this order:
//!
//! ```text
//! dist_reducer_begin(reducer, weight, flags)
//! for each parameter, when its gradient is complete, in any order and on any thread, one of:
//!     dist_reducer_ready, dist_reducer_ready_many     a dense gradient
//!     dist_reducer_ready_rows                         a sparse gradient, with its rows
//!     dist_reducer_unused                             this rank does not use the parameter
//!     (the reducer reduces each bucket once all its gradients are marked)
//! dist_reducer_end(reducer, vote, &all_votes, work)
//! dist_reducer_clip                                   optional
//! (the caller's optimizer updates the parameters, unless a rank voted against the step)
//! ```
//!
//! If `dist_reducer_end` fails because a rank has died, the remaining ranks call
//! `dist_group_shrink` and `dist_reducer_regroup`. With DIST_REDUCER_RETRYABLE they then call
//! `dist_reducer_end` again. Without the flag, they begin the next step.
//!
//! A rank that has run out of data calls `dist_reducer_join` instead of these functions.

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
    /// @param weight in: the weight of this rank's gradients, for instance its number of samples; 0
    ///   or more. Only DIST_DIVIDE_WEIGHTED uses the weight.
    /// @param flags in: 0, or DIST_STEP_NO_SYNC for a step without communication.
    /// @agree the order of calls on the group, in steps with communication. Ranks may make
    ///   different numbers of steps without communication.
    /// @blocks Only with DIST_REDUCER_BROADCAST_BUFFERS: until this rank has the buffers.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if a step is open, the last step has failed, or
    ///   the weight is wrong; DIST_ERR_INVALID_HANDLE if the handle is wrong or the group was
    ///   released; DIST_ERR_UNSUPPORTED for a flag that this version does not know. Without
    ///   DIST_REDUCER_RETRYABLE, the call also returns the error of a failed group.
    /// @threads Only one thread at a time may call this (see dist_reducer_t).
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
    /// Marks a gradient as complete.
    ///
    /// When all gradients of a bucket are marked and all earlier buckets were sent, the library
    /// reduces the bucket in the background. The caller must not read or write a marked gradient
    /// until the end of the step.
    ///
    /// @param reducer in: the reducer.
    /// @param param in: the index of the parameter.
    /// @agree nothing: the ranks may mark gradients in different orders.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT outside a step, and if the parameter does not
    ///   exist, has no gradient or was marked before; DIST_ERR_INVALID_HANDLE; the group's error if
    ///   the group has failed; DIST_ERR_OUT_OF_MEMORY and DIST_ERR_SYSTEM if a bucket cannot be
    ///   sent, which fails the group. With DIST_REDUCER_RETRYABLE, the call returns DIST_OK even if
    ///   the group has failed, and dist_reducer_end reports the failure.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_reducer_ready(reducer: *mut dist_reducer_t, param: usize) -> dist_status_t {
        REDUCERS.get(reducer)?.ready(&[param])
    }
}

dist_export! {
    /// Marks several gradients as complete, in one call.
    ///
    /// @param reducer in: the reducer.
    /// @param params in: `n` indices of parameters; borrowed for the call; NULL only if `n` is 0.
    /// @param n in: the number of parameters.
    /// @agree nothing.
    /// @blocks no.
    /// @return The results of dist_reducer_ready. If a parameter is wrong, the parameters before it
    ///   in the list are marked, and the parameters after it are not.
    /// @threads Any thread may call this at any time.
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
    /// Marks a sparse gradient as complete, and passes its rows.
    ///
    /// At the end of the step, each rank gets the sums of the rows of all ranks
    /// (dist_reducer_rows). In a step without communication, the rows are not used. Therefore, pass
    /// the rows of all these steps in the next step with communication.
    ///
    /// @param reducer in: the reducer.
    /// @param param in: the index of the parameter, which has DIST_PARAM_SPARSE_ROWS.
    /// @param rows in: the indices of `n_rows` rows, in any order. If an index appears several
    ///   times, its rows are added. Borrowed until the step has ended; NULL only if `n_rows` is 0.
    /// @param values in: the rows, one after the other, in the gradient's element type; borrowed
    ///   until the step has ended; NULL only if `n_rows` is 0.
    /// @param n_rows in: the number of rows.
    /// @agree nothing.
    /// @blocks no.
    /// @return The results of dist_reducer_ready, and DIST_ERR_INVALID_ARGUMENT if the gradient is
    ///   not sparse or a row does not exist in the parameter.
    /// @threads Any thread may call this at any time.
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
    /// This rank contributes zeros. If another rank uses the parameter, this rank gets the result.
    /// If no rank uses it, the gradient stays unchanged.
    ///
    /// @param reducer in: the reducer.
    /// @param param in: the index of the parameter.
    /// @agree nothing.
    /// @blocks no.
    /// @return The results of dist_reducer_ready.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_reducer_unused(reducer: *mut dist_reducer_t, param: usize) -> dist_status_t {
        REDUCERS.get(reducer)?.unused(param)
    }
}

/// The caller's variable for the combined votes of all ranks; NULL if the caller passes none.
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
    /// The reducer sends the remaining buckets. The ranks then agree on the step: they combine
    /// their votes, and the information about which parameters were used. After DIST_OK, all ranks
    /// have the same gradients (dist_reducer_result) and the same `all_votes`. If `all_votes` is
    /// not DIST_VOTE_COMMIT, the caller skips the update; the library does not enforce this.
    ///
    /// A step without communication (DIST_STEP_NO_SYNC) ends without any effect on the gradients.
    ///
    /// @param reducer in: the reducer.
    /// @param vote in: DIST_VOTE_COMMIT for the step. To vote against the step: a sum of the other
    ///   DIST_VOTE_ constants and of the caller's own bits, which are 256 or more. A rank that
    ///   votes against the step need not mark its parameters.
    /// @param all_votes out, optional: the votes of all ranks, combined by bitwise or; borrowed
    ///   until the step has ended.
    /// @param work out, optional: NULL to block. Otherwise the call writes a work that ends with
    ///   the step. The caller owns the work and releases it with dist_work_release; NULL on
    ///   failure.
    /// @agree the order of calls on the group.
    /// @blocks Until the gradients are reduced and the functions of dist_reducer_on_bucket have
    ///   returned, but at most until the deadlines of the call's operations. A call with a work
    ///   does not block.
    /// @return DIST_OK. If the call has had no effect: DIST_ERR_INVALID_ARGUMENT if no step is open
    ///   or inside a completion callback; DIST_ERR_INVALID_HANDLE if the handle is wrong or the
    ///   group was released. A blocking call returns the following errors; otherwise the work
    ///   reports them: the errors of dist_all_reduce, after which the step has failed (see
    ///   dist_reducer_regroup). With DIST_MISSING_ERROR, all ranks get DIST_ERR_INVALID_ARGUMENT if
    ///   a rank voted DIST_VOTE_COMMIT without marking all parameters. In this case, the step has
    ///   ended, but its gradients must not be used.
    /// @threads Only one thread at a time may call this (see dist_reducer_t).
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
    /// The norm is computed over all gradients together, as in PyTorch's clip_grad_norm_, in f64,
    /// and is the same on all ranks. Gradients of parameters that no rank used are ignored. If the
    /// norm is infinite or NaN, the gradients stay unchanged.
    ///
    /// @param reducer in: the reducer.
    /// @param max_norm in: the largest norm; infinity to compute the norm only.
    /// @param norm_type in: the exponent of the norm, for instance 2; infinity for the largest
    ///   absolute value.
    /// @param norm out, optional: the norm before the gradients were scaled.
    /// @agree the order of calls on the group, `max_norm` and `norm_type`.
    /// @blocks Until every rank has called, but at most until the deadline.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if a number is wrong, inside a step, before the
    ///   end of the first step, or inside a completion callback; DIST_ERR_INVALID_HANDLE if the
    ///   handle is wrong or the group was released; DIST_ERR_UNSUPPORTED for gradients of integers
    ///   or in device memory; the errors of dist_all_reduce.
    /// @threads Only one thread at a time may call this (see dist_reducer_t).
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

/// A caller's function for reduced buckets, and its argument.
struct CBucketCallback {
    function: unsafe extern "C" fn(bucket: *const dist_bucket_t, user: *mut c_void),
    user: *mut c_void,
}

// SAFETY: the caller promises that the function may be called on another thread with that pointer.
unsafe impl Send for CBucketCallback {}
// SAFETY: the library makes these calls one after the other, so no two threads use `user` at once.
unsafe impl Sync for CBucketCallback {}

impl CBucketCallback {
    fn call(&self, view: &BucketView<'_>) {
        // SAFETY: the caller's function gets the caller's pointer and a bucket that outlives the
        // call.
        with_bucket(view, |bucket| unsafe { (self.function)(bucket, self.user) });
    }
}

dist_export! {
    /// Registers a function that the library calls with each reduced bucket.
    ///
    /// The function can update the parameters of one bucket while the next bucket is still reduced.
    /// The calls have these rules:
    ///
    /// - The function runs on the thread of completion callbacks (dist_work_on_complete). It must
    ///   not throw, and must not call functions that may block.
    /// - Usually the library calls the function before the ranks have agreed on the step.
    ///   Therefore, do not combine it with votes against a step or with dist_reducer_clip.
    /// - With DIST_REDUCER_RETRYABLE, the library calls the function for all buckets after the
    ///   agreement, and only if no rank voted against the step.
    /// - dist_reducer_end returns after the last call has returned. A work of dist_reducer_end may
    ///   end before.
    ///
    /// @param reducer in: the reducer.
    /// @param function in, optional: the function; NULL for none.
    /// @param user in, optional: passed to the function; valid until another function is set or the
    ///   reducer is released.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT inside a step.
    /// @threads Only one thread at a time may call this (see dist_reducer_t).
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
    /// All ranks call this function at the end of their data. This rank contributes zeros to each
    /// step until no rank has data. Then all ranks get the parameters and buffers of the lowest
    /// rank that had data in the last step.
    ///
    /// @param reducer in: the reducer, with DIST_REDUCER_UNEVEN.
    /// @param steps out, optional: the number of steps in which this rank took part without data.
    /// @agree all ranks call this function.
    /// @blocks Until every rank has called, but at most until the deadlines of the call's
    ///   operations.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT inside a step, without DIST_REDUCER_UNEVEN, or
    ///   inside a completion callback; DIST_ERR_INVALID_HANDLE if the handle is wrong or the group
    ///   was released; the errors of dist_all_reduce and dist_broadcast. After an error and
    ///   dist_reducer_regroup, the call may be repeated.
    /// @threads Only one thread at a time may call this (see dist_reducer_t).
    /// @since 0.1
    pub fn dist_reducer_join(reducer: *mut dist_reducer_t, steps: *mut u64) -> dist_status_t {
        let joined_steps = REDUCERS.get(reducer)?.join()?;
        OutPtr::write_optional(steps, joined_steps);
        Ok(())
    }
}
