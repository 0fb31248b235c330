//! Reductions: the operator, the factor and the average, in pieces that fit an MPI count.
//!
//! An average of floats is the sum of vectors that are multiplied by 1/N first, as in the library
//! itself. The average then fits the type even if the sum does not. [`super::integer_average`] has
//! the averages of integers.

use super::{Address, Call, Collective, copy, dst_view, src_view, untyped};
use crate::base::op::ReduceOp;
use crate::failure::Result;
use crate::kernel;
use crate::mpi::{in_place, mpi, sys};
use crate::operators::operator;
use crate::types;
use std::ffi::{c_int, c_void};

/// The operator of a call.
struct Reduction {
    op: ReduceOp,
    operator: sys::MPI_Op,
}

impl Reduction {
    fn of(call: &Call<'_>) -> Result<Self> {
        let op = types::op(call.operation.op)?;
        Ok(Self { op, operator: operator(call.dtype, op)? })
    }

    /// Returns true if this rank's elements change before the addition.
    fn changes_input(&self) -> bool {
        matches!(self.op, ReduceOp::PremulSum | ReduceOp::Avg)
    }

    /// Writes the changed elements to `to`, which may be the memory of `from`.
    fn prepare(&self, call: &Call<'_>, from: *const u8, to: *mut u8, bytes: usize) {
        let (src, dst, dtype) = (src_view(from, bytes), dst_view(to, bytes), call.dtype);
        match self.op {
            ReduceOp::PremulSum => kernel::scale_copy(dtype, call.operation.factor, dst, src),
            _ => kernel::fold_average(dtype, dst, &[src], call.group.size),
        }
    }
}

/// Converts a count that does not exceed MPI's maximum.
fn to_int(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// Returns the pieces of a vector: the start and the length of each, in elements. An empty vector
/// has one piece.
fn pieces(call: &Call<'_>, count: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
    let max_count = usize::try_from(call.group.options.max_count).unwrap_or(1);
    let starts = (0..count.max(1)).step_by(max_count);
    starts.map(move |start| (start, max_count.min(count - start)))
}

impl Collective {
    /// Returns the contribution of this rank, of `bytes` bytes: the caller's buffer, or a copy that
    /// is scaled or divided.
    fn contribution(
        &mut self,
        call: &Call<'_>,
        reduction: &Reduction,
        bytes: usize,
        needs_copy: bool,
    ) -> Result<*const u8> {
        if !needs_copy && !reduction.changes_input() {
            return Ok(call.send());
        }
        if !reduction.changes_input() {
            return self.scratch_copy(call.send(), bytes).map(<*mut u8>::cast_const);
        }
        let to = self.scratch(bytes)?;
        reduction.prepare(call, call.send(), to, bytes);
        Ok(to)
    }

    pub(super) fn all_reduce(&mut self, call: &Call<'_>) -> Result<()> {
        let reduction = Reduction::of(call)?;
        let (count, recv, comm) = (call.operation.count, call.recv(), call.group.comm());
        let bytes = count * call.element_bytes;
        // MPI requires MPI_IN_PLACE on all ranks or on none, and this rank does not know the other
        // ranks' buffers. All ranks have the same operator, so all write changed elements to the
        // receive buffer.
        let stays =
            reduction.changes_input() || call.group.options.in_place_agreed && call.is_in_place();
        let send = if reduction.changes_input() {
            reduction.prepare(call, call.send(), recv, bytes);
            recv.cast_const()
        } else {
            self.contribution(call, &reduction, bytes, call.is_in_place() && !stays)?
        };
        for (start, count) in pieces(call, count) {
            let offset = start * call.element_bytes;
            let from: *const c_void =
                if stays { in_place().cast_const() } else { untyped(send.wrapping_add(offset)) };
            let to: *mut c_void = recv.wrapping_add(offset).cast();
            self.issue(None, |request| {
                let (datatype, op) = (call.datatype, reduction.operator);
                mpi!(MPI_Iallreduce(from, to, to_int(count), datatype, op, comm, request))
            })?;
        }
        self.final_work.uses_own_operator = true;
        Ok(())
    }

    pub(super) fn reduce(&mut self, call: &Call<'_>) -> Result<()> {
        let reduction = Reduction::of(call)?;
        let bytes = call.operation.count * call.element_bytes;
        let send = self.contribution(call, &reduction, bytes, false)?;
        let stays = call.is_root() && call.is_in_place() && !reduction.changes_input();
        let from = if stays { None } else { Some(send) };
        self.reduce_to(
            call,
            &reduction,
            from,
            call.recv(),
            (call.operation.count, call.operation.root),
        )?;
        self.final_work.uses_own_operator |= call.is_root();
        Ok(())
    }

    /// Reduces a vector to rank `root`, at `to`. Without `send`, the root's input is at `to`.
    fn reduce_to(
        &mut self,
        call: &Call<'_>,
        reduction: &Reduction,
        send: Option<*const u8>,
        to: *mut u8,
        (count, root): (usize, c_int),
    ) -> Result<()> {
        let comm = call.group.comm();
        for (start, count) in pieces(call, count) {
            let offset = start * call.element_bytes;
            let from: *const c_void = match send {
                Some(send) => untyped(send.wrapping_add(offset)),
                None => in_place().cast_const(),
            };
            let to: *mut c_void = if to.is_null() { to } else { to.wrapping_add(offset) }.cast();
            self.issue(None, |request| {
                let (datatype, op) = (call.datatype, reduction.operator);
                mpi!(MPI_Ireduce(from, to, to_int(count), datatype, op, root, comm, request))
            })?;
        }
        Ok(())
    }

    /// Runs a prefix reduction; an exclusive one omits this rank's own vector.
    pub(super) fn scan(&mut self, call: &Call<'_>, is_exclusive: bool) -> Result<()> {
        let reduction = Reduction::of(call)?;
        let (count, comm) = (call.operation.count, call.group.comm());
        let send =
            self.contribution(call, &reduction, count * call.element_bytes, call.is_in_place())?;
        let is_first = is_exclusive && call.group.rank == 0;
        let bytes = count * call.element_bytes;
        if call.group.rank == usize::from(is_exclusive) && bytes > 0 {
            let op = if reduction.op == ReduceOp::PremulSum { ReduceOp::Sum } else { reduction.op };
            self.final_work.single = Some((call.dtype, op, Address(call.recv()), bytes));
        }
        // Rank 0 gets no result, but some MPIs check the address.
        let recv = if is_first { self.scratch(count * call.element_bytes)? } else { call.recv() };
        for (start, count) in pieces(call, count) {
            let offset = start * call.element_bytes;
            let from = untyped(send.wrapping_add(offset));
            let to: *mut c_void = recv.wrapping_add(offset).cast();
            self.issue(None, |request| {
                let (datatype, op) = (call.datatype, reduction.operator);
                if is_exclusive {
                    mpi!(MPI_Iexscan(from, to, to_int(count), datatype, op, comm, request))
                } else {
                    mpi!(MPI_Iscan(from, to, to_int(count), datatype, op, comm, request))
                }
            })?;
        }
        self.final_work.uses_own_operator = true;
        Ok(())
    }

    pub(super) fn reduce_scatter(&mut self, call: &Call<'_>) -> Result<()> {
        let reduction = Reduction::of(call)?;
        let (count, size, comm) = (call.operation.count, call.group.size, call.group.comm());
        let bytes = count * call.element_bytes;
        let send = self.contribution(call, &reduction, bytes * size, false)?;
        let recv = self.result(call, &reduction, send, bytes)?;
        if let Ok(short) = c_int::try_from(count)
            && short <= call.group.options.max_count
        {
            let (from, to) = (untyped(send), recv.cast());
            self.issue(None, |request| {
                let (datatype, op) = (call.datatype, reduction.operator);
                mpi!(MPI_Ireduce_scatter_block(from, to, short, datatype, op, comm, request))
            })?;
        } else {
            self.reduce_each(call, &reduction, send, recv, &vec![count; size])?;
        }
        self.final_work.uses_own_operator = true;
        Ok(())
    }

    /// Returns the first destination of the result: scratch memory if the final destination is part
    /// of MPI's input.
    fn result(
        &mut self,
        call: &Call<'_>,
        reduction: &Reduction,
        send: *const u8,
        bytes: usize,
    ) -> Result<*mut u8> {
        let is_read = call.is_in_place() && !reduction.changes_input() && send == call.send();
        if is_read { self.scratch_result(call.recv(), bytes) } else { Ok(call.recv()) }
    }

    /// Reduces each rank's block with its own reduction, for counts that exceed one MPI call.
    fn reduce_each(
        &mut self,
        call: &Call<'_>,
        reduction: &Reduction,
        send: *const u8,
        recv: *mut u8,
        counts: &[usize],
    ) -> Result<()> {
        let mut start = 0;
        for (rank, &count) in counts.iter().enumerate() {
            let to = if rank == call.group.rank { recv } else { std::ptr::null_mut() };
            let from = send.wrapping_add(start * call.element_bytes);
            self.reduce_to(call, reduction, Some(from), to, (count, to_int(rank)))?;
            start += count;
        }
        Ok(())
    }

    pub(super) fn reduce_scatter_v(&mut self, call: &Call<'_>) -> Result<()> {
        let reduction = Reduction::of(call)?;
        let counts = call.list(call.operation.send_counts);
        let offsets = call.list(call.operation.send_displs);
        let own = counts.get(call.group.rank).copied().unwrap_or(0) * call.element_bytes;
        let send = self.contiguous_blocks(call, &reduction, counts, offsets)?;
        let recv = self.result(call, &reduction, send, own)?;
        let max_count = usize::try_from(call.group.options.max_count).unwrap_or(1);
        if counts.iter().sum::<usize>() <= max_count {
            let lengths: Vec<c_int> = counts.iter().map(|&count| to_int(count)).collect();
            let (from, to, comm) = (untyped(send), recv.cast(), call.group.comm());
            self.issue(None, |request| {
                let (datatype, op) = (call.datatype, reduction.operator);
                mpi!(MPI_Ireduce_scatter(from, to, lengths.as_ptr(), datatype, op, comm, request))
            })?;
            self.keep_list(lengths);
        } else {
            self.reduce_each(call, &reduction, send, recv, counts)?;
        }
        self.final_work.uses_own_operator = true;
        Ok(())
    }

    /// Returns the blocks of this rank contiguously, as MPI requires.
    fn contiguous_blocks(
        &mut self,
        call: &Call<'_>,
        reduction: &Reduction,
        counts: &[usize],
        offsets: &[usize],
    ) -> Result<*const u8> {
        let bytes = counts.iter().sum::<usize>() * call.element_bytes;
        let mut end = 0;
        let are_neighbours = counts.iter().zip(offsets).all(|(&count, &offset)| {
            let fits = count == 0 || offset == end;
            end += count * call.element_bytes;
            fits
        });
        if are_neighbours {
            return self.contribution(call, reduction, bytes, false);
        }
        let to = self.scratch(bytes)?;
        let mut end = 0;
        for (&count, &offset) in counts.iter().zip(offsets) {
            copy(
                call.send().wrapping_add(offset),
                to.wrapping_add(end),
                count * call.element_bytes,
            );
            end += count * call.element_bytes;
        }
        if reduction.changes_input() {
            reduction.prepare(call, to, to, bytes);
        }
        Ok(src_view(to, bytes).as_ptr())
    }
}
