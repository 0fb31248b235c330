//! Buffers in arenas (`dist_mem_alloc`), which the ranks of a host read, and write where that saves
//! a hop, where they lie, by loads and stores.
//!
//! * **Asking.** Whether a buffer lies in an arena is known to its rank alone. A rank whose buffers
//!   do *asks* with the first step of an operation: it says where they lie, and stages nothing. Any
//!   other begins as ever, and has [`NO_ARENA_OFFER`] in its first line. If all have asked, the
//!   operation goes directly. If some have, everybody begins anew with the next step: nobody uses
//!   anything of the first one before it has seen the lines of all. If none has, that word is all
//!   it has cost.
//! * **Meeting.** When all ask for the first time, each maps the arenas of the others and says
//!   whether it could; if one could not, nobody asks again.
//! * **Writing.** A rank writes to others' memory only while its
//!   [`Progress`](crate::transport::progress::Progress) says so, and looks before each chunk
//!   whether the domain has failed.
//! * **Ending.** An operation ends when all have published that they are through: nobody reads or
//!   writes another's memory any more.
//! * **Failing.** How a rank that gives up gets its memory back is in [`super::revocation`].

use super::sequencer::ShmSequencer;
use crate::algo::Operation;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::transport::OpKind;
use crate::transport::arena::{self, MemfdIdentity, PeerMapping};
use crate::transport::rank_progress::RemoteWritePurpose;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// From how many bytes on two hops without any copy pay: where each rank has a core, and where a
/// hop costs a context switch.
const MIN_ARENA_BYTES: usize = 4 << 10;
const MIN_ARENA_BYTES_OVERSUBSCRIBED: usize = 64 << 10;

/// Whether a call of so many bytes is long enough to be asked for.
pub fn is_arena_size(bytes: usize, is_oversubscribed: bool) -> bool {
    bytes >= if is_oversubscribed { MIN_ARENA_BYTES_OVERSUBSCRIBED } else { MIN_ARENA_BYTES }
}

/// What the first line of a rank begins with that does not ask.
pub(super) const NO_ARENA_OFFER: [u8; 8] = [0; 8];

/// What a rank remembers between operations.
#[derive(Debug, Default)]
pub struct ArenaAccess {
    arenas: PeerArenas,
    /// Where the vectors of all ranks lie, in the operation that goes directly.
    offsets: Vec<ArenaOffsets>,
    call_count: Arc<AtomicU64>,
}

impl ArenaAccess {
    /// How many operations have gone directly.
    pub fn call_count(&self) -> &Arc<AtomicU64> {
        &self.call_count
    }
}

/// The arenas of all ranks, as far as this one knows; all ranks know the same.
#[derive(Debug, Default)]
enum PeerArenas {
    #[default]
    Unknown,
    /// One of them cannot be had.
    Unavailable,
    /// Its own is not there.
    Mapped(Vec<Option<Arc<PeerMapping>>>),
}

/// What an operation does to the memory of other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerAccess {
    /// It reads what they send.
    ReadsSendBuffers,
    /// It also writes what they receive.
    WritesRecvBuffers,
}

/// Where the buffers of a rank lie in its arena.
#[derive(Clone, Copy, Debug)]
struct ArenaOffsets {
    identity: MemfdIdentity,
    send_offset: u64,
    /// 0 where nobody writes to it.
    recv_offset: u64,
}

impl ArenaOffsets {
    fn of(operation: &Operation<'_>, access: PeerAccess) -> Option<Self> {
        let send = arena::locate(operation.send)?;
        let recv_offset = match access {
            PeerAccess::ReadsSendBuffers => 0,
            PeerAccess::WritesRecvBuffers => arena::locate(operation.recv.as_src())?.offset,
        };
        Some(Self { identity: send.identity, send_offset: send.offset, recv_offset })
    }

    /// Begins with the number of a file, which is not 0.
    fn encode(self) -> [[u8; 8]; 4] {
        let MemfdIdentity { descriptor, inode } = self.identity;
        [inode, u64::from(descriptor), self.send_offset, self.recv_offset].map(u64::to_le_bytes)
    }

    fn decode(words: [[u8; 8]; 4]) -> Option<Self> {
        let [inode, descriptor, send, recv] = words.map(u64::from_le_bytes);
        let descriptor = u32::try_from(descriptor).ok()?;
        (inode != 0).then_some(Self {
            identity: MemfdIdentity { descriptor, inode },
            send_offset: send,
            recv_offset: recv,
        })
    }
}

impl ShmSequencer<'_> {
    /// Has `work` done directly, if the buffers of all ranks lie in arenas; whether it has. What it
    /// does to others' memory is complete once all ranks' work is done.
    ///
    /// # Errors
    /// As [`ShmSequencer::await_all`], and what `work` returns.
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
        self.decide_arena_use();
        let outcome = self.exchange_arena_offers(offsets).and_then(|all| match all {
            true => self.run_with_access(work).and_then(|()| self.close_exposure()).map(|()| true),
            false => Ok(false),
        });
        match access {
            PeerAccess::ReadsSendBuffers => outcome,
            PeerAccess::WritesRecvBuffers => self.or_revoke_access(operation.recv, outcome),
        }
    }

    /// Once this rank has published a step: whether that was the first one, and another rank has
    /// asked with it, so that all begin anew.
    ///
    /// # Errors
    /// As [`ShmSequencer::await_all`].
    pub(super) fn has_arena_offers(&mut self, operation: &Operation<'_>) -> Result<bool> {
        if !self.is_arena_candidate(operation) {
            return Ok(false);
        }
        self.decide_arena_use();
        self.await_all()?;
        let mut word = NO_ARENA_OFFER;
        Ok(self.others().any(|rank| {
            self.payload(rank, &mut word);
            word != NO_ARENA_OFFER
        }))
    }

    /// Whether any rank may ask, or have asked, in this step, which all agree on.
    fn is_arena_candidate(&self, operation: &Operation<'_>) -> bool {
        use OpKind::{AllGather, AllReduce, AllToAll, ReduceScatter};
        !self.is_arena_use_decided()
            && is_arena_size(operation.bytes(), self.is_oversubscribed())
            && matches!(operation.descriptor.kind, AllReduce | AllGather | ReduceScatter | AllToAll)
            && !matches!(self.arena_access().arenas, PeerArenas::Unavailable)
    }

    /// Part of what another rank sends.
    ///
    /// # Errors
    /// `Connection` where its arena does not have it; `System`.
    pub(super) fn peer_send_part(&self, rank: Rank, offset: usize, len: usize) -> Result<Src<'_>> {
        let (window, offsets) = self.peer_arena(rank)?;
        self.with_peer_context(
            rank,
            window.view(offsets.send_offset.saturating_add(offset as u64), len),
        )
        .map(Dst::as_src)
    }

    /// The same of what it receives.
    ///
    /// # Errors
    /// As above.
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
            self.fail(error.context(format_args!("memory of {peer}")).with_culprit(peer.rank))
        })
    }

    /// Why the domain has failed, if it has: asked before each chunk that is written to others'
    /// memory.
    ///
    /// # Errors
    /// That.
    pub(super) fn check_failure(&self) -> Result<()> {
        self.domain().failure().map_or(Ok(()), Err)
    }

    fn peer_arena(&self, rank: Rank) -> Result<(&PeerMapping, ArenaOffsets)> {
        let ArenaAccess { arenas, offsets: places, .. } = self.arena_access();
        let window = match arenas {
            PeerArenas::Mapped(windows) => windows.get(rank).and_then(Option::as_deref),
            PeerArenas::Unknown | PeerArenas::Unavailable => None,
        };
        let missing = || Error::internal(format!("no arena of rank {rank} of the node"));
        window.zip(places.get(rank).copied()).ok_or_else(missing)
    }

    /// Says where this rank's vectors lie; whether all have, and can reach them.
    fn exchange_arena_offers(&mut self, own_offsets: ArenaOffsets) -> Result<bool> {
        self.publish(own_offsets.encode().as_flattened())?;
        self.await_all()?;
        let mut offsets = std::mem::take(&mut self.arena_access_mut().offsets);
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
        self.arena_access_mut().offsets = offsets;
        Ok(are_mapped)
    }

    /// Maps the arenas of the others, the first time; whether all ranks could.
    fn map_peer_arenas(&mut self, offsets: &[ArenaOffsets]) -> Result<bool> {
        match self.arena_access().arenas {
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
            crate::log!(LogLevel::Info, "memory of dist_mem_alloc is used as any other: {error}");
        }
        self.publish(&[u8::from(mapped.is_ok())])?;
        self.await_all()?;
        let has_mapped = |rank| {
            let mut word = [0];
            self.payload(rank, &mut word);
            word == [1]
        };
        let all_have_mapped = self.others().all(has_mapped);
        self.arena_access_mut().arenas = match mapped {
            Ok(windows) if all_have_mapped => PeerArenas::Mapped(windows),
            _ => PeerArenas::Unavailable,
        };
        Ok(matches!(self.arena_access().arenas, PeerArenas::Mapped(_)))
    }

    fn run_with_access(&self, work: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        let _access_guard = self
            .domain()
            .region()
            .progress(self.rank())
            .begin_remote_write(RemoteWritePurpose::Collective);
        self.check_failure()?;
        self.arena_access().call_count.fetch_add(1, Ordering::Relaxed);
        work(self)
    }
}
