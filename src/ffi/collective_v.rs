//! The exported functions of the collectives with a count of its own for each rank (the `_v` forms
//! of MPI).

use super::args::{
    self, OutPtr, dst, dst_blocks, dst_blocks_at, dst_blocks_packed, index, slice, src, src_blocks,
    to_i32,
};
use super::group::group;
use super::operator::{self, CustomOperator, PLACEHOLDER_DTYPE, PLACEHOLDER_OP};
use super::submit::{WorkOut, call_options, submit};
use super::types::*;
use crate::api::Call;
use crate::api::collective::call::buffer_bytes;
use crate::base::dtype::DataType;
use crate::base::error::Error;
use crate::base::op::ReduceOp;
use std::ffi::c_void;

dist_export! {
    /// Gives every rank the vectors of all ranks, each of its own length and in its own buffer.
    ///
    /// @param group in: the group.
    /// @param send in: `counts[rank]` elements; borrowed until the work completes; NULL only if
    ///   `counts[rank]` is 0.
    /// @param recv out: an array of one pointer per rank, borrowed for the call. The buffer at
    ///   `recv[i]` gets the `counts[i]` elements of rank i and is borrowed until the work
    ///   completes; `recv[i]` is NULL only if `counts[i]` is 0. In place, `send` is `recv[rank]`;
    ///   otherwise no buffer may overlap another.
    /// @param counts in: one count per rank, in elements; borrowed for the call.
    /// @param dtype in: the type of the elements.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree all counts, dtype and label; the order of calls on the group.
    /// @blocks as dist_all_reduce.
    /// @return as dist_all_reduce.
    /// @threads as dist_all_reduce.
    /// @since 0.1
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
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
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
    /// The operation is that of dist_all_gather_v, with all blocks in one buffer as in
    /// MPI_Allgatherv. In the same operation, some ranks may call this function and others
    /// dist_all_gather_v. In place, `send` is this rank's block in `recv`; otherwise no block may
    /// overlap another block or `send`.
    ///
    /// For example, let `counts` be 2, 1 and 3. If `displs` is NULL, the blocks begin at elements
    /// 0, 2 and 3 of `recv`. If `displs` is 0, 4 and 8, they begin at elements 0, 4 and 8.
    ///
    /// @param group in: the group.
    /// @param send in: `counts[rank]` elements; borrowed until the work completes; NULL only if
    ///   `counts[rank]` is 0.
    /// @param recv out: the block of rank i begins `displs[i]` elements behind `recv` and has
    ///   `counts[i]` elements; borrowed until the work completes; NULL only if all counts are 0.
    ///   The call does not change the elements between the blocks.
    /// @param counts in: one count per rank, in elements; borrowed for the call.
    /// @param displs in, optional: one displacement per rank, in elements; borrowed for the call.
    ///   If `displs` is NULL, the blocks follow each other in rank order. Ranks may pass different
    ///   displacements.
    /// @param dtype in: the type of the elements.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree all counts, dtype and label; the order of calls on the group.
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
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
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
    /// Gives every rank the counts of all ranks, for calls that need all counts.
    ///
    /// The call is an all-gather of one count per rank, for instance before dist_all_gather_v_at.
    /// The call writes this rank's count to `counts[rank]` before it returns, even if it has a
    /// work.
    ///
    /// @param group in: the group.
    /// @param count in: this rank's count, any number.
    /// @param counts out: one count per rank, in rank order; borrowed until the work completes.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree label, and the order of calls on the group.
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
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        let bytes = buffer_bytes(1, DataType::U64, group.size())?;
        let recv = dst(counts.cast(), bytes, "counts")?;
        // Use the caller's array as input, because it outlives an asynchronous call.
        let own = counts.wrapping_add(group.rank());
        if !own.is_aligned() {
            return Err(Error::invalid("argument counts is not aligned"));
        }
        OutPtr::required(own, "counts")?.write(count);
        let send = src(own.cast_const().cast(), size_of::<u64>(), "counts")?;
        submit(&group, Call::all_gather(send, recv, DataType::U64), options, work)
    }
}

dist_export! {
    /// Reports whether all ranks have the same bytes, and the first rank that differs.
    ///
    /// The bytes may have any length; bytes of different lengths are different. The call is an
    /// all-gather of 40 bytes per rank: the length and the BLAKE3 hash of the rank's bytes. Its
    /// deadline and its failures are those of an all-gather. Different bytes of the same length
    /// count as equal with a probability of 2^-256.
    ///
    /// @param group in: the group; its back end must serve host memory.
    /// @param bytes in: `len_bytes` bytes in host memory; borrowed for the call; NULL only if
    ///   `len_bytes` is 0.
    /// @param len_bytes in: the number of bytes on this rank.
    /// @param equal out, optional: 1 if all ranks have the same bytes, else 0; the same on all
    ///   ranks.
    /// @param differing_rank out, optional: the lowest rank whose bytes differ from the bytes of
    ///   rank 0, the same on all ranks; -1 if no rank differs.
    /// @param options in, optional: as dist_all_reduce, but without a device and without a stream.
    /// @agree label, and the order of calls on the group.
    /// @blocks Until all ranks have called, but at most until the deadline.
    /// @return DIST_OK, also if the bytes differ; otherwise the errors of a blocking
    ///   dist_all_reduce. DIST_ERR_INVALID_ARGUMENT also inside a batch, and if the options have a
    ///   device or a stream.
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
        let (equal, differing) = (OutPtr::optional(equal), OutPtr::optional(differing_rank));
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        let found = group.all_equal(args::bytes(bytes, len_bytes, "bytes")?, options)?;
        if let Some(equal) = equal {
            equal.write(i32::from(found.is_none()));
        }
        if let Some(differing) = differing {
            differing.write(found.map_or(Ok(-1), to_i32)?);
        }
        Ok(())
    }
}

dist_export! {
    /// Gives the root the vectors of all ranks, each of its own length and in its own buffer.
    ///
    /// The native back end compares the counts. If the counts of two ranks disagree, at least one
    /// of the two ranks gets DIST_ERR_MISMATCH from this call. Every other rank gets the error from
    /// this call or from its next call in the group.
    ///
    /// @param group in: the group.
    /// @param send in: `count` elements; borrowed until the work completes; NULL only if `count` is
    ///   0.
    /// @param count in: the number of elements of this rank, equal to `counts[rank]` of the root.
    /// @param recv out, optional: on the root, an array of one pointer per rank, borrowed for the
    ///   call. The buffer at `recv[i]` gets the `counts[i]` elements of rank i and is borrowed
    ///   until the work completes; `recv[i]` is NULL only if `counts[i]` is 0. In place, `send` is
    ///   `recv[rank]`; otherwise no buffer may overlap another. Not used on other ranks.
    /// @param counts in, optional: on the root, one count per rank, in elements; borrowed for the
    ///   call. Not used on other ranks.
    /// @param dtype in: the type of the elements.
    /// @param root in: the rank that gets the vectors.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree dtype, root and label; the order of calls on the group; `count` of rank i equals
    ///   `counts[i]` of the root.
    /// @blocks The root blocks as in dist_all_reduce. Another rank may return before all ranks have
    ///   called.
    /// @return as dist_all_reduce. DIST_ERR_INVALID_ARGUMENT also if `count` and `counts[rank]`
    ///   differ on the root.
    /// @threads as dist_all_reduce.
    /// @since 0.1
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
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
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
    /// Gives each rank a vector of the root; the vectors have their own lengths and buffers.
    ///
    /// The native back end compares the counts. If the counts of two ranks disagree, at least one
    /// of the two ranks gets DIST_ERR_MISMATCH from this call. Every other rank gets the error from
    /// this call or from its next call in the group.
    ///
    /// @param group in: the group.
    /// @param send in, optional: on the root, an array of one pointer per rank, borrowed for the
    ///   call. The buffer at `send[i]` has the `counts[i]` elements for rank i and is borrowed
    ///   until the work completes; `send[i]` is NULL only if `counts[i]` is 0. Not used on other
    ///   ranks.
    /// @param counts in, optional: on the root, one count per rank, in elements; borrowed for the
    ///   call. Not used on other ranks.
    /// @param recv out: `count` elements; borrowed until the work completes; NULL only if `count`
    ///   is 0. In place on the root, `recv` is `send[rank]`; otherwise `recv` must not overlap the
    ///   other buffers.
    /// @param count in: the number of elements of this rank, equal to `counts[rank]` of the root.
    /// @param dtype in: the type of the elements.
    /// @param root in: the rank that has the vectors.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree dtype, root and label; the order of calls on the group; `count` of rank i equals
    ///   `counts[i]` of the root.
    /// @blocks as dist_scatter.
    /// @return as dist_all_reduce. DIST_ERR_INVALID_ARGUMENT also if `count` and `counts[rank]`
    ///   differ on the root.
    /// @threads as dist_all_reduce.
    /// @since 0.1
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
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
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
    /// Reduces one vector for each rank, each of its own length, and gives each rank its result.
    ///
    /// Every rank passes one vector for each rank. Rank i gets the reduction of the vectors that
    /// all ranks passed for rank i.
    ///
    /// @param group in: the group.
    /// @param send in: an array of one pointer per rank, borrowed for the call. The buffer at
    ///   `send[i]` has the `counts[i]` elements that this rank contributes to the result of rank i.
    ///   It is borrowed until the work completes; `send[i]` is NULL only if `counts[i]` is 0.
    /// @param counts in: one count per rank, in elements; borrowed for the call.
    /// @param recv out: `counts[rank]` elements; borrowed until the work completes; NULL only if
    ///   `counts[rank]` is 0. In place, `recv` is `send[rank]`; otherwise `recv` must not overlap
    ///   the other buffers.
    /// @param dtype in: as dist_all_reduce.
    /// @param op in: as dist_all_reduce.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree all counts, dtype, op and label; the order of calls on the group.
    /// @blocks as dist_all_reduce.
    /// @return as dist_all_reduce.
    /// @threads as dist_all_reduce.
    /// @since 0.1
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
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        if operator::is_custom(dtype, op) {
            let custom = CustomOperator::find(dtype, op)?;
            let sends = custom.blocks(send, counts, group.size(), ["send", "counts"])?;
            let recv = dst(recv, sends[group.rank()].len(), "recv")?;
            return custom.submit(&group, Call::reduce_scatter_v(sends, recv, PLACEHOLDER_DTYPE, PLACEHOLDER_OP), options, work);
        }
        let (dtype, op) = (DataType::from_number(dtype)?, ReduceOp::from_number(op)?);
        let sends = src_blocks(send, counts, group.size(), dtype, ["send", "counts"])?;
        let recv = dst(recv, sends[group.rank()].len(), "recv")?;
        submit(&group, Call::reduce_scatter_v(sends, recv, dtype, op), options, work)
    }
}

dist_export! {
    /// Exchanges vectors between all pairs of ranks, each of its own length and in its own buffer.
    ///
    /// The buffer at `recv[i]` gets the data at `send[rank]` of rank i. The call has no in-place
    /// form. The native back end compares the counts. If the counts of two ranks disagree, at least
    /// one of the two ranks gets DIST_ERR_MISMATCH from this call. Every other rank gets the error
    /// from this call or from its next call in the group.
    ///
    /// @param group in: the group.
    /// @param send in: an array of one pointer per rank, borrowed for the call. The buffer at
    ///   `send[i]` has the `send_counts[i]` elements for rank i and is borrowed until the work
    ///   completes; `send[i]` is NULL only if `send_counts[i]` is 0.
    /// @param send_counts in: one count per rank, in elements; borrowed for the call.
    /// @param recv out: an array of one pointer per rank, borrowed for the call. The buffer at
    ///   `recv[i]` gets the `recv_counts[i]` elements of rank i and is borrowed until the work
    ///   completes; `recv[i]` is NULL only if `recv_counts[i]` is 0. No buffer of `recv` may
    ///   overlap any other buffer.
    /// @param recv_counts in: one count per rank, in elements; borrowed for the call.
    /// @param dtype in: the type of the elements.
    /// @param options in, optional: as dist_all_reduce.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree dtype and label; the order of calls on the group; `send_counts[j]` of rank i equals
    ///   `recv_counts[i]` of rank j.
    /// @blocks as dist_all_reduce.
    /// @return as dist_all_reduce. DIST_ERR_INVALID_ARGUMENT also if `send_counts[rank]` and
    ///   `recv_counts[rank]` differ.
    /// @threads as dist_all_reduce.
    /// @since 0.1
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
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        let (dtype, size) = (DataType::from_number(dtype)?, group.size());
        let sends = src_blocks(send, send_counts, size, dtype, ["send", "send_counts"])?;
        let recvs = dst_blocks(recv, recv_counts, size, dtype, ["recv", "recv_counts"])?;
        submit(&group, Call::all_to_all_v(sends, recvs, dtype), options, work)
    }
}
