//! Sharded optimizers.

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

fn shard_options(given: &dist_shard_options_t) -> Result<ShardOptions> {
    check_reserved(given.reserved)?;
    let names = slice(given.states, given.n_states, "states")?;
    let name = |(index, &name)| {
        let name = required_str(name, "name").context(|| format!("states[{index}]"));
        name.map(str::to_owned)
    };
    Ok(ShardOptions {
        states: names.iter().enumerate().map(name).collect::<Result<_>>()?,
        copies: index(given.copies, "copies")?.max(1),
        timeout_ms: milliseconds(given.timeout_ms, "timeout_ms")?,
    })
}

dist_export! {
    /// Shares the state of an optimizer over the ranks of a reducer.
    ///
    /// Every parameter with a gradient is split by elements, evenly over the ranks. After
    /// dist_reducer_end a rank updates the elements of dist_shard_ranges, with the states of
    /// dist_shard_state, and all ranks call dist_shard_gather. A rank that joins calls this while
    /// the other ranks call dist_shard_gather after dist_reducer_regroup; it gets its share of the
    /// states.
    ///
    /// @param reducer in: the reducer, between steps. It keeps its buckets from now on. The shard
    ///   keeps the reducer: release the shard first.
    /// @param options in, optional: NULL for no states; borrowed for the call.
    /// @param out out: the shard, owned by the caller, released with dist_shard_release; NULL on
    ///   failure.
    /// @agree the order of calls on the group; the options but for `timeout_ms`.
    /// @blocks until all ranks have called, until the deadlines of its operations at the latest.
    /// @return DIST_OK. With nothing done: DIST_ERR_INVALID_ARGUMENT, also inside a step or a
    ///   completion callback, and if the reducer has a shard or DIST_REDUCER_UNEVEN;
    ///   DIST_ERR_INVALID_HANDLE, also if the
    ///   group was released; DIST_ERR_UNSUPPORTED for sparse gradients and device memory.
    ///   DIST_ERR_MISMATCH on all ranks if the options differ. The errors of dist_all_gather_bytes.
    /// @threads one at a time.
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
    /// Gives the elements that this rank updates.
    ///
    /// With `copies` they include copies of other ranks' elements. They stay the same until
    /// dist_shard_gather has followed dist_reducer_regroup.
    ///
    /// @param shard in: the shard.
    /// @param ranges out: the first `capacity` ranges; each `struct_size` is set by the caller, to
    ///   the same number. NULL only if `capacity` is 0.
    /// @param capacity in: the maximum number of ranges in the array.
    /// @param n_ranges out: the number of ranges that there are; not written on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE, also if the group was released;
    ///   DIST_ERR_INVALID_ARGUMENT for a wrong argument, and with DIST_REDUCER_SHARDED between
    ///   dist_reducer_regroup and dist_shard_gather.
    /// @threads one at a time.
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
    /// Gives a state of the elements that this rank updates.
    ///
    /// @param shard in: the shard.
    /// @param state in: the index of the state in `states` of the options.
    /// @param values out: one f32 for each element, range by range (`offset` of the range); zeros
    /// at
    ///   first. Memory of the shard, valid until dist_shard_release, or until dist_shard_gather has
    ///   followed dist_reducer_regroup; NULL on failure.
    /// @param count out, optional: the number of elements; not written on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if there is no such
    ///   state.
    /// @threads one at a time.
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
    /// Sends the elements that this rank has updated to all ranks, and gets theirs.
    ///
    /// The parameters go bucket by bucket, those of the first layers first. With a work the forward
    /// pass may begin: dist_shard_wait waits for one parameter. Until then the caller does
    /// not touch parameters.
    ///
    /// If the call fails because a rank has died: dist_group_shrink, dist_reducer_regroup, and this
    /// call again. It then also redistributes the states to the ranks of the new group, and so does
    /// a call after dist_reducer_regroup for another reason. If a step fails, repeat
    /// dist_reducer_end and the update first. A gather that was begun with a work, and that has
    /// failed, is repeated by dist_reducer_end.
    ///
    /// @param shard in: the shard.
    /// @param work out, optional: NULL to wait; else a work that ends with the gather, owned by the
    ///   caller, released with dist_work_release; NULL on failure.
    /// @agree the order of calls on the group.
    /// @blocks until all parameters are there, until the deadlines of the operations at the latest;
    ///   with a work only after dist_reducer_regroup.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT while another gather runs, and inside a
    /// completion
    ///   callback; DIST_ERR_INVALID_HANDLE, also if the group was released; DIST_ERR_NOT_FOUND if
    ///   the states of a rank are lost with it: the group still works, and a repetition is of no
    ///   use; the errors of dist_all_gather. With a work these are the work's.
    /// @threads one at a time.
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
    /// Waits until a parameter is there that is gathered in the background.
    ///
    /// @param shard in: the shard.
    /// @param param in: the index of the parameter.
    /// @agree nothing.
    /// @blocks until all ranks' elements are there, until the deadline of the operation at the
    ///   latest.
    /// @return DIST_OK, also if no gather runs; DIST_ERR_INVALID_ARGUMENT if the parameter does not
    ///   exist or has no gradient, and inside a completion callback; DIST_ERR_INVALID_HANDLE; the
    ///   errors of the gather.
    /// @threads any.
    /// @since 0.1
    pub fn dist_shard_wait(shard: *mut dist_shard_t, param: usize) -> dist_status_t {
        SHARDS.get(shard)?.wait(param)
    }
}

dist_export! {
    /// Gives the states of all ranks, for a checkpoint.
    ///
    /// They are ordered by parameter and offset, without padding, so that dist_shard_load can give
    /// them to any number of ranks. The parameters themselves are on every rank, and are the
    /// caller's to save.
    ///
    /// @param shard in: the shard.
    /// @param root in: the rank that gets them.
    /// @param out out: at the root one byte string, owned by the caller, released with
    ///   dist_blob_release; NULL on failure and on other ranks.
    /// @agree the order of calls on the group, and root.
    /// @blocks until all ranks have called, until the deadlines of its operations at the latest.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT, also between dist_reducer_regroup and
    ///   dist_shard_gather, and inside a completion callback; DIST_ERR_INVALID_HANDLE, also if the
    ///   group was released; DIST_ERR_OUT_OF_MEMORY; the errors of dist_gather_bytes.
    /// @threads one at a time.
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
    /// Takes states that dist_shard_save has given, on any number of ranks.
    ///
    /// @param shard in: the shard, with the same parameters and states by name.
    /// @param bytes in: at the root the byte string of dist_shard_save; borrowed for the call; not
    ///   used on other ranks.
    /// @param len_bytes in: its length.
    /// @param root in: the rank that has it.
    /// @agree the order of calls on the group, and root.
    /// @blocks until all ranks have their states, until the deadlines of its operations at the
    ///   latest.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT, on all ranks if the byte string has another
    /// form,
    ///   other parameters or other states; also between dist_reducer_regroup and dist_shard_gather,
    ///   and inside a completion callback; DIST_ERR_INVALID_HANDLE, also if the group was released;
    ///   the errors of dist_broadcast.
    /// @threads one at a time.
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
    /// @blocks until a gather that runs has ended, until the deadlines of its operations at the
    ///   latest.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE.
    /// @threads one; no other call uses the shard.
    /// @since 0.1
    pub fn dist_shard_release(shard: *mut dist_shard_t) -> dist_status_t {
        SHARDS.release_handle(shard, |it| it.retire())
    }
}
