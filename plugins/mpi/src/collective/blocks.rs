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

fn to_int(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// A block: its address and its number of elements.
pub(super) type Block = (*mut u8, usize);

impl Collective {
    /// Stores a list that MPI reads until the request has ended.
    pub(super) fn keep_list(&mut self, list: Vec<c_int>) {
        // Moving the vector into the list does not move its memory.
        self.lists.push(list);
    }

    pub(super) fn send_block(
        &mut self,
        call: &Call<'_>,
        to: usize,
        (from, count): Block,
    ) -> Result<()> {
        let large_count = call.large_count(count)?;
        let (to, comm) = (to_int(to), call.group.comm());
        self.issue(None, |request| {
            mpi!(MPI_Isend(
                from.cast_const().cast(),
                large_count.count,
                large_count.datatype,
                to,
                TAG,
                comm,
                request
            ))
        })
    }

    pub(super) fn recv_block(
        &mut self,
        call: &Call<'_>,
        from: usize,
        (to, count): Block,
    ) -> Result<()> {
        let large_count = call.large_count(count)?;
        let (from, comm) = (to_int(from), call.group.comm());
        self.issue(Some((from, count * call.element_bytes)), |request| {
            mpi!(MPI_Irecv(
                to.cast(),
                large_count.count,
                large_count.datatype,
                from,
                TAG,
                comm,
                request
            ))
        })
    }

    /// Sends and receives blocks: one for each rank and one from each rank. Either list may be
    /// empty.
    pub(super) fn exchange_blocks(
        &mut self,
        call: &Call<'_>,
        sends: &[Block],
        recvs: &[Block],
    ) -> Result<()> {
        let (own, size) = (call.group.rank, call.group.size);
        // Each rank starts with its next neighbour, so that not all ranks send to the same rank.
        let others = || (1..size).map(|distance| (own + distance) % size);
        for from in others().filter(|&from| from < recvs.len()) {
            self.recv_block(call, from, recvs[from])?;
        }
        for to in others().filter(|&to| to < sends.len()) {
            self.send_block(call, to, sends[to])?;
        }
        match (sends.get(own), recvs.get(own)) {
            (Some(&send), Some(&recv)) => self.copy_own_block(call, send, recv),
            _ => Ok(()),
        }
    }

    /// Copies the block that this rank sends to itself.
    fn copy_own_block(&mut self, call: &Call<'_>, send: Block, recv: Block) -> Result<()> {
        let ((from, count), (to, capacity), own) = (send, recv, call.group.rank);
        super::check_length(
            to_int(own),
            capacity * call.element_bytes,
            count * call.element_bytes,
        )?;
        if !call.is_on_device() {
            copy(from, to, count * call.element_bytes);
        } else if from != to && count > 0 {
            // Only MPI can copy in device memory.
            self.recv_block(call, own, recv)?;
            self.send_block(call, own, send)?;
        }
        Ok(())
    }

    pub(super) fn all_to_all_v(&mut self, call: &Call<'_>) -> Result<()> {
        let (sends, recvs) = (call.sends(), call.recvs());
        self.exchange_blocks(call, &sends, &recvs)
    }

    pub(super) fn gather_v(&mut self, call: &Call<'_>) -> Result<()> {
        let own: Block = (call.send().cast_mut(), call.operation.send_count);
        if !call.is_root() {
            return self.send_block(call, call.root(), own);
        }
        let mut sends: Vec<Block> = vec![(std::ptr::null_mut(), 0); call.group.size];
        sends[call.group.rank] = own;
        self.exchange_as_root(call, &sends, &call.recvs(), true)
    }

    pub(super) fn scatter_v(&mut self, call: &Call<'_>) -> Result<()> {
        let own: Block = (call.recv(), call.operation.recv_count);
        if !call.is_root() {
            return self.recv_block(call, call.root(), own);
        }
        let mut recvs: Vec<Block> = vec![(std::ptr::null_mut(), 0); call.group.size];
        recvs[call.group.rank] = own;
        self.exchange_as_root(call, &call.sends(), &recvs, false)
    }

    /// The root's side: it only receives from the other ranks, or only sends to them.
    pub(super) fn exchange_as_root(
        &mut self,
        call: &Call<'_>,
        sends: &[Block],
        recvs: &[Block],
        receives: bool,
    ) -> Result<()> {
        let own = call.group.rank;
        for rank in (0..call.group.size).filter(|&rank| rank != own) {
            match receives {
                true => self.recv_block(call, rank, recvs[rank])?,
                false => self.send_block(call, rank, sends[rank])?,
            }
        }
        self.copy_own_block(call, sends[own], recvs[own])
    }

    pub(super) fn all_gather_v(&mut self, call: &Call<'_>) -> Result<()> {
        let recvs = call.recvs();
        let counts: Vec<usize> = recvs.iter().map(|(_, count)| *count).collect();
        let total: usize = counts.iter().sum();
        let send: Block = (call.send().cast_mut(), call.operation.send_count);
        if total > usize::try_from(call.group.options.max_count).unwrap_or(1) {
            return self.exchange_blocks(call, &vec![send; call.group.size], &recvs);
        }
        let starts: Vec<usize> = counts
            .iter()
            .scan(0, |end, &count| {
                let start = *end;
                *end += count;
                Some(start)
            })
            .collect();
        let base =
            recvs.iter().find(|(_, count)| *count > 0).map_or(call.recv(), |(address, _)| *address);
        let are_neighbours = recvs.iter().zip(&starts).all(|(&(address, count), &start)| {
            count == 0 || address == base.wrapping_add(start * call.element_bytes)
        });
        let gathered =
            if are_neighbours { base } else { self.scratch(total * call.element_bytes)? };
        if !are_neighbours {
            for (&(address, count), &start) in recvs.iter().zip(&starts) {
                let from = gathered.wrapping_add(start * call.element_bytes);
                self.final_work.copies.push((
                    Address(from),
                    Address(address),
                    count * call.element_bytes,
                ));
            }
        }
        let is_read = call.is_in_place() && are_neighbours;
        let from = match is_read {
            true => self.scratch_copy(call.send(), send.1 * call.element_bytes)?,
            false => send.0,
        };
        let lengths: Vec<c_int> = counts.iter().map(|&count| to_int(count)).collect();
        let offsets: Vec<c_int> = starts.iter().map(|&start| to_int(start)).collect();
        let (datatype, comm) = (call.datatype, call.group.comm());
        self.issue(None, |request| {
            let (from, to, count) = (from.cast_const().cast(), gathered.cast(), to_int(send.1));
            let (lengths, offsets) = (lengths.as_ptr(), offsets.as_ptr());
            mpi!(MPI_Iallgatherv(
                from, count, datatype, to, lengths, offsets, datatype, comm, request
            ))
        })?;
        self.keep_list(lengths);
        self.keep_list(offsets);
        Ok(())
    }
}

impl Call<'_> {
    pub(super) fn root(&self) -> usize {
        usize::try_from(self.operation.root).unwrap_or(0)
    }

    fn sends(&self) -> Vec<Block> {
        let dist_backend_operation_t { send_counts, send_displs, .. } = *self.operation;
        self.blocks(self.send().cast_mut(), send_counts, send_displs)
    }

    pub(super) fn recvs(&self) -> Vec<Block> {
        let dist_backend_operation_t { recv_counts, recv_displs, .. } = *self.operation;
        self.blocks(self.recv(), recv_counts, recv_displs)
    }

    fn blocks(&self, base: *mut u8, counts: *const usize, offsets: *const usize) -> Vec<Block> {
        let (counts, offsets) = (self.list(counts), self.list(offsets));
        counts
            .iter()
            .zip(offsets)
            .map(|(&count, &address)| (base.wrapping_add(address), count))
            .collect()
    }
}
