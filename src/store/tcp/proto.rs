//! The store's wire protocol, which is the protocol of c10d's TCPStore in torch 2.15.
//!
//! A request is its opcode (one byte) and its fields. Integers are little endian. A 64-bit length
//! precedes each string and each list. Nothing announces the length of a request, so a receiver
//! must parse all fields to find its end. This module encodes requests, and `decoder` decodes them.
//! For example, SET of the key "/k" to the value "v" is these 20 bytes:
//!
//! ```text
//! 01  02 00 00 00 00 00 00 00  2f 6b  01 00 00 00 00 00 00 00  76
//! SET length of the key        / k    length of the value      v
//! ```

use std::borrow::Cow;

pub use crate::store::limits::{MAX_KEY_BYTES, MAX_KEYS, MAX_REQUEST_BYTES, MAX_VALUE_BYTES};

/// The number in VALIDATE. It identifies the sender as a store client.
pub const MAGIC: u32 = 0x3C85_F7CE;
/// The reply to CHECK if all keys exist, and the reply to WAIT.
pub const READY: u8 = 0;
/// The reply to CHECK if a key is missing.
pub const NOT_READY: u8 = 1;
/// The reply to `CANCEL_WAIT`.
pub const WAIT_CANCELED: u8 = 1;

/// The word that a libdist server sends to a client that it rejects, before it closes the
/// connection. The client receives the word instead of the reply to its first PING. Torch's client
/// reports a wrong reply to PING.
pub type StatusWord = [u8; 4];
/// The status word of a server that cannot accept another connection, because it has reached its
/// connection limit or has no free descriptor. The state may be temporary.
pub const SERVER_FULL: StatusWord = *b"FULL";
/// All status words.
pub const STATUS_WORDS: [StatusWord; 1] = [SERVER_FULL];

/// The operation of a request. It is the first byte of the request. Servers of an older torch do
/// not know the operations 14 to 18.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(
    missing_docs,
    reason = "the names are those of the protocol; `StoreRequest` documents them"
)]
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

    /// Returns the operation with this number.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

/// The bytes of a key or value. They are borrowed in a request that a client sends, and owned in a
/// request that a server has received.
pub type Bytes<'a> = Cow<'a, [u8]>;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreRequest<'a> {
    /// Identifies the sender as a store client. It must be the first request of each connection. No
    /// reply.
    Validate(u32),
    /// Stores a value. No reply.
    Set(Bytes<'a>, Bytes<'a>),
    /// Compares the value of the key (first field) with the second field. If they are equal, stores
    /// the third field. Reply: bytes, the value after the operation.
    CompareSet(Bytes<'a>, Bytes<'a>, Bytes<'a>),
    /// Reads a value. Reply: bytes, empty for a missing key.
    Get(Bytes<'a>),
    /// Adds to a counter. Reply: i64, the sum.
    Add(Bytes<'a>, i64),
    /// Checks whether all keys exist. Reply: [`READY`] or [`NOT_READY`].
    Check(Vec<Bytes<'a>>),
    /// Waits until all keys exist. Reply: [`READY`].
    Wait(Vec<Bytes<'a>>),
    /// Counts the keys. Reply: i64.
    NumKeys,
    /// Deletes a key. Reply: i64, the number of deleted keys.
    DeleteKey(Bytes<'a>),
    /// Appends bytes to a value. No reply.
    Append(Bytes<'a>, Bytes<'a>),
    /// Reads several values. Reply: the bytes of each value, in the order of the keys; empty for a
    /// missing key.
    MultiGet(Vec<Bytes<'a>>),
    /// Stores several values. No reply.
    MultiSet(Vec<(Bytes<'a>, Bytes<'a>)>),
    /// Cancels the pending WAIT. Reply: [`WAIT_CANCELED`].
    CancelWait,
    /// Requests a reply, which confirms all earlier requests. Reply: the same number.
    Ping(u32),
    /// Appends an item to a queue. No reply.
    QueuePush(Bytes<'a>, Bytes<'a>),
    /// Takes the first item of a queue. Reply: i64, the length of the queue before the operation.
    /// If the length is not 0, the bytes of the item follow.
    QueuePop(Bytes<'a>),
    /// Reads a queue's length. Reply: i64.
    QueueLen(Bytes<'a>),
    /// Lists the keys. Reply: i64, the number of keys. The bytes of each key follow.
    ListKeys,
    /// Increments the counter in a key, and waits until the counter is at least the second field.
    /// Reply: [`READY`].
    Barrier(Bytes<'a>, i64),
}

/// The reason why some bytes are not a valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolViolation {
    /// The first byte of a request is not a known operation.
    #[error("it sent the unknown operation {0}")]
    UnknownOpcode(u8),
    /// The key is longer than [`MAX_KEY_BYTES`].
    #[error("it sent a key of {0} bytes, which is longer than {MAX_KEY_BYTES} bytes")]
    KeyTooLong(u64),
    /// The value is longer than [`MAX_VALUE_BYTES`].
    #[error("it sent a value of {0} bytes, which is longer than {MAX_VALUE_BYTES} bytes")]
    ValueTooLong(u64),
    /// There are more keys than [`MAX_KEYS`].
    #[error("it sent a request with {0} keys, which is more than {MAX_KEYS}")]
    TooManyKeys(u64),
    /// The request is longer than [`MAX_REQUEST_BYTES`].
    #[error("it sent a request that is longer than {MAX_REQUEST_BYTES} bytes")]
    RequestTooLong,
}

impl StoreRequest<'_> {
    /// Returns the operation.
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

/// Appends the length of some bytes and the bytes. Requests and replies encode keys and values in
/// this form.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_length(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Appends a number in the form of requests and replies (8 bytes, little endian).
pub fn put_i64(out: &mut Vec<u8>, number: i64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(&(length as u64).to_le_bytes());
}
