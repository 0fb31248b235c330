//! What a file's bytes make of the values and the members. Pure, and bounded by the bytes: a file
//! of any content takes time and memory in proportion to its length.

use super::members::FileMembers;
use super::record::{DecodedItem, FileFormatError, FileHeader, LogRecord};
use crate::store::table::KeyValueTable;

/// What a file says, as far as it has been read.
#[derive(Debug, Default)]
pub struct LogReplay {
    header: Option<FileHeader>,
    pub(super) table: KeyValueTable,
    pub(super) members: FileMembers,
    records: u64,
}

/// How far some bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplayProgress {
    /// This many of them were header and whole records.
    pub(super) consumed: usize,
    /// What follows takes at least this many.
    pub(super) needed: usize,
}

/// Reads a whole file. Returns what it says and how many bytes are its header and whole records;
/// the others, if any, are a torn tail.
///
/// # Errors
/// A [`FileFormatError`], and where it is.
pub fn replay(bytes: &[u8]) -> Result<(LogReplay, usize), (usize, FileFormatError)> {
    let mut replay = LogReplay::default();
    let (progress, violation) = replay.read(bytes);
    match violation {
        None => Ok((replay, progress.consumed)),
        Some(violation) => Err((progress.consumed, violation)),
    }
}

impl LogReplay {
    /// The header, once it has been read.
    pub fn header(&self) -> Option<&FileHeader> {
        self.header.as_ref()
    }

    /// How many records have been read.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.table.get(key)
    }

    /// How many have ever joined.
    pub fn joined_count(&self) -> usize {
        self.members.joined_count()
    }

    /// Takes in the whole items at the beginning of `bytes`, which follow what was read before.
    /// Where one is not as it should be, those before it count all the same.
    pub(super) fn read(&mut self, bytes: &[u8]) -> (ReplayProgress, Option<FileFormatError>) {
        let mut used = 0;
        loop {
            let progress = |needed| ReplayProgress { consumed: used, needed };
            match self.read_one(&bytes[used..]) {
                Ok(DecodedItem::Complete((), length)) => used += length,
                Ok(DecodedItem::Partial(needed)) => return (progress(needed), None),
                Err(violation) => return (progress(0), Some(violation)),
            }
        }
    }

    fn read_one(&mut self, bytes: &[u8]) -> Result<DecodedItem<()>, FileFormatError> {
        if self.header.is_none() {
            return Ok(match FileHeader::decode(bytes)? {
                DecodedItem::Complete(header, length) => {
                    self.header = Some(header);
                    DecodedItem::Complete((), length)
                }
                DecodedItem::Partial(needed) => DecodedItem::Partial(needed),
            });
        }
        Ok(match LogRecord::decode(bytes)? {
            DecodedItem::Complete(record, length) => {
                self.apply(&record)?;
                DecodedItem::Complete((), length)
            }
            DecodedItem::Partial(needed) => DecodedItem::Partial(needed),
        })
    }

    /// Takes in a header that was written at the beginning of the file.
    pub(super) fn set_header(&mut self, header: FileHeader) {
        self.header = Some(header);
    }

    /// Does what a record says.
    pub(super) fn apply(&mut self, record: &LogRecord<'_>) -> Result<(), FileFormatError> {
        let table = &mut self.table;
        match record {
            LogRecord::Set { key, value } => table.set(key.to_vec(), value.to_vec()),
            LogRecord::MultiSet(pairs) => {
                pairs.iter().for_each(|(key, value)| table.set(key.to_vec(), value.to_vec()));
            }
            LogRecord::Append { key, bytes } => table.append(key.to_vec(), bytes),
            LogRecord::Delete { key } => drop(table.delete(key)),
            LogRecord::Push { queue, item } => table.push(queue.to_vec(), item.to_vec()),
            LogRecord::Pop { queue } => drop(table.pop(queue)),
            LogRecord::Join(process) => self.members.join(process.clone()),
            LogRecord::Leave { member } => {
                if !self.members.leave(*member) {
                    return Err(FileFormatError::InvalidContent);
                }
            }
        }
        self.records += 1;
        Ok(())
    }
}
