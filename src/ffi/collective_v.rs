//! Collective operations with a block of its own length and place for each rank.

use super::args::{dst, dst_blocks, index, src, src_blocks};
use super::group::group;
use super::submit::{WorkOut, call_options, submit};
use super::types::*;
use crate::api::Call;
use crate::api::call::buffer_bytes;
use crate::base::dtype::DataType;
use crate::base::op::ReduceOp;
use std::ffi::c_void;

dist_export! {
    /// Gives every rank the vectors of all ranks, each of its own length, each at its own place.
    ///
    /// All ranks must agree on the order of calls on the group, on dtype, and on all counts. `group`: required. `send`: in, `counts[rank]` elements. `recv`: an array of world size pointers, `counts`: an array of world
    /// size counts, in elements; both borrowed for the call. `recv[i]`: out, `counts[i]` elements of rank i; NULL only
    /// where that is 0. The buffers are borrowed until the operation is done; in place if send == `recv[rank]`, else none
    /// may overlap another. Done when all ranks have called. `options`, `work`, threads and results: as dist_all_reduce.
    /// Since 0.1.
    pub fn dist_all_gather_v(
        group: *mut dist_group_t,
        send: *const c_void,
        recv: *const *mut c_void,
        counts: *const usize,
        dtype: dist_dtype_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let options = call_options(options)?;
        let group = self::group(group)?;
        let dtype = DataType::from_number(dtype)?;
        let recvs = dst_blocks(recv, counts, group.size(), dtype, ["recv", "counts"])?;
        let send = src(send, recvs[group.rank()].len(), "send")?;
        submit(&group, Call::all_gather_v(send, recvs, dtype), options, work)
    }
}

dist_export! {
    /// Gives the root the vectors of all ranks, each of its own length, each at its own place.
    ///
    /// All ranks must agree on the order of calls on the group, on dtype and root; `count` of rank i must be the
    /// root's `counts[i]`. `group`: required. `send`: in, `count` elements. `recv`: an array of world size
    /// pointers, `counts`: an array of world size counts, in elements; both used on the root only, may be NULL
    /// elsewhere, and are borrowed for the call. `recv[i]`: out, `counts[i]` elements of rank i; NULL only where that is 0.
    /// The buffers are borrowed until the operation is done; in place on the root if send == `recv[rank]`, else none may
    /// overlap another. `root`: a rank of the group. Done on the root when all ranks have called; on the others maybe
    /// earlier. `options`, `work`, threads and results: as dist_all_reduce; `count` and `counts[rank]` that differ on the
    /// root are DIST_ERR_INVALID_ARGUMENT there; counts on which two ranks disagree are DIST_ERR_MISMATCH on at least one
    /// of the two, and on all others at their next call at the latest. Since 0.1.
    pub fn dist_gather_v(
        group: *mut dist_group_t,
        send: *const c_void,
        count: usize,
        recv: *const *mut c_void,
        counts: *const usize,
        dtype: dist_dtype_t,
        root: i32,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let options = call_options(options)?;
        let group = self::group(group)?;
        let (dtype, root) = (DataType::from_number(dtype)?, index(root, "root")?);
        let send = src(send, buffer_bytes(count, dtype, 1)?, "send")?;
        let recvs = match group.rank() == root {
            true => Some(dst_blocks(recv, counts, group.size(), dtype, ["recv", "counts"])?),
            false => None,
        };
        submit(&group, Call::gather_v(send, recvs, dtype, root), options, work)
    }
}

dist_export! {
    /// Gives each rank its vector of those that the root has, each of its own length, each at its own place.
    ///
    /// All ranks must agree on the order of calls on the group, on dtype and root; `count` of rank i must be the
    /// root's `counts[i]`. `group`: required. `send`: an array of world size pointers, `counts`: an array of
    /// world size counts, in elements; both used on the root only, may be NULL elsewhere, and are borrowed for the call.
    /// `send[i]`: in, `counts[i]` elements for rank i; NULL only where that is 0. `recv`: out, `count` elements. The
    /// buffers are borrowed until the operation is done; in place on the root if recv == `send[rank]`, else `recv` must
    /// not overlap the others. `root`: a rank of the group. Done when the data is here; the root may return before the
    /// others have called. `options`, `work`, threads and results: as dist_all_reduce; `count` and `counts[rank]` that
    /// differ on the root are DIST_ERR_INVALID_ARGUMENT there; counts on which two ranks disagree are DIST_ERR_MISMATCH
    /// on at least one of the two, and on all others at their next call at the latest. Since 0.1.
    pub fn dist_scatter_v(
        group: *mut dist_group_t,
        send: *const *const c_void,
        counts: *const usize,
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
        let recv = dst(recv, buffer_bytes(count, dtype, 1)?, "recv")?;
        let sends = match group.rank() == root {
            true => Some(src_blocks(send, counts, group.size(), dtype, ["send", "counts"])?),
            false => None,
        };
        submit(&group, Call::scatter_v(sends, recv, dtype, root), options, work)
    }
}

dist_export! {
    /// Reduces vectors of all ranks, one for each rank and each of its own length, and gives each rank its own.
    ///
    /// All ranks must agree on the order of calls on the group, on dtype, op, and on all counts. `group`: required. `send`: an array of world size pointers, `counts`: an array of world size counts, in elements; both
    /// borrowed for the call. `send[i]`: in, `counts[i]` elements of what rank i gets; NULL only where that is 0. `recv`:
    /// out, `counts[rank]` elements. The buffers are borrowed until the operation is done; in place if recv ==
    /// `send[rank]`, else `recv` must not overlap the others. Done when all ranks have called. `options`, `work`, threads
    /// and results: as dist_all_reduce. Since 0.1.
    pub fn dist_reduce_scatter_v(
        group: *mut dist_group_t,
        send: *const *const c_void,
        counts: *const usize,
        recv: *mut c_void,
        dtype: dist_dtype_t,
        op: dist_op_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let options = call_options(options)?;
        let group = self::group(group)?;
        let (dtype, op) = (DataType::from_number(dtype)?, ReduceOp::from_number(op)?);
        let sends = src_blocks(send, counts, group.size(), dtype, ["send", "counts"])?;
        let recv = dst(recv, sends[group.rank()].len(), "recv")?;
        submit(&group, Call::reduce_scatter_v(sends, recv, dtype, op), options, work)
    }
}

dist_export! {
    /// Gives every rank its vector of every rank's, each of its own length, each at its own place: `recv[i]` is
    /// `send[rank]` of rank i.
    ///
    /// All ranks must agree on the order of calls on the group and on dtype; `send_counts[j]` of rank i must be
    /// `recv_counts[i]` of rank j. `group`: required. `send`, `recv`: arrays of world size pointers,
    /// `send_counts`, `recv_counts`: arrays of world size counts, in elements; all borrowed for the call. `send[i]`: in,
    /// `send_counts[i]` elements; `recv[i]`: out, `recv_counts[i]` elements; NULL only where that is 0. The buffers are
    /// borrowed until the operation is done, and none may overlap another that is written. Done when all ranks
    /// have called. `options`, `work`, threads and results: as dist_all_reduce; `send_counts[rank]` and `recv_counts[rank]`
    /// that differ are DIST_ERR_INVALID_ARGUMENT; counts on which two ranks disagree are DIST_ERR_MISMATCH on at least
    /// one of the two, and on all others at their next call at the latest. Since 0.1.
    pub fn dist_all_to_all_v(
        group: *mut dist_group_t,
        send: *const *const c_void,
        send_counts: *const usize,
        recv: *const *mut c_void,
        recv_counts: *const usize,
        dtype: dist_dtype_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let options = call_options(options)?;
        let group = self::group(group)?;
        let (dtype, size) = (DataType::from_number(dtype)?, group.size());
        let sends = src_blocks(send, send_counts, size, dtype, ["send", "send_counts"])?;
        let recvs = dst_blocks(recv, recv_counts, size, dtype, ["recv", "recv_counts"])?;
        submit(&group, Call::all_to_all_v(sends, recvs, dtype), options, work)
    }
}
