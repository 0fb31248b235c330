//! Checks whether all ranks pass the same bytes, and returns the same result on all ranks.
//!
//! Each rank contributes a record of fixed size: the length of its bytes and their BLAKE3 hash. All
//! ranks gather all records and compare them. Two different byte strings of the same length have
//! equal hashes by accident with a probability of 2^-256. No method is known to find two such
//! strings on purpose.

use crate::api::collective::batch;
use crate::api::collective::call::{BufferLocation, Call, CallOptions};
use crate::api::group::process_group::Group;
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use std::sync::Arc;

const LENGTH_BYTES: usize = size_of::<u64>();
/// The size of a record in bytes.
pub(super) const RECORD_BYTES: usize = LENGTH_BYTES + blake3::OUT_LEN;

impl Group {
    /// Returns the lowest rank whose bytes differ from the bytes of rank 0, or `None` if all are
    /// equal. The result is the same on all ranks.
    ///
    /// # Errors
    /// `InvalidArgument` inside a batch, or if the options name a device or a stream; the errors of
    /// an all-gather.
    pub fn all_equal(
        self: &Arc<Self>,
        bytes: &[u8],
        options: &CallOptions,
    ) -> Result<Option<Rank>> {
        if batch::is_open() {
            let message = "a comparison is a blocking call and is not allowed inside a batch";
            return Err(Error::invalid(message));
        }
        if matches!(options.location, BufferLocation::Device(_)) || options.stream.is_some() {
            let message = "a comparison supports host memory only: pass options without a device \
                           and a stream, and copy device memory to the host first";
            return Err(Error::invalid(message));
        }
        let own = hash_record(bytes);
        let mut all = vec![0; RECORD_BYTES * self.size()];
        let mut call =
            Call::all_gather(Src::from(&own[..]), Dst::from(all.as_mut_slice()), DataType::U8);
        self.run_full_path(&mut call, options)?;
        Ok(first_difference(&all))
    }
}

/// Returns the record of this rank's bytes. The first eight bytes are their length.
pub(super) fn hash_record(bytes: &[u8]) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    let (length, hash) = record.split_at_mut(LENGTH_BYTES);
    length.copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    hash.copy_from_slice(blake3::hash(bytes).as_bytes());
    record
}

/// Returns the lowest rank whose record differs from the record of rank 0.
fn first_difference(records: &[u8]) -> Option<Rank> {
    let (records, _) = records.as_chunks::<RECORD_BYTES>();
    let first = records.first()?;
    records.iter().position(|record| record != first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_difference_of(ranks: &[&[u8]]) -> Option<Rank> {
        let records: Vec<u8> = ranks.iter().flat_map(|bytes| hash_record(bytes)).collect();
        first_difference(&records)
    }

    #[test]
    fn the_lowest_rank_that_differs_from_rank_0_is_found() {
        assert_eq!(first_difference_of(&[b"a"]), None);
        assert_eq!(first_difference_of(&[b"", b"", b""]), None);
        assert_eq!(first_difference_of(&[b"a", b"a", b"b", b"a", b"c"]), Some(2));
        assert_eq!(first_difference_of(&[b"a", b"b", b"b"]), Some(1));
    }

    #[test]
    fn a_longer_or_changed_byte_string_differs() {
        let long = vec![7; 100_000];
        for position in [0, 50_000, 99_999] {
            let mut changed = long.clone();
            changed[position] ^= 1;
            assert_eq!(first_difference_of(&[&long, &changed]), Some(1));
        }
        assert_eq!(first_difference_of(&[&long, &long[..99_999]]), Some(1));
        assert_eq!(first_difference_of(&[b"\0", b"\0\0"]), Some(1));
        assert_eq!(first_difference_of(&[b"", b"\0"]), Some(1));
    }
}
