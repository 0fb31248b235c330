//! The store's wire protocol: what c10d's TCPStore of torch 2.15 speaks.
//!
//! Integers are little endian, strings and lists have a 64-bit length before them, and requests
//! have no frame around them. Pure: requests to bytes; the way back is in `decoder`.

use std::borrow::Cow;

pub use super::decoder::RequestDecoder;
pub use crate::store::limits::{MAX_KEY_BYTES, MAX_KEYS, MAX_REQUEST_BYTES, MAX_VALUE_BYTES};

/// The number that a client introduces itself with.
pub const MAGIC: u32 = 0x3C85_F7CE;
/// The answer to CHECK where all keys exist, and the answer to WAIT.
pub const READY: u8 = 0;
/// The answer to CHECK where a key is missing.
pub const NOT_READY: u8 = 1;
/// The answer to `CANCEL_WAIT`.
pub const WAIT_CANCELED: u8 = 1;

/// What a server of libdist says to a client that it does not want, in the place of the answer to
/// its first PING, before it closes the connection. Torch's client takes it for a wrong answer, and
/// reports that.
pub type StatusWord = [u8; 4];
/// The server has no descriptor or memory left for another connection; that may change.
pub const SERVER_FULL: StatusWord = *b"FULL";
/// All such words.
pub const STATUS_WORDS: [StatusWord; 1] = [SERVER_FULL];

/// What a request asks for: its first byte. Servers of an older torch do not know 14 to 18.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the protocol's; `Request` says what they mean")]
pub enum Opcode {
    Validate = 0,
    Set = 1,
    CompareSet = 2,
    Get = 3,
    Add = 4,
    Check = 5,
    Wait = 6,
    NumKeys = 7,
    DeleteKey = 8,
    Append = 9,
    MultiGet = 10,
    MultiSet = 11,
    CancelWait = 12,
    Ping = 13,
    QueuePush = 14,
    QueuePop = 15,
    QueueLen = 16,
    ListKeys = 17,
    Barrier = 18,
}

impl Opcode {
    const ALL: [Self; 19] = [
        Self::Validate,
        Self::Set,
        Self::CompareSet,
        Self::Get,
        Self::Add,
        Self::Check,
        Self::Wait,
        Self::NumKeys,
        Self::DeleteKey,
        Self::Append,
        Self::MultiGet,
        Self::MultiSet,
        Self::CancelWait,
        Self::Ping,
        Self::QueuePush,
        Self::QueuePop,
        Self::QueueLen,
        Self::ListKeys,
        Self::Barrier,
    ];

    /// The operation with this number.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

/// Bytes that a request borrows from its sender, or owns at its receiver.
pub type Bytes<'a> = Cow<'a, [u8]>;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreRequest<'a> {
    /// "I am a store client." The first request of each connection. No answer.
    Validate(u32),
    /// Store a value. No answer.
    Set(Bytes<'a>, Bytes<'a>),
    /// Store the third if the value is the second. Answer: bytes, the value now.
    CompareSet(Bytes<'a>, Bytes<'a>, Bytes<'a>),
    /// Answer: bytes, empty for a missing key.
    Get(Bytes<'a>),
    /// Add to a counter. Answer: i64, the sum.
    Add(Bytes<'a>, i64),
    /// Answer: [`READY`] or [`NOT_READY`].
    Check(Vec<Bytes<'a>>),
    /// Answer: [`READY`], once all keys exist.
    Wait(Vec<Bytes<'a>>),
    /// Answer: i64.
    NumKeys,
    /// Answer: i64, how many were deleted.
    DeleteKey(Bytes<'a>),
    /// Add bytes to a value. No answer.
    Append(Bytes<'a>, Bytes<'a>),
    /// Answer: as many times bytes, empty for a missing key.
    MultiGet(Vec<Bytes<'a>>),
    /// Store several values. No answer.
    MultiSet(Vec<(Bytes<'a>, Bytes<'a>)>),
    /// Forget the pending WAIT. Answer: [`WAIT_CANCELED`].
    CancelWait,
    /// Answer: the same number.
    Ping(u32),
    /// Add an item to the end of a queue. No answer.
    QueuePush(Bytes<'a>, Bytes<'a>),
    /// Answer: i64, the queue's length before; and, unless that is 0, bytes, its first item.
    QueuePop(Bytes<'a>),
    /// Answer: i64.
    QueueLen(Bytes<'a>),
    /// Answer: i64, the number of keys; and as many times bytes.
    ListKeys,
    /// Count up and wait until the count is at least the number. Answer, then: [`READY`].
    Barrier(Bytes<'a>, i64),
}

/// Why a peer's bytes are not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolViolation {
    /// The first byte names no operation.
    #[error("operation {0} is unknown")]
    UnknownOpcode(u8),
    /// The key is longer than [`MAX_KEY_BYTES`].
    #[error("a key of {0} bytes is longer than {MAX_KEY_BYTES}")]
    KeyTooLong(u64),
    /// The value is longer than [`MAX_VALUE_BYTES`].
    #[error("a value of {0} bytes is longer than {MAX_VALUE_BYTES}")]
    ValueTooLong(u64),
    /// There are more keys than [`MAX_KEYS`].
    #[error("{0} keys in one request are more than {MAX_KEYS}")]
    TooManyKeys(u64),
    /// The request is longer than [`MAX_REQUEST_BYTES`].
    #[error("a request is longer than {MAX_REQUEST_BYTES} bytes")]
    RequestTooLong,
}

impl StoreRequest<'_> {
    /// The operation.
    pub fn opcode(&self) -> Opcode {
        match self {
            Self::Validate(_) => Opcode::Validate,
            Self::Set(..) => Opcode::Set,
            Self::CompareSet(..) => Opcode::CompareSet,
            Self::Get(_) => Opcode::Get,
            Self::Add(..) => Opcode::Add,
            Self::Check(_) => Opcode::Check,
            Self::Wait(_) => Opcode::Wait,
            Self::NumKeys => Opcode::NumKeys,
            Self::DeleteKey(_) => Opcode::DeleteKey,
            Self::Append(..) => Opcode::Append,
            Self::MultiGet(_) => Opcode::MultiGet,
            Self::MultiSet(_) => Opcode::MultiSet,
            Self::CancelWait => Opcode::CancelWait,
            Self::Ping(_) => Opcode::Ping,
            Self::QueuePush(..) => Opcode::QueuePush,
            Self::QueuePop(_) => Opcode::QueuePop,
            Self::QueueLen(_) => Opcode::QueueLen,
            Self::ListKeys => Opcode::ListKeys,
            Self::Barrier(..) => Opcode::Barrier,
        }
    }

    /// Appends the request's bytes to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.opcode() as u8);
        match self {
            Self::Validate(number) | Self::Ping(number) => {
                out.extend_from_slice(&number.to_le_bytes());
            }
            Self::Set(key, value) | Self::Append(key, value) | Self::QueuePush(key, value) => {
                put_bytes(out, key);
                put_bytes(out, value);
            }
            Self::CompareSet(key, expected, desired) => {
                put_bytes(out, key);
                put_bytes(out, expected);
                put_bytes(out, desired);
            }
            Self::Get(key) | Self::DeleteKey(key) | Self::QueuePop(key) | Self::QueueLen(key) => {
                put_bytes(out, key);
            }
            Self::Add(key, number) | Self::Barrier(key, number) => {
                put_bytes(out, key);
                put_i64(out, *number);
            }
            Self::Check(keys) | Self::Wait(keys) | Self::MultiGet(keys) => {
                put_length(out, keys.len());
                keys.iter().for_each(|key| put_bytes(out, key));
            }
            Self::MultiSet(pairs) => {
                put_length(out, pairs.len());
                for (key, value) in pairs {
                    put_bytes(out, key);
                    put_bytes(out, value);
                }
            }
            Self::NumKeys | Self::CancelWait | Self::ListKeys => {}
        }
    }
}

/// Appends a length and bytes, as values travel in requests and answers.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_length(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Appends a number, as it travels in requests and answers.
pub fn put_i64(out: &mut Vec<u8>, number: i64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(&(length as u64).to_le_bytes());
}
