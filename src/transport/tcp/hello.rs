//! The hello: the first bytes on a connection, by which the two ranks verify each other. This
//! module encodes and decodes hellos, and does no input or output. The *acceptor* is the rank that
//! accepts the connection. A *nonce* is a random number that a rank published before.
//!
//! ```text
//! hello:   "distlnk1" | version u16 | channel u8 | lane u8 | epoch u32 | from u32 | to u32
//!          | group 16 | nonce of the sender 16 | nonce expected of the receiver 16 (little endian)
//! answer:  0 | hello of the acceptor, or the number of a refusal
//! confirm: 'C'
//! end:     'T', or the number of a refusal
//! ```
//!
//! The handshake has four steps:
//!
//! 1. The connecting rank sends its hello.
//! 2. The acceptor checks the hello and sends its answer.
//! 3. The connecting rank checks the answer and sends [`CONFIRM`]. When the acceptor receives it,
//!    both ranks have verified each other.
//! 4. The acceptor adds the connection to its mesh and sends [`ACCEPTED`].
//!
//! The connecting rank uses the connection only after it has received [`ACCEPTED`]. Therefore no
//! data arrives before the acceptor has added the stream. If the acceptor leaves the group during
//! the handshake, the connecting rank receives a refusal.

use crate::base::ids::{GroupId, Nonce, Rank};
use crate::transport::{Channel, MAX_COLLECTIVE_STREAMS};

const MAGIC: [u8; 8] = *b"distlnk1";
const VERSION: u16 = 4;

/// The length of a hello in bytes.
pub(super) const HELLO_BYTES: usize = 72;
/// The length of a positive answer in bytes.
pub(super) const ANSWER_BYTES: usize = 1 + HELLO_BYTES;
/// The first byte of a positive answer.
pub(super) const WELCOME: u8 = 0;
/// The byte by which the connecting rank ends its part of the handshake.
pub(super) const CONFIRM: u8 = b'C';
/// The byte by which the acceptor ends a successful handshake. No refusal has this number.
pub(super) const ACCEPTED: u8 = b'T';

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ConnectionPurpose {
    /// A stream from the connecting rank to the acceptor.
    Stream(Channel),
    /// A control connection between the leaders of two nodes.
    Control,
    /// A connection between two ranks of a failed group.
    Reconnect,
}

impl ConnectionPurpose {
    /// Returns the rail (the index of the peer's network interface) that is tried first.
    pub(super) fn rail(self) -> u8 {
        match self {
            Self::Stream(Channel::Collective(lane)) => lane,
            Self::Stream(Channel::PointToPoint) | Self::Control | Self::Reconnect => 0,
        }
    }
}

/// The hello of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) purpose: ConnectionPurpose,
    pub(super) group: GroupId,
    pub(super) epoch: u32,
    pub(super) from: Rank,
    pub(super) to: Rank,
    /// The nonce of the sender.
    pub(super) nonce: Nonce,
    /// The nonce that the receiver must have. The sender knows it from the published data of the
    /// receiver.
    pub(super) expected_nonce: Nonce,
}

/// The reason why an acceptor refuses a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum HelloRefusal {
    /// The peer does not speak the libdist protocol, or uses another version.
    UnknownProtocol = 1,
    /// The process does not have the requested rank of the group. The rank has not joined yet, or
    /// has left.
    NoSuchRank = 2,
    /// The epoch, rank or nonce does not match the group.
    IdentityMismatch = 3,
    /// The connection already exists.
    Duplicate = 4,
}

impl HelloRefusal {
    /// Returns the refusal with this number, or `UnknownProtocol` for an unknown number.
    pub(super) fn from_number(number: u8) -> Self {
        let all = [Self::NoSuchRank, Self::IdentityMismatch, Self::Duplicate];
        all.into_iter().find(|&it| it as u8 == number).unwrap_or(Self::UnknownProtocol)
    }
}

impl std::fmt::Display for HelloRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::UnknownProtocol => "it does not use the protocol of this version of libdist",
            Self::NoSuchRank => "the process has no such rank of this group",
            Self::IdentityMismatch => "its epoch, rank or nonce does not match the group",
            Self::Duplicate => "such a connection already exists",
        })
    }
}

impl Hello {
    pub(super) fn encode(&self) -> [u8; HELLO_BYTES] {
        let (channel, lane) = match self.purpose {
            ConnectionPurpose::Stream(Channel::Collective(lane)) => (0, lane),
            ConnectionPurpose::Stream(Channel::PointToPoint) => (1, 0),
            ConnectionPurpose::Control => (2, 0),
            ConnectionPurpose::Reconnect => (3, 0),
        };
        let rank = |rank: Rank| u32::try_from(rank).unwrap_or(u32::MAX).to_le_bytes();
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = channel;
        bytes[11] = lane;
        bytes[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..20].copy_from_slice(&rank(self.from));
        bytes[20..24].copy_from_slice(&rank(self.to));
        bytes[24..40].copy_from_slice(&self.group.0);
        bytes[40..56].copy_from_slice(&self.nonce.0);
        bytes[56..].copy_from_slice(&self.expected_nonce.0);
        bytes
    }

    /// Decodes a hello.
    ///
    /// # Errors
    /// `UnknownProtocol`.
    pub(super) fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, HelloRefusal> {
        let number = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let rank = |at: usize| Rank::try_from(number(at)).unwrap_or(Rank::MAX);
        let nonce = |at: usize| Nonce(std::array::from_fn(|i| bytes[at + i]));
        let purpose = match (bytes[10], bytes[11]) {
            (0, lane) if usize::from(lane) < MAX_COLLECTIVE_STREAMS => {
                ConnectionPurpose::Stream(Channel::Collective(lane))
            }
            (1, 0) => ConnectionPurpose::Stream(Channel::PointToPoint),
            (2, 0) => ConnectionPurpose::Control,
            (3, 0) => ConnectionPurpose::Reconnect,
            _ => return Err(HelloRefusal::UnknownProtocol),
        };
        if !has_valid_prefix(bytes) {
            return Err(HelloRefusal::UnknownProtocol);
        }
        Ok(Self {
            purpose,
            group: nonce(24),
            epoch: number(12),
            from: rank(16),
            to: rank(20),
            nonce: nonce(40),
            expected_nonce: nonce(56),
        })
    }

    /// Returns the hello that the addressed rank must send as its answer to this hello.
    pub(super) fn expected_answer(&self) -> Self {
        let Self { purpose, group, epoch, .. } = *self;
        let (from, to) = (self.to, self.from);
        Self {
            purpose,
            group,
            epoch,
            from,
            to,
            nonce: self.expected_nonce,
            expected_nonce: self.nonce,
        }
    }
}

/// Checks the answer to a hello. Returns true if the answer is complete and comes from the
/// addressed rank. Returns false if more bytes must arrive.
///
/// # Errors
/// The refusal of the acceptor, or `IdentityMismatch` if another process answered.
pub(super) fn has_valid_answer(hello: &Hello, answer: &[u8]) -> Result<bool, HelloRefusal> {
    match answer.split_first() {
        Some((&WELCOME, payload)) => match payload.first_chunk() {
            Some(payload) if Hello::decode(payload) == Ok(hello.expected_answer()) => Ok(true),
            Some(_) => Err(HelloRefusal::IdentityMismatch),
            None => Ok(false),
        },
        Some((&number, _)) => Err(HelloRefusal::from_number(number)),
        None => Ok(false),
    }
}

/// Returns false if these bytes cannot be the start of a hello.
pub(super) fn has_valid_prefix(bytes: &[u8]) -> bool {
    let [low, high] = VERSION.to_le_bytes();
    MAGIC.iter().chain(&[low, high]).zip(bytes).all(|(a, b)| a == b)
}

/// The buffer in which an acceptor collects the hello of a connection and the confirmation byte
/// after it.
#[derive(Debug)]
pub(super) struct HelloReader {
    bytes: [u8; HELLO_BYTES + 1],
    filled: usize,
}

/// The state of the handshake after some bytes have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HelloReadState {
    /// More bytes must arrive.
    Incomplete,
    /// The hello is complete; the acceptor must check and answer it.
    Hello(Hello),
    /// The connecting rank has verified the answer and confirmed.
    Confirmed,
}

impl Default for HelloReader {
    fn default() -> Self {
        Self { bytes: [0; HELLO_BYTES + 1], filled: 0 }
    }
}

impl HelloReader {
    /// Returns the buffer for the next read. The buffer ends where the hello ends or, after the
    /// hello, where the confirmation byte ends, because the bytes after them belong to the stream.
    pub(super) fn free_space(&mut self) -> &mut [u8] {
        let end = if self.filled < HELLO_BYTES { HELLO_BYTES } else { self.bytes.len() };
        &mut self.bytes[self.filled..end]
    }

    /// Handles `count` bytes that were read into the buffer.
    ///
    /// # Errors
    /// `UnknownProtocol`.
    pub(super) fn advance(&mut self, count: usize) -> Result<HelloReadState, HelloRefusal> {
        self.filled += count;
        let received = &self.bytes[..self.filled];
        if !has_valid_prefix(received) {
            return Err(HelloRefusal::UnknownProtocol);
        }
        match (self.bytes.first_chunk(), received.len().checked_sub(HELLO_BYTES)) {
            (Some(bytes), Some(0)) => Hello::decode(bytes).map(HelloReadState::Hello),
            (_, Some(1)) if received[HELLO_BYTES] == CONFIRM => Ok(HelloReadState::Confirmed),
            (_, Some(_)) => Err(HelloRefusal::UnknownProtocol),
            (_, None) => Ok(HelloReadState::Incomplete),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn purposes() -> impl Strategy<Value = ConnectionPurpose> {
        prop_oneof![
            (0..8_u8).prop_map(|lane| ConnectionPurpose::Stream(Channel::Collective(lane))),
            Just(ConnectionPurpose::Stream(Channel::PointToPoint)),
            Just(ConnectionPurpose::Control),
            Just(ConnectionPurpose::Reconnect),
        ]
    }

    fn hellos() -> impl Strategy<Value = Hello> {
        let ids = any::<([u8; 16], [u8; 16], [u8; 16], u32)>();
        (purposes(), ids, 0..1_usize << 16, 0..1_usize << 16).prop_map(
            |(purpose, (group, nonce, expected, epoch), from, to)| Hello {
                purpose,
                group: Nonce(group),
                epoch,
                from,
                to,
                nonce: Nonce(nonce),
                expected_nonce: Nonce(expected),
            },
        )
    }

    proptest! {
        #[test]
        fn hello_round_trips(hello in hellos()) {
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
            prop_assert_eq!(hello.expected_answer().expected_answer(), hello);
        }

        #[test]
        fn changed_byte_is_refused_or_decodes_differently(
            hello in hellos(), at in 0..HELLO_BYTES, bits in 1..=u8::MAX,
        ) {
            let mut bytes = hello.encode();
            bytes[at] ^= bits;
            prop_assert!(Hello::decode(&bytes) != Ok(hello));
            if at < 10 {
                prop_assert_eq!(Hello::decode(&bytes), Err(HelloRefusal::UnknownProtocol));
                prop_assert!(!has_valid_prefix(&bytes[..=at]));
            }
        }
    }

    #[test]
    fn refusal_numbers_round_trip() {
        for refusal in [
            HelloRefusal::UnknownProtocol,
            HelloRefusal::NoSuchRank,
            HelloRefusal::IdentityMismatch,
            HelloRefusal::Duplicate,
        ] {
            assert_eq!(HelloRefusal::from_number(refusal as u8), refusal);
        }
        assert_eq!(HelloRefusal::from_number(200), HelloRefusal::UnknownProtocol);
    }
}
