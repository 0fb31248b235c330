//! Collective operations.

use super::args::{dst, index, src};
use super::group::group;
use super::operator::{self, CustomOperator, PLACEHOLDER_DTYPE, PLACEHOLDER_OP};
use super::submit::{WorkOut, call_options, submit};
use super::types::*;
use crate::api::Call;
use crate::api::collective::call::buffer_bytes;
use crate::base::dtype::DataType;
use crate::base::op::ReduceOp;
use std::ffi::c_void;

dist_export! {
    /// Reduces the vectors of all ranks and gives every rank the result, bitwise the same on all.
    ///
    /// Operations of a group run in the order of their issue, blocking and asynchronous ones alike.
    /// Inside a batch (dist_batch_begin) a call with `work` NULL does not block: dist_batch_end
    /// issues it. On the memory of a GPU, an operation over NCCL is done once it is in its stream
    /// (`stream` in dist_call_options_t).
    ///
    /// @param group in: the group.
    /// @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
    ///   0.
    /// @param recv out: `count` elements; borrowed until the work completes; NULL only if `count`
    ///   is 0. It may be equal to `send` (in place), else the two must not overlap.
    /// @param count in: the number of elements.
    /// @param dtype in: the type of the elements; DIST_OPAQUE is for operators of dist_op_create.
    /// @param op in: the operator, a constant or one of dist_op_create.
    /// @param options in, optional: NULL for all defaults; borrowed for the call.
    /// @param work out, optional: NULL to block; else the work, owned by the caller, released with
    ///   dist_work_release; NULL on failure.
    /// @agree the order of calls on the group, count, dtype, op and label.
    /// @blocks until all ranks have called and the result is there, until the deadline at the
    ///   latest; not with a work and not inside a batch.
    /// @return DIST_OK. With nothing done: DIST_ERR_INVALID_ARGUMENT, also if the call would block
    ///   inside a completion callback; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED;
    ///   DIST_ERR_UNSUPPORTED if the group's back end cannot do the call. With a work or in a
    ///   batch, also with nothing done: DIST_ERR_OUT_OF_MEMORY if 65536 works of the group are
    ///   outstanding or the batch has 65536 calls; DIST_ERR_SYSTEM if no thread can be started.
    ///   From the call that blocks, else from the work: DIST_ERR_TIMEOUT, DIST_ERR_PEER_FAILED,
    ///   DIST_ERR_MISMATCH, DIST_ERR_ABORTED; DIST_ERR_BACKEND if NCCL or a plug-in fails;
    ///   DIST_ERR_OUT_OF_MEMORY if a rank has no memory that the operation needs. After these
    ///   errors the group refuses work with the same cause, and the contents of `recv` are
    ///   undefined.
    /// @threads any; threads that use one group keep the same order on all ranks.
    /// @since 0.1
    pub fn dist_all_reduce(
        group: *mut dist_group_t,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        dtype: dist_dtype_t,
        op: dist_op_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut given = None;
        let options = call_options(options, &mut given)?;
        let group = self::group(group)?;
        if operator::is_custom(dtype, op) {
            let custom = CustomOperator::find(dtype, op)?;
            let bytes = custom.bytes(count, 1)?;
            let (send, recv) = (src(send, bytes, "send")?, dst(recv, bytes, "recv")?);
            return custom.submit(&group, Call::all_reduce(send, recv, PLACEHOLDER_DTYPE, PLACEHOLDER_OP), options, work);
        }
        let (dtype, op) = (DataType::from_number(dtype)?, ReduceOp::from_number(op)?);
        let bytes = buffer_bytes(count, dtype, 1)?;
        let (send, recv) = (src(send, bytes, "send")?, dst(recv, bytes, "recv")?);
        submit(&group, Call::all_reduce(send, recv, dtype, op), options, work)
    }
}

dist_export! {
    /// Reduces the vectors of all ranks and gives the root the result.
    ///
    /// @param group in: the group.
    /// @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
    ///   0.
    /// @param recv out, optional: on the root `count` elements; borrowed until the work completes;
    ///   NULL only if `count` is 0. It may be equal to `send` (in place), else the two must not
    ///   overlap. Not used on other ranks.
    /// @param count in: the number of elements.
    /// @param dtype in: the type of the elements; DIST_OPAQUE is for operators of dist_op_create.
    /// @param op in: the operator, a constant or one of dist_op_create.
    /// @param root in: the rank that gets the result.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree the order of calls on the group, count, dtype, op, root and label.
    /// @blocks on the root as dist_all_reduce; another rank may return before all ranks have
    ///   called.
    /// @return as dist_all_reduce.
    /// @threads any; threads that use one group keep the same order on all ranks.
    /// @since 0.1
    pub fn dist_reduce(
        group: *mut dist_group_t,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        dtype: dist_dtype_t,
        op: dist_op_t,
        root: i32,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut given = None;
        let options = call_options(options, &mut given)?;
        let group = self::group(group)?;
        if operator::is_custom(dtype, op) {
            let custom = CustomOperator::find(dtype, op)?;
            let (root, bytes) = (index(root, "root")?, custom.bytes(count, 1)?);
            let result = if group.rank() == root { bytes } else { 0 };
            let (send, recv) = (src(send, bytes, "send")?, dst(recv, result, "recv")?);
            return custom.submit(&group, Call::reduce(send, recv, PLACEHOLDER_DTYPE, PLACEHOLDER_OP, root), options, work);
        }
        let (dtype, op) = (DataType::from_number(dtype)?, ReduceOp::from_number(op)?);
        let root = index(root, "root")?;
        let bytes = buffer_bytes(count, dtype, 1)?;
        let result = if group.rank() == root { bytes } else { 0 };
        let (send, recv) = (src(send, bytes, "send")?, dst(recv, result, "recv")?);
        submit(&group, Call::reduce(send, recv, dtype, op, root), options, work)
    }
}

dist_export! {
    /// Copies the root's vector to all ranks.
    ///
    /// @param group in: the group.
    /// @param buf in, out: `count` elements, read on the root and written on the other ranks;
    ///   borrowed until the work completes; NULL only if `count` is 0.
    /// @param count in: the number of elements.
    /// @param dtype in: the type of the elements.
    /// @param root in: the rank that has the data.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree the order of calls on the group, count, dtype, root and label.
    /// @blocks until the data is in `buf`, until the deadline at the latest; not with a work and
    ///   not inside a batch. The root may return before the other ranks have called.
    /// @return as dist_all_reduce, with `buf` in place of `recv`.
    /// @threads any; threads that use one group keep the same order on all ranks.
    /// @since 0.1
    pub fn dist_broadcast(
        group: *mut dist_group_t,
        buf: *mut c_void,
        count: usize,
        dtype: dist_dtype_t,
        root: i32,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut given = None;
        let options = call_options(options, &mut given)?;
        let group = self::group(group)?;
        let dtype = DataType::from_number(dtype)?;
        let root = index(root, "root")?;
        let bytes = buffer_bytes(count, dtype, 1)?;
        let buf = dst(buf, bytes, "buf")?;
        submit(&group, Call::broadcast(buf, dtype, root, group.rank()), options, work)
    }
}

dist_export! {
    /// Gives every rank the vectors of all ranks, in rank order.
    ///
    /// @param group in: the group.
    /// @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
    ///   0.
    /// @param recv out: world size times `count` elements; borrowed until the work completes; NULL
    ///   only if `count` is 0. In place, `send` is `recv` + rank * `count` elements; else the two
    ///   must not overlap.
    /// @param count in: the number of elements of one rank.
    /// @param dtype in: the type of the elements.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree the order of calls on the group, count, dtype and label.
    /// @blocks as dist_all_reduce.
    /// @return as dist_all_reduce.
    /// @threads any; threads that use one group keep the same order on all ranks.
    /// @since 0.1
    pub fn dist_all_gather(
        group: *mut dist_group_t,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        dtype: dist_dtype_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut given = None;
        let options = call_options(options, &mut given)?;
        let group = self::group(group)?;
        let dtype = DataType::from_number(dtype)?;
        let send = src(send, buffer_bytes(count, dtype, 1)?, "send")?;
        let recv = dst(recv, buffer_bytes(count, dtype, group.size())?, "recv")?;
        submit(&group, Call::all_gather(send, recv, dtype), options, work)
    }
}

dist_export! {
    /// Reduces the vectors of all ranks and gives each rank its block of the result.
    ///
    /// @param group in: the group.
    /// @param send in: world size times `count` elements; borrowed until the work completes; NULL
    ///   only if `count` is 0.
    /// @param recv out: `count` elements, block `rank` of the result; borrowed until the work
    ///   completes; NULL only if `count` is 0. In place, `recv` is `send` + rank * `count`
    ///   elements; else the two must not overlap.
    /// @param count in: the number of elements of one block.
    /// @param dtype in: the type of the elements; DIST_OPAQUE is for operators of dist_op_create.
    /// @param op in: the operator, a constant or one of dist_op_create.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree the order of calls on the group, count, dtype, op and label.
    /// @blocks as dist_all_reduce.
    /// @return as dist_all_reduce.
    /// @threads any; threads that use one group keep the same order on all ranks.
    /// @since 0.1
    pub fn dist_reduce_scatter(
        group: *mut dist_group_t,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        dtype: dist_dtype_t,
        op: dist_op_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut given = None;
        let options = call_options(options, &mut given)?;
        let group = self::group(group)?;
        if operator::is_custom(dtype, op) {
            let custom = CustomOperator::find(dtype, op)?;
            let (all, own) = (custom.bytes(count, group.size())?, custom.bytes(count, 1)?);
            let (send, recv) = (src(send, all, "send")?, dst(recv, own, "recv")?);
            return custom.submit(&group, Call::reduce_scatter(send, recv, PLACEHOLDER_DTYPE, PLACEHOLDER_OP), options, work);
        }
        let (dtype, op) = (DataType::from_number(dtype)?, ReduceOp::from_number(op)?);
        let send = src(send, buffer_bytes(count, dtype, group.size())?, "send")?;
        let recv = dst(recv, buffer_bytes(count, dtype, 1)?, "recv")?;
        submit(&group, Call::reduce_scatter(send, recv, dtype, op), options, work)
    }
}

dist_export! {
    /// Reduces the vectors of the ranks up to this one: rank r gets the reduction of ranks 0 to r.
    ///
    /// The ranks' vectors are reduced in rank order. The call takes every operator that
    /// dist_all_reduce takes, except DIST_AVG. DIST_PREMUL_SUM multiplies each rank's vector by
    /// that rank's factor first.
    ///
    /// @param group in: the group.
    /// @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
    ///   0.
    /// @param recv out: `count` elements; borrowed until the work completes; NULL only if `count`
    ///   is 0. It may be equal to `send` (in place), else the two must not overlap.
    /// @param count in: the number of elements.
    /// @param dtype in: the type of the elements; DIST_OPAQUE is for operators of dist_op_create.
    /// @param op in: the operator, a constant or one of dist_op_create.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree the order of calls on the group, count, dtype, op and label.
    /// @blocks until the result is there, until the deadline at the latest; not with a work and not
    ///   inside a batch.
    /// @return as dist_all_reduce; DIST_ERR_UNSUPPORTED also for DIST_AVG and for the memory of a
    ///   GPU over NCCL.
    /// @threads any; threads that use one group keep the same order on all ranks.
    /// @since 0.1
    pub fn dist_scan(
        group: *mut dist_group_t,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        dtype: dist_dtype_t,
        op: dist_op_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut given = None;
        let options = call_options(options, &mut given)?;
        let group = self::group(group)?;
        if operator::is_custom(dtype, op) {
            let custom = CustomOperator::find(dtype, op)?;
            let bytes = custom.bytes(count, 1)?;
            let (send, recv) = (src(send, bytes, "send")?, dst(recv, bytes, "recv")?);
            return custom.submit(&group, Call::scan(send, recv, PLACEHOLDER_DTYPE, PLACEHOLDER_OP), options, work);
        }
        let (dtype, op) = (DataType::from_number(dtype)?, ReduceOp::from_number(op)?);
        let bytes = buffer_bytes(count, dtype, 1)?;
        let (send, recv) = (src(send, bytes, "send")?, dst(recv, bytes, "recv")?);
        submit(&group, Call::scan(send, recv, dtype, op), options, work)
    }
}

dist_export! {
    /// Reduces the vectors of the ranks below this one, without its own vector.
    ///
    /// Rank r gets the reduction of ranks 0 to r - 1. It is dist_scan without the rank's own
    /// vector. On rank 0 there is nothing to reduce, and the library does not write `recv`.
    ///
    /// @param group in: the group.
    /// @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
    ///   0.
    /// @param recv out, optional: `count` elements; borrowed until the work completes; NULL only if
    ///   `count` is 0 or on rank 0. It may be equal to `send` (in place), else the two must not
    ///   overlap.
    /// @param count in: the number of elements.
    /// @param dtype in: the type of the elements; DIST_OPAQUE is for operators of dist_op_create.
    /// @param op in: the operator, a constant or one of dist_op_create.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree the order of calls on the group, count, dtype, op and label.
    /// @blocks as dist_scan.
    /// @return as dist_scan.
    /// @threads any; threads that use one group keep the same order on all ranks.
    /// @since 0.1
    pub fn dist_exscan(
        group: *mut dist_group_t,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        dtype: dist_dtype_t,
        op: dist_op_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut given = None;
        let options = call_options(options, &mut given)?;
        let group = self::group(group)?;
        if operator::is_custom(dtype, op) {
            let custom = CustomOperator::find(dtype, op)?;
            let bytes = custom.bytes(count, 1)?;
            let result = if group.rank() == 0 { 0 } else { bytes };
            let (send, recv) = (src(send, bytes, "send")?, dst(recv, result, "recv")?);
            return custom.submit(&group, Call::exscan(send, recv, PLACEHOLDER_DTYPE, PLACEHOLDER_OP), options, work);
        }
        let (dtype, op) = (DataType::from_number(dtype)?, ReduceOp::from_number(op)?);
        let bytes = buffer_bytes(count, dtype, 1)?;
        let result = if group.rank() == 0 { 0 } else { bytes };
        let (send, recv) = (src(send, bytes, "send")?, dst(recv, result, "recv")?);
        submit(&group, Call::exscan(send, recv, dtype, op), options, work)
    }
}

dist_export! {
    /// Completes when all ranks of the group have called it.
    ///
    /// @param group in: the group.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree the order of calls on the group, and label.
    /// @blocks until all ranks have called, until the deadline at the latest; not with a work and
    ///   not inside a batch.
    /// @return as dist_all_reduce.
    /// @threads any; threads that use one group keep the same order on all ranks.
    /// @since 0.1
    pub fn dist_barrier(
        group: *mut dist_group_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut given = None;
        let options = call_options(options, &mut given)?;
        let group = self::group(group)?;
        submit(&group, Call::barrier(), options, work)
    }
}

dist_export! {
    /// Gives the root the vectors of all ranks, in rank order.
    ///
    /// @param group in: the group.
    /// @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
    ///   0.
    /// @param recv out, optional: on the root world size times `count` elements; borrowed until the
    ///   work completes; NULL only if `count` is 0. In place, `send` is `recv` + rank * `count`
    ///   elements; else the two must not overlap. Not used on other ranks.
    /// @param count in: the number of elements of one rank.
    /// @param dtype in: the type of the elements.
    /// @param root in: the rank that gets the vectors.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree the order of calls on the group, count, dtype, root and label.
    /// @blocks on the root as dist_all_reduce; another rank may return before all ranks have
    ///   called.
    /// @return as dist_all_reduce.
    /// @threads any; threads that use one group keep the same order on all ranks.
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
        let mut given = None;
        let options = call_options(options, &mut given)?;
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
    /// @param send in, optional: on the root world size times `count` elements; borrowed until the
    ///   work completes; NULL only if `count` is 0. Not used on other ranks.
    /// @param recv out: `count` elements, block `rank` of the root's `send`; borrowed until the
    ///   work completes; NULL only if `count` is 0. In place on the root, `recv` is `send` + rank *
    ///   `count` elements; else the two must not overlap.
    /// @param count in: the number of elements of one block.
    /// @param dtype in: the type of the elements.
    /// @param root in: the rank that has the blocks.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree the order of calls on the group, count, dtype, root and label.
    /// @blocks until the data is in `recv`, until the deadline at the latest; not with a work and
    ///   not inside a batch. The root may return before the other ranks have called.
    /// @return as dist_all_reduce.
    /// @threads any; threads that use one group keep the same order on all ranks.
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
        let mut given = None;
        let options = call_options(options, &mut given)?;
        let group = self::group(group)?;
        let (dtype, root) = (DataType::from_number(dtype)?, index(root, "root")?);
        let blocks = if group.rank() == root { group.size() } else { 0 };
        let send = src(send, buffer_bytes(count, dtype, blocks)?, "send")?;
        let recv = dst(recv, buffer_bytes(count, dtype, 1)?, "recv")?;
        submit(&group, Call::scatter(send, recv, dtype, root), options, work)
    }
}

dist_export! {
    /// Exchanges blocks: block i of a rank's result is that rank's block of the vector of rank i.
    ///
    /// Block i of `recv` is block `rank` of the `send` of rank i. There is no form in place.
    ///
    /// @param group in: the group.
    /// @param send in: world size times `count` elements; borrowed until the work completes; NULL
    ///   only if `count` is 0.
    /// @param recv out: world size times `count` elements; borrowed until the work completes; NULL
    ///   only if `count` is 0. It must not overlap `send`.
    /// @param count in: the number of elements of one block.
    /// @param dtype in: the type of the elements.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree the order of calls on the group, count, dtype and label.
    /// @blocks as dist_all_reduce.
    /// @return as dist_all_reduce.
    /// @threads any; threads that use one group keep the same order on all ranks.
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
        let mut given = None;
        let options = call_options(options, &mut given)?;
        let group = self::group(group)?;
        let (dtype, size) = (DataType::from_number(dtype)?, group.size());
        let bytes = buffer_bytes(count, dtype, size)?;
        let (send, recv) = (src(send, bytes, "send")?, dst(recv, bytes, "recv")?);
        submit(&group, Call::all_to_all(send, recv, dtype, size), options, work)
    }
}
