//! Collective operations.

use super::args::{dst, index, src};
use super::group::group;
use super::operator::{self, ANY, BYTES, Custom};
use super::submit::{WorkOut, call_options, submit};
use super::types::*;
use crate::api::Call;
use crate::api::call::buffer_bytes;
use crate::base::dtype::DataType;
use crate::base::op::ReduceOp;
use std::ffi::c_void;

dist_export! {
    /// Reduces the vectors of all ranks, and gives every rank the result, bitwise the same on all.
    ///
    /// All ranks must agree on the order of calls on the group, and on count, dtype and op. `group`: required. `send`: in, `count` elements. `recv`: out, `count` elements. Both borrowed until the operation is
    /// done, NULL only where count is 0; in place if equal, else they must not overlap. `options`: NULL for
    /// defaults; borrowed for the call. `work`: NULL, or out: the operation is issued only, and its work is owned by
    /// the caller, released with dist_work_release; NULL on failure. With NULL it blocks until all ranks have called
    /// and the result is there, until the deadline at the latest; inside a batch (dist_batch_begin) it never does.
    /// Operations of a group run in the order of their issue, blocking and asynchronous ones alike. On the memory of a GPU
    /// an operation over NCCL is done when it is in its stream (`stream` in dist_call_options_t). Any thread;
    /// threads that use one group must keep the same order on all ranks.
    ///
    /// Returns DIST_OK; DIST_ERR_INVALID_ARGUMENT (also for a blocking call inside a completion callback),
    /// DIST_ERR_INVALID_HANDLE, DIST_ERR_NOT_INITIALIZED, DIST_ERR_UNSUPPORTED with nothing done; with a work also
    /// DIST_ERR_OUT_OF_MEMORY (65536 works of the group are outstanding) and DIST_ERR_SYSTEM (no thread can be
    /// started), with nothing done. Without one, and else from the work: DIST_ERR_TIMEOUT, DIST_ERR_PEER_FAILED,
    /// DIST_ERR_MISMATCH, DIST_ERR_ABORTED, after which the group refuses work with the same cause and `recv` is
    /// undefined. Since 0.1.
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
        let options = call_options(options)?;
        let group = self::group(group)?;
        if operator::is_custom(dtype, op) {
            let custom = Custom::find(dtype, op)?;
            let bytes = custom.bytes(count, 1)?;
            let (send, recv) = (src(send, bytes, "send")?, dst(recv, bytes, "recv")?);
            return custom.submit(&group, Call::all_reduce(send, recv, BYTES, ANY), options, work);
        }
        let (dtype, op) = (DataType::from_number(dtype)?, ReduceOp::from_number(op)?);
        let bytes = buffer_bytes(count, dtype, 1)?;
        let (send, recv) = (src(send, bytes, "send")?, dst(recv, bytes, "recv")?);
        submit(&group, Call::all_reduce(send, recv, dtype, op), options, work)
    }
}

dist_export! {
    /// Reduces the vectors of all ranks, and gives the root the result.
    ///
    /// As dist_all_reduce; all ranks must agree on `root` too, a rank of the group. `recv` is used on the root
    /// only and may be NULL elsewhere. Done on the root when all ranks have called; on the others maybe
    /// earlier. In place on the root if `send` and `recv` are equal. Since 0.1.
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
        let options = call_options(options)?;
        let group = self::group(group)?;
        if operator::is_custom(dtype, op) {
            let custom = Custom::find(dtype, op)?;
            let (root, bytes) = (index(root, "root")?, custom.bytes(count, 1)?);
            let result = if group.rank() == root { bytes } else { 0 };
            let (send, recv) = (src(send, bytes, "send")?, dst(recv, result, "recv")?);
            return custom.submit(&group, Call::reduce(send, recv, BYTES, ANY, root), options, work);
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
    /// All ranks must agree on the order of calls on the group, and on count, dtype and root. `group`: required. `buf`: in on the root, out elsewhere, `count` elements, borrowed until the operation is
    /// done. `root`: a rank of the group. Done when the data is here; the root may return before the others have called.
    /// `options`, `work`, threads and results: as dist_all_reduce. Since 0.1.
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
        let options = call_options(options)?;
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
    /// All ranks must agree on the order of calls on the group, and on count and dtype. `group`: required. `send`: in, `count` elements. `recv`: out, world size times `count` elements. Both borrowed
    /// until the operation is done; in place if send == recv + rank * count, else they must not overlap. Done when all
    /// ranks have called. `options`, `work`, threads and results: as dist_all_reduce. Since 0.1.
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
        let options = call_options(options)?;
        let group = self::group(group)?;
        let dtype = DataType::from_number(dtype)?;
        let send = src(send, buffer_bytes(count, dtype, 1)?, "send")?;
        let recv = dst(recv, buffer_bytes(count, dtype, group.size())?, "recv")?;
        submit(&group, Call::all_gather(send, recv, dtype), options, work)
    }
}

dist_export! {
    /// Reduces the vectors of all ranks, and gives each rank its block of the result.
    ///
    /// All ranks must agree on the order of calls on the group, and on count, dtype and op. `group`: required. `send`: in, world size times `count` elements. `recv`: out, `count` elements: block `rank` of
    /// the result. Both borrowed until the operation is done; in place if recv == send + rank * count, else they
    /// must not overlap. Done when all ranks have called. `options`, `work`, threads and results: as
    /// dist_all_reduce. Since 0.1.
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
        let options = call_options(options)?;
        let group = self::group(group)?;
        if operator::is_custom(dtype, op) {
            let custom = Custom::find(dtype, op)?;
            let (all, own) = (custom.bytes(count, group.size())?, custom.bytes(count, 1)?);
            let (send, recv) = (src(send, all, "send")?, dst(recv, own, "recv")?);
            return custom.submit(&group, Call::reduce_scatter(send, recv, BYTES, ANY), options, work);
        }
        let (dtype, op) = (DataType::from_number(dtype)?, ReduceOp::from_number(op)?);
        let send = src(send, buffer_bytes(count, dtype, group.size())?, "send")?;
        let recv = dst(recv, buffer_bytes(count, dtype, 1)?, "recv")?;
        submit(&group, Call::reduce_scatter(send, recv, dtype, op), options, work)
    }
}

dist_export! {
    /// Reduces the vectors of the ranks up to this one: rank r gets the fold of ranks 0 to r.
    ///
    /// Vectors are folded in rank order. Every operator that dist_all_reduce takes, except DIST_AVG. DIST_PREMUL_SUM
    /// multiplies each rank's vector by its own factor first.
    ///
    /// @param group in: the group.
    /// @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is 0.
    /// @param recv out: `count` elements; borrowed until the work completes; NULL only if `count` is 0. It may be equal
    ///   to `send` (in place), else the two must not overlap.
    /// @param count in: the number of elements.
    /// @param dtype in: the element type.
    /// @param op in: the operator.
    /// @param options in, optional: defaults if NULL; borrowed for the call.
    /// @param work out, optional: the work of a call that does not block; owned by the caller, released with
    ///   dist_work_release; NULL on failure.
    /// @agree the order of calls on the group, count, dtype and op.
    /// @blocks without a work and outside a batch, until the result is there, until the deadline at the latest.
    /// @return as dist_all_reduce; DIST_ERR_UNSUPPORTED also for DIST_AVG and for the memory of a GPU over NCCL.
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
        let options = call_options(options)?;
        let group = self::group(group)?;
        if operator::is_custom(dtype, op) {
            let custom = Custom::find(dtype, op)?;
            let bytes = custom.bytes(count, 1)?;
            let (send, recv) = (src(send, bytes, "send")?, dst(recv, bytes, "recv")?);
            return custom.submit(&group, Call::scan(send, recv, BYTES, ANY), options, work);
        }
        let (dtype, op) = (DataType::from_number(dtype)?, ReduceOp::from_number(op)?);
        let bytes = buffer_bytes(count, dtype, 1)?;
        let (send, recv) = (src(send, bytes, "send")?, dst(recv, bytes, "recv")?);
        submit(&group, Call::scan(send, recv, dtype, op), options, work)
    }
}

dist_export! {
    /// Reduces the vectors of the ranks below this one: rank r gets the fold of ranks 0 to r - 1.
    ///
    /// As dist_scan, without the rank's own vector. On rank 0 there is nothing to fold: the library leaves `recv` as it
    /// is.
    ///
    /// @param group in: the group.
    /// @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is 0.
    /// @param recv out: `count` elements; borrowed until the work completes; NULL only if `count` is 0 or on rank 0. It may
    ///   be equal to `send` (in place), else the two must not overlap.
    /// @param count in: the number of elements.
    /// @param dtype in: the element type.
    /// @param op in: the operator.
    /// @param options in, optional: defaults if NULL; borrowed for the call.
    /// @param work out, optional: the work of a call that does not block; owned by the caller, released with
    ///   dist_work_release; NULL on failure.
    /// @agree the order of calls on the group, count, dtype and op.
    /// @blocks without a work and outside a batch, until the result is there, until the deadline at the latest.
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
        let options = call_options(options)?;
        let group = self::group(group)?;
        if operator::is_custom(dtype, op) {
            let custom = Custom::find(dtype, op)?;
            let bytes = custom.bytes(count, 1)?;
            let result = if group.rank() == 0 { 0 } else { bytes };
            let (send, recv) = (src(send, bytes, "send")?, dst(recv, result, "recv")?);
            return custom.submit(&group, Call::exscan(send, recv, BYTES, ANY), options, work);
        }
        let (dtype, op) = (DataType::from_number(dtype)?, ReduceOp::from_number(op)?);
        let bytes = buffer_bytes(count, dtype, 1)?;
        let result = if group.rank() == 0 { 0 } else { bytes };
        let (send, recv) = (src(send, bytes, "send")?, dst(recv, result, "recv")?);
        submit(&group, Call::exscan(send, recv, dtype, op), options, work)
    }
}

dist_export! {
    /// Done when all ranks of the group have called it.
    ///
    /// All ranks must agree on the order of calls on the group. `group`: required. `options`, `work`,
    /// threads and results: as dist_all_reduce. Since 0.1.
    pub fn dist_barrier(
        group: *mut dist_group_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let options = call_options(options)?;
        submit(&self::group(group)?, Call::barrier(), options, work)
    }
}

dist_export! {
    /// Gives the root the vectors of all ranks, in rank order.
    ///
    /// All ranks must agree on the order of calls on the group, and on count, dtype and root. `group`: required. `send`: in, `count` elements. `recv`: out, world size times `count` elements; used on the root only, may
    /// be NULL elsewhere. Both borrowed until the operation is done; in place on the root if send == recv + rank *
    /// count, else they must not overlap. `root`: a rank of the group. Done on the root when all ranks have called; on
    /// the others maybe earlier. `options`, `work`, threads and results: as dist_all_reduce. Since 0.1.
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
        let options = call_options(options)?;
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
    /// All ranks must agree on the order of calls on the group, and on count, dtype and root. `group`: required. `send`: in, world size times `count` elements; used on the root only, may be NULL elsewhere. `recv`: out,
    /// `count` elements: block `rank` of `send`. Both borrowed until the operation is done; in place on the root if
    /// recv == send + rank * count, else they must not overlap. `root`: a rank of the group. Done when the data is
    /// here; the root may return before the others have called. `options`, `work`, threads and results: as
    /// dist_all_reduce. Since 0.1.
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
        let options = call_options(options)?;
        let group = self::group(group)?;
        let (dtype, root) = (DataType::from_number(dtype)?, index(root, "root")?);
        let blocks = if group.rank() == root { group.size() } else { 0 };
        let send = src(send, buffer_bytes(count, dtype, blocks)?, "send")?;
        let recv = dst(recv, buffer_bytes(count, dtype, 1)?, "recv")?;
        submit(&group, Call::scatter(send, recv, dtype, root), options, work)
    }
}

dist_export! {
    /// Gives every rank its block of every rank's vector: block i of `recv` is block `rank` of rank i's `send`.
    ///
    /// All ranks must agree on the order of calls on the group, and on count and dtype. `group`: required. `send`: in, `recv`: out, world size times `count` elements each, borrowed until the operation is done;
    /// they must not overlap. Done when all ranks have called. `options`, `work`, threads and results: as
    /// dist_all_reduce. Since 0.1.
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
        let options = call_options(options)?;
        let group = self::group(group)?;
        let (dtype, size) = (DataType::from_number(dtype)?, group.size());
        let bytes = buffer_bytes(count, dtype, size)?;
        let (send, recv) = (src(send, bytes, "send")?, dst(recv, bytes, "recv")?);
        submit(&group, Call::all_to_all(send, recv, dtype, size), options, work)
    }
}
