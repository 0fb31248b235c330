//! In-place access to buffers in arenas. An arena is memory that a rank allocates with
//! `dist_mem_alloc` and that the other ranks of the host can map. If the buffers of all ranks are
//! in arenas, the ranks read each other's buffers by load instructions, without a copy through data
//! slots. An all-reduce also writes the peers' buffers by store instructions, which saves a hop.
//!
//! - **Offer.** Only the owner of a buffer knows whether the buffer is in an arena. A rank whose
//!   buffers are in its arena *offers* them with the first step of an operation: it publishes the
//!   offsets of the buffers, and copies nothing to its data slot. A rank without an offer starts
//!   the usual algorithm, and writes [`NO_ARENA_OFFER`] to the first word of its inline payload.
//!   The control slots of the first step then decide for all ranks:
//!   - If all ranks offer, the operation accesses the buffers in place.
//!   - If only some ranks offer, all ranks start the operation again with the next step. This is
//!     possible because no rank uses a payload of the first step before it has seen the control
//!     slots of all ranks.
//!   - If no rank offers, the operation continues as usual. The only cost is the word in the
//!     payload.
//! - **Mapping.** When all ranks offer for the first time, each rank maps the arenas of its peers
//!   and publishes whether it succeeded. If one rank failed, no rank offers again.
//! - **Writing.** A rank writes to peers' memory only while its
//!   [`RankProgress`](crate::transport::rank_progress::RankProgress) contains the write mark, and
//!   checks before each chunk whether the domain has failed.
//! - **End.** Each rank publishes when it has finished its accesses. An operation ends after all
//!   ranks have published this; from then on, no rank accesses another rank's memory.
//! - **Failure.** [`super::revocation`] describes how a rank whose operation fails revokes the
//!   peers' access to its memory.

use super::arena_state::{
    ArenaAccess, ArenaOffsets, NO_ARENA_OFFER, PeerAccess, PeerArenas, is_arena_size,
};
use super::sequencer::ShmSequencer;
use crate::algo::Operation;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::transport::OpKind;
use crate::transport::arena::{self, PeerMapping};
use crate::transport::rank_progress::RemoteWritePurpose;
use std::sync::atomic::Ordering;

impl ShmSequencer<'_> {
    /// Runs `work` on the arenas in place if the buffers of all ranks are in arenas, and waits
    /// until all ranks have run their `work`. Returns whether `work` was run.
    ///
    /// # Errors
    /// As [`ShmSequencer::await_all`], and the errors of `work`.
    pub(super) fn run_in_arenas(
        &mut self,
        operation: &Operation<'_>,
        access: PeerAccess,
        work: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<bool> {
        let is_candidate = operation.algorithm.is_none() && self.is_arena_candidate(operation);
        let Some(offsets) = is_candidate.then(|| ArenaOffsets::of(operation, access)).flatten()
        else {
            return Ok(false);
        };
        self.is_arena_use_decided = true;
        let outcome = self.exchange_arena_offers(offsets).and_then(|all| match all {
            true => self.run_with_access(work).and_then(|()| self.close_exposure(0, true)),
            false => Ok(false),
        });
        match access {
            PeerAccess::ReadsSendBuffers => outcome,
            PeerAccess::WritesRecvBuffers => self.or_revoke_access(operation.recv, outcome),
        }
    }

    /// Returns whether another rank has offered arena buffers with the first step of the operation.
    /// If so, the caller must start the operation again. The function must be called after this
    /// rank has published a step; it returns false for any later step.
    ///
    /// # Errors
    /// As [`ShmSequencer::await_all`].
    pub(super) fn has_arena_offers(&mut self, operation: &Operation<'_>) -> Result<bool> {
        if !self.is_arena_candidate(operation) {
            return Ok(false);
        }
        self.is_arena_use_decided = true;
        self.await_all()?;
        let mut word = NO_ARENA_OFFER;
        Ok(self.others().any(|rank| {
            self.payload(rank, &mut word);
            word != NO_ARENA_OFFER
        }))
    }

    /// Returns whether a rank may offer arena buffers in this step. The result is the same on all
    /// ranks.
    fn is_arena_candidate(&self, operation: &Operation<'_>) -> bool {
        use OpKind::{AllGather, AllReduce, AllToAll, ReduceScatter};
        !self.is_arena_use_decided
            && is_arena_size(operation.bytes(), self.is_oversubscribed())
            && matches!(operation.descriptor.kind, AllReduce | AllGather | ReduceScatter | AllToAll)
            && !matches!(self.shm.cursor.arena_access.arenas, PeerArenas::Unavailable)
    }

    /// Returns `len` bytes at `offset` in another rank's send buffer.
    ///
    /// # Errors
    /// `Connection` if the range is not within the arena of that rank; `System`.
    pub(super) fn peer_send_part(&self, rank: Rank, offset: usize, len: usize) -> Result<Src<'_>> {
        let (window, offsets) = self.peer_arena(rank)?;
        self.with_peer_context(
            rank,
            window.view(offsets.send_offset.saturating_add(offset as u64), len),
        )
        .map(Dst::as_src)
    }

    /// Returns `len` bytes at `offset` in another rank's receive buffer.
    ///
    /// # Errors
    /// As [`ShmSequencer::peer_send_part`].
    pub(super) fn peer_recv_part(&self, rank: Rank, offset: usize, len: usize) -> Result<Dst<'_>> {
        let (window, offsets) = self.peer_arena(rank)?;
        self.with_peer_context(
            rank,
            window.view(offsets.recv_offset.saturating_add(offset as u64), len),
        )
    }

    fn with_peer_context<'w>(&self, rank: Rank, part: Result<Dst<'w>>) -> Result<Dst<'w>> {
        part.map_err(|error| {
            let peer = self.peer(rank);
            self.fail(
                error
                    .context(format_args!("accessing the arena of {peer}"))
                    .with_culprit(peer.rank),
            )
        })
    }

    /// Checks whether the domain has failed. Algorithms call this before each chunk that they write
    /// to peers' memory.
    ///
    /// # Errors
    /// The failure of the domain.
    pub(super) fn check_failure(&self) -> Result<()> {
        self.domain().failure().map_or(Ok(()), Err)
    }

    fn peer_arena(&self, rank: Rank) -> Result<(&PeerMapping, ArenaOffsets)> {
        let ArenaAccess { arenas, offsets: places, .. } = &self.shm.cursor.arena_access;
        let window = match arenas {
            PeerArenas::Mapped(windows) => windows.get(rank).and_then(Option::as_deref),
            PeerArenas::Unknown | PeerArenas::Unavailable => None,
        };
        let missing = || Error::internal(format!("no arena of rank {rank} of the node"));
        window.zip(places.get(rank).copied()).ok_or_else(missing)
    }

    /// Publishes the offsets of this rank's buffers. Returns whether all ranks have offered their
    /// buffers and have mapped the arenas of their peers.
    fn exchange_arena_offers(&mut self, own_offsets: ArenaOffsets) -> Result<bool> {
        self.publish(own_offsets.encode().as_flattened())?;
        self.await_all()?;
        let mut offsets = std::mem::take(&mut self.shm.cursor.arena_access.offsets);
        offsets.clear();
        offsets.extend((0..self.size()).map_while(|rank| {
            let mut words = own_offsets.encode();
            if rank != self.rank() {
                self.payload(rank, words.as_flattened_mut());
            }
            ArenaOffsets::decode(words)
        }));
        let have_all = offsets.len() == self.size();
        let are_mapped = have_all && self.map_peer_arenas(&offsets)?;
        self.shm.cursor.arena_access.offsets = offsets;
        Ok(are_mapped)
    }

    /// Maps the arenas of the peers if this is the first call. Returns whether all ranks have
    /// mapped the arenas.
    fn map_peer_arenas(&mut self, offsets: &[ArenaOffsets]) -> Result<bool> {
        match self.shm.cursor.arena_access.arenas {
            PeerArenas::Mapped(_) => return Ok(true),
            PeerArenas::Unavailable => return Ok(false),
            PeerArenas::Unknown => {}
        }
        let map = |rank: Rank| {
            let of = || arena::open_peer_arena(self.peer(rank).pid, offsets[rank].identity);
            (rank != self.rank()).then(of).transpose()
        };
        let mapped: Result<Vec<_>> = (0..self.size()).map(map).collect();
        if let Err(error) = &mapped {
            crate::log!(
                LogLevel::Info,
                "cannot map a peer's arena, so collectives use memory of dist_mem_alloc like ordinary memory: \
                 {error}"
            );
        }
        self.publish(&[u8::from(mapped.is_ok())])?;
        self.await_all()?;
        let has_mapped = |rank| {
            let mut word = [0];
            self.payload(rank, &mut word);
            word == [1]
        };
        let all_have_mapped = self.others().all(has_mapped);
        self.shm.cursor.arena_access.arenas = match mapped {
            Ok(windows) if all_have_mapped => PeerArenas::Mapped(windows),
            _ => PeerArenas::Unavailable,
        };
        Ok(matches!(self.shm.cursor.arena_access.arenas, PeerArenas::Mapped(_)))
    }

    fn run_with_access(&self, work: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        let _access_guard = self
            .domain()
            .region()
            .progress(self.rank())
            .begin_remote_write(RemoteWritePurpose::Collective);
        self.check_failure()?;
        self.shm.cursor.arena_access.call_count.fetch_add(1, Ordering::Relaxed);
        work(self)
    }
}
