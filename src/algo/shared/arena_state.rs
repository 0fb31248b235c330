//! The state of arena access that a rank keeps between operations, and the encoding of an arena
//! offer. The head of [`super::arena_access`] explains arenas, offers and the protocol.

use crate::algo::Operation;
use crate::transport::arena::{self, MemfdIdentity, PeerMapping};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The minimum size in bytes at which in-place access is faster than a copy through data slots, if
/// each rank has a core of its own. In-place access takes two hops and no copy.
const MIN_ARENA_BYTES: usize = 4 << 10;
/// The minimum size in bytes for the same purpose on an oversubscribed host, where each hop costs a
/// context switch.
const MIN_ARENA_BYTES_OVERSUBSCRIBED: usize = 64 << 10;

/// Returns whether a call of `bytes` bytes is long enough for an arena offer.
pub fn is_arena_size(bytes: usize, is_oversubscribed: bool) -> bool {
    bytes >= if is_oversubscribed { MIN_ARENA_BYTES_OVERSUBSCRIBED } else { MIN_ARENA_BYTES }
}

/// The first word of the inline payload of a rank that does not offer arena buffers.
pub(super) const NO_ARENA_OFFER: [u8; 8] = [0; 8];

/// The state of arena access that a rank keeps between operations.
#[derive(Debug, Default)]
pub struct ArenaAccess {
    pub(super) arenas: PeerArenas,
    /// The buffer offsets of all ranks, for the operation that accesses arenas in place at present.
    pub(super) offsets: Vec<ArenaOffsets>,
    pub(super) call_count: Arc<AtomicU64>,
}

impl ArenaAccess {
    /// Returns the number of operations that accessed arenas in place.
    pub fn call_count(&self) -> &Arc<AtomicU64> {
        &self.call_count
    }
}

/// This rank's mappings of the arenas of its peers. All ranks have the same variant at the same
/// step.
#[derive(Debug, Default)]
pub(super) enum PeerArenas {
    /// No operation has tried to map the arenas yet.
    #[default]
    Unknown,
    /// At least one rank could not map the arena of a peer, so no rank offers its buffers again.
    Unavailable,
    /// The mapping of each rank's arena; `None` for this rank's own arena.
    Mapped(Vec<Option<Arc<PeerMapping>>>),
}

/// The access of an operation to the memory of other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerAccess {
    /// The operation reads the peers' send buffers.
    ReadsSendBuffers,
    /// The operation reads the peers' send buffers and writes the peers' receive buffers.
    WritesRecvBuffers,
}

/// The positions of a rank's buffers in its arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArenaOffsets {
    pub(super) identity: MemfdIdentity,
    pub(super) send_offset: u64,
    /// The offset of the receive buffer; 0 if no peer writes to it.
    pub(super) recv_offset: u64,
}

impl ArenaOffsets {
    pub(super) fn of(operation: &Operation<'_>, access: PeerAccess) -> Option<Self> {
        let send = arena::locate(operation.send)?;
        let recv_offset = match access {
            PeerAccess::ReadsSendBuffers => 0,
            PeerAccess::WritesRecvBuffers => arena::locate(operation.recv.as_src())?.offset,
        };
        Some(Self { identity: send.identity, send_offset: send.offset, recv_offset })
    }

    /// Returns the words of an offer. The first word is an inode number, which is never 0 and thus
    /// differs from [`NO_ARENA_OFFER`].
    pub(super) fn encode(self) -> [[u8; 8]; 4] {
        let MemfdIdentity { descriptor, inode } = self.identity;
        [inode, u64::from(descriptor), self.send_offset, self.recv_offset].map(u64::to_le_bytes)
    }

    pub(super) fn decode(words: [[u8; 8]; 4]) -> Option<Self> {
        let [inode, descriptor, send, recv] = words.map(u64::from_le_bytes);
        let descriptor = u32::try_from(descriptor).ok()?;
        (inode != 0).then_some(Self {
            identity: MemfdIdentity { descriptor, inode },
            send_offset: send,
            recv_offset: recv,
        })
    }
}
