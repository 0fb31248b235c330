//! The hello: the first bytes on a connection, by which the two ranks verify each other. This
//! module encodes and decodes hellos, and does no input or output. The *acceptor* is the rank that
//! accepts the connection.
//!
//! ```text
//! hello:   "distlnk1" | version u16 | channel u8 | lane u8 | epoch u32 | from u32 | to u32
//!          | group 16 | security u8 | cipher u8 | 0 0 0 0 0 0 (little endian) | proof 48
//! answer:  0 | answer of the acceptor 48, or the number of a refusal
//! confirm: 'C' | confirmation 16
//! end:     'T' | acceptance 16, or the number of a refusal
//! death:   'D' | certificate 16, in place of the answer or the end
//! ```
//!
//! The handshake has four steps:
//!
//! 1. The connecting rank sends its hello with its proof ([`link_proof`](super::link_proof)).
//! 2. The acceptor checks the hello and the proof, and sends its answer.
//! 3. The connecting rank checks the answer and sends [`CONFIRM`]. When the acceptor has checked
//!    the confirmation, both ranks have verified each other. Before that, the acceptor changes
//!    nothing, because the hello may be a replay.
//! 4. The acceptor adds the connection to its mesh and sends [`ACCEPTED`].
//!
//! The connecting rank uses the connection only after it has received [`ACCEPTED`]. Therefore no
//! data arrives before the acceptor has added the stream. If the acceptor leaves the group during
//! the handshake, the connecting rank receives a refusal.
//!
//! If the process of the acceptor is dead, its death witness
//! ([`death_witness`]) sends the death certificate. Only the
//! acceptor and its witness know the certificate, and the acceptor's advert has its hash.

use crate::base::ids::{GroupId, Nonce, Rank};
use crate::process::death_witness;
use crate::security::{CipherSuite, SecuritySetting};
use crate::transport::{Channel, MAX_COLLECTIVE_STREAMS};

const MAGIC: [u8; 8] = *b"distlnk1";
const VERSION: u16 = 6;

/// The length of a proof, in bytes.
pub(super) const PROOF_BYTES: usize = 48;
/// The proof of the connecting rank, or the answer of the acceptor.
pub(super) type ProofMessage = [u8; PROOF_BYTES];
/// The confirmation of the connecting rank, or the acceptance of the acceptor.
pub(super) type ConfirmationTag = [u8; 16];

/// The length of a hello without its proof, in bytes.
pub(super) const PREFIX_BYTES: usize = 48;
/// The length of a hello in bytes.
pub(super) const HELLO_BYTES: usize = PREFIX_BYTES + PROOF_BYTES;
/// The length of a positive answer in bytes.
pub(super) const ANSWER_BYTES: usize = 1 + PROOF_BYTES;
/// The length of the confirmation, and of the positive end of the handshake, in bytes.
pub(super) const CONFIRM_BYTES: usize = 1 + size_of::<ConfirmationTag>();
/// The first byte of a positive answer.
pub(super) const WELCOME: u8 = 0;
/// The first byte of the confirmation.
pub(super) const CONFIRM: u8 = b'C';
/// The first byte of the end of a successful handshake. No refusal has this number.
pub(super) const ACCEPTED: u8 = b'T';

/// The first byte of a death certificate.
pub(super) const DIED: u8 = b'D';
/// The length of a death certificate, with its first byte.
pub(super) const DEATH_BYTES: usize = death_witness::ANSWER_BYTES;

/// Returns the bytes that a death witness sends.
pub(super) fn encode_death(certificate: Nonce) -> [u8; DEATH_BYTES] {
    let mut bytes = [DIED; DEATH_BYTES];
    bytes[1..].copy_from_slice(&certificate.0);
    bytes
}

/// Returns the hash of a death certificate, which a rank publishes.
pub(super) fn death_hash(certificate: Nonce) -> Nonce {
    let context = "libdist 2026-11 death certificate";
    let mut hash = [0; 16];
    hash.copy_from_slice(&blake3::derive_key(context, &certificate.0)[..16]);
    Nonce(hash)
}

/// Returns true if the bytes are the death certificate with this hash.
pub(super) fn proves_death(bytes: &[u8; DEATH_BYTES], hash: Nonce) -> bool {
    let mut certificate = [0; 16];
    certificate.copy_from_slice(&bytes[1..]);
    bytes[0] == DIED && death_hash(Nonce(certificate)) == hash
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ConnectionPurpose {
    /// A link from the process of the connecting rank to the process of the acceptor.
    Stream(Channel),
    /// A new connection for a link that has broken. After the acceptance, the acceptor sends the
    /// position in the link (u64) up to which it has received the bytes.
    Resume(Channel),
    /// Asks for the replacement of the link from the acceptor to this process, whose connection
    /// broke, and shows whether the process of the acceptor lives. The acceptor closes the
    /// connection.
    Probe(Channel),
    /// A connection between two ranks of a failed group.
    Reconnect,
}

impl ConnectionPurpose {
    /// Returns the rail (the index of the peer's network interface) that is tried first.
    pub(super) fn rail(self) -> u8 {
        match self {
            Self::Stream(channel) | Self::Resume(channel) | Self::Probe(channel) => match channel {
                Channel::Collective(lane) => lane,
                Channel::PointToPoint => 0,
            },
            Self::Reconnect => 0,
        }
    }

    /// Returns the channel of the link whose connection broke, if this one concerns such a link.
    pub(super) fn broken_link(self) -> Option<Channel> {
        match self {
            Self::Resume(channel) | Self::Probe(channel) => Some(channel),
            Self::Stream(_) | Self::Reconnect => None,
        }
    }

    /// Returns the channel of a link, if the connection is for one.
    pub(super) fn link_channel(self) -> Option<Channel> {
        match self {
            Self::Stream(channel) | Self::Resume(channel) => Some(channel),
            Self::Probe(_) | Self::Reconnect => None,
        }
    }
}

/// The hello of the connecting rank, without its proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) purpose: ConnectionPurpose,
    pub(super) group: GroupId,
    pub(super) epoch: u32,
    pub(super) from: Rank,
    pub(super) to: Rank,
    /// The security setting of the sender.
    pub(super) security: SecuritySetting,
    /// The cipher suite of the proof.
    pub(super) cipher: CipherSuite,
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
    /// The epoch, rank or purpose does not match the group.
    IdentityMismatch = 3,
    /// The connection already exists.
    Duplicate = 4,
    /// The acceptor requires the setting `auth`.
    RequiresAuth = 5,
    /// The acceptor requires the setting `none`.
    RequiresNone = 6,
    /// The proof, the answer, the confirmation or the acceptance is wrong.
    WrongProof = 7,
    /// Newer connections took the place of this one.
    Overloaded = 8,
    /// The acceptor requires the setting `encrypt`.
    RequiresEncrypt = 9,
    /// The acceptor has no link that the connection could replace.
    NoSuchLink = 10,
}

impl HelloRefusal {
    const ALL: [Self; 10] = [
        Self::UnknownProtocol,
        Self::NoSuchRank,
        Self::IdentityMismatch,
        Self::Duplicate,
        Self::RequiresAuth,
        Self::RequiresNone,
        Self::WrongProof,
        Self::Overloaded,
        Self::RequiresEncrypt,
        Self::NoSuchLink,
    ];

    /// Returns the refusal of an acceptor with this setting.
    pub(super) fn of_setting(setting: SecuritySetting) -> Self {
        match setting {
            SecuritySetting::None => Self::RequiresNone,
            SecuritySetting::Auth => Self::RequiresAuth,
            SecuritySetting::Encrypt => Self::RequiresEncrypt,
        }
    }

    /// Returns the refusal with this number, or `UnknownProtocol` for an unknown number.
    pub(super) fn from_number(number: u8) -> Self {
        Self::ALL.into_iter().find(|&it| it as u8 == number).unwrap_or(Self::UnknownProtocol)
    }

    /// Returns true if the two sides have different security settings.
    pub(super) fn concerns_setting(self) -> bool {
        matches!(self, Self::RequiresAuth | Self::RequiresNone | Self::RequiresEncrypt)
    }

    /// Returns true if the two sides have different secrets or security settings.
    pub(super) fn concerns_security(self) -> bool {
        self.concerns_setting() || self == Self::WrongProof
    }

    /// Returns true if the same acceptor would refuse another attempt, too.
    pub(super) fn is_final(self) -> bool {
        self.concerns_security()
            || matches!(self, Self::IdentityMismatch | Self::UnknownProtocol | Self::NoSuchLink)
    }
}

impl std::fmt::Display for HelloRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::UnknownProtocol => "it does not use the protocol of this version of libdist",
            Self::NoSuchRank => "the process has no such rank of this group",
            Self::IdentityMismatch => "its epoch, rank or purpose does not match the group",
            Self::Duplicate => "such a connection already exists",
            Self::RequiresAuth => {
                "the accepting process has DIST_SECURITY=auth, the connecting one another setting"
            }
            Self::RequiresNone => {
                "the accepting process has DIST_SECURITY=none, the connecting one another setting"
            }
            Self::RequiresEncrypt => {
                "the accepting process has DIST_SECURITY=encrypt, the connecting one another setting"
            }
            Self::WrongProof => {
                "the proof of the job's secret is wrong: the processes have different secrets, or a \
                 third party changes the connection"
            }
            Self::Overloaded => "too many connections arrive at once",
            Self::NoSuchLink => "it has no such connection to replace",
        })
    }
}

impl Hello {
    pub(super) fn encode(&self) -> [u8; PREFIX_BYTES] {
        let (channel, lane) = match self.purpose {
            ConnectionPurpose::Stream(Channel::Collective(lane)) => (0, lane),
            ConnectionPurpose::Stream(Channel::PointToPoint) => (1, 0),
            ConnectionPurpose::Reconnect => (3, 0),
            ConnectionPurpose::Resume(Channel::Collective(lane)) => (4, lane),
            ConnectionPurpose::Resume(Channel::PointToPoint) => (5, 0),
            ConnectionPurpose::Probe(Channel::Collective(lane)) => (6, lane),
            ConnectionPurpose::Probe(Channel::PointToPoint) => (7, 0),
        };
        let rank = |rank: Rank| u32::try_from(rank).unwrap_or(u32::MAX).to_le_bytes();
        let mut bytes = [0; PREFIX_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = channel;
        bytes[11] = lane;
        bytes[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..20].copy_from_slice(&rank(self.from));
        bytes[20..24].copy_from_slice(&rank(self.to));
        bytes[24..40].copy_from_slice(&self.group.0);
        bytes[40] = self.security as u8;
        bytes[41] = self.cipher as u8;
        bytes
    }

    /// Decodes a hello.
    ///
    /// # Errors
    /// `UnknownProtocol`.
    pub(super) fn decode(bytes: &[u8; PREFIX_BYTES]) -> Result<Self, HelloRefusal> {
        let number = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let rank = |at: usize| Rank::try_from(number(at)).unwrap_or(Rank::MAX);
        let purpose = match (bytes[10], bytes[11]) {
            (0, lane) if usize::from(lane) < MAX_COLLECTIVE_STREAMS => {
                ConnectionPurpose::Stream(Channel::Collective(lane))
            }
            (1, 0) => ConnectionPurpose::Stream(Channel::PointToPoint),
            (3, 0) => ConnectionPurpose::Reconnect,
            (4, lane) if usize::from(lane) < MAX_COLLECTIVE_STREAMS => {
                ConnectionPurpose::Resume(Channel::Collective(lane))
            }
            (5, 0) => ConnectionPurpose::Resume(Channel::PointToPoint),
            (6, lane) if usize::from(lane) < MAX_COLLECTIVE_STREAMS => {
                ConnectionPurpose::Probe(Channel::Collective(lane))
            }
            (7, 0) => ConnectionPurpose::Probe(Channel::PointToPoint),
            _ => return Err(HelloRefusal::UnknownProtocol),
        };
        let (security, cipher) =
            (SecuritySetting::from_number(bytes[40]), CipherSuite::from_number(bytes[41]));
        let (Some(security), Some(cipher)) = (security, cipher) else {
            return Err(HelloRefusal::UnknownProtocol);
        };
        if !has_valid_prefix(bytes) || bytes[42..] != [0; PREFIX_BYTES - 42] {
            return Err(HelloRefusal::UnknownProtocol);
        }
        Ok(Self {
            purpose,
            group: Nonce(std::array::from_fn(|i| bytes[24 + i])),
            epoch: number(12),
            from: rank(16),
            to: rank(20),
            security,
            cipher,
        })
    }
}

/// Returns the proof of the acceptor from its answer. Returns `None` if more bytes must arrive.
///
/// # Errors
/// The refusal of the acceptor.
pub(super) fn parse_answer(answer: &[u8]) -> Result<Option<&ProofMessage>, HelloRefusal> {
    parse_reply(WELCOME, answer)
}

/// Returns the acceptance from the end of the handshake. Returns `None` if more bytes must arrive.
///
/// # Errors
/// The refusal of the acceptor.
pub(super) fn parse_end(end: &[u8]) -> Result<Option<&ConfirmationTag>, HelloRefusal> {
    parse_reply(ACCEPTED, end)
}

fn parse_reply<const N: usize>(
    positive: u8,
    bytes: &[u8],
) -> Result<Option<&[u8; N]>, HelloRefusal> {
    match bytes.split_first() {
        Some((&first, content)) if first == positive => Ok(content.first_chunk()),
        Some((&number, _)) => Err(HelloRefusal::from_number(number)),
        None => Ok(None),
    }
}

/// Returns false if these bytes cannot be the start of a hello.
pub(super) fn has_valid_prefix(bytes: &[u8]) -> bool {
    let [low, high] = VERSION.to_le_bytes();
    MAGIC.iter().chain(&[low, high]).zip(bytes).all(|(a, b)| a == b)
}

/// The buffer in which an acceptor collects the hello of a connection and the confirmation after
/// it.
#[derive(Debug)]
pub(super) struct HelloReader {
    bytes: [u8; HELLO_BYTES + CONFIRM_BYTES],
    filled: usize,
}

/// The state of the handshake after some bytes have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HelloReadState {
    /// More bytes must arrive.
    Incomplete,
    /// The hello and its proof are complete; the acceptor must check and answer them.
    Hello(Hello, ProofMessage),
    /// The connecting rank has verified the answer. The acceptor must check its confirmation.
    Confirmed(ConfirmationTag),
}

impl Default for HelloReader {
    fn default() -> Self {
        Self { bytes: [0; HELLO_BYTES + CONFIRM_BYTES], filled: 0 }
    }
}

impl HelloReader {
    /// Returns the buffer for the next read. The buffer ends where the hello ends or, after the
    /// hello, where the confirmation ends, because the bytes after them belong to the stream.
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
        let (hello, confirm) = received.split_at(received.len().min(HELLO_BYTES));
        if hello.len() < HELLO_BYTES {
            return Ok(HelloReadState::Incomplete);
        }
        match confirm.split_first() {
            None => match hello.split_first_chunk() {
                Some((prefix, proof)) => {
                    let mut message = [0; PROOF_BYTES];
                    message.copy_from_slice(proof);
                    Ok(HelloReadState::Hello(Hello::decode(prefix)?, message))
                }
                None => Ok(HelloReadState::Incomplete),
            },
            Some((&CONFIRM, tag)) => match tag.first_chunk() {
                Some(tag) => Ok(HelloReadState::Confirmed(*tag)),
                None => Ok(HelloReadState::Incomplete),
            },
            Some(_) => Err(HelloRefusal::UnknownProtocol),
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
            (0..8_u8).prop_map(|lane| ConnectionPurpose::Resume(Channel::Collective(lane))),
            Just(ConnectionPurpose::Resume(Channel::PointToPoint)),
            (0..8_u8).prop_map(|lane| ConnectionPurpose::Probe(Channel::Collective(lane))),
            Just(ConnectionPurpose::Probe(Channel::PointToPoint)),
            Just(ConnectionPurpose::Reconnect),
        ]
    }

    fn hellos() -> impl Strategy<Value = Hello> {
        let ids = (any::<[u8; 16]>(), any::<u32>(), 0..3_u8, any::<bool>());
        (purposes(), ids, 0..1_usize << 16, 0..1_usize << 16).prop_map(
            |(purpose, (group, epoch, security, is_aes), from, to)| Hello {
                purpose,
                group: Nonce(group),
                epoch,
                from,
                to,
                security: SecuritySetting::from_number(security).unwrap(),
                cipher: if is_aes { CipherSuite::AesGcm } else { CipherSuite::ChaChaPoly },
            },
        )
    }

    proptest! {
        #[test]
        fn hello_round_trips(hello in hellos()) {
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }

        #[test]
        fn changed_byte_is_refused_or_decodes_differently(
            hello in hellos(), at in 0..PREFIX_BYTES, bits in 1..=u8::MAX,
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
    fn only_the_certificate_with_the_hash_proves_a_death() {
        let certificate = Nonce([7; 16]);
        let hash = death_hash(certificate);
        assert_ne!(hash, certificate);
        let bytes = encode_death(certificate);
        assert!(proves_death(&bytes, hash));
        for at in 0..DEATH_BYTES {
            let mut changed = bytes;
            changed[at] ^= 1;
            assert!(!proves_death(&changed, hash), "{at}");
        }
        assert!(!proves_death(&encode_death(hash), hash));
        assert!(HelloRefusal::ALL.iter().all(|&it| it as u8 != DIED));
        assert!(![WELCOME, CONFIRM, ACCEPTED].contains(&DIED));
    }

    #[test]
    fn refusal_numbers_round_trip() {
        for refusal in HelloRefusal::ALL {
            assert_eq!(HelloRefusal::from_number(refusal as u8), refusal);
            assert!(![WELCOME, CONFIRM, ACCEPTED].contains(&(refusal as u8)));
        }
        assert_eq!(HelloRefusal::from_number(200), HelloRefusal::UnknownProtocol);
    }
}
