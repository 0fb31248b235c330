//! Collectives whose blocks have individual lengths and displacements.
//!
//! Only all_gather_v has lengths that all ranks know, so MPI's own operation can run it. The others
//! use messages between two ranks on the communicator of collectives. Each pair of ranks has at
//! most one message per call and direction, and calls have one order, so one tag is sufficient.
//! This way the receiver detects a length mismatch, blocks may have any displacements, and receives
//! can be cancelled.

use super::{Address, Call, Collective, copy};
use crate::failure::Result;
use crate::interface::dist_backend_operation_t;
use crate::mpi::mpi;
use std::ffi::c_int;

/// The tag of all messages of collectives.
const TAG: c_int = 0;

fn small(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// A block: its address and its number of elements.
pub(super) type Block = (*mut u8, usize);

impl Collective {
    /// Stores a list that MPI reads until the request has ended.
    pub(super) fn keep(&mut self, list: Vec<c_int>) {
        // Moving the vector into the list does not move its memory.
        self.lists.push(list);
    }

    pub(super) fn block_to(
        &mut self,
        call: &Call<'_>,
        to: usize,
        (from, count): Block,
    ) -> Result<()> {
        let lot = call.lot(count)?;
        let (to, comm) = (small(to), call.part.comm());
        self.step(None, |request| {
            mpi!(MPI_Isend(
                from.cast_const().cast(),
                lot.count,
                lot.datatype,
                to,
                TAG,
                comm,
                request
            ))
        })
    }

    pub(super) fn block_from(
        &mut self,
        call: &Call<'_>,
        from: usize,
        (to, count): Block,
    ) -> Result<()> {
        let lot = call.lot(count)?;
        let (from, comm) = (small(from), call.part.comm());
        self.step(Some((from, count * call.width)), |request| {
            mpi!(MPI_Irecv(to.cast(), lot.count, lot.datatype, from, TAG, comm, request))
        })
    }

    /// Sends and receives blocks: one for each rank and one from each rank. Either list may be
    /// empty.
    pub(super) fn trade(
        &mut self,
        call: &Call<'_>,
        sends: &[Block],
        recvs: &[Block],
    ) -> Result<()> {
        let (own, size) = (call.part.rank, call.part.size);
        // Each rank starts with its next neighbour, so that not all ranks send to the same rank.
        let others = || (1..size).map(|distance| (own + distance) % size);
        for from in others().filter(|&from| from < recvs.len()) {
            self.block_from(call, from, recvs[from])?;
        }
        for to in others().filter(|&to| to < sends.len()) {
            self.block_to(call, to, sends[to])?;
        }
        match (sends.get(own), recvs.get(own)) {
            (Some(&send), Some(&recv)) => self.keep_own(call, send, recv),
            _ => Ok(()),
        }
    }

    /// Copies the block that this rank sends to itself.
    fn keep_own(&mut self, call: &Call<'_>, send: Block, recv: Block) -> Result<()> {
        let ((from, count), (to, room), own) = (send, recv, call.part.rank);
        super::check_length(small(own), room * call.width, count * call.width)?;
        if !call.is_on_device() {
            copy(from, to, count * call.width);
        } else if from != to && count > 0 {
            // Only MPI can copy in device memory.
            self.block_from(call, own, recv)?;
            self.block_to(call, own, send)?;
        }
        Ok(())
    }

    pub(super) fn all_to_all_v(&mut self, call: &Call<'_>) -> Result<()> {
        let (sends, recvs) = (call.sends(), call.recvs());
        self.trade(call, &sends, &recvs)
    }

    pub(super) fn gather_v(&mut self, call: &Call<'_>) -> Result<()> {
        let own: Block = (call.send().cast_mut(), call.what.send_count);
        if !call.is_root() {
            return self.block_to(call, call.root(), own);
        }
        let mut sends: Vec<Block> = vec![(std::ptr::null_mut(), 0); call.part.size];
        sends[call.part.rank] = own;
        self.root_trade(call, &sends, &call.recvs(), true)
    }

    pub(super) fn scatter_v(&mut self, call: &Call<'_>) -> Result<()> {
        let own: Block = (call.recv(), call.what.recv_count);
        if !call.is_root() {
            return self.block_from(call, call.root(), own);
        }
        let mut recvs: Vec<Block> = vec![(std::ptr::null_mut(), 0); call.part.size];
        recvs[call.part.rank] = own;
        self.root_trade(call, &call.sends(), &recvs, false)
    }

    /// The root's side: it only receives from the other ranks, or only sends to them.
    pub(super) fn root_trade(
        &mut self,
        call: &Call<'_>,
        sends: &[Block],
        recvs: &[Block],
        receives: bool,
    ) -> Result<()> {
        let own = call.part.rank;
        for rank in (0..call.part.size).filter(|&rank| rank != own) {
            match receives {
                true => self.block_from(call, rank, recvs[rank])?,
                false => self.block_to(call, rank, sends[rank])?,
            }
        }
        self.keep_own(call, sends[own], recvs[own])
    }

    pub(super) fn all_gather_v(&mut self, call: &Call<'_>) -> Result<()> {
        let recvs = call.recvs();
        let counts: Vec<usize> = recvs.iter().map(|(_, count)| *count).collect();
        let total: usize = counts.iter().sum();
        let send: Block = (call.send().cast_mut(), call.what.send_count);
        if total > usize::try_from(call.part.options.largest).unwrap_or(1) {
            return self.trade(call, &vec![send; call.part.size], &recvs);
        }
        let starts: Vec<usize> = counts
            .iter()
            .scan(0, |end, &count| {
                let start = *end;
                *end += count;
                Some(start)
            })
            .collect();
        let base = recvs.iter().find(|(_, count)| *count > 0).map_or(call.recv(), |(at, _)| *at);
        let are_neighbours = recvs.iter().zip(&starts).all(|(&(at, count), &start)| {
            count == 0 || at == base.wrapping_add(start * call.width)
        });
        let room = if are_neighbours { base } else { self.scratch(total * call.width)? };
        if !are_neighbours {
            for (&(at, count), &start) in recvs.iter().zip(&starts) {
                let from = room.wrapping_add(start * call.width);
                self.finish.copies.push((Address(from), Address(at), count * call.width));
            }
        }
        let is_read = call.is_in_place() && are_neighbours;
        let from = match is_read {
            true => self.copied(call.send(), send.1 * call.width)?,
            false => send.0,
        };
        let lengths: Vec<c_int> = counts.iter().map(|&count| small(count)).collect();
        let places: Vec<c_int> = starts.iter().map(|&start| small(start)).collect();
        let (datatype, comm) = (call.datatype, call.part.comm());
        self.step(None, |request| {
            let (from, to, count) = (from.cast_const().cast(), room.cast(), small(send.1));
            let (lengths, places) = (lengths.as_ptr(), places.as_ptr());
            mpi!(MPI_Iallgatherv(
                from, count, datatype, to, lengths, places, datatype, comm, request
            ))
        })?;
        self.keep(lengths);
        self.keep(places);
        Ok(())
    }
}

impl Call<'_> {
    pub(super) fn root(&self) -> usize {
        usize::try_from(self.what.root).unwrap_or(0)
    }

    fn sends(&self) -> Vec<Block> {
        let dist_backend_operation_t { send_counts, send_displs, .. } = *self.what;
        self.blocks(self.send().cast_mut(), send_counts, send_displs)
    }

    pub(super) fn recvs(&self) -> Vec<Block> {
        let dist_backend_operation_t { recv_counts, recv_displs, .. } = *self.what;
        self.blocks(self.recv(), recv_counts, recv_displs)
    }

    fn blocks(&self, base: *mut u8, counts: *const usize, places: *const usize) -> Vec<Block> {
        let (counts, places) = (self.list(counts), self.list(places));
        counts.iter().zip(places).map(|(&count, &at)| (base.wrapping_add(at), count)).collect()
    }
}
