//! The format of a file store's file. The functions are pure: they convert records to bytes and
//! back.
//!
//! The file consists of a header and any number of records. Writers only append complete records,
//! with one exception: a writer that dies during a write leaves an incomplete last record, the
//! *torn tail*. The next writer cuts the torn tail off. All numbers are little endian. A text or a
//! byte string is stored as its length (u32) followed by its bytes.
//!
//! | header: offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | [`MAGIC`] |
//! | 8 | 4 | [`VERSION`] of everything after it |
//! | 12 | 4 | the length of the header's body |
//! | 16 | 4 | the same length with all bits inverted |
//! | 20 | 8 | the checksum of the body |
//! | 28 | | the body: seconds since 1970 (u64), world size (u32, 0: unknown), job id, creator |
//!
//! | record: offset | bytes | content |
//! |---|---|---|
//! | 0 | 4 | the length of the body |
//! | 4 | 4 | the same length with all bits inverted |
//! | 8 | 8 | the checksum of the body |
//! | 16 | | the body: its kind (u8) and the fields of the table below |
//!
//! | kind | event | fields after the kind |
//! |---|---|---|
//! | 1 | a value was stored | key, value |
//! | 2 | several values were stored | their number (u32), then key and value of each |
//! | 3 | bytes were appended to a value | key, bytes |
//! | 4 | a key was removed | key |
//! | 5 | an item was pushed to a queue | queue, item |
//! | 6 | the first item of a queue was taken | queue |
//! | 7 | a member joined; the first one has number 0 | a process |
//! | 8 | a member left | its number (u32) |
//!
//! The fields of a process are, in this order:
//!
//! * its id (u32);
//! * its start time (u64, in clock ticks since its host booted; 0: unknown);
//! * the PID namespace of its id (text; empty: unknown);
//! * the name of its host (text).
//!
//! A checksum is the first eight bytes of the BLAKE3 hash of the body. Each length is stored twice,
//! so that a torn tail can be distinguished from damage. The last bytes of a file are a torn tail
//! in two cases only. Either they are too short for a frame (two lengths and a checksum), or the
//! two lengths agree and demand more bytes than exist. Every other deviation is damage, and damage
//! is never repaired.

use crate::store::limits::{MAX_KEY_BYTES, MAX_KEYS, MAX_REQUEST_BYTES, MAX_VALUE_BYTES};

/// The first bytes of every file store. The first byte, 0x89, is not ASCII and cannot begin a UTF-8
/// text, so that no text file is taken for a file store.
pub const MAGIC: [u8; 8] = *b"\x89libdist";
/// The version of the file format.
pub const VERSION: u32 = 1;
/// The largest number of bytes in a job id.
pub const MAX_JOB_ID_BYTES: usize = 4096;
/// The largest number of bytes in any other text.
const MAX_TEXT_BYTES: usize = 512;

/// The size of the frame, which precedes each body: length, inverted length and checksum.
const FRAME_BYTES: usize = 16;
/// The number of bytes before the header's body.
const HEADER_PREFIX_BYTES: usize = MAGIC.len() + 4 + FRAME_BYTES;
/// The largest number of bytes in the body of a header: two numbers, the job id and a process.
const MAX_HEADER_BODY_BYTES: usize = 12 + 4 + MAX_JOB_ID_BYTES + 12 + 2 * (4 + MAX_TEXT_BYTES);
/// The largest number of bytes in the body of a record: the kind, the number of pairs, and as many
/// keys and values as one call may have.
const MAX_RECORD_BODY_BYTES: usize = 1 + 4 + MAX_REQUEST_BYTES + 8 * MAX_KEYS;

/// A process that uses a file store, or that created it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// The process id.
    pub pid: u32,
    /// The start time in clock ticks since the host booted; `None` if unknown. It distinguishes the
    /// process from a later one with the same id.
    pub start_ticks: Option<u64>,
    /// The PID namespace of the process id; empty if unknown.
    pub pid_namespace: String,
    /// The name of the host.
    pub host: String,
}

/// The header of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// The creation time of the file, in seconds since 1970.
    pub created_at: u64,
    /// The expected number of members; `None` if unknown.
    pub world_size: Option<u32>,
    /// The job of the file; may be empty.
    pub job_id: String,
    /// The process that created the file.
    pub created_by: ProcessIdentity,
}

/// One change of the file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table at the top of the file documents each variant")]
pub enum LogRecord<'a> {
    Set { key: &'a [u8], value: &'a [u8] },
    MultiSet(Vec<(&'a [u8], &'a [u8])>),
    Append { key: &'a [u8], bytes: &'a [u8] },
    Delete { key: &'a [u8] },
    Push { queue: &'a [u8], item: &'a [u8] },
    Pop { queue: &'a [u8] },
    Join(ProcessIdentity),
    Leave { member: u32 },
}

/// The reason why some bytes are not a valid file store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileFormatError {
    /// The file does not begin with [`MAGIC`].
    #[error("the file does not begin with the magic bytes of a libdist store file")]
    BadMagic,
    /// Another version of the library wrote the file.
    #[error("the file has format version {0}, but this libdist supports version {VERSION}")]
    UnsupportedVersion(u32),
    /// A length differs from its copy, or exceeds the maximum.
    #[error("a length is invalid")]
    InvalidLength,
    /// A checksum does not match its bytes.
    #[error("a checksum does not match")]
    ChecksumMismatch,
    /// The checksum matches, but the content is not a valid header or record.
    #[error("a header or record is invalid")]
    InvalidContent,
}

/// The result of decoding one item (a header, a record or a frame) at the beginning of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodedItem<T> {
    /// The item is complete; the number is its length in bytes.
    Complete(T, usize),
    /// The item is incomplete and needs at least this many bytes.
    Partial(usize),
}

impl FileHeader {
    /// Appends the header's bytes to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        body.extend_from_slice(&self.created_at.to_le_bytes());
        put_u32(&mut body, self.world_size.unwrap_or(0));
        put_bytes(&mut body, truncate_text(&self.job_id, MAX_JOB_ID_BYTES).as_bytes());
        self.created_by.encode(&mut body);
        out.extend_from_slice(&MAGIC);
        put_u32(out, VERSION);
        out.extend_from_slice(&frame_header(&body));
        out.extend_from_slice(&body);
    }

    /// Decodes the header at the beginning of a file.
    ///
    /// # Errors
    /// A [`FileFormatError`].
    pub fn decode(bytes: &[u8]) -> Result<DecodedItem<Self>, FileFormatError> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(FileFormatError::BadMagic);
        }
        let mut fields = RecordFieldReader(&bytes[known..]);
        let Ok(version) = fields.u32() else {
            return Ok(DecodedItem::Partial(HEADER_PREFIX_BYTES));
        };
        if version != VERSION {
            return Err(FileFormatError::UnsupportedVersion(version));
        }
        let before = HEADER_PREFIX_BYTES - FRAME_BYTES;
        let body = match split_frame(fields.0, MAX_HEADER_BODY_BYTES)? {
            DecodedItem::Complete(body, _) => body,
            DecodedItem::Partial(needed) => return Ok(DecodedItem::Partial(before + needed)),
        };
        let mut fields = RecordFieldReader(body);
        let header = Self {
            created_at: fields.u64()?,
            world_size: Some(fields.u32()?).filter(|&size| size > 0),
            job_id: fields.text(MAX_JOB_ID_BYTES)?,
            created_by: ProcessIdentity::decode(&mut fields)?,
        };
        fields.expect_end()?;
        Ok(DecodedItem::Complete(header, HEADER_PREFIX_BYTES + body.len()))
    }
}

impl ProcessIdentity {
    fn encode(&self, out: &mut Vec<u8>) {
        put_u32(out, self.pid);
        out.extend_from_slice(&self.start_ticks.unwrap_or(0).to_le_bytes());
        put_bytes(out, truncate_text(&self.pid_namespace, MAX_TEXT_BYTES).as_bytes());
        put_bytes(out, truncate_text(&self.host, MAX_TEXT_BYTES).as_bytes());
    }

    fn decode(fields: &mut RecordFieldReader<'_>) -> Result<Self, FileFormatError> {
        Ok(Self {
            pid: fields.u32()?,
            start_ticks: Some(fields.u64()?).filter(|&ticks| ticks > 0),
            pid_namespace: fields.text(MAX_TEXT_BYTES)?,
            host: fields.text(MAX_TEXT_BYTES)?,
        })
    }
}

impl<'a> LogRecord<'a> {
    /// Appends the record's bytes to `out`. The caller has checked the keys and values against
    /// `store::limits`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let frame_start = out.len();
        out.extend_from_slice(&[0; FRAME_BYTES]);
        let body_start = out.len();
        out.push(self.kind());
        match self {
            Self::Set { key: name, value: bytes }
            | Self::Append { key: name, bytes }
            | Self::Push { queue: name, item: bytes } => {
                put_bytes(out, name);
                put_bytes(out, bytes);
            }
            Self::MultiSet(pairs) => {
                put_length(out, pairs.len());
                for (key, value) in pairs {
                    put_bytes(out, key);
                    put_bytes(out, value);
                }
            }
            Self::Delete { key: name } | Self::Pop { queue: name } => put_bytes(out, name),
            Self::Join(process) => process.encode(out),
            Self::Leave { member } => put_u32(out, *member),
        }
        let frame = frame_header(&out[body_start..]);
        out[frame_start..body_start].copy_from_slice(&frame);
    }

    /// Decodes the record at the beginning of some bytes.
    ///
    /// # Errors
    /// A [`FileFormatError`].
    pub fn decode(bytes: &'a [u8]) -> Result<DecodedItem<Self>, FileFormatError> {
        let (body, length) = match split_frame(bytes, MAX_RECORD_BODY_BYTES)? {
            DecodedItem::Complete(body, length) => (body, length),
            DecodedItem::Partial(needed) => return Ok(DecodedItem::Partial(needed)),
        };
        let mut fields = RecordFieldReader(body);
        let record = Self::decode_body(&mut fields)?;
        fields.expect_end()?;
        Ok(DecodedItem::Complete(record, length))
    }

    fn decode_body(fields: &mut RecordFieldReader<'a>) -> Result<Self, FileFormatError> {
        Ok(match fields.u8()? {
            1 => Self::Set { key: fields.key()?, value: fields.value()? },
            2 => {
                let count = fields.length(MAX_KEYS)?;
                let pairs = (0..count).map(|_| Ok((fields.key()?, fields.value()?)));
                Self::MultiSet(pairs.collect::<Result<_, FileFormatError>>()?)
            }
            3 => Self::Append { key: fields.key()?, bytes: fields.value()? },
            4 => Self::Delete { key: fields.key()? },
            5 => Self::Push { queue: fields.key()?, item: fields.value()? },
            6 => Self::Pop { queue: fields.key()? },
            7 => Self::Join(ProcessIdentity::decode(fields)?),
            8 => Self::Leave { member: fields.u32()? },
            _ => return Err(FileFormatError::InvalidContent),
        })
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Set { .. } => 1,
            Self::MultiSet(_) => 2,
            Self::Append { .. } => 3,
            Self::Delete { .. } => 4,
            Self::Push { .. } => 5,
            Self::Pop { .. } => 6,
            Self::Join(_) => 7,
            Self::Leave { .. } => 8,
        }
    }
}

/// Reads the fields of a body. If the body is too short or too long, returns
/// [`FileFormatError::InvalidContent`].
struct RecordFieldReader<'a>(&'a [u8]);

impl<'a> RecordFieldReader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], FileFormatError> {
        let (taken, rest) =
            self.0.split_at_checked(length).ok_or(FileFormatError::InvalidContent)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FileFormatError> {
        self.take(N)?.try_into().map_err(|_| FileFormatError::InvalidContent)
    }

    fn u8(&mut self) -> Result<u8, FileFormatError> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, FileFormatError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, FileFormatError> {
        self.array().map(u64::from_le_bytes)
    }

    fn length(&mut self, limit: usize) -> Result<usize, FileFormatError> {
        let length = usize::try_from(self.u32()?).map_err(|_| FileFormatError::InvalidContent)?;
        if length <= limit { Ok(length) } else { Err(FileFormatError::InvalidContent) }
    }

    fn bytes(&mut self, limit: usize) -> Result<&'a [u8], FileFormatError> {
        let length = self.length(limit)?;
        self.take(length)
    }

    fn key(&mut self) -> Result<&'a [u8], FileFormatError> {
        self.bytes(MAX_KEY_BYTES)
    }

    fn value(&mut self) -> Result<&'a [u8], FileFormatError> {
        self.bytes(MAX_VALUE_BYTES)
    }

    fn text(&mut self, limit: usize) -> Result<String, FileFormatError> {
        let bytes = self.bytes(limit)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| FileFormatError::InvalidContent)
    }

    fn expect_end(&self) -> Result<(), FileFormatError> {
        if self.0.is_empty() { Ok(()) } else { Err(FileFormatError::InvalidContent) }
    }
}

fn put_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Writes a length as a u32. The limits of `store::limits` keep each length far below 4 GiB.
fn put_length(out: &mut Vec<u8>, length: usize) {
    put_u32(out, u32::try_from(length).unwrap_or(u32::MAX));
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_length(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Returns the longest prefix of a text with at most `limit` bytes.
fn truncate_text(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Appends an arbitrary body with a valid frame.
#[cfg(any(test, fuzzing))]
pub(super) fn put_framed(body: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&frame_header(body));
    out.extend_from_slice(body);
}

/// Builds the frame in front of a body.
fn frame_header(body: &[u8]) -> [u8; FRAME_BYTES] {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut frame = [0; FRAME_BYTES];
    frame[..4].copy_from_slice(&length.to_le_bytes());
    frame[4..8].copy_from_slice(&(!length).to_le_bytes());
    frame[8..].copy_from_slice(&checksum(body));
    frame
}

/// Returns the body of the frame at the beginning of some bytes.
fn split_frame(bytes: &[u8], limit: usize) -> Result<DecodedItem<&[u8]>, FileFormatError> {
    let Some((frame, rest)) = bytes.split_at_checked(FRAME_BYTES) else {
        return Ok(DecodedItem::Partial(FRAME_BYTES));
    };
    let mut fields = RecordFieldReader(frame);
    let (length, inverted) = (fields.u32()?, fields.u32()?);
    let body_length = usize::try_from(length).map_err(|_| FileFormatError::InvalidLength)?;
    if length != !inverted || body_length > limit {
        return Err(FileFormatError::InvalidLength);
    }
    let Some(body) = rest.get(..body_length) else {
        return Ok(DecodedItem::Partial(FRAME_BYTES + body_length));
    };
    if fields.0 != checksum(body) {
        return Err(FileFormatError::ChecksumMismatch);
    }
    Ok(DecodedItem::Complete(body, FRAME_BYTES + body_length))
}

fn checksum(body: &[u8]) -> [u8; 8] {
    let mut sum = [0; 8];
    sum.copy_from_slice(&blake3::hash(body).as_bytes()[..8]);
    sum
}
