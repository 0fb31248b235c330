//! Decodes requests from bytes that arrive in pieces of any size. The decoder rejects an excessive
//! length as soon as the length has arrived. It never allocates memory for bytes that have not
//! arrived. It does no I/O.

use super::proto::{
    MAX_KEY_BYTES, MAX_KEYS, MAX_REQUEST_BYTES, MAX_VALUE_BYTES, Opcode, ProtocolViolation,
    StoreRequest,
};
use std::borrow::Cow;

/// When a request begins, the list of its strings keeps capacity for this number of strings from
/// earlier requests. A larger capacity is freed.
const KEPT_STRING_CAPACITY: usize = 4;

/// The fields that follow an opcode, in this order: an optional count, a group of strings, and an
/// optional number. If there is a count, the group occurs `count` times. For example, the layout of
/// `MULTI_SET` is a count and groups of one key and one value.
struct RequestLayout {
    has_count: bool,
    strings: &'static [StringKind],
    number_bytes: usize,
}

#[derive(Clone, Copy)]
enum StringKind {
    Key,
    Value,
}

impl Opcode {
    fn layout(self) -> RequestLayout {
        use StringKind::{Key, Value};
        let (has_count, group, number_bytes): (_, &'static [StringKind], _) = match self {
            Self::Validate | Self::Ping => (false, &[], 4),
            Self::Set | Self::Append | Self::QueuePush => (false, &[Key, Value], 0),
            Self::CompareSet => (false, &[Key, Value, Value], 0),
            Self::Get | Self::DeleteKey | Self::QueuePop | Self::QueueLen => (false, &[Key], 0),
            Self::Add | Self::Barrier => (false, &[Key], 8),
            Self::Check | Self::Wait | Self::MultiGet => (true, &[Key], 0),
            Self::MultiSet => (true, &[Key, Value], 0),
            Self::NumKeys | Self::CancelWait | Self::ListKeys => (false, &[], 0),
        };
        RequestLayout { has_count, strings: group, number_bytes }
    }
}

/// Decodes the bytes of one peer into requests as they arrive.
#[derive(Debug)]
pub(super) struct RequestDecoder {
    /// The largest total size of the strings in one request.
    limit: usize,
    opcode: Option<Opcode>,
    state: RequestDecoderState,
    /// The number of strings of this request whose length has not arrived yet.
    strings_left: usize,
    /// The strings of this request. The last one may be incomplete.
    strings: Vec<Vec<u8>>,
    /// The first `scratch_len` bytes are the part of the current integer that has arrived.
    scratch: [u8; 8],
    scratch_len: usize,
    number: u64,
    /// The sum of the lengths of the strings of this request, as announced by the client.
    total_bytes: usize,
}

/// The field to which the next byte belongs.
#[derive(Clone, Copy, Debug)]
enum RequestDecoderState {
    Opcode,
    Count,
    Length,
    Body { left: usize },
    Number,
    Complete,
}

impl Default for RequestDecoder {
    fn default() -> Self {
        Self::with_limit(MAX_REQUEST_BYTES)
    }
}

impl RequestDecoder {
    /// Creates a decoder that rejects requests whose strings exceed `limit` bytes in total.
    pub(super) fn with_limit(limit: usize) -> Self {
        Self {
            limit,
            opcode: None,
            state: RequestDecoderState::Opcode,
            strings_left: 0,
            strings: Vec::new(),
            scratch: [0; 8],
            scratch_len: 0,
            number: 0,
            total_bytes: 0,
        }
    }

    /// Returns the approximate memory that the strings of the unfinished request take. Bytes that
    /// have not arrived take no memory.
    pub(super) fn buffered_bytes(&self) -> usize {
        let announced = if let RequestDecoderState::Body { left } = self.state { left } else { 0 };
        self.total_bytes - announced + self.strings.len() * size_of::<Vec<u8>>()
    }

    /// Returns the opcode of the request that has begun to arrive, if any.
    pub(super) fn pending_opcode(&self) -> Option<Opcode> {
        self.opcode
    }

    /// Consumes bytes from the front of `input` until a request is complete, and returns the
    /// request. The caller calls again for the remaining bytes. If `input` ends before the request
    /// is complete, keeps the consumed bytes and returns `None`.
    ///
    /// # Errors
    /// The rule of the protocol that the bytes violate. The decoder must not be used after an
    /// error.
    pub(super) fn next(
        &mut self,
        input: &mut &[u8],
    ) -> Result<Option<StoreRequest<'static>>, ProtocolViolation> {
        loop {
            let Some(opcode) = self.opcode else {
                let Some((&byte, rest)) = input.split_first() else { return Ok(None) };
                *input = rest;
                self.begin(Opcode::from_byte(byte).ok_or(ProtocolViolation::UnknownOpcode(byte))?);
                continue;
            };
            let layout = opcode.layout();
            match self.state {
                RequestDecoderState::Opcode | RequestDecoderState::Complete => {
                    self.opcode = None;
                    return Ok(Some(self.finish(opcode)));
                }
                RequestDecoderState::Count => {
                    let Some(count) = self.read_integer(input, 8) else { return Ok(None) };
                    let count = check_limit(count, MAX_KEYS, ProtocolViolation::TooManyKeys)?;
                    self.strings_left = count * layout.strings.len();
                    self.advance_state(&layout);
                }
                RequestDecoderState::Length => {
                    let Some(length) = self.read_integer(input, 8) else { return Ok(None) };
                    self.begin_string(&layout, length)?;
                }
                RequestDecoderState::Body { left } => {
                    if !self.fill_string(input, left) {
                        return Ok(None);
                    }
                    self.advance_state(&layout);
                }
                RequestDecoderState::Number => {
                    let Some(number) = self.read_integer(input, layout.number_bytes) else {
                        return Ok(None);
                    };
                    self.number = number;
                    self.state = RequestDecoderState::Complete;
                }
            }
        }
    }

    fn begin(&mut self, opcode: Opcode) {
        self.strings.shrink_to(KEPT_STRING_CAPACITY);
        let layout = opcode.layout();
        self.opcode = Some(opcode);
        if layout.has_count {
            self.state = RequestDecoderState::Count;
        } else {
            self.strings_left = layout.strings.len();
            self.advance_state(&layout);
        }
    }

    /// Selects the next field: a string if strings are left, otherwise the number or the end of the
    /// request.
    fn advance_state(&mut self, layout: &RequestLayout) {
        self.state = if self.strings_left > 0 {
            RequestDecoderState::Length
        } else if layout.number_bytes > 0 {
            RequestDecoderState::Number
        } else {
            RequestDecoderState::Complete
        };
    }

    fn begin_string(
        &mut self,
        layout: &RequestLayout,
        length: u64,
    ) -> Result<(), ProtocolViolation> {
        let length = match layout.strings[self.strings.len() % layout.strings.len()] {
            StringKind::Key => check_limit(length, MAX_KEY_BYTES, ProtocolViolation::KeyTooLong)?,
            StringKind::Value => {
                check_limit(length, MAX_VALUE_BYTES, ProtocolViolation::ValueTooLong)?
            }
        };
        self.total_bytes += length;
        if self.total_bytes > self.limit {
            return Err(ProtocolViolation::RequestTooLong);
        }
        self.strings_left -= 1;
        self.strings.push(Vec::new());
        self.state = RequestDecoderState::Body { left: length };
        Ok(())
    }

    /// Moves received bytes into the last string. Returns true once the string is complete.
    fn fill_string(&mut self, input: &mut &[u8], left: usize) -> bool {
        let (taken, rest) = input.split_at(left.min(input.len()));
        if let Some(string) = self.strings.last_mut() {
            string.extend_from_slice(taken);
        }
        *input = rest;
        self.state = RequestDecoderState::Body { left: left - taken.len() };
        left == taken.len()
    }

    /// Returns an integer of `width` bytes once all its bytes have arrived, and `None` before.
    fn read_integer(&mut self, input: &mut &[u8], width: usize) -> Option<u64> {
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

    fn finish(&mut self, opcode: Opcode) -> StoreRequest<'static> {
        let number = std::mem::take(&mut self.number);
        // The number of VALIDATE and PING has four bytes. `read_integer` set the upper four bytes
        // to 0.
        let number_u32 = u32::try_from(number).unwrap_or_default();
        self.total_bytes = 0;
        // The drain leaves the capacity of the list, so that most requests need no allocation for
        // the list.
        let mut strings = self.strings.drain(..).map(Cow::Owned);
        let mut next_string = || strings.next().unwrap_or_default();
        match opcode {
            Opcode::Validate => StoreRequest::Validate(number_u32),
            Opcode::Ping => StoreRequest::Ping(number_u32),
            Opcode::Set => StoreRequest::Set(next_string(), next_string()),
            Opcode::Append => StoreRequest::Append(next_string(), next_string()),
            Opcode::CompareSet => {
                StoreRequest::CompareSet(next_string(), next_string(), next_string())
            }
            Opcode::Get => StoreRequest::Get(next_string()),
            Opcode::DeleteKey => StoreRequest::DeleteKey(next_string()),
            Opcode::Add => StoreRequest::Add(next_string(), number.cast_signed()),
            Opcode::Check => StoreRequest::Check(strings.collect()),
            Opcode::Wait => StoreRequest::Wait(strings.collect()),
            Opcode::MultiGet => StoreRequest::MultiGet(strings.collect()),
            Opcode::MultiSet => StoreRequest::MultiSet(collect_pairs(strings)),
            Opcode::NumKeys => StoreRequest::NumKeys,
            Opcode::CancelWait => StoreRequest::CancelWait,
            Opcode::QueuePush => StoreRequest::QueuePush(next_string(), next_string()),
            Opcode::QueuePop => StoreRequest::QueuePop(next_string()),
            Opcode::QueueLen => StoreRequest::QueueLen(next_string()),
            Opcode::ListKeys => StoreRequest::ListKeys,
            Opcode::Barrier => StoreRequest::Barrier(next_string(), number.cast_signed()),
        }
    }
}

fn collect_pairs<T>(mut items: impl Iterator<Item = T>) -> Vec<(T, T)> {
    std::iter::from_fn(|| Some((items.next()?, items.next()?))).collect()
}

fn check_limit(
    length: u64,
    limit: usize,
    violation: fn(u64) -> ProtocolViolation,
) -> Result<usize, ProtocolViolation> {
    usize::try_from(length).ok().filter(|&n| n <= limit).ok_or_else(|| violation(length))
}
