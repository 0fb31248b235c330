//! Collective operations with a block of its own length and place for each rank.

use super::args::{
    self, Out, dst, dst_blocks, dst_blocks_at, dst_blocks_packed, index, number, slice, src,
    src_blocks,
};
use super::group::group;
use super::operator::{self, ANY, BYTES, Custom};
use super::submit::{WorkOut, call_options, submit};
use super::types::*;
use crate::api::Call;
use crate::api::call::buffer_bytes;
use crate::base::dtype::DataType;
use crate::base::error::Error;
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
    /// Gives every rank the vectors of all ranks, each of its own length, in one buffer.
    ///
    /// It is dist_all_gather_v with the blocks of one buffer, as MPI_Allgatherv has them, and ranks that call either meet
    /// in one operation. It works in place if `send` is this rank's block in `recv`; else no block may overlap another
    /// or `send`.
    ///
    /// @param group in: the group.
    /// @param send in: `counts[rank]` elements; borrowed until the work completes; NULL only if that is 0.
    /// @param recv out: the block of rank i begins `displs[i]` elements behind `recv`, and has `counts[i]` elements;
    ///   borrowed until the work completes; NULL only if all counts are 0. The elements between blocks stay as they are.
    /// @param counts in: world size counts, in elements; borrowed for the call.
    /// @param displs in, optional: world size displacements, in elements; borrowed for the call. NULL to put the blocks one
    ///   after the other in the order of ranks. Each rank may have others.
    /// @param dtype in: the element type.
    /// @param options in, optional: the call's options; NULL for all defaults; borrowed for the call.
    /// @param work out, optional: the work, as in dist_all_reduce; owned by the caller, released with dist_work_release.
    /// @agree the order of calls on the group, dtype and all counts.
    /// @blocks as dist_all_reduce.
    /// @return as dist_all_reduce.
    /// @threads as dist_all_reduce.
    /// @since 0.1
    pub fn dist_all_gather_v_at(
        group: *mut dist_group_t,
        send: *const c_void,
        recv: *mut c_void,
        counts: *const usize,
        displs: *const usize,
        dtype: dist_dtype_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let options = call_options(options)?;
        let group = self::group(group)?;
        let dtype = DataType::from_number(dtype)?;
        let counts = slice(counts, group.size(), "counts")?;
        let recvs = match displs.is_null() {
            true => dst_blocks_packed(recv, counts, dtype)?,
            false => dst_blocks_at(recv, counts, slice(displs, group.size(), "displs")?, dtype)?,
        };
        let send = src(send, recvs[group.rank()].len(), "send")?;
        submit(&group, Call::all_gather_v(send, recvs, dtype), options, work)
    }
}

dist_export! {
    /// Gives every rank the counts of all ranks, for the calls that need all of them.
    ///
    /// It is an all-gather of one count, before dist_all_gather_v_at for instance.
    ///
    /// @param group in: the group.
    /// @param count in: this rank's count, any number.
    /// @param counts out: world size counts, in the order of ranks; borrowed until the work completes.
    /// @param options in, optional: the call's options; NULL for all defaults; borrowed for the call.
    /// @param work out, optional: the work, as in dist_all_reduce; owned by the caller, released with dist_work_release.
    /// @agree the order of calls on the group.
    /// @blocks as dist_all_reduce.
    /// @return as dist_all_reduce.
    /// @threads as dist_all_reduce.
    /// @since 0.1
    pub fn dist_all_gather_counts(
        group: *mut dist_group_t,
        count: usize,
        counts: *mut usize,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        const { assert!(size_of::<usize>() == size_of::<u64>()) };
        let work = WorkOut::new(work);
        let options = call_options(options)?;
        let group = self::group(group)?;
        let bytes = buffer_bytes(1, DataType::U64, group.size())?;
        let recv = dst(counts.cast(), bytes, "counts")?;
        // In place, so that the count outlives an asynchronous call.
        let own = counts.wrapping_add(group.rank());
        if !own.is_aligned() {
            return Err(Error::invalid("argument counts is not aligned"));
        }
        Out::required(own, "counts")?.write(count);
        let send = src(own.cast_const().cast(), size_of::<u64>(), "counts")?;
        submit(&group, Call::all_gather(send, recv, DataType::U64), options, work)
    }
}

dist_export! {
    /// Tells all ranks whether they have the same bytes, and which rank differs.
    ///
    /// The bytes may have any length; ranks with other lengths differ. The ranks exchange a record of 40 bytes each, the
    /// length and the BLAKE3 hash of the bytes: if two ranks have different bytes of one length, the call takes them
    /// for equal with a probability of 2^-256. It is an all-gather, and has its deadline and its failures.
    ///
    /// @param group in: the group; its back end must carry host memory.
    /// @param bytes in: `len_bytes` bytes in host memory; borrowed for the call; NULL only if `len_bytes` is 0.
    /// @param len_bytes in: the number of bytes on this rank.
    /// @param equal out, optional: 1 if all ranks have the same bytes, else 0; the same on all ranks.
    /// @param differing_rank out, optional: the lowest rank whose bytes are not those of rank 0, the same on all ranks;
    ///   -1 if there is none.
    /// @param options in, optional: the call's options, without a device and a stream; NULL for all defaults; borrowed
    ///   for the call.
    /// @agree the order of calls on the group.
    /// @blocks until all ranks have called, until the deadline at the latest.
    /// @return as dist_all_reduce without a work; DIST_ERR_INVALID_ARGUMENT inside a batch; DIST_OK also if ranks differ.
    /// @threads as dist_all_reduce.
    /// @since 0.1
    pub fn dist_all_equal(
        group: *mut dist_group_t,
        bytes: *const c_void,
        len_bytes: usize,
        equal: *mut i32,
        differing_rank: *mut i32,
        options: *const dist_call_options_t,
    ) -> dist_status_t {
        let (equal, differing) = (Out::optional(equal), Out::optional(differing_rank));
        let options = call_options(options)?;
        let group = self::group(group)?;
        let found = group.all_equal(args::bytes(bytes, len_bytes, "bytes")?, &options)?;
        if let Some(equal) = equal {
            equal.write(i32::from(found.is_none()));
        }
        if let Some(differing) = differing {
            differing.write(found.map_or(Ok(-1), number)?);
        }
        Ok(())
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
        if operator::is_custom(dtype, op) {
            let custom = Custom::find(dtype, op)?;
            let sends = custom.blocks(send, counts, group.size(), ["send", "counts"])?;
            let recv = dst(recv, sends[group.rank()].len(), "recv")?;
            return custom.submit(&group, Call::reduce_scatter_v(sends, recv, BYTES, ANY), options, work);
        }
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
