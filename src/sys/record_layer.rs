//! The record layer of an encrypted stream: divides the bytes of one direction into records, seals
//! them, and opens them. It does no input or output; [`EncryptedStream`](super::encrypted_stream)
//! moves the bytes. The cipher comes from the caller, because this layer has no cryptography.
//!
//! ```text
//! record: length u24 | kind u8 (little endian) | text | tag 16
//! ```
//!
//! | kind | text |
//! |---|---|
//! | 0 | 1 to [`MAX_TEXT_BYTES`] bytes of the stream |
//! | 1 | empty: the orderly end of the stream; no record follows |
//!
//! The header is not encrypted, but the tag covers it. Each record has a number, from which the
//! cipher derives the nonce. The number is not sent: both sides count. A record that is changed,
//! repeated, moved or missing therefore has a wrong tag. An opener that has found a wrong record
//! opens no further record.
//!
//! The handshake uses number 0 of each direction, so the first record has number 1. Both sides
//! replace the key after [`REKEY_INTERVAL`] records. The numbers never repeat.

use crate::base::buffer::{Dst, Src};
use std::fmt::Debug;
use std::io;

/// The length of the header, in bytes.
const HEADER_BYTES: usize = 4;
/// The length of the tag, in bytes.
pub const TAG_BYTES: usize = 16;
/// The bytes of a record in addition to its text.
pub const OVERHEAD_BYTES: usize = HEADER_BYTES + TAG_BYTES;
/// The maximum number of text bytes in a record. Longer records leave the first-level cache, and
/// are slower (`docs/internals/measured-approaches.md`).
pub const MAX_TEXT_BYTES: usize = 16 << 10;
/// The number of bytes of one write or read of long records: four of them.
pub const BATCH_BYTES: usize = 4 * (MAX_TEXT_BYTES + OVERHEAD_BYTES);
/// The number of bytes that an opener requests while it does not know the length of the next
/// record. Buffers up to this size are kept while the stream is idle.
const SMALL_BUFFER_BYTES: usize = 2 << 10;

/// The number of the first record.
const FIRST_NUMBER: u64 = 1;
/// The number of records after which both sides replace the key. With records of the maximum length
/// and AES-GCM, an attacker gains at most 2^-57 from the records of one key, as in TLS 1.3.
pub const REKEY_INTERVAL: u64 = 1 << 24;

/// The tag of a record.
pub type RecordTag = [u8; TAG_BYTES];

/// A cipher with the key of one direction of a connection.
pub trait RecordCipher: Send + Debug {
    /// Encrypts the text of the record with this number, and returns the tag over header and text.
    fn seal(&self, number: u64, header: &[u8], text: &mut [u8]) -> RecordTag;

    /// Decrypts the text of the record with this number.
    ///
    /// # Errors
    /// [`WrongTag`]; the text is undefined then.
    fn open(
        &self,
        number: u64,
        header: &[u8],
        text: &mut [u8],
        tag: &RecordTag,
    ) -> Result<(), WrongTag>;

    /// Replaces the key by one that is derived from it.
    fn rekey(&mut self);
}

/// The ciphers of one side of a connection.
#[derive(Debug)]
pub struct RecordCiphers {
    /// Seals the records that this side sends.
    pub sealing: Box<dyn RecordCipher>,
    /// Opens the records that this side receives.
    pub opening: Box<dyn RecordCipher>,
}

/// The tag of a record does not fit its number, header and text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongTag;

/// The reason why an encrypted stream cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A record is not the one that the peer sent at this place.
    #[error(
        "the encrypted connection carried bytes that the peer did not send: a third party changed, \
         repeated or removed data"
    )]
    Forged,
    /// The connection ended without the record of an orderly end.
    #[error("the encrypted connection was cut: it ended without an orderly end")]
    Cut,
    /// All numbers are used.
    #[error("the encrypted connection has used all numbers of its records")]
    Exhausted,
    /// The caller did not repeat the bytes of a partial send, or it sends after the end.
    #[error("the caller sends other bytes than it began to send")]
    Misuse,
}

impl From<RecordError> for io::Error {
    fn from(error: RecordError) -> Self {
        let kind = match error {
            RecordError::Forged => io::ErrorKind::InvalidData,
            RecordError::Cut => io::ErrorKind::ConnectionAborted,
            RecordError::Exhausted => io::ErrorKind::Other,
            RecordError::Misuse => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}

/// The cipher of one direction, and the number of its next record.
#[derive(Debug)]
struct NumberedCipher {
    cipher: Box<dyn RecordCipher>,
    next_number: u64,
    rekey_interval: u64,
}

impl NumberedCipher {
    fn new(cipher: Box<dyn RecordCipher>) -> Self {
        Self { cipher, next_number: FIRST_NUMBER, rekey_interval: REKEY_INTERVAL }
    }

    /// Returns the number of the next record, after replacing the key if it is due.
    fn take_number(&mut self) -> Result<u64, RecordError> {
        let number = self.next_number;
        // The last number is the one that derives a key.
        self.next_number = number.checked_add(1).ok_or(RecordError::Exhausted)?;
        if number.is_multiple_of(self.rekey_interval) {
            self.cipher.rekey();
        }
        Ok(number)
    }
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordKind {
    Text = 0,
    End = 1,
}

/// Encodes the header of a record. The length is at most [`MAX_TEXT_BYTES`].
fn encode_header(kind: RecordKind, len: usize) -> [u8; HEADER_BYTES] {
    let [first, second, third, ..] = len.to_le_bytes();
    [first, second, third, kind as u8]
}

/// Decodes the header of a record. Returns `None` if no record has this header.
fn decode_header(header: [u8; HEADER_BYTES]) -> Option<(RecordKind, usize)> {
    let [first, second, third, kind] = header;
    let len = usize::from(first) | usize::from(second) << 8 | usize::from(third) << 16;
    match kind {
        0 if (1..=MAX_TEXT_BYTES).contains(&len) => Some((RecordKind::Text, len)),
        1 if len == 0 => Some((RecordKind::End, 0)),
        _ => None,
    }
}

/// Seals the records of one direction, and keeps the sealed bytes until they are sent.
#[derive(Debug)]
pub struct RecordSealer {
    cipher: NumberedCipher,
    /// The bytes `buffer[start..end]` are sealed and not sent.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    has_ended: bool,
}

impl RecordSealer {
    /// Creates the sealer of a new connection.
    pub fn new(cipher: Box<dyn RecordCipher>) -> Self {
        let cipher = NumberedCipher::new(cipher);
        Self { cipher, buffer: Vec::new(), start: 0, end: 0, has_ended: false }
    }

    /// Returns the sealed bytes that are not sent.
    pub fn unsent(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Removes bytes from the start of [`RecordSealer::unsent`].
    pub fn mark_sent(&mut self, count: usize) {
        self.start = self.end.min(self.start + count);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Releases a large buffer if all bytes are sent.
    pub fn release_buffer(&mut self) {
        if self.start == self.end && self.buffer.len() > SMALL_BUFFER_BYTES {
            self.buffer = Vec::new();
        }
    }

    /// Returns true after [`RecordSealer::seal_end`].
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Seals a record with the next `len` bytes of a text, which `fill` writes. `len` is at least 1
    /// and at most [`MAX_TEXT_BYTES`].
    ///
    /// # Errors
    /// `Exhausted`; `Misuse` after the end, or if `len` is out of range.
    pub fn seal_text(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), RecordError> {
        if self.has_ended || !(1..=MAX_TEXT_BYTES).contains(&len) {
            return Err(RecordError::Misuse);
        }
        self.seal(RecordKind::Text, len, fill)
    }

    /// Seals the end of the stream, once.
    ///
    /// # Errors
    /// `Exhausted`.
    pub fn seal_end(&mut self) -> Result<(), RecordError> {
        if self.has_ended {
            return Ok(());
        }
        self.has_ended = true;
        self.seal(RecordKind::End, 0, |_| {})
    }

    fn seal(
        &mut self,
        kind: RecordKind,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), RecordError> {
        let number = self.cipher.take_number()?;
        let end = self.end + OVERHEAD_BYTES + len;
        if self.buffer.len() < end {
            self.buffer.resize(end.max(SMALL_BUFFER_BYTES), 0);
        }
        let record = &mut self.buffer[self.end..end];
        let (header, rest) = record.split_at_mut(HEADER_BYTES);
        let (text, tag) = rest.split_at_mut(len);
        header.copy_from_slice(&encode_header(kind, len));
        fill(text);
        tag.copy_from_slice(&self.cipher.cipher.seal(number, header, text));
        self.end = end;
        Ok(())
    }
}

/// The state of an opener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenerState {
    /// Further records may follow.
    Open,
    /// The peer has ended the stream in order.
    Ended,
    /// The stream cannot continue.
    Failed(RecordError),
}

/// Collects the received bytes of one direction, and opens their records.
#[derive(Debug)]
pub struct RecordOpener {
    cipher: NumberedCipher,
    /// The bytes `buffer[text_start..text_end]` are text that the caller has not taken. The bytes
    /// `buffer[sealed..filled]` are not opened.
    buffer: Vec<u8>,
    text_start: usize,
    text_end: usize,
    sealed: usize,
    filled: usize,
    state: OpenerState,
}

impl RecordOpener {
    /// Creates the opener of a new connection.
    pub fn new(cipher: Box<dyn RecordCipher>) -> Self {
        Self {
            cipher: NumberedCipher::new(cipher),
            buffer: Vec::new(),
            text_start: 0,
            text_end: 0,
            sealed: 0,
            filled: 0,
            state: OpenerState::Open,
        }
    }

    /// Returns the state after the records that were opened.
    pub fn state(&self) -> OpenerState {
        self.state
    }

    /// Moves opened text to `into`, as far as there is any. Returns the number of bytes.
    pub fn take_text(&mut self, into: Dst<'_>) -> usize {
        let count = into.len().min(self.text_end - self.text_start);
        let text = &self.buffer[self.text_start..self.text_start + count];
        into.slice(0, count).copy_from(Src::from(text));
        self.text_start += count;
        count
    }

    /// Returns true if a call of the caller can return without further bytes: text is available, a
    /// whole record has arrived, or no further record can follow.
    pub fn is_ready(&self) -> bool {
        self.text_start < self.text_end || self.state != OpenerState::Open || self.has_record()
    }

    /// Returns true if no received byte waits here.
    pub fn is_empty(&self) -> bool {
        self.text_start == self.text_end && self.sealed == self.filled
    }

    /// Returns the header of the next record, if it has arrived.
    fn next_header(&self) -> Option<[u8; HEADER_BYTES]> {
        self.buffer[self.sealed..self.filled].first_chunk().copied()
    }

    /// Returns true if the next record has arrived, or a header that no record has.
    fn has_record(&self) -> bool {
        self.next_header().is_some_and(|header| match decode_header(header) {
            Some((_, len)) => self.filled - self.sealed >= OVERHEAD_BYTES + len,
            None => true,
        })
    }

    /// Opens the next record if it has arrived. Returns true if text is available after that. The
    /// caller has taken all earlier text.
    pub fn open_next(&mut self) -> bool {
        if self.text_start == self.text_end && self.state == OpenerState::Open && self.has_record()
        {
            self.open_record().unwrap_or_else(|error| {
                self.state = OpenerState::Failed(error);
                (self.text_start, self.text_end) = (0, 0);
            });
        }
        self.text_start < self.text_end
    }

    fn open_record(&mut self) -> Result<(), RecordError> {
        let received = &mut self.buffer[self.sealed..self.filled];
        let (header, rest) = received.split_first_chunk_mut().ok_or(RecordError::Forged)?;
        let (kind, len) = decode_header(*header).ok_or(RecordError::Forged)?;
        let (text, rest) = rest.split_at_mut_checked(len).ok_or(RecordError::Forged)?;
        let tag = rest.first_chunk().ok_or(RecordError::Forged)?;
        let number = self.cipher.take_number()?;
        self.cipher
            .cipher
            .open(number, header, text, tag)
            .map_err(|WrongTag| RecordError::Forged)?;
        self.text_start = self.sealed + HEADER_BYTES;
        self.text_end = self.text_start + len;
        self.sealed = self.text_end + TAG_BYTES;
        if kind == RecordKind::End {
            // Bytes after the end are not from the peer.
            self.state = match self.sealed == self.filled {
                true => OpenerState::Ended,
                false => OpenerState::Failed(RecordError::Forged),
            };
        }
        Ok(())
    }

    /// Returns the space for the next bytes of the connection: a small one until the header of a
    /// long record has arrived. The caller has taken all text, and no whole record waits.
    pub fn space(&mut self) -> &mut [u8] {
        let partial = self.sealed..self.filled;
        let have = partial.len();
        self.buffer.copy_within(partial, 0);
        (self.text_start, self.text_end, self.sealed, self.filled) = (0, 0, 0, have);
        let record = self.next_header().and_then(decode_header).map_or(0, |(_, len)| len);
        let is_small = record + OVERHEAD_BYTES <= SMALL_BUFFER_BYTES;
        let wanted = if is_small { SMALL_BUFFER_BYTES } else { BATCH_BYTES };
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
        &mut self.buffer[have..wanted]
    }

    /// Adds bytes that the caller has read into [`RecordOpener::space`].
    pub fn add(&mut self, count: usize) {
        self.filled = self.buffer.len().min(self.filled + count);
        if self.state == OpenerState::Ended && count > 0 {
            self.state = OpenerState::Failed(RecordError::Forged);
        }
    }

    /// Adds bytes that the caller has read into a buffer of its own.
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        let len = self.filled + bytes.len();
        if self.buffer.len() < len {
            self.buffer.resize(len, 0);
        }
        self.buffer[self.filled..len].copy_from_slice(bytes);
        self.add(bytes.len());
    }

    /// Records that the connection has ended.
    pub fn end_input(&mut self) {
        if self.state == OpenerState::Open {
            self.state = OpenerState::Failed(RecordError::Cut);
        }
    }

    /// Releases a large buffer if no received byte waits in it.
    pub fn release_buffer(&mut self) {
        if self.is_empty() && self.buffer.len() > SMALL_BUFFER_BYTES {
            self.buffer = Vec::new();
            (self.text_start, self.text_end, self.sealed, self.filled) = (0, 0, 0, 0);
        }
    }
}

#[cfg(test)]
#[path = "record_layer_tests.rs"]
pub(super) mod tests;
