//! The exported functions of gather, scatter and all_to_all, whose blocks all have the same length.

use super::args::{dst, index, src};
use super::group::group;
use super::submit::{WorkOut, call_options, submit};
use super::types::*;
use crate::api::Call;
use crate::api::collective::call::buffer_bytes;
use crate::base::dtype::DataType;
use std::ffi::c_void;

dist_export! {
    /// Gives the root the vectors of all ranks, in rank order.
    ///
    /// @param group in: the group.
    /// @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
    ///   0.
    /// @param recv out, optional: on the root, world size times `count` elements; borrowed until
    ///   the work completes; NULL only if `count` is 0. In place, `send` is `recv` + rank * `count`
    ///   elements; otherwise the two must not overlap. Not used on other ranks.
    /// @param count in: the number of elements of one rank.
    /// @param dtype in: the type of the elements.
    /// @param root in: the rank that gets the vectors.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree count, dtype, root and label; the order of calls on the group.
    /// @blocks The root blocks as in dist_all_reduce. Another rank may return before all ranks have
    ///   called.
    /// @return as dist_all_reduce.
    /// @threads as dist_all_reduce.
    /// @since 0.1
    pub fn dist_gather(
        group: *mut dist_group_t,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        dtype: dist_dtype_t,
        root: i32,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        let (dtype, root) = (DataType::from_number(dtype)?, index(root, "root")?);
        let blocks = if group.rank() == root { group.size() } else { 0 };
        let send = src(send, buffer_bytes(count, dtype, 1)?, "send")?;
        let recv = dst(recv, buffer_bytes(count, dtype, blocks)?, "recv")?;
        submit(&group, Call::gather(send, recv, dtype, root), options, work)
    }
}

dist_export! {
    /// Gives each rank its block of the root's vector.
    ///
    /// @param group in: the group.
    /// @param send in, optional: on the root, world size times `count` elements; borrowed until the
    ///   work completes; NULL only if `count` is 0. Not used on other ranks.
    /// @param recv out: `count` elements, block `rank` of the root's `send`; borrowed until the
    ///   work completes; NULL only if `count` is 0. In place on the root, `recv` is `send` + rank *
    ///   `count` elements; otherwise the two must not overlap.
    /// @param count in: the number of elements of one block.
    /// @param dtype in: the type of the elements.
    /// @param root in: the rank that has the blocks.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree count, dtype, root and label; the order of calls on the group.
    /// @blocks Until the data is in `recv`, but at most until the deadline. The root may return
    ///   before the other ranks have called. A call with a work or inside a batch does not block.
    /// @return as dist_all_reduce.
    /// @threads as dist_all_reduce.
    /// @since 0.1
    pub fn dist_scatter(
        group: *mut dist_group_t,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        dtype: dist_dtype_t,
        root: i32,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        let (dtype, root) = (DataType::from_number(dtype)?, index(root, "root")?);
        let blocks = if group.rank() == root { group.size() } else { 0 };
        let send = src(send, buffer_bytes(count, dtype, blocks)?, "send")?;
        let recv = dst(recv, buffer_bytes(count, dtype, 1)?, "recv")?;
        submit(&group, Call::scatter(send, recv, dtype, root), options, work)
    }
}

dist_export! {
    /// Exchanges blocks between all pairs of ranks: block j of rank i goes to block i of rank j.
    ///
    /// Block i of `recv` comes from block `rank` of the `send` of rank i. The call has no in-place
    /// form.
    ///
    /// For example, with blocks a0, a1 on rank 0 and b0, b1 on rank 1, rank 0 gets a0, b0, and rank
    /// 1 gets a1, b1.
    ///
    /// @param group in: the group.
    /// @param send in: world size times `count` elements; borrowed until the work completes; NULL
    ///   only if `count` is 0.
    /// @param recv out: world size times `count` elements; borrowed until the work completes; NULL
    ///   only if `count` is 0. The two buffers must not overlap.
    /// @param count in: the number of elements of one block.
    /// @param dtype in: the type of the elements.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree count, dtype and label; the order of calls on the group.
    /// @blocks as dist_all_reduce.
    /// @return as dist_all_reduce.
    /// @threads as dist_all_reduce.
    /// @since 0.1
    pub fn dist_all_to_all(
        group: *mut dist_group_t,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        dtype: dist_dtype_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        let (dtype, size) = (DataType::from_number(dtype)?, group.size());
        let bytes = buffer_bytes(count, dtype, size)?;
        let (send, recv) = (src(send, bytes, "send")?, dst(recv, bytes, "recv")?);
        submit(&group, Call::all_to_all(send, recv, dtype, size), options, work)
    }
}
