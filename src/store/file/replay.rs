//! Computes the keys, queues and members of a file store from the bytes of its file. The functions
//! are pure. For any content, their time and memory are proportional to the length of the file.

use super::members::FileMembers;
use super::record::{DecodedItem, FileFormatError, FileHeader, LogRecord};
use crate::store::table::KeyValueTable;

/// The state that the header and the records read so far describe.
#[derive(Debug, Default)]
pub struct LogReplay {
    header: Option<FileHeader>,
    pub(super) table: KeyValueTable,
    pub(super) members: FileMembers,
    records: u64,
}

/// The result of reading some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplayProgress {
    /// The number of bytes that were read: the header and the complete records.
    pub(super) consumed: usize,
    /// The minimum number of bytes that the next item (the header or a record) needs.
    pub(super) needed: usize,
}

/// Reads a whole file. Returns the state of the store, and the number of bytes in the header and
/// the complete records. The remaining bytes, if any, are a torn tail (an incomplete last record).
///
/// # Errors
/// The offset of the invalid item, and a [`FileFormatError`].
pub fn replay(bytes: &[u8]) -> Result<(LogReplay, usize), (usize, FileFormatError)> {
    let mut replay = LogReplay::default();
    let (progress, violation) = replay.read(bytes);
    match violation {
        None => Ok((replay, progress.consumed)),
        Some(violation) => Err((progress.consumed, violation)),
    }
}

impl LogReplay {
    /// Returns the header, once it has been read.
    pub fn header(&self) -> Option<&FileHeader> {
        self.header.as_ref()
    }

    /// Returns the number of records that have been read.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.table.get(key)
    }

    /// Returns the number of members that have ever joined.
    pub fn joined_count(&self) -> usize {
        self.members.joined_count()
    }

    /// Reads the complete items (the header and records) at the beginning of `bytes`. `bytes`
    /// continues the file where the previous call stopped. If an item is invalid, the items before
    /// it remain valid.
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

    /// Sets the header, after this process wrote it to an empty file.
    pub(super) fn set_header(&mut self, header: FileHeader) {
        self.header = Some(header);
    }

    /// Applies a record.
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
