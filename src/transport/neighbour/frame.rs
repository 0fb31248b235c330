//! What travels between neighbours: the hello of a connection, and the frames of a link.
//!
//! ```text
//! hello of a link      "libdistn" | sender 16 | receiver 16 | zeros 24
//! hello of a survivor  "libdistr" | group 16 | nonce of the sender 16 | nonce of the receiver 16
//!                      | rank of the sender u32 | rank of the receiver u32
//! frame                kind u8 | zeros 3 | rank of the sender u32 | rank of the receiver u32
//!                      | zeros 4 | group 16
//! ```
//!
//! The sender and the receiver of a link are the names of their registries. The nonce of a rank is
//! the random number that the rank published when its group was created.

use crate::base::ids::{GroupId, Nonce, Rank};

const LINK_MAGIC: [u8; 8] = *b"libdistn";
const SURVIVOR_MAGIC: [u8; 8] = *b"libdistr";

/// The length of every hello.
pub(super) const HELLO_BYTES: usize = 64;

/// The length of every frame.
pub(super) const FRAME_BYTES: usize = 32;

/// The answer to the hello of a survivor whose receiver exists. A process closes the connection of
/// any other survivor.
pub const SURVIVOR_ACCEPTED: u8 = b'A';

/// The answer to the hello of a survivor if the process has no such rank.
pub const SURVIVOR_UNKNOWN: u8 = b'N';

/// The name under which a process can be reached by the other processes of its host.
#[derive(Debug)]
pub struct ProcessAddress;

impl ProcessAddress {
    /// The prefix of all socket names.
    const PREFIX: &'static str = "libdist-";

    /// Returns the name of the listening socket of the registry with this name.
    pub fn socket_name(registry: Nonce) -> String {
        format!("{}{registry}", Self::PREFIX)
    }

    /// Returns the name of the registry that listens on a socket with this name.
    pub fn registry(socket_name: &str) -> Option<Nonce> {
        Nonce::parse(socket_name.strip_prefix(Self::PREFIX)?)
    }
}

/// The first bytes on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionHello {
    Link(LinkHello),
    Survivor(SurvivorHello),
}

/// The hello of a process that makes the link to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkHello {
    pub(super) from: Nonce,
    pub(super) to: Nonce,
}

/// The hello of a rank that connects to another rank of its failed group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SurvivorHello {
    /// The failed group.
    pub group: GroupId,
    /// The nonce of the sender.
    pub from_nonce: Nonce,
    /// The nonce of the receiver.
    pub to_nonce: Nonce,
    /// The rank of the sender.
    pub from: Rank,
    /// The rank of the receiver.
    pub to: Rank,
}

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum FrameKind {
    /// The receiver shall call its listeners.
    Wake,
    /// The frame carries the descriptor of the group's segment.
    Segment,
    /// The sender has mapped the segment.
    Mapped,
    /// The sender does not join the group.
    JoinFailed,
}

impl FrameKind {
    const ALL: [(u8, Self); 4] =
        [(b'K', Self::Wake), (b'S', Self::Segment), (b'M', Self::Mapped), (b'F', Self::JoinFailed)];

    fn code(self) -> u8 {
        let entry = Self::ALL.iter().find(|(_, kind)| *kind == self);
        entry.map_or(0, |&(code, _)| code)
    }

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.iter().find(|entry| entry.0 == code).map(|&(_, kind)| kind)
    }
}

/// A message from a rank of a group to another rank of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) struct NeighbourFrame {
    pub(in crate::transport) kind: FrameKind,
    pub(in crate::transport) group: GroupId,
    pub(in crate::transport) from: Rank,
    pub(in crate::transport) to: Rank,
}

impl NeighbourFrame {
    pub(super) fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        bytes[0] = self.kind.code();
        bytes[4..8].copy_from_slice(&encode_rank(self.from));
        bytes[8..12].copy_from_slice(&encode_rank(self.to));
        bytes[16..].copy_from_slice(&self.group.0);
        bytes
    }

    pub(super) fn decode(bytes: &[u8; FRAME_BYTES]) -> Option<Self> {
        Some(Self {
            kind: FrameKind::from_code(bytes[0])?,
            group: decode_nonce(&bytes[16..])?,
            from: decode_rank(&bytes[4..8])?,
            to: decode_rank(&bytes[8..12])?,
        })
    }
}

impl LinkHello {
    pub(super) fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&LINK_MAGIC);
        bytes[8..24].copy_from_slice(&self.from.0);
        bytes[24..40].copy_from_slice(&self.to.0);
        bytes
    }
}

impl SurvivorHello {
    /// Returns the bytes of the hello.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&SURVIVOR_MAGIC);
        bytes[8..24].copy_from_slice(&self.group.0);
        bytes[24..40].copy_from_slice(&self.from_nonce.0);
        bytes[40..56].copy_from_slice(&self.to_nonce.0);
        bytes[56..60].copy_from_slice(&encode_rank(self.from));
        bytes[60..].copy_from_slice(&encode_rank(self.to));
        bytes
    }
}

impl ConnectionHello {
    pub(super) fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        if bytes[..8] == LINK_MAGIC {
            let [from, to] = [decode_nonce(&bytes[8..24])?, decode_nonce(&bytes[24..40])?];
            return Some(Self::Link(LinkHello { from, to }));
        }
        if bytes[..8] != SURVIVOR_MAGIC {
            return None;
        }
        Some(Self::Survivor(SurvivorHello {
            group: decode_nonce(&bytes[8..24])?,
            from_nonce: decode_nonce(&bytes[24..40])?,
            to_nonce: decode_nonce(&bytes[40..56])?,
            from: decode_rank(&bytes[56..60])?,
            to: decode_rank(&bytes[60..])?,
        }))
    }
}

fn encode_rank(rank: Rank) -> [u8; 4] {
    u32::try_from(rank).unwrap_or(u32::MAX).to_le_bytes()
}

fn decode_rank(bytes: &[u8]) -> Option<Rank> {
    usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
}

fn decode_nonce(bytes: &[u8]) -> Option<Nonce> {
    Some(Nonce(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Nonce = Nonce([1; 16]);
    const B: Nonce = Nonce([2; 16]);

    #[test]
    fn frame_round_trips() {
        for (_, kind) in FrameKind::ALL {
            let frame = NeighbourFrame { kind, group: A, from: 7, to: 65_535 };
            assert_eq!(NeighbourFrame::decode(&frame.encode()), Some(frame));
        }
        assert_eq!(NeighbourFrame::decode(&[0; FRAME_BYTES]), None);
    }

    #[test]
    fn hello_round_trips() {
        let link = LinkHello { from: A, to: B };
        assert_eq!(ConnectionHello::decode(&link.encode()), Some(ConnectionHello::Link(link)));
        let survivor = SurvivorHello { group: A, from_nonce: B, to_nonce: A, from: 3, to: 4 };
        let decoded = ConnectionHello::decode(&survivor.encode());
        assert_eq!(decoded, Some(ConnectionHello::Survivor(survivor)));
        assert_eq!(ConnectionHello::decode(&[0; HELLO_BYTES]), None);
    }
}
