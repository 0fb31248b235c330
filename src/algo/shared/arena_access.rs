//! In-place access to buffers in arenas (`dist_mem_alloc`): the ranks of a host read each other's
//! buffers by loads, and write them by stores if that saves a hop.
//!
//! - **Offer.** Only the owning rank knows whether a buffer is in an arena. If its buffers are, a
//!   rank *offers* them with the first step of an operation: it publishes their offsets, and stages
//!   nothing. Any other rank starts as usual, with [`NO_ARENA_OFFER`] at the start of its first
//!   inline payload. If all ranks offer, the operation accesses the buffers in place. If some
//!   offer, all ranks start the operation again with the next step: no rank uses a payload of the
//!   first step before it has seen the control slots of all ranks. If no rank offers, this word is
//!   the whole cost.
//! - **Mapping.** When all ranks offer for the first time, each maps the arenas of its peers and
//!   publishes whether it succeeded. If one rank failed, no rank offers again.
//! - **Writing.** A rank writes to peers' memory only while its
//!   [`RankProgress`](crate::transport::rank_progress::RankProgress) marks this, and checks before
//!   each chunk whether the domain has failed.
//! - **End.** An operation ends after all ranks have published that they are done. Then no rank
//!   accesses another rank's memory any more.
//! - **Failure.** [`super::revocation`] describes how a rank that gives up revokes the access to
//!   its memory.

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
    /// Runs `work` on the arenas in place, if the buffers of all ranks are in arenas. Returns
    /// whether it did. The accesses to peers' memory are complete after all ranks have run `work`.
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
            true => self.run_with_access(work).and_then(|()| self.close_exposure()).map(|()| true),
            false => Ok(false),
        });
        match access {
            PeerAccess::ReadsSendBuffers => outcome,
            PeerAccess::WritesRecvBuffers => self.or_revoke_access(operation.recv, outcome),
        }
    }

    /// Must be called after this rank has published a step. Returns whether that was the first step
    /// and another rank has offered arena buffers with it. Then all ranks start again.
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

    /// Returns whether any rank may offer arena buffers in this step. All ranks agree on the
    /// answer.
    fn is_arena_candidate(&self, operation: &Operation<'_>) -> bool {
        use OpKind::{AllGather, AllReduce, AllToAll, ReduceScatter};
        !self.is_arena_use_decided
            && is_arena_size(operation.bytes(), self.is_oversubscribed())
            && matches!(operation.descriptor.kind, AllReduce | AllGather | ReduceScatter | AllToAll)
            && !matches!(self.shm.cursor.arena_access.arenas, PeerArenas::Unavailable)
    }

    /// Returns a part of another rank's send buffer.
    ///
    /// # Errors
    /// `Connection` if the part is not within its arena; `System`.
    pub(super) fn peer_send_part(&self, rank: Rank, offset: usize, len: usize) -> Result<Src<'_>> {
        let (window, offsets) = self.peer_arena(rank)?;
        self.with_peer_context(
            rank,
            window.view(offsets.send_offset.saturating_add(offset as u64), len),
        )
        .map(Dst::as_src)
    }

    /// Returns a part of another rank's receive buffer.
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

    /// Publishes the positions of this rank's buffers. Returns whether all ranks have offered
    /// theirs and have mapped all arenas.
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

    /// Maps the arenas of the peers, the first time. Returns whether all ranks succeeded.
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
