//! Functions of outer optimizers (local SGD, DiLoCo), `dist_outer_create` to `dist_outer_release`.
//!
//! Each rank trains alone for many steps, with an optimizer of its own. From time to time the ranks
//! agree on common values, the *global values*. Every rank has a copy of the global values. The
//! parameters are divided into *fragments*. The ranks agree on each fragment at a different step.
//! With several fragments, no step sends all parameters. The implementation is in
//! `api::reducer::outer`.
//!
//! # One step
//! The caller updates the parameters and calls `dist_outer_step`. If no fragment is due, the call
//! only counts the step. If a fragment is due, the call makes the following steps on all ranks:
//!
//! 1. Each rank computes the difference: global values minus its own values.
//! 2. The ranks compute the mean of their differences (the pseudo-gradient) and combine their
//!    votes.
//! 3. If no rank has voted against the agreement, the outer optimizer updates the global values.
//! 4. Each rank copies the global values into its parameters.
//!
//! For example, with `every` = 6 and `fragments` = 3:
//!
//! ```text
//! call of dist_outer_step   1  2  3  4  5  6  7  8  9 10 11 12
//! fragment that is due      -  0  -  1  -  2  -  0  -  1  -  2
//! ```
//!
//! # After the death of a rank
//! The remaining ranks call `dist_group_shrink`, then `dist_outer_regroup` with the new group, and
//! then `dist_outer_step` again. A rank that joins calls `dist_outer_create` while the other ranks
//! call `dist_outer_regroup`.

use super::args::{OutPtr, index, milliseconds, null_argument, optional_bytes, optional_str};
use super::blob;
use super::group::group;
use super::handle::{HandleKind, HandleTable};
use super::outer_types::*;
use super::reducer_args::read_params;
use super::sized_struct;
use super::train_types::dist_param_t;
use super::types::*;
use crate::api::reducer::{HookChoice, Outer, OuterOptimizer, OuterOptions, OuterUpdate};
use crate::base::error::{Error, Result};
use std::ffi::c_void;
use std::sync::Arc;

static OUTERS: HandleTable<Outer> = HandleTable::new(HandleKind::Outer);

type COuterFunction = unsafe extern "C" fn(
    param: usize,
    global: *mut f32,
    pseudo_grad: *const f32,
    state: *mut f32,
    count: usize,
    user: *mut c_void,
);

/// The caller's optimizer function and its argument.
struct COptimizer {
    function: COuterFunction,
    user: *mut c_void,
}

// SAFETY: the caller promises that the function may be called with that pointer on any thread that
// calls dist_outer_step.
unsafe impl Send for COptimizer {}
// SAFETY: the library makes these calls one after the other, so no two threads use `user` at once.
unsafe impl Sync for COptimizer {}

impl COptimizer {
    fn update(&self, update: &OuterUpdate) {
        let OuterUpdate { param, global, pseudo_grad, state, count } = *update;
        // SAFETY: the caller's function gets the caller's pointer and arrays of that many
        // elements.
        unsafe { (self.function)(param, global, pseudo_grad, state, count, self.user) }
    }
}

fn outer_options(c_options: &dist_outer_options_t) -> Result<OuterOptions> {
    let text = |text, name| Ok::<_, Error>(optional_str(text, name)?.unwrap_or_default());
    let optimizer = text(c_options.optimizer, "optimizer")?;
    let optimizer = match c_options.function {
        None => OuterOptimizer::parse(optimizer, c_options.learning_rate, c_options.momentum)?,
        Some(_) if optimizer.is_empty() => {
            let message = "optimizer is NULL: give the function a name, which the ranks compare";
            return Err(Error::invalid(message));
        }
        Some(function) => {
            let optimizer_function = COptimizer { function, user: c_options.user };
            let update = move |update: &OuterUpdate| optimizer_function.update(update);
            OuterOptimizer::Function(optimizer.to_owned(), Arc::new(update))
        }
    };
    let settings = text(c_options.hook_settings, "hook_settings")?;
    Ok(OuterOptions {
        every: c_options.every,
        fragments: c_options.fragments.max(1),
        optimizer,
        hook: HookChoice::parse(text(c_options.hook, "hook")?, settings)?,
        timeout_ms: milliseconds(c_options.timeout_ms, "timeout_ms")?,
        name: text(c_options.name, "name")?.to_owned(),
    })
}

dist_export! {
    /// Creates an outer optimizer, for ranks that train on their own for many steps.
    ///
    /// All ranks get the parameters of rank 0, which become the global values (the values on which
    /// the ranks agree). Then each rank trains without communication, with an optimizer of its own,
    /// and calls dist_outer_step after each step. From time to time, dist_outer_step lets the ranks
    /// agree on new global values.
    ///
    /// A rank that joins a training creates its outer optimizer while the other ranks call
    /// dist_outer_regroup.
    ///
    /// @param group in: the group. The outer optimizer does not keep the group alive.
    /// @param params in: `n_params` parameters of f16, bf16, f32 or f64 in host memory, in the form
    ///   of dist_reducer_create. Gradients are not used. Frozen parameters and buffers are not
    ///   exchanged. The values are borrowed until dist_outer_release. NULL only if `n_params` is 0.
    /// @param n_params in: the number of parameters.
    /// @param options in: the options; borrowed for the call.
    /// @param out out: the outer optimizer, owned by the caller, released with dist_outer_release;
    ///   NULL on failure.
    /// @agree the parameters except their addresses, in the same order; the options except
    ///   `timeout_ms` and `name`.
    /// @blocks Until every rank has called, but at most until the deadlines of the call's
    ///   operations.
    /// @return DIST_OK. If the call has had no effect: DIST_ERR_INVALID_ARGUMENT if an argument is
    ///   wrong or inside a completion callback; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED;
    ///   DIST_ERR_UNSUPPORTED for parameters of other types or in device memory. If parameters or
    ///   options differ, all ranks return DIST_ERR_MISMATCH. The call also returns the errors of
    ///   dist_all_gather_bytes and dist_broadcast.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_outer_create(
        group: *mut dist_group_t,
        params: *const dist_param_t,
        n_params: usize,
        options: *const dist_outer_options_t,
        out: *mut *mut dist_outer_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        if options.is_null() {
            return Err(null_argument("options"));
        }
        let options = outer_options(&sized_struct::read(options)?)?;
        let group = self::group(group)?;
        let outer = Outer::create(&group, read_params(params, n_params)?, options)?;
        out.write(OUTERS.insert(outer)?);
        Ok(())
    }
}

dist_export! {
    /// Records that this rank has made one training step, and agrees on a fragment if one is due.
    ///
    /// A fragment is a part of the parameters. If no fragment is due, the call does not
    /// communicate. If a fragment is due, the ranks combine their votes. If no rank votes against
    /// the agreement, the optimizer updates the global values of the fragment with the mean
    /// difference between the global values and the values of the ranks. In both cases, the
    /// parameters of the fragment then get the global values on every rank. After a vote against
    /// the agreement, these are still the old global values, so the ranks lose their own steps
    /// since the last agreement.
    ///
    /// @param outer in: the outer optimizer.
    /// @param vote in: DIST_VOTE_COMMIT, or a vote against the agreement as in dist_reducer_end.
    ///   The vote has no effect if no fragment is due.
    /// @param fragment out, optional: the index of the fragment that was due, or -1 if there was
    ///   none; not written on failure.
    /// @param all_votes out, optional: the votes of all ranks, combined by bitwise or; 0 if no
    ///   fragment was due; not written on failure.
    /// @agree the number of calls.
    /// @blocks If a fragment is due: until every rank has called, but at most until the deadlines
    ///   of the call's operations.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT inside a completion callback;
    ///   DIST_ERR_INVALID_HANDLE if the handle is wrong or the group was released; the errors of
    ///   dist_all_reduce. After an error of dist_all_reduce, call dist_group_shrink,
    ///   dist_outer_regroup, and then dist_outer_step again. The repeated call does not count as
    ///   another step.
    /// @threads Only one thread at a time may call this (see dist_outer_t).
    /// @since 0.1
    pub fn dist_outer_step(
        outer: *mut dist_outer_t,
        vote: u64,
        fragment: *mut i64,
        all_votes: *mut u64,
    ) -> dist_status_t {
        let step = OUTERS.get(outer)?.step(vote)?;
        OutPtr::write_optional(fragment, step.fragment.map_or(-1, |index| i64::try_from(index).unwrap_or(i64::MAX)));
        OutPtr::write_optional(all_votes, step.votes);
        Ok(())
    }
}

dist_export! {
    /// Continues in another group, for instance in the group that dist_group_shrink returns.
    ///
    /// @param outer in: the outer optimizer.
    /// @param group in: the new group.
    /// @agree every rank of the new group calls dist_outer_regroup, or dist_outer_create with the
    ///   same parameters and options.
    /// @blocks Until every rank has called, but at most until the deadlines of the call's
    ///   operations.
    /// @return The results of dist_reducer_regroup.
    /// @threads Only one thread at a time may call this (see dist_outer_t).
    /// @since 0.1
    pub fn dist_outer_regroup(
        outer: *mut dist_outer_t,
        group: *mut dist_group_t,
    ) -> dist_status_t {
        let outer = OUTERS.get(outer)?;
        let group = self::group(group)?;
        outer.regroup(&group)
    }
}

dist_export! {
    /// Returns the global values of a parameter and the state of the optimizer for this parameter.
    ///
    /// @param outer in: the outer optimizer.
    /// @param param in: the index of the parameter.
    /// @param global out: the global values. The outer optimizer owns the memory, which is valid
    ///   until dist_outer_release. NULL on failure.
    /// @param state out, optional: the optimizer's state of the parameter, valid until
    ///   dist_outer_release; NULL on failure and if the optimizer has no state.
    /// @param count out, optional: the number of elements of each array; not written on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if the parameter does
    ///   not exist, is frozen or is a buffer.
    /// @threads Only one thread at a time may call this (see dist_outer_t).
    /// @since 0.1
    pub fn dist_outer_values(
        outer: *mut dist_outer_t,
        param: usize,
        global: *mut *mut f32,
        state: *mut *mut f32,
        count: *mut usize,
    ) -> dist_status_t {
        let out = OutPtr::handle(global, "global")?;
        let state_out = OutPtr::optional(state);
        state_out.iter().for_each(|out| out.write(std::ptr::null_mut()));
        let (global, state, elements) = OUTERS.get(outer)?.values(param)?;
        out.write(global);
        if let (Some(out), Some(state)) = (state_out, state) {
            out.write(state);
        }
        OutPtr::write_optional(count, elements);
        Ok(())
    }
}

dist_export! {
    /// Returns the global values, the states and the number of steps, for a checkpoint.
    ///
    /// The result is the same on all ranks. It does not contain the parameters of this rank. If
    /// this rank has made steps since the last agreement, its parameters differ from the global
    /// values, and the caller saves them.
    ///
    /// @param outer in: the outer optimizer.
    /// @param out out: one byte string, owned by the caller, released with dist_blob_release; NULL
    ///   on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if dist_outer_step has
    ///   failed and was not repeated; DIST_ERR_OUT_OF_MEMORY.
    /// @threads Only one thread at a time may call this (see dist_outer_t).
    /// @since 0.1
    pub fn dist_outer_save(outer: *mut dist_outer_t, out: *mut *mut dist_blob_t) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        blob::write_blob(&out, vec![OUTERS.get(outer)?.save()?])
    }
}

dist_export! {
    /// Loads the data that dist_outer_save returned, from one rank to all ranks.
    ///
    /// The parameters of all ranks get the loaded global values.
    ///
    /// @param outer in: the outer optimizer, with the same parameters and options as the saved one.
    /// @param bytes in: on the root, the byte string of dist_outer_save; borrowed for the call. The
    ///   other ranks' `bytes` are not used.
    /// @param len_bytes in: the length of `bytes`.
    /// @param root in: the rank that has the byte string.
    /// @agree the order of calls on the group, and `root`.
    /// @blocks Until every rank has called, but at most until the deadlines of the call's
    ///   operations.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT on all ranks if the byte string has another
    ///   format or other parameters; DIST_ERR_INVALID_ARGUMENT if dist_outer_step has failed and
    ///   was not repeated, and inside a completion callback; DIST_ERR_INVALID_HANDLE if the handle
    ///   is wrong or the group was released; the errors of dist_broadcast_bytes.
    /// @threads Only one thread at a time may call this (see dist_outer_t).
    /// @since 0.1
    pub fn dist_outer_load(
        outer: *mut dist_outer_t,
        bytes: *const c_void,
        len_bytes: usize,
        root: i32,
    ) -> dist_status_t {
        let bytes = optional_bytes(bytes, len_bytes, "bytes")?;
        OUTERS.get(outer)?.load(bytes, index(root, "root")?)
    }
}

dist_export! {
    /// Returns figures of the outer optimizer since its creation.
    ///
    /// @param outer in: the outer optimizer.
    /// @param out out: the figures; `struct_size` is set by the caller.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `out` is NULL or its
    ///   `struct_size` is wrong.
    /// @threads Only one thread at a time may call this (see dist_outer_t).
    /// @since 0.1
    pub fn dist_outer_stats(
        outer: *mut dist_outer_t,
        out: *mut dist_outer_stats_t,
    ) -> dist_status_t {
        sized_struct::write_required(out, "out", || {
            let stats = OUTERS.get(outer)?.stats();
            Ok(dist_outer_stats_t {
                struct_size: size_of::<dist_outer_stats_t>(),
                steps: stats.steps,
                updates: stats.updates,
                restores: stats.restores,
                bytes_reduced: stats.bytes_reduced,
                bytes_saved: stats.bytes_saved,
                communication_ns: stats.communication_ns,
            })
        })
    }
}

dist_export! {
    /// Releases an outer optimizer, its global values and its states.
    ///
    /// @param outer in, optional: the outer optimizer; NULL does nothing.
    /// @agree nothing.
    /// @blocks Until the operations of the outer optimizer have ended, but at most until their
    ///   deadlines.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE.
    /// @threads Any thread may call this, but no other call may use the outer optimizer at the same
    ///   time.
    /// @since 0.1
    pub fn dist_outer_release(outer: *mut dist_outer_t) -> dist_status_t {
        OUTERS.release_handle(outer, |it| it.retire())
    }
}
