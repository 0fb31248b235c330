//! Functions of sharded optimizers (ZeRO), `dist_shard_create` to `dist_shard_release`.
//!
//! A shard belongs to a reducer. It splits the elements of all parameters with a gradient over the
//! ranks. Each rank keeps the optimizer's states (such as "m" and "v" of Adam) of its own elements
//! only. It updates these elements and sends them to all ranks. The values of the parameters stay
//! complete on every rank. The implementation is in `api::reducer::shard`.
//!
//! # One training step
//! Every rank makes the same calls:
//!
//! ```text
//! dist_reducer_begin, _ready (per parameter), _end     reduce the gradients
//! dist_shard_ranges, dist_shard_state                 get the elements and states of this rank
//! (the caller's optimizer updates these elements and states)
//! dist_shard_gather(shard, NULL)                      send the new values to all ranks
//! ```
//!
//! The gather can overlap with the next forward pass:
//!
//! ```text
//! dist_shard_gather(shard, &work)                     returns at once
//! dist_shard_wait(shard, param)                       before the forward pass uses this parameter
//! dist_work_wait(work), dist_work_release(work)       before the next gather
//! ```
//!
//! # After the death of a rank
//! `dist_reducer_end` or `dist_shard_gather` fails on the remaining ranks, which then call:
//!
//! ```text
//! dist_group_shrink, dist_reducer_regroup             continue in a group of the remaining ranks
//! dist_reducer_end, the update again                  only if dist_reducer_end has failed
//! dist_shard_gather(shard, NULL)                      also redistributes the states
//! dist_shard_ranges                                   returns the ranges in the new group
//! ```
//!
//! # A rank that joins
//! ```text
//! ranks of the old group                              new rank
//! dist_reducer_regroup(reducer, new group)            dist_reducer_create(new group, ...)
//! dist_shard_gather(shard, NULL)                      dist_shard_create(reducer, ...)
//! ```

use super::args::{
    OutPtr, check_reserved, index, milliseconds, null_argument, optional_bytes, required_str, slice,
};
use super::blob;
use super::handle::{HandleKind, HandleTable};
use super::reducer::REDUCERS;
use super::shard_types::*;
use super::sized_struct;
use super::submit::WorkOut;
use super::train_types::dist_reducer_t;
use super::types::*;
use super::work;
use crate::api::reducer::{Shard, ShardOptions, ShardRange};
use crate::base::error::{Error, ErrorContext as _, Result};
use std::ffi::c_void;

static SHARDS: HandleTable<Shard> = HandleTable::new(HandleKind::Shard);

fn shard_options(c_options: &dist_shard_options_t) -> Result<ShardOptions> {
    check_reserved(c_options.reserved)?;
    let names = slice(c_options.states, c_options.n_states, "states")?;
    let name = |(index, &name)| {
        let name = required_str(name, "name").context(|| format!("states[{index}]"));
        name.map(str::to_owned)
    };
    Ok(ShardOptions {
        states: names.iter().enumerate().map(name).collect::<Result<_>>()?,
        copies: index(c_options.copies, "copies")?.max(1),
        timeout_ms: milliseconds(c_options.timeout_ms, "timeout_ms")?,
    })
}

dist_export! {
    /// Splits the state of an optimizer over the ranks of a reducer.
    ///
    /// Each bucket of the reducer is split by elements, evenly over the ranks. For example, 4 ranks
    /// split a bucket of 10 elements into 3, 3, 2 and 2 elements. After dist_reducer_end, each rank
    /// updates the elements that dist_shard_ranges returns and the states that dist_shard_state
    /// returns. Then all ranks call dist_shard_gather.
    ///
    /// A new shard has states of zeros. The exception is a rank that joins a training: it calls
    /// dist_shard_create while the other ranks call dist_shard_gather after dist_reducer_regroup,
    /// and gets its share of their states.
    ///
    /// @param reducer in: the reducer, between two steps. After this call, its buckets no longer
    ///   change. The shard uses the reducer until dist_shard_release: release the shard before the
    ///   reducer.
    /// @param options in, optional: NULL for no states; borrowed for the call.
    /// @param out out: the shard, owned by the caller, released with dist_shard_release; NULL on
    ///   failure.
    /// @agree the order of calls on the group, and all options except `timeout_ms`.
    /// @blocks Until every rank has called, but at most until the deadlines of the call's
    ///   operations.
    /// @return DIST_OK. If the call has had no effect: DIST_ERR_INVALID_ARGUMENT if an argument is
    ///   wrong, inside a step, inside a completion callback, if the reducer already has a shard, or
    ///   if it has DIST_REDUCER_UNEVEN; DIST_ERR_INVALID_HANDLE if the handle is wrong or the group
    ///   was released; DIST_ERR_UNSUPPORTED for sparse gradients and for device memory. If the
    ///   options differ, all ranks return DIST_ERR_MISMATCH. The call also returns the errors of
    ///   dist_all_gather_bytes.
    /// @threads Only one thread at a time may call this (see dist_shard_t).
    /// @since 0.1
    pub fn dist_shard_create(
        reducer: *mut dist_reducer_t,
        options: *const dist_shard_options_t,
        out: *mut *mut dist_shard_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        let options = shard_options(&sized_struct::read(options)?)?;
        let shard = Shard::create(&*REDUCERS.get(reducer)?, options)?;
        out.write(SHARDS.insert(shard)?);
        Ok(())
    }
}

fn to_c_range(range: &ShardRange) -> dist_shard_range_t {
    dist_shard_range_t {
        struct_size: size_of::<dist_shard_range_t>(),
        param: range.param,
        begin: range.begin,
        count: range.count,
        bucket: range.bucket,
        offset: range.offset,
        data: range.data.as_mut_ptr().cast::<c_void>(),
        grad: range.grad.as_mut_ptr().cast::<c_void>(),
    }
}

dist_export! {
    /// Returns the elements that this rank updates, as ranges of parameters.
    ///
    /// If `copies` in the options is above 1, the ranges include copies of other ranks' elements.
    /// The ranges change only in the first dist_shard_gather after dist_reducer_regroup.
    ///
    /// @param shard in: the shard.
    /// @param ranges out: an array that gets the first `capacity` ranges. The caller sets
    ///   `struct_size` of each element of the array to the same number. NULL only if `capacity` is
    ///   0.
    /// @param capacity in: the length of the array `ranges`.
    /// @param n_ranges out: the number of ranges of this rank, which may exceed `capacity`; not
    ///   written on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE if the handle is wrong or the group was released;
    ///   DIST_ERR_INVALID_ARGUMENT if an argument is wrong. With DIST_REDUCER_SHARDED, the call
    ///   also returns DIST_ERR_INVALID_ARGUMENT between dist_reducer_regroup and dist_shard_gather.
    /// @threads Only one thread at a time may call this (see dist_shard_t).
    /// @since 0.1
    pub fn dist_shard_ranges(
        shard: *mut dist_shard_t,
        ranges: *mut dist_shard_range_t,
        capacity: usize,
        n_ranges: *mut usize,
    ) -> dist_status_t {
        let n_ranges = OutPtr::required(n_ranges, "n_ranges")?;
        if ranges.is_null() && capacity > 0 {
            return Err(null_argument("ranges"));
        }
        let found = SHARDS.get(shard)?.ranges()?;
        if capacity > 0 {
            let stride = sized_struct::output_size(ranges.cast_const())?;
            for (index, range) in found.iter().take(capacity).enumerate() {
                let slot = ranges.cast::<u8>().wrapping_add(index * stride);
                let slot = slot.cast::<dist_shard_range_t>();
                if sized_struct::output_size(slot.cast_const())? != stride {
                    let message = format!("ranges[{index}] and ranges[0] have different values of \
                                           struct_size");
                    return Err(Error::invalid(message));
                }
                sized_struct::write(slot, stride, to_c_range(range));
            }
        }
        n_ranges.write(found.len());
        Ok(())
    }
}

dist_export! {
    /// Returns one of the optimizer's states for the elements that this rank updates.
    ///
    /// @param shard in: the shard.
    /// @param state in: the index of the state in `states` of the options.
    /// @param values out: one f32 for each element, initially zero. The state of a range begins at
    ///   `offset` of the range. The memory belongs to the shard. It is valid until
    ///   dist_shard_release, or until the first dist_shard_gather after dist_reducer_regroup. NULL
    ///   on failure.
    /// @param count out, optional: the number of elements; not written on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if the state does not
    ///   exist.
    /// @threads Only one thread at a time may call this (see dist_shard_t).
    /// @since 0.1
    pub fn dist_shard_state(
        shard: *mut dist_shard_t,
        state: usize,
        values: *mut *mut f32,
        count: *mut usize,
    ) -> dist_status_t {
        let out = OutPtr::handle(values, "values")?;
        let (values, elements) = SHARDS.get(shard)?.state(state)?;
        out.write(values);
        OutPtr::write_optional(count, elements);
        Ok(())
    }
}

dist_export! {
    /// Sends the elements that this rank has updated to all ranks, and receives the others.
    ///
    /// All ranks call this after the update of each step. The ranks send the parameters bucket by
    /// bucket, beginning with the first layers. Without a work, the call returns when all ranks
    /// have all parameters. With a work, the call returns at once, and the forward pass may begin.
    /// The caller then neither reads nor writes a parameter until dist_shard_wait has returned for
    /// it.
    ///
    /// If a rank dies, dist_reducer_end or dist_shard_gather fails. The remaining ranks then make
    /// these calls:
    ///
    /// 1. dist_group_shrink, and dist_reducer_regroup with the new group.
    /// 2. If dist_reducer_end has failed: dist_reducer_end and the update again.
    /// 3. dist_shard_gather. This call also redistributes the states to the ranks of the new group.
    ///    After it, dist_shard_ranges returns other ranges.
    ///
    /// The first dist_shard_gather after a dist_reducer_regroup redistributes the states even if no
    /// rank has died. If a gather with a work has failed, dist_reducer_end of the next step repeats
    /// this gather after dist_reducer_regroup.
    ///
    /// @param shard in: the shard.
    /// @param work out, optional: NULL to block. Otherwise the call writes a work that ends with
    ///   the gather. The caller owns the work and releases it with dist_work_release; NULL on
    ///   failure.
    /// @agree the order of calls on the group.
    /// @blocks Until all ranks have all parameters, but at most until the deadlines of the call's
    ///   operations. A call with a work blocks only after dist_reducer_regroup.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT while another gather runs, and inside a
    ///   completion callback; DIST_ERR_INVALID_HANDLE if the handle is wrong or the group was
    ///   released. DIST_ERR_NOT_FOUND if states were lost because no remaining rank has a copy: the
    ///   group still works, but the call cannot succeed later. The call also returns the errors of
    ///   dist_all_gather. In a call with a work, the work reports these errors.
    /// @threads Only one thread at a time may call this (see dist_shard_t).
    /// @since 0.1
    pub fn dist_shard_gather(
        shard: *mut dist_shard_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let out = WorkOut::new(work);
        let shard = SHARDS.get(shard)?;
        let Some(out) = out.into_handle() else { return shard.gather() };
        let new_work = shard.new_work()?;
        let handle = work::create_handle(&new_work)?;
        if let Err(error) = shard.gather_with(&new_work) {
            drop(work::remove_handle(handle));
            return Err(error);
        }
        out.write(handle);
        Ok(())
    }
}

dist_export! {
    /// Waits for a parameter of a running gather, that is, of dist_shard_gather with a work.
    ///
    /// @param shard in: the shard.
    /// @param param in: the index of the parameter.
    /// @agree nothing.
    /// @blocks Until the elements of all ranks have arrived, but at most until the deadline of the
    ///   operation.
    /// @return DIST_OK, also if no gather runs; DIST_ERR_INVALID_ARGUMENT if the parameter does not
    ///   exist or has no gradient, and inside a completion callback; DIST_ERR_INVALID_HANDLE; the
    ///   errors of the gather.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_shard_wait(shard: *mut dist_shard_t, param: usize) -> dist_status_t {
        SHARDS.get(shard)?.wait(param)
    }
}

dist_export! {
    /// Collects the states of all ranks at one rank, for a checkpoint.
    ///
    /// The states are ordered by parameter, without padding, so dist_shard_load can distribute them
    /// to any number of ranks. The result does not contain the values of the parameters. Every rank
    /// has all of these values, and the caller saves them.
    ///
    /// @param shard in: the shard.
    /// @param root in: the rank that gets the states.
    /// @param out out: on the root, one byte string, owned by the caller, released with
    ///   dist_blob_release; NULL on failure and on the other ranks.
    /// @agree the order of calls on the group, and `root`.
    /// @blocks Until every rank has called, but at most until the deadlines of the call's
    ///   operations.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if an argument is wrong, between
    ///   dist_reducer_regroup and dist_shard_gather, and inside a completion callback;
    ///   DIST_ERR_INVALID_HANDLE if the handle is wrong or the group was released;
    ///   DIST_ERR_OUT_OF_MEMORY; the errors of dist_gather_bytes.
    /// @threads Only one thread at a time may call this (see dist_shard_t).
    /// @since 0.1
    pub fn dist_shard_save(
        shard: *mut dist_shard_t,
        root: i32,
        out: *mut *mut dist_blob_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        match SHARDS.get(shard)?.save(index(root, "root")?)? {
            Some(bytes) => blob::write_blob(&out, vec![bytes]),
            None => Ok(()),
        }
    }
}

dist_export! {
    /// Loads states that dist_shard_save returned, from one rank to any number of ranks.
    ///
    /// @param shard in: the shard. Its parameters and states have the same names as the saved ones.
    /// @param bytes in: on the root, the byte string of dist_shard_save; borrowed for the call. The
    ///   other ranks' `bytes` are not used.
    /// @param len_bytes in: the length of `bytes`.
    /// @param root in: the rank that has the byte string.
    /// @agree the order of calls on the group, and `root`.
    /// @blocks Until all ranks have their states, but at most until the deadlines of the call's
    ///   operations.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT on all ranks if the byte string has another
    ///   format, other parameters or other states; DIST_ERR_INVALID_ARGUMENT between
    ///   dist_reducer_regroup and dist_shard_gather, and inside a completion callback;
    ///   DIST_ERR_INVALID_HANDLE if the handle is wrong or the group was released; the errors of
    ///   dist_broadcast.
    /// @threads Only one thread at a time may call this (see dist_shard_t).
    /// @since 0.1
    pub fn dist_shard_load(
        shard: *mut dist_shard_t,
        bytes: *const c_void,
        len_bytes: usize,
        root: i32,
    ) -> dist_status_t {
        let bytes = optional_bytes(bytes, len_bytes, "bytes")?;
        SHARDS.get(shard)?.load(bytes, index(root, "root")?)
    }
}

dist_export! {
    /// Releases a shard and its states.
    ///
    /// @param shard in, optional: the shard; NULL does nothing.
    /// @agree nothing.
    /// @blocks Until a running gather has ended, but at most until the deadlines of its operations.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE.
    /// @threads Any thread may call this, but no other call may use the shard at the same time.
    /// @since 0.1
    pub fn dist_shard_release(shard: *mut dist_shard_t) -> dist_status_t {
        SHARDS.release_handle(shard, |it| it.retire())
    }
}
