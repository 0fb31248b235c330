//! Requests from bytes that arrive in pieces of any size: refuses a length as soon as it has read
//! it, and never takes memory for bytes that have not arrived. Pure.

use super::proto::{
    MAX_KEY_BYTES, MAX_KEYS, MAX_REQUEST_BYTES, MAX_VALUE_BYTES, Opcode, Request, Violation,
};
use std::borrow::Cow;

/// How many strings' places are kept for the next request.
const KEPT_TEXTS: usize = 4;

/// What follows an operation's first byte: perhaps a count; then, that many times or once, a group
/// of strings; then perhaps a number.
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
            Self::Set | Self::Append | Self::QueuePush => (false, &[Key, Value], 0),
            Self::CompareSet => (false, &[Key, Value, Value], 0),
            Self::Get | Self::DeleteKey | Self::QueuePop | Self::QueueLen => (false, &[Key], 0),
            Self::Add | Self::Barrier => (false, &[Key], 8),
            Self::Check | Self::Wait | Self::MultiGet => (true, &[Key], 0),
            Self::MultiSet => (true, &[Key, Value], 0),
            Self::NumKeys | Self::CancelWait | Self::ListKeys => (false, &[], 0),
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

    /// How much memory the strings of an unfinished request take, roughly. What is announced and
    /// has not arrived takes none.
    pub fn held(&self) -> usize {
        let coming = if let Step::Body { left } = self.step { left } else { 0 };
        self.total - coming + self.texts.len() * size_of::<Vec<u8>>()
    }

    /// The operation of the request that has begun to arrive, if one has.
    pub fn begun(&self) -> Option<Opcode> {
        self.opcode
    }

    /// Takes bytes from the front of `input` until a request is complete (and returns it; call
    /// again for the rest) or none are left (`None`).
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
        self.texts.shrink_to(KEPT_TEXTS);
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
        // What it has room for stays, so that most requests take no memory for their list.
        let mut texts = self.texts.drain(..).map(Cow::Owned);
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
            Opcode::QueuePush => Request::QueuePush(text(), text()),
            Opcode::QueuePop => Request::QueuePop(text()),
            Opcode::QueueLen => Request::QueueLen(text()),
            Opcode::ListKeys => Request::ListKeys,
            Opcode::Barrier => Request::Barrier(text(), number.cast_signed()),
        }
    }
}

fn pairs<T>(mut items: impl Iterator<Item = T>) -> Vec<(T, T)> {
    std::iter::from_fn(|| Some((items.next()?, items.next()?))).collect()
}

fn checked(length: u64, limit: usize, violation: fn(u64) -> Violation) -> Result<usize, Violation> {
    usize::try_from(length).ok().filter(|&n| n <= limit).ok_or_else(|| violation(length))
}
