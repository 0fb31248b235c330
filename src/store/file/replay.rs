//! What a file's bytes make of the values and the members. Pure, and bounded by the bytes: a file
//! of any content takes time and memory in proportion to its length.

use super::members::Members;
use super::record::{Header, Item, Record, Violation};
use crate::store::table::Table;

/// What a file says, as far as it has been read.
#[derive(Debug, Default)]
pub struct Replay {
    header: Option<Header>,
    pub(super) table: Table,
    pub(super) members: Members,
    records: u64,
}

/// How far some bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    /// This many of them were header and whole records.
    pub(super) used: usize,
    /// What follows takes at least this many.
    pub(super) needed: usize,
}

/// Reads a whole file. Returns what it says and how many bytes are its header and whole records;
/// the others, if any, are a torn tail.
///
/// # Errors
/// A [`Violation`], and where it is.
pub fn replay(bytes: &[u8]) -> Result<(Replay, usize), (usize, Violation)> {
    let mut replay = Replay::default();
    let (progress, violation) = replay.read(bytes);
    match violation {
        None => Ok((replay, progress.used)),
        Some(violation) => Err((progress.used, violation)),
    }
}

impl Replay {
    /// The header, once it has been read.
    pub fn header(&self) -> Option<&Header> {
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
    pub fn joined(&self) -> usize {
        self.members.joined()
    }

    /// Takes in the whole items at the beginning of `bytes`, which follow what was read before.
    /// Where one is not as it should be, those before it count all the same.
    pub(super) fn read(&mut self, bytes: &[u8]) -> (Progress, Option<Violation>) {
        let mut used = 0;
        loop {
            let progress = |needed| Progress { used, needed };
            match self.read_one(&bytes[used..]) {
                Ok(Item::Whole((), length)) => used += length,
                Ok(Item::Partial(needed)) => return (progress(needed), None),
                Err(violation) => return (progress(0), Some(violation)),
            }
        }
    }

    fn read_one(&mut self, bytes: &[u8]) -> Result<Item<()>, Violation> {
        if self.header.is_none() {
            return Ok(match Header::decode(bytes)? {
                Item::Whole(header, length) => {
                    self.header = Some(header);
                    Item::Whole((), length)
                }
                Item::Partial(needed) => Item::Partial(needed),
            });
        }
        Ok(match Record::decode(bytes)? {
            Item::Whole(record, length) => {
                self.apply(&record)?;
                Item::Whole((), length)
            }
            Item::Partial(needed) => Item::Partial(needed),
        })
    }

    /// Takes in a header that was written at the beginning of the file.
    pub(super) fn begin(&mut self, header: Header) {
        self.header = Some(header);
    }

    /// Does what a record says.
    pub(super) fn apply(&mut self, record: &Record<'_>) -> Result<(), Violation> {
        let table = &mut self.table;
        match record {
            Record::Set { key, value } => table.set(key.to_vec(), value.to_vec()),
            Record::MultiSet(pairs) => {
                pairs.iter().for_each(|(key, value)| table.set(key.to_vec(), value.to_vec()));
            }
            Record::Append { key, bytes } => table.append(key.to_vec(), bytes),
            Record::Delete { key } => drop(table.delete(key)),
            Record::Push { queue, item } => table.push(queue.to_vec(), item.to_vec()),
            Record::Pop { queue } => drop(table.pop(queue)),
            Record::Join(process) => self.members.join(process.clone()),
            Record::Leave { member } => {
                if !self.members.leave(*member) {
                    return Err(Violation::Content);
                }
            }
        }
        self.records += 1;
        Ok(())
    }
}
