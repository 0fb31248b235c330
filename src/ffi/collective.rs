//! Collective operations.

use super::args::{dst, index, milliseconds, optional_str, src};
use super::group::group;
use super::options;
use super::types::*;
use crate::api::collective::buffer_bytes;
use crate::api::{Call, CallOptions};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::op::ReduceOp;
use std::ffi::c_void;

/// The options of a call; refused with a work, since this version has blocking calls only.
fn call_options(
    options: *const dist_call_options_t,
    work: *mut *mut dist_work_t,
) -> Result<CallOptions> {
    if !work.is_null() {
        let message = "asynchronous calls are not there in this version: pass NULL for work";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let options = options::read(options)?;
    Ok(CallOptions {
        timeout_ms: milliseconds(options.timeout_ms, "timeout_ms")?,
        premul_scale: options.premul_scale,
        algorithm: optional_str(options.algorithm, "algorithm")?.map(str::to_owned),
    })
}

dist_export! {
    /// Reduces the vectors of all ranks, and gives every rank the result, bitwise the same on all.
    ///
    /// All ranks must agree on the order of calls on the group, and on count, dtype and op. `group`: NULL for
    /// the world. `send`: in, `count` elements. `recv`: out, `count` elements. Both borrowed for the call, NULL
    /// only where count is 0; in place if equal, else they must not overlap. `options`: NULL for defaults.
    /// `work`: NULL (this version has blocking calls only). Blocks until all ranks have called and the result
    /// is there, until the deadline at the latest. Any thread; threads that use one group must keep the
    /// same order on all ranks.
    ///
    /// Returns DIST_OK; DIST_ERR_INVALID_ARGUMENT, DIST_ERR_INVALID_HANDLE, DIST_ERR_NOT_INITIALIZED,
    /// DIST_ERR_UNSUPPORTED with nothing done; DIST_ERR_TIMEOUT, DIST_ERR_PEER_FAILED, DIST_ERR_MISMATCH,
    /// DIST_ERR_ABORTED, after which the group refuses work with the same cause and `recv` is undefined.
    /// Since 0.1.
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
        let options = call_options(options, work)?;
        let group = self::group(group)?;
        let (dtype, op) = (DataType::from_number(dtype)?, ReduceOp::from_number(op)?);
        let bytes = buffer_bytes(count, dtype, 1)?;
        let (send, recv) = (src(send, bytes, "send")?, dst(recv, bytes, "recv")?);
        group.run(Call::all_reduce(send, recv, dtype, op), &options)
    }
}

dist_export! {
    /// Reduces the vectors of all ranks, and gives the root the result.
    ///
    /// As dist_all_reduce; all ranks must agree on `root` too, a rank of the group. `recv` is used on the root
    /// only and may be NULL elsewhere. Blocks on the root until all ranks have called; the others may return
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
        let options = call_options(options, work)?;
        let group = self::group(group)?;
        let (dtype, op) = (DataType::from_number(dtype)?, ReduceOp::from_number(op)?);
        let root = index(root, "root")?;
        let bytes = buffer_bytes(count, dtype, 1)?;
        let result = if group.rank() == root { bytes } else { 0 };
        let (send, recv) = (src(send, bytes, "send")?, dst(recv, result, "recv")?);
        group.run(Call::reduce(send, recv, dtype, op, root), &options)
    }
}

dist_export! {
    /// Copies the root's vector to all ranks.
    ///
    /// All ranks must agree on the order of calls on the group, and on count, dtype and root. `group`: NULL for
    /// the world. `buf`: in on the root, out elsewhere, `count` elements, borrowed for the call. `root`: a
    /// rank of the group. Blocks until the data is here; the root may return before the others have called.
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
        let options = call_options(options, work)?;
        let group = self::group(group)?;
        let dtype = DataType::from_number(dtype)?;
        let root = index(root, "root")?;
        let bytes = buffer_bytes(count, dtype, 1)?;
        let buf = dst(buf, bytes, "buf")?;
        group.run(Call::broadcast(buf, dtype, root, group.rank()), &options)
    }
}

dist_export! {
    /// Gives every rank the vectors of all ranks, in rank order.
    ///
    /// All ranks must agree on the order of calls on the group, and on count and dtype. `group`: NULL for the
    /// world. `send`: in, `count` elements. `recv`: out, world size times `count` elements. Both borrowed for
    /// the call; in place if send == recv + rank * count, else they must not overlap. Blocks until all ranks
    /// have called. `options`, `work`, threads and results: as dist_all_reduce. Since 0.1.
    pub fn dist_all_gather(
        group: *mut dist_group_t,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        dtype: dist_dtype_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let options = call_options(options, work)?;
        let group = self::group(group)?;
        let dtype = DataType::from_number(dtype)?;
        let send = src(send, buffer_bytes(count, dtype, 1)?, "send")?;
        let recv = dst(recv, buffer_bytes(count, dtype, group.size())?, "recv")?;
        group.run(Call::all_gather(send, recv, dtype), &options)
    }
}

dist_export! {
    /// Reduces the vectors of all ranks, and gives each rank its block of the result.
    ///
    /// All ranks must agree on the order of calls on the group, and on count, dtype and op. `group`: NULL for
    /// the world. `send`: in, world size times `count` elements. `recv`: out, `count` elements: block `rank` of
    /// the result. Both borrowed for the call; in place if recv == send + rank * count, else they must not
    /// overlap. Blocks until all ranks have called. `options`, `work`, threads and results: as
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
        let options = call_options(options, work)?;
        let group = self::group(group)?;
        let (dtype, op) = (DataType::from_number(dtype)?, ReduceOp::from_number(op)?);
        let send = src(send, buffer_bytes(count, dtype, group.size())?, "send")?;
        let recv = dst(recv, buffer_bytes(count, dtype, 1)?, "recv")?;
        group.run(Call::reduce_scatter(send, recv, dtype, op), &options)
    }
}

dist_export! {
    /// Returns when all ranks of the group have called it.
    ///
    /// All ranks must agree on the order of calls on the group. `group`: NULL for the world. `options`, `work`,
    /// threads and results: as dist_all_reduce. Since 0.1.
    pub fn dist_barrier(
        group: *mut dist_group_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let options = call_options(options, work)?;
        self::group(group)?.run(Call::barrier(), &options)
    }
}
