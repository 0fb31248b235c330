//! The exported functions of the collectives whose blocks all have the same length.

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
    /// Reduces the vectors of all ranks and gives every rank a bitwise identical result.
    ///
    /// The operations of a group run in the order in which they were issued; blocking and
    /// asynchronous operations share this order. Inside a batch (dist_batch_begin) a call with
    /// `work` NULL does not block: dist_batch_end issues the operation. An operation over NCCL on
    /// the memory of a GPU is done as soon as it is enqueued in its stream (`stream` in
    /// dist_call_options_t).
    ///
    /// @param group in: the group.
    /// @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
    ///   0.
    /// @param recv out: `count` elements; borrowed until the work completes; NULL only if `count`
    ///   is 0. `recv` may be equal to `send` (in place); otherwise the two must not overlap.
    /// @param count in: the number of elements.
    /// @param dtype in: the type of the elements. DIST_OPAQUE is only for operators that
    ///   dist_op_create made.
    /// @param op in: the operator: a constant such as DIST_SUM, or an operator that dist_op_create
    ///   made.
    /// @param options in, optional: NULL for all defaults; borrowed for the call.
    /// @param work out, optional: the work, owned by the caller, released with dist_work_release;
    ///   `*work` is NULL on failure. If `work` itself is NULL, the call blocks, except inside a
    ///   batch.
    /// @agree count, dtype, op and label; the order of calls on the group.
    /// @blocks Until the result is complete, which needs the call of every rank, but at most until
    ///   the deadline. A call with a work or inside a batch does not block.
    /// @return DIST_OK. If the call has had no effect: DIST_ERR_INVALID_ARGUMENT if an argument is
    ///   wrong, or if the call would block inside a completion callback; DIST_ERR_INVALID_HANDLE;
    ///   DIST_ERR_NOT_INITIALIZED; DIST_ERR_UNSUPPORTED if the group's back end cannot do the call.
    ///   A call with a work or inside a batch can have no effect for two more reasons:
    ///   DIST_ERR_OUT_OF_MEMORY if the batch has 65536 calls, or if 65536 works of the group are
    ///   outstanding until the deadline (the call waits, except inside a completion callback);
    ///   DIST_ERR_SYSTEM if no thread can be started. A blocking call returns the following
    ///   errors; otherwise the work reports them: DIST_ERR_TIMEOUT, DIST_ERR_PEER_FAILED,
    ///   DIST_ERR_MISMATCH, DIST_ERR_ABORTED; DIST_ERR_BACKEND if NCCL or a plug-in fails;
    ///   DIST_ERR_OUT_OF_MEMORY if a rank lacks memory that the operation needs. After these errors
    ///   every later call in the group returns the same error, and the contents of `recv` are
    ///   undefined.
    /// @threads Any thread may call this at any time. If several threads issue collectives on one
    ///   group, the order of their calls must be the same on all ranks.
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
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
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
    /// @param recv out, optional: on the root, `count` elements; borrowed until the work completes;
    ///   NULL only if `count` is 0. `recv` may be equal to `send` (in place); otherwise the two
    ///   must not overlap. Not used on other ranks.
    /// @param count in: the number of elements.
    /// @param dtype in: as dist_all_reduce.
    /// @param op in: as dist_all_reduce.
    /// @param root in: the rank that gets the result.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree count, dtype, op, root and label; the order of calls on the group.
    /// @blocks The root blocks as in dist_all_reduce. Another rank may return before all ranks have
    ///   called.
    /// @return as dist_all_reduce.
    /// @threads as dist_all_reduce.
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
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
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
    /// @agree count, dtype, root and label; the order of calls on the group.
    /// @blocks Until the data is in `buf`, but at most until the deadline. The root may return
    ///   before the other ranks have called. A call with a work or inside a batch does not block.
    /// @return as dist_all_reduce, with `buf` in place of `recv`.
    /// @threads as dist_all_reduce.
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
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
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
    ///   only if `count` is 0. In place, `send` is `recv` + rank * `count` elements; otherwise the
    ///   two must not overlap.
    /// @param count in: the number of elements of one rank.
    /// @param dtype in: the type of the elements.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree count, dtype and label; the order of calls on the group.
    /// @blocks as dist_all_reduce.
    /// @return as dist_all_reduce.
    /// @threads as dist_all_reduce.
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
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
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
    ///   elements; otherwise the two must not overlap.
    /// @param count in: the number of elements of one block.
    /// @param dtype in: as dist_all_reduce.
    /// @param op in: as dist_all_reduce.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree count, dtype, op and label; the order of calls on the group.
    /// @blocks as dist_all_reduce.
    /// @return as dist_all_reduce.
    /// @threads as dist_all_reduce.
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
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
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
    /// Reduces the vectors of the ranks up to this rank: rank r gets the reduction of ranks 0 to r.
    ///
    /// The call reduces the vectors in rank order. It takes every operator that dist_all_reduce
    /// takes, except DIST_AVG. DIST_PREMUL_SUM first multiplies each rank's vector by the factor of
    /// that rank.
    ///
    /// For example, with one element per rank (1, 2, 3 and 4 on ranks 0 to 3) and DIST_SUM, the
    /// ranks get 1, 3, 6 and 10.
    ///
    /// @param group in: the group.
    /// @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
    ///   0.
    /// @param recv out: `count` elements; borrowed until the work completes; NULL only if `count`
    ///   is 0. `recv` may be equal to `send` (in place); otherwise the two must not overlap.
    /// @param count in: the number of elements.
    /// @param dtype in: as dist_all_reduce.
    /// @param op in: as dist_all_reduce.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree count, dtype, op and label; the order of calls on the group.
    /// @blocks Until the result is complete, but at most until the deadline. A call with a work or
    ///   inside a batch does not block.
    /// @return as dist_all_reduce. DIST_ERR_UNSUPPORTED also if `op` is DIST_AVG, or if the buffers
    ///   are in the memory of a GPU and the call would use NCCL.
    /// @threads as dist_all_reduce.
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
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
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
    /// Reduces the vectors of all lower ranks: rank r gets the reduction of ranks 0 to r - 1.
    ///
    /// The call is dist_scan without the rank's own vector: in the example of dist_scan, ranks 1 to
    /// 3 get 1, 3 and 6. Rank 0 has nothing to reduce, and the library does not write its `recv`.
    ///
    /// @param group in: the group.
    /// @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
    ///   0.
    /// @param recv out, optional: `count` elements; borrowed until the work completes; NULL is
    ///   allowed only on rank 0, and if `count` is 0. `recv` may be equal to `send` (in place);
    ///   otherwise the two must not overlap.
    /// @param count in: the number of elements.
    /// @param dtype in: as dist_all_reduce.
    /// @param op in: as dist_all_reduce.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree count, dtype, op and label; the order of calls on the group.
    /// @blocks as dist_scan.
    /// @return as dist_scan.
    /// @threads as dist_all_reduce.
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
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
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
    /// Completes when all ranks of the group have called dist_barrier.
    ///
    /// @param group in: the group.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree label, and the order of calls on the group.
    /// @blocks Until all ranks have called, but at most until the deadline. A call with a work or
    ///   inside a batch does not block.
    /// @return as dist_all_reduce.
    /// @threads as dist_all_reduce.
    /// @since 0.1
    pub fn dist_barrier(
        group: *mut dist_group_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        submit(&group, Call::barrier(), options, work)
    }
}
