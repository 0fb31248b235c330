//! What both ends of a connection say before anything else, as bytes. Pure.
//!
//! ```text
//! hello:  "distlnk1" | version u16 | channel u8 | lane u8 | epoch u32 | from u32 | to u32 | group 16
//!         | nonce of the sender 16 | nonce that the receiver must have 16            (little endian)
//! answer: 0 | hello of the acceptor, or the number of a refusal
//! taken:  'T', or the number of a refusal
//! ```
//! The one who has connected says the hello and reads the answer; only when it has found that right
//! does it say [`CONFIRM`]; so both have checked both. The acceptor then puts the connection in its
//! place and says [`TAKEN`], and only when that has come is the connection used: no byte is ahead
//! of its stream, and whoever was too late for an acceptor that leaves knows it.

use crate::base::ids::{GroupId, Nonce, Rank};
use crate::transport::{Channel, MAX_LANES};

const MAGIC: [u8; 8] = *b"distlnk1";
const VERSION: u16 = 4;

/// The length of a hello.
pub(super) const HELLO_BYTES: usize = 72;
/// The length of an answer that welcomes.
pub(super) const ANSWER_BYTES: usize = 1 + HELLO_BYTES;
/// The first byte of such an answer.
pub(super) const WELCOME: u8 = 0;
/// What the one who has connected says last.
pub(super) const CONFIRM: u8 = b'C';
/// What the acceptor says last. No refusal has this number.
pub(super) const TAKEN: u8 = b'T';

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    /// A stream, from the one who has connected to the other.
    Stream(Channel),
    /// News between the leaders of two nodes.
    Control,
    /// Words between two ranks of a group that has failed.
    Reunion,
}

impl Purpose {
    /// The peer's interface that is tried first.
    pub(super) fn rail(self) -> u8 {
        match self {
            Self::Stream(Channel::Collective(lane)) => lane,
            Self::Stream(Channel::PointToPoint) | Self::Control | Self::Reunion => 0,
        }
    }
}

/// One side's introduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) purpose: Purpose,
    pub(super) group: GroupId,
    pub(super) epoch: u32,
    pub(super) from: Rank,
    pub(super) to: Rank,
    /// The speaker's own.
    pub(super) nonce: Nonce,
    /// What the speaker knows of the other.
    pub(super) expected: Nonce,
}

/// Why a connection is not wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Refusal {
    /// No libdist, or another version.
    Foreign = 1,
    /// The rank of the group that is asked for is not here: not yet, or no more.
    NotHere = 2,
    /// Epoch, rank or nonce are not the group's.
    Stranger = 3,
    /// There is such a connection already.
    Double = 4,
}

impl Refusal {
    /// The inverse of the discriminant; an unknown number is `Foreign`.
    pub(super) fn from_number(number: u8) -> Self {
        let all = [Self::NotHere, Self::Stranger, Self::Double];
        all.into_iter().find(|&it| it as u8 == number).unwrap_or(Self::Foreign)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Foreign => "it speaks no protocol of this version of libdist",
            Self::NotHere => "no such rank of this group is there",
            Self::Stranger => "its epoch, rank or nonce is not the group's",
            Self::Double => "there is such a connection already",
        })
    }
}

impl Hello {
    pub(super) fn encode(&self) -> [u8; HELLO_BYTES] {
        let (channel, lane) = match self.purpose {
            Purpose::Stream(Channel::Collective(lane)) => (0, lane),
            Purpose::Stream(Channel::PointToPoint) => (1, 0),
            Purpose::Control => (2, 0),
            Purpose::Reunion => (3, 0),
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
        bytes[56..].copy_from_slice(&self.expected.0);
        bytes
    }

    /// The hello in these bytes.
    ///
    /// # Errors
    /// `Foreign`.
    pub(super) fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, Refusal> {
        let number = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let rank = |at: usize| Rank::try_from(number(at)).unwrap_or(Rank::MAX);
        let nonce = |at: usize| Nonce(std::array::from_fn(|i| bytes[at + i]));
        let purpose = match (bytes[10], bytes[11]) {
            (0, lane) if usize::from(lane) < MAX_LANES => {
                Purpose::Stream(Channel::Collective(lane))
            }
            (1, 0) => Purpose::Stream(Channel::PointToPoint),
            (2, 0) => Purpose::Control,
            (3, 0) => Purpose::Reunion,
            _ => return Err(Refusal::Foreign),
        };
        if !begins_well(bytes) {
            return Err(Refusal::Foreign);
        }
        Ok(Self {
            purpose,
            group: nonce(24),
            epoch: number(12),
            from: rank(16),
            to: rank(20),
            nonce: nonce(40),
            expected: nonce(56),
        })
    }

    /// What the other side says where it is the one that this hello is meant for.
    pub(super) fn answer(&self) -> Self {
        let Self { purpose, group, epoch, .. } = *self;
        let (from, to) = (self.to, self.from);
        Self { purpose, group, epoch, from, to, nonce: self.expected, expected: self.nonce }
    }
}

/// Whether the answer to a hello has come, and is from whom the hello was meant for; false while
/// more must come.
///
/// # Errors
/// What the other side said, or `Stranger` where it is somebody else.
pub(super) fn is_answered(hello: &Hello, answer: &[u8]) -> Result<bool, Refusal> {
    match answer.split_first() {
        Some((&WELCOME, said)) => match said.first_chunk() {
            Some(said) if Hello::decode(said) == Ok(hello.answer()) => Ok(true),
            Some(_) => Err(Refusal::Stranger),
            None => Ok(false),
        },
        Some((&number, _)) => Err(Refusal::from_number(number)),
        None => Ok(false),
    }
}

/// False once the bytes that have come so far cannot become a hello.
pub(super) fn begins_well(bytes: &[u8]) -> bool {
    let [low, high] = VERSION.to_le_bytes();
    MAGIC.iter().chain(&[low, high]).zip(bytes).all(|(a, b)| a == b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn purposes() -> impl Strategy<Value = Purpose> {
        prop_oneof![
            (0..8_u8).prop_map(|lane| Purpose::Stream(Channel::Collective(lane))),
            Just(Purpose::Stream(Channel::PointToPoint)),
            Just(Purpose::Control),
            Just(Purpose::Reunion),
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
                expected: Nonce(expected),
            },
        )
    }

    proptest! {
        #[test]
        fn a_hello_survives_its_bytes(hello in hellos()) {
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
            prop_assert_eq!(hello.answer().answer(), hello);
        }

        #[test]
        fn a_changed_byte_is_a_refusal_or_another_hello(
            hello in hellos(), at in 0..HELLO_BYTES, bits in 1..=u8::MAX,
        ) {
            let mut bytes = hello.encode();
            bytes[at] ^= bits;
            prop_assert!(Hello::decode(&bytes) != Ok(hello));
            if at < 10 {
                prop_assert_eq!(Hello::decode(&bytes), Err(Refusal::Foreign));
                prop_assert!(!begins_well(&bytes[..=at]));
            }
        }
    }

    #[test]
    fn refusals_survive_their_numbers() {
        for refusal in [Refusal::Foreign, Refusal::NotHere, Refusal::Stranger, Refusal::Double] {
            assert_eq!(Refusal::from_number(refusal as u8), refusal);
        }
        assert_eq!(Refusal::from_number(200), Refusal::Foreign);
    }
}
