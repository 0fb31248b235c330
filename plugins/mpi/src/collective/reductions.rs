//! Reductions: the operator, the factor and the average, in pieces that fit an MPI count.
//!
//! f16, bf16 and f8 are divided before the addition, as the library does between hosts, so that the
//! average is representable even if the sum is not. All other types are divided once at the end.

use super::{Address, Call, Collective, copy, sink, source, untyped};
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
        let op = types::op(call.what.op)?;
        Ok(Self { op, operator: operator(call.dtype, op)? })
    }

    /// Returns true if this rank's elements change before the addition.
    fn prepares(&self, call: &Call<'_>) -> bool {
        match self.op {
            ReduceOp::PremulSum => true,
            ReduceOp::Avg => divides_first(call),
            _ => false,
        }
    }

    fn prepare(&self, call: &Call<'_>, place: *mut u8, bytes: usize) {
        let (dst, dtype) = (sink(place, bytes), call.dtype);
        match self.op {
            ReduceOp::PremulSum => kernel::scale_copy(dtype, call.what.factor, dst, dst.as_src()),
            _ => kernel::average(dtype, dst, call.part.size),
        }
    }
}

fn divides_first(call: &Call<'_>) -> bool {
    call.dtype.is_float() && call.width <= 2
}

/// Converts a count that does not exceed MPI's maximum.
fn small(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// Returns the pieces of a vector: the start and the length of each, in elements. An empty vector
/// has one piece.
fn pieces(call: &Call<'_>, count: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
    let most = usize::try_from(call.part.options.largest).unwrap_or(1);
    let starts = (0..count.max(1)).step_by(most);
    starts.map(move |start| (start, most.min(count - start)))
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
        if !needs_copy && !reduction.prepares(call) {
            return Ok(call.send());
        }
        let to = self.copied(call.send(), bytes)?;
        if reduction.prepares(call) {
            reduction.prepare(call, to, bytes);
        }
        Ok(to)
    }

    /// Records the final work on a result.
    fn divide_later(
        &mut self,
        call: &Call<'_>,
        reduction: &Reduction,
        place: *mut u8,
        bytes: usize,
    ) {
        self.finish.is_folded_here = true;
        if reduction.op == ReduceOp::Avg && !divides_first(call) && bytes > 0 {
            self.finish.average = Some((call.dtype, Address(place), bytes));
        }
    }

    pub(super) fn all_reduce(&mut self, call: &Call<'_>) -> Result<()> {
        let reduction = Reduction::of(call)?;
        let (count, recv, comm) = (call.what.count, call.recv(), call.part.comm());
        let bytes = count * call.width;
        // MPI requires MPI_IN_PLACE on all ranks or on none, and this rank does not know the other
        // ranks' buffers.
        let agreed = call.part.options.in_place_agreed && call.is_in_place();
        let stays = agreed && !reduction.prepares(call);
        let send = self.contribution(call, &reduction, bytes, call.is_in_place() && !stays)?;
        for (start, count) in pieces(call, count) {
            let offset = start * call.width;
            let from: *const c_void =
                if stays { in_place().cast_const() } else { untyped(send.wrapping_add(offset)) };
            let to: *mut c_void = recv.wrapping_add(offset).cast();
            self.step(None, |request| {
                let (datatype, op) = (call.datatype, reduction.operator);
                mpi!(MPI_Iallreduce(from, to, small(count), datatype, op, comm, request))
            })?;
        }
        self.divide_later(call, &reduction, recv, bytes);
        Ok(())
    }

    pub(super) fn reduce(&mut self, call: &Call<'_>) -> Result<()> {
        let reduction = Reduction::of(call)?;
        let bytes = call.what.count * call.width;
        let send = self.contribution(call, &reduction, bytes, false)?;
        let stays = call.is_root() && call.is_in_place() && !reduction.prepares(call);
        let from = if stays { None } else { Some(send) };
        self.reduce_to(call, &reduction, from, call.recv(), (call.what.count, call.what.root))?;
        if call.is_root() {
            self.divide_later(call, &reduction, call.recv(), bytes);
        }
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
        let comm = call.part.comm();
        for (start, count) in pieces(call, count) {
            let offset = start * call.width;
            let from: *const c_void = match send {
                Some(send) => untyped(send.wrapping_add(offset)),
                None => in_place().cast_const(),
            };
            let to: *mut c_void = if to.is_null() { to } else { to.wrapping_add(offset) }.cast();
            self.step(None, |request| {
                let (datatype, op) = (call.datatype, reduction.operator);
                mpi!(MPI_Ireduce(from, to, small(count), datatype, op, root, comm, request))
            })?;
        }
        Ok(())
    }

    /// Runs a prefix reduction; an exclusive one omits this rank's own vector.
    pub(super) fn scan(&mut self, call: &Call<'_>, is_exclusive: bool) -> Result<()> {
        let reduction = Reduction::of(call)?;
        let (count, comm) = (call.what.count, call.part.comm());
        let send = self.contribution(call, &reduction, count * call.width, call.is_in_place())?;
        let is_first = is_exclusive && call.part.rank == 0;
        let bytes = count * call.width;
        if call.part.rank == usize::from(is_exclusive) && bytes > 0 {
            let op = if reduction.op == ReduceOp::PremulSum { ReduceOp::Sum } else { reduction.op };
            self.finish.single = Some((call.dtype, op, Address(call.recv()), bytes));
        }
        // Rank 0 gets no result, but some MPIs check the address.
        let recv = if is_first { self.scratch(count * call.width)? } else { call.recv() };
        for (start, count) in pieces(call, count) {
            let offset = start * call.width;
            let from = untyped(send.wrapping_add(offset));
            let to: *mut c_void = recv.wrapping_add(offset).cast();
            self.step(None, |request| {
                let (datatype, op) = (call.datatype, reduction.operator);
                if is_exclusive {
                    mpi!(MPI_Iexscan(from, to, small(count), datatype, op, comm, request))
                } else {
                    mpi!(MPI_Iscan(from, to, small(count), datatype, op, comm, request))
                }
            })?;
        }
        self.finish.is_folded_here = true;
        Ok(())
    }

    pub(super) fn reduce_scatter(&mut self, call: &Call<'_>) -> Result<()> {
        let reduction = Reduction::of(call)?;
        let (count, size, comm) = (call.what.count, call.part.size, call.part.comm());
        let bytes = count * call.width;
        let send = self.contribution(call, &reduction, bytes * size, false)?;
        let recv = self.result(call, &reduction, send, bytes)?;
        if let Ok(short) = c_int::try_from(count)
            && short <= call.part.options.largest
        {
            let (from, to) = (untyped(send), recv.cast());
            self.step(None, |request| {
                let (datatype, op) = (call.datatype, reduction.operator);
                mpi!(MPI_Ireduce_scatter_block(from, to, short, datatype, op, comm, request))
            })?;
        } else {
            self.reduce_each(call, &reduction, send, recv, &vec![count; size])?;
        }
        self.divide_later(call, &reduction, call.recv(), bytes);
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
        let is_read = call.is_in_place() && !reduction.prepares(call) && send == call.send();
        if is_read { self.aside(call.recv(), bytes) } else { Ok(call.recv()) }
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
            let to = if rank == call.part.rank { recv } else { std::ptr::null_mut() };
            let from = send.wrapping_add(start * call.width);
            self.reduce_to(call, reduction, Some(from), to, (count, small(rank)))?;
            start += count;
        }
        Ok(())
    }

    pub(super) fn reduce_scatter_v(&mut self, call: &Call<'_>) -> Result<()> {
        let reduction = Reduction::of(call)?;
        let counts = call.list(call.what.send_counts);
        let places = call.list(call.what.send_displs);
        let own = counts.get(call.part.rank).copied().unwrap_or(0) * call.width;
        let send = self.joined(call, &reduction, counts, places)?;
        let recv = self.result(call, &reduction, send, own)?;
        let most = usize::try_from(call.part.options.largest).unwrap_or(1);
        if counts.iter().sum::<usize>() <= most {
            let lengths: Vec<c_int> = counts.iter().map(|&count| small(count)).collect();
            let (from, to, comm) = (untyped(send), recv.cast(), call.part.comm());
            self.step(None, |request| {
                let (datatype, op) = (call.datatype, reduction.operator);
                mpi!(MPI_Ireduce_scatter(from, to, lengths.as_ptr(), datatype, op, comm, request))
            })?;
            self.keep(lengths);
        } else {
            self.reduce_each(call, &reduction, send, recv, counts)?;
        }
        self.divide_later(call, &reduction, call.recv(), own);
        Ok(())
    }

    /// Returns the blocks of this rank contiguously, as MPI requires.
    fn joined(
        &mut self,
        call: &Call<'_>,
        reduction: &Reduction,
        counts: &[usize],
        places: &[usize],
    ) -> Result<*const u8> {
        let bytes = counts.iter().sum::<usize>() * call.width;
        let mut end = 0;
        let are_neighbours = counts.iter().zip(places).all(|(&count, &place)| {
            let fits = count == 0 || place == end;
            end += count * call.width;
            fits
        });
        if are_neighbours {
            return self.contribution(call, reduction, bytes, false);
        }
        let to = self.scratch(bytes)?;
        let mut end = 0;
        for (&count, &place) in counts.iter().zip(places) {
            copy(call.send().wrapping_add(place), to.wrapping_add(end), count * call.width);
            end += count * call.width;
        }
        if reduction.prepares(call) {
            reduction.prepare(call, to, bytes);
        }
        Ok(source(to, bytes).as_ptr())
    }
}
