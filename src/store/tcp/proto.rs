//! The store's wire protocol: what c10d's TCPStore of torch 2.15 speaks, operations 0 to 13.
//!
//! Integers are little endian, strings and lists have a 64-bit length before them, and requests have
//! no frame around them. Pure: bytes in, requests out, and back. [`Decoder`] takes bytes as they
//! arrive, in pieces of any size; it refuses a length as soon as it has read it, and never takes
//! memory for bytes that have not arrived.

use std::borrow::Cow;

/// The number that a client introduces itself with.
pub const MAGIC: u32 = 0x3C85_F7CE;
/// The longest key.
pub const MAX_KEY_BYTES: usize = 8192;
/// The longest value of one request.
pub const MAX_VALUE_BYTES: usize = 8 << 20;
/// The most keys of one request.
pub const MAX_KEYS: usize = 131_072;
/// The longest request in all. Torch has no such limit; its lists of many large values could make a
/// server take any amount of memory for one client.
pub const MAX_REQUEST_BYTES: usize = 1 << 30;

/// The answer to CHECK where all keys exist, and the answer to WAIT.
pub const READY: u8 = 0;
/// The answer to CHECK where a key is missing.
pub const NOT_READY: u8 = 1;
/// The answer to `CANCEL_WAIT`.
pub const WAIT_CANCELED: u8 = 1;

/// What a request asks for: its first byte. 14 to 18 are torch's queues, key list and barrier, which
/// this version does not know.
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
}

impl Opcode {
    const ALL: [Self; 14] = [
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
pub enum Request<'a> {
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
}

/// Why a peer's bytes are not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
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

impl Request<'_> {
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
        }
    }

    /// Appends the request's bytes to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.opcode() as u8);
        match self {
            Self::Validate(number) | Self::Ping(number) => {
                out.extend_from_slice(&number.to_le_bytes());
            }
            Self::Set(key, value) | Self::Append(key, value) => {
                put_bytes(out, key);
                put_bytes(out, value);
            }
            Self::CompareSet(key, expected, desired) => {
                put_bytes(out, key);
                put_bytes(out, expected);
                put_bytes(out, desired);
            }
            Self::Get(key) | Self::DeleteKey(key) => put_bytes(out, key),
            Self::Add(key, amount) => {
                put_bytes(out, key);
                put_i64(out, *amount);
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
            Self::NumKeys | Self::CancelWait => {}
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

/// What follows an operation's first byte: perhaps a count; then, that many times or once, a group of
/// strings; then perhaps a number.
struct Shape {
    counted: bool,
    group: &'static [Text],
    number_bytes: usize,
}

#[derive(Clone, Copy)]
enum Text {
    Key,
    Value,
}

impl Opcode {
    fn shape(self) -> Shape {
        use Text::{Key, Value};
        let (counted, group, number_bytes): (_, &'static [Text], _) = match self {
            Self::Validate | Self::Ping => (false, &[], 4),
            Self::Set | Self::Append => (false, &[Key, Value], 0),
            Self::CompareSet => (false, &[Key, Value, Value], 0),
            Self::Get | Self::DeleteKey => (false, &[Key], 0),
            Self::Add => (false, &[Key], 8),
            Self::Check | Self::Wait | Self::MultiGet => (true, &[Key], 0),
            Self::MultiSet => (true, &[Key, Value], 0),
            Self::NumKeys | Self::CancelWait => (false, &[], 0),
        };
        Shape { counted, group, number_bytes }
    }
}

/// Takes a peer's bytes as they arrive and gives its requests.
#[derive(Debug)]
pub struct Decoder {
    /// The most bytes that the strings of one request may have.
    limit: usize,
    opcode: Option<Opcode>,
    step: Step,
    /// Strings of this request that are still to begin.
    texts_left: usize,
    /// Strings of this request; the last one may be incomplete.
    texts: Vec<Vec<u8>>,
    /// Bytes of the integer being read.
    scratch: [u8; 8],
    scratch_len: usize,
    number: u64,
    /// Bytes of all strings of this request.
    total: usize,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum Step {
    Opcode,
    Count,
    Length,
    Body { left: usize },
    Number,
    Complete,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::with_limit(MAX_REQUEST_BYTES)
    }
}

impl Decoder {
    /// A decoder that takes no request whose strings have more than `limit` bytes together.
    pub fn with_limit(limit: usize) -> Self {
        Self {
            limit,
            opcode: None,
            step: Step::Opcode,
            texts_left: 0,
            texts: Vec::new(),
            scratch: [0; 8],
            scratch_len: 0,
            number: 0,
            total: 0,
        }
    }

    /// The operation of the request that has begun to arrive, if one has.
    pub fn begun(&self) -> Option<Opcode> {
        self.opcode
    }

    /// Takes bytes from the front of `input` until a request is complete (and returns it; call again
    /// for the rest) or none are left (`None`).
    ///
    /// # Errors
    /// The bytes break a rule. The decoder must not be used any more.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Request<'static>>, Violation> {
        loop {
            let Some(opcode) = self.opcode else {
                let Some((&byte, rest)) = input.split_first() else { return Ok(None) };
                *input = rest;
                self.begin(Opcode::from_byte(byte).ok_or(Violation::UnknownOpcode(byte))?);
                continue;
            };
            let shape = opcode.shape();
            match self.step {
                Step::Opcode | Step::Complete => {
                    self.opcode = None;
                    return Ok(Some(self.finish(opcode)));
                }
                Step::Count => {
                    let Some(count) = self.integer(input, 8) else { return Ok(None) };
                    let count = checked(count, MAX_KEYS, Violation::TooManyKeys)?;
                    self.texts_left = count * shape.group.len();
                    self.advance(&shape);
                }
                Step::Length => {
                    let Some(length) = self.integer(input, 8) else { return Ok(None) };
                    self.open_text(&shape, length)?;
                }
                Step::Body { left } => {
                    if !self.fill_text(input, left) {
                        return Ok(None);
                    }
                    self.advance(&shape);
                }
                Step::Number => {
                    let Some(number) = self.integer(input, shape.number_bytes) else {
                        return Ok(None);
                    };
                    self.number = number;
                    self.step = Step::Complete;
                }
            }
        }
    }

    fn begin(&mut self, opcode: Opcode) {
        let shape = opcode.shape();
        self.opcode = Some(opcode);
        if shape.counted {
            self.step = Step::Count;
        } else {
            self.texts_left = shape.group.len();
            self.advance(&shape);
        }
    }

    /// After a string, or before the first: what comes next.
    fn advance(&mut self, shape: &Shape) {
        self.step = if self.texts_left > 0 {
            Step::Length
        } else if shape.number_bytes > 0 {
            Step::Number
        } else {
            Step::Complete
        };
    }

    fn open_text(&mut self, shape: &Shape, length: u64) -> Result<(), Violation> {
        let length = match shape.group[self.texts.len() % shape.group.len()] {
            Text::Key => checked(length, MAX_KEY_BYTES, Violation::KeyTooLong)?,
            Text::Value => checked(length, MAX_VALUE_BYTES, Violation::ValueTooLong)?,
        };
        self.total += length;
        if self.total > self.limit {
            return Err(Violation::RequestTooLong);
        }
        self.texts_left -= 1;
        self.texts.push(Vec::new());
        self.step = Step::Body { left: length };
        Ok(())
    }

    /// Moves what has arrived into the last string. True once that is complete.
    fn fill_text(&mut self, input: &mut &[u8], left: usize) -> bool {
        let (taken, rest) = input.split_at(left.min(input.len()));
        if let Some(text) = self.texts.last_mut() {
            text.extend_from_slice(taken);
        }
        *input = rest;
        self.step = Step::Body { left: left - taken.len() };
        left == taken.len()
    }

    /// An integer of `width` bytes, once all of them are there.
    fn integer(&mut self, input: &mut &[u8], width: usize) -> Option<u64> {
        let (taken, rest) = input.split_at((width - self.scratch_len).min(input.len()));
        self.scratch[self.scratch_len..self.scratch_len + taken.len()].copy_from_slice(taken);
        self.scratch_len += taken.len();
        *input = rest;
        if self.scratch_len < width {
            return None;
        }
        self.scratch_len = 0;
        Some(u64::from_le_bytes(std::mem::take(&mut self.scratch)))
    }

    fn finish(&mut self, opcode: Opcode) -> Request<'static> {
        let number = std::mem::take(&mut self.number);
        // A field of four bytes was read with zeros above them.
        let short = u32::try_from(number).unwrap_or_default();
        self.total = 0;
        let mut texts = std::mem::take(&mut self.texts).into_iter().map(Cow::Owned);
        let mut text = || texts.next().unwrap_or_default();
        match opcode {
            Opcode::Validate => Request::Validate(short),
            Opcode::Ping => Request::Ping(short),
            Opcode::Set => Request::Set(text(), text()),
            Opcode::Append => Request::Append(text(), text()),
            Opcode::CompareSet => Request::CompareSet(text(), text(), text()),
            Opcode::Get => Request::Get(text()),
            Opcode::DeleteKey => Request::DeleteKey(text()),
            Opcode::Add => Request::Add(text(), number.cast_signed()),
            Opcode::Check => Request::Check(texts.collect()),
            Opcode::Wait => Request::Wait(texts.collect()),
            Opcode::MultiGet => Request::MultiGet(texts.collect()),
            Opcode::MultiSet => Request::MultiSet(pairs(texts)),
            Opcode::NumKeys => Request::NumKeys,
            Opcode::CancelWait => Request::CancelWait,
        }
    }
}

fn pairs<T>(mut items: impl Iterator<Item = T>) -> Vec<(T, T)> {
    std::iter::from_fn(|| Some((items.next()?, items.next()?))).collect()
}

fn checked(length: u64, limit: usize, violation: fn(u64) -> Violation) -> Result<usize, Violation> {
    usize::try_from(length).ok().filter(|&n| n <= limit).ok_or_else(|| violation(length))
}
