//! Outer optimizers.

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

/// A caller's optimizer and its argument.
struct COptimizer {
    function: COuterFunction,
    user: *mut c_void,
}

// SAFETY: the caller promises that the function may be called with that pointer on any thread that
// calls dist_outer_step.
unsafe impl Send for COptimizer {}
// SAFETY: as above, and the calls come one after the other.
unsafe impl Sync for COptimizer {}

impl COptimizer {
    fn update(&self, update: &OuterUpdate) {
        let OuterUpdate { param, global, pseudo_grad, state, count } = *update;
        // SAFETY: the caller's function, with the caller's pointer and arrays of that many
        // elements.
        unsafe { (self.function)(param, global, pseudo_grad, state, count, self.user) }
    }
}

fn outer_options(given: &dist_outer_options_t) -> Result<OuterOptions> {
    let text = |text, name| Ok::<_, Error>(optional_str(text, name)?.unwrap_or_default());
    let optimizer = text(given.optimizer, "optimizer")?;
    let optimizer = match given.function {
        None => OuterOptimizer::parse(optimizer, given.learning_rate, given.momentum)?,
        Some(_) if optimizer.is_empty() => {
            let message = "optimizer is NULL: give the function a name, which the ranks compare";
            return Err(Error::invalid(message));
        }
        Some(function) => {
            let optimizer_function = COptimizer { function, user: given.user };
            let update = move |update: &OuterUpdate| optimizer_function.update(update);
            OuterOptimizer::Function(optimizer.to_owned(), Arc::new(update))
        }
    };
    let settings = text(given.hook_settings, "hook_settings")?;
    Ok(OuterOptions {
        every: given.every,
        fragments: given.fragments.max(1),
        optimizer,
        hook: HookChoice::parse(text(given.hook, "hook")?, settings)?,
        timeout_ms: milliseconds(given.timeout_ms, "timeout_ms")?,
        name: text(given.name, "name")?.to_owned(),
    })
}

dist_export! {
    /// Creates an outer optimizer, for ranks that train on their own for many steps.
    ///
    /// All ranks get the parameters of rank 0, which become the global values. A rank trains with
    /// an optimizer of its own, without communication, and calls dist_outer_step after each step. A
    /// rank that creates an outer optimizer while the other ranks call dist_outer_regroup joins
    /// them.
    ///
    /// @param group in: the group. The outer optimizer does not keep it.
    /// @param params in: `n_params` parameters of f16, bf16, f32 or f64 in host memory, as for
    ///   dist_reducer_create; gradients are not used. Frozen parameters and buffers stay each
    ///   rank's own. The values are borrowed until dist_outer_release. NULL only if `n_params` is
    ///   0.
    /// @param n_params in: the number of parameters.
    /// @param options in: the options; borrowed for the call.
    /// @param out out: the outer optimizer, owned by the caller, released with dist_outer_release;
    ///   NULL on failure.
    /// @agree the parameters but for their addresses, in the same order; the options but for
    ///   `timeout_ms` and `name`.
    /// @blocks until all ranks have called, until the deadlines of its operations at the latest.
    /// @return DIST_OK. With nothing done: DIST_ERR_INVALID_ARGUMENT, also inside a completion
    ///   callback; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED; DIST_ERR_UNSUPPORTED for
    ///   parameters of other types or in device memory. DIST_ERR_MISMATCH on all ranks if
    ///   parameters or options differ. The errors of dist_all_gather_bytes and dist_broadcast.
    /// @threads any.
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
    /// Records that this rank has made a step of its own.
    ///
    /// If a fragment is due, the ranks agree on it. If no rank votes against it, the optimizer
    /// updates the global values of the fragment with the mean distance of the ranks. In both cases
    /// the fragment's parameters of every rank become the global values: after a vote against it
    /// these are the former ones.
    ///
    /// @param outer in: the outer optimizer.
    /// @param vote in: DIST_VOTE_COMMIT, or as for dist_reducer_end. Counts if a fragment is due.
    /// @param fragment out, optional: the index of the fragment that was due, or -1; not written on
    ///   failure.
    /// @param all_votes out, optional: the votes of all ranks, combined by bitwise or; 0 if no
    ///   fragment was due; not written on failure.
    /// @agree the number of calls.
    /// @blocks if a fragment is due: until all ranks have called, until the deadlines of its
    ///   operations at the latest.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT inside a completion callback;
    ///   DIST_ERR_INVALID_HANDLE, also if the group was released; the errors of dist_all_reduce.
    ///   After a failure: dist_group_shrink, dist_outer_regroup, and the same call again, which
    ///   counts no further step.
    /// @threads one at a time.
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
    /// Goes on in another group, for instance in that of dist_group_shrink.
    ///
    /// @param outer in: the outer optimizer.
    /// @param group in: the new group.
    /// @agree all ranks of the new group call it, or dist_outer_create with the same parameters and
    ///   options.
    /// @blocks until all ranks have called, until the deadlines of its operations at the latest.
    /// @return as dist_reducer_regroup.
    /// @threads one at a time.
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
    /// Gives the global values of a parameter and the state of the optimizer.
    ///
    /// @param outer in: the outer optimizer.
    /// @param param in: the index of the parameter.
    /// @param global out: the global values; owned by the outer optimizer, valid until
    ///   dist_outer_release; NULL on failure.
    /// @param state out, optional: the optimizer's state, valid as long; NULL on failure and if the
    ///   optimizer has none.
    /// @param count out, optional: the number of elements; not written on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if the parameter does
    /// not
    ///   exist, is frozen or is a buffer.
    /// @threads one at a time.
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
    /// Gives the global values, the states and the number of steps, for a checkpoint.
    ///
    /// They are the same on all ranks. The parameters of this rank, if it has made steps of its own
    /// since the last agreement, are the caller's to save.
    ///
    /// @param outer in: the outer optimizer.
    /// @param out out: one byte string, owned by the caller, released with dist_blob_release; NULL
    /// on
    ///   failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if dist_outer_step has
    ///   failed and was not repeated; DIST_ERR_OUT_OF_MEMORY.
    /// @threads one at a time.
    /// @since 0.1
    pub fn dist_outer_save(outer: *mut dist_outer_t, out: *mut *mut dist_blob_t) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        blob::write_blob(&out, vec![OUTERS.get(outer)?.save()?])
    }
}

dist_export! {
    /// Takes what dist_outer_save has given, from one rank to all.
    ///
    /// The parameters of all ranks become the global values.
    ///
    /// @param outer in: the outer optimizer, with the same parameters and options.
    /// @param bytes in: at the root the byte string of dist_outer_save; borrowed for the call; not
    ///   used on other ranks.
    /// @param len_bytes in: its length.
    /// @param root in: the rank that has it.
    /// @agree the order of calls on the group, and root.
    /// @blocks until all ranks have called, until the deadlines of its operations at the latest.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT, on all ranks if the byte string has another form
    ///   or other parameters; also inside a completion callback; DIST_ERR_INVALID_HANDLE, also if
    ///   the group was released; the errors of dist_broadcast_bytes.
    /// @threads one at a time.
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
    /// Gives figures since the creation.
    ///
    /// @param outer in: the outer optimizer.
    /// @param out out: the figures; `struct_size` is set by the caller.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `out` is NULL or its
    ///   `struct_size` is wrong.
    /// @threads one at a time.
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
    /// @blocks until its operations have ended, until their deadlines at the latest.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE.
    /// @threads one; no other call uses it.
    /// @since 0.1
    pub fn dist_outer_release(outer: *mut dist_outer_t) -> dist_status_t {
        OUTERS.release_handle(outer, |it| it.retire())
    }
}
