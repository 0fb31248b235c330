//! The comparison of the lists of all ranks, before any data moves.
//!
//! 1. The ranks gather a record of each rank: the length and the hash of its description.
//! 2. If the records differ, all ranks know it. The ranks choose the *reference*: the lowest rank
//!    whose record most ranks have. The lowest rank with another record is the *differing* rank.
//! 3. The reference and the differing rank broadcast their descriptions. Every rank finds the same
//!    first difference and returns the same error.
//!
//! All ranks take the same steps, so the group can continue after a difference. The memory of the
//! comparison does not depend on the number of ranks, except for the records.

use super::description::{ListDescription, ListDifference, MAX_DESCRIPTION_BYTES};
use super::run::ListTurn;
use crate::api::collective::all_equal::{RECORD_BYTES, hash_record};
use crate::api::collective::call::Call;
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::CountSpec;
use std::collections::HashMap;

/// The maximum number of ranks that an error lists.
const MAX_LISTED_RANKS: usize = 8;

/// The ranks of a difference.
#[derive(Debug, PartialEq, Eq)]
struct DifferingRanks {
    reference: Rank,
    /// The ranks whose records differ from the record of the reference, in ascending order. There
    /// is at least one.
    others: Vec<Rank>,
}

impl ListTurn<'_, '_> {
    /// Compares the lists of all ranks.
    ///
    /// # Errors
    /// `Mismatch` on all ranks if the lists differ; the group has not failed then. The errors of
    /// collectives.
    pub(super) fn compare_lists(&mut self) -> Result<()> {
        let (rank, size) = (self.group.rank(), self.group.size());
        if size == 1 {
            return Ok(());
        }
        let description = ListDescription::of(self.call, self.options.canonical).encode();
        let own = hash_record(&description);
        let mut all = vec![0; RECORD_BYTES * size];
        let records = Dst::from(all.as_mut_slice());
        let gather = Call::all_gather(Src::from(&own[..]), records, DataType::U8);
        self.run_part(&gather, Some(CountSpec::TensorList))?;
        let (records, _) = all.as_chunks::<RECORD_BYTES>();
        let Some(ranks) = DifferingRanks::of(records) else { return Ok(()) };
        let differing = ranks.others[0];
        let mut descriptions = Vec::with_capacity(2);
        for source in [differing, ranks.reference] {
            let len = description_len(&records[source])?;
            let mut bytes = self.allocate(len)?;
            if source == rank {
                bytes.copy_from_slice(&description);
            }
            let into = Dst::from(bytes.as_mut_slice());
            let broadcast = Call::broadcast(into, DataType::U8, source, rank);
            self.run_part(&broadcast, Some(CountSpec::TensorList))?;
            descriptions.push(ListDescription::decode(&bytes).ok_or_else(unknown_description)?);
        }
        let difference = descriptions[0].first_difference(&descriptions[1]);
        Err(self.mismatch_error(&ranks, difference.ok_or_else(unknown_description)?))
    }

    /// Allocates the memory for a description. On failure, fails the group, because other ranks
    /// wait for this rank.
    fn allocate(&self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| {
            let message = format!("cannot allocate {len} bytes to compare the lists of tensors");
            self.group.fail_with_local_blame(Error::new(ErrorKind::OutOfMemory, message))
        })?;
        bytes.resize(len, 0);
        Ok(bytes)
    }

    fn mismatch_error(&self, ranks: &DifferingRanks, difference: ListDifference) -> Error {
        let name = |rank: Rank| self.group.backend.rank_locations()[rank].name.to_string();
        let differing = ranks.others[0];
        let ListDifference { what, one, other } = difference;
        let mut message = format!(
            "{what}: {one} on {}, {other} on {}; pass equal lists on all ranks",
            name(differing),
            name(ranks.reference)
        );
        if ranks.others.len() > 1 {
            let listed = ranks.others.iter().take(MAX_LISTED_RANKS).map(Rank::to_string);
            let listed = listed.collect::<Vec<_>>().join(", ");
            let rest = ranks.others.len().saturating_sub(MAX_LISTED_RANKS);
            let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
            let reference = ranks.reference;
            message
                .push_str(&format!(" (ranks that differ from rank {reference}: {listed}{rest})"));
        }
        Error::new(ErrorKind::Mismatch, message).with_culprit(differing)
    }
}

impl DifferingRanks {
    /// Returns the ranks of the difference; `None` if all records are equal.
    fn of(records: &[[u8; RECORD_BYTES]]) -> Option<Self> {
        let mut frequency: HashMap<&[u8; RECORD_BYTES], usize> = HashMap::new();
        records.iter().for_each(|record| *frequency.entry(record).or_default() += 1);
        let most = *frequency.values().max()?;
        let reference = records.iter().position(|record| frequency[record] == most)?;
        let differs = |&rank: &Rank| records[rank] != records[reference];
        let others: Vec<Rank> = (0..records.len()).filter(differs).collect();
        (!others.is_empty()).then_some(Self { reference, others })
    }
}

/// Returns the length of a description from the record of its rank.
fn description_len(record: &[u8; RECORD_BYTES]) -> Result<usize> {
    let len = record.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    len.and_then(|len| usize::try_from(len).ok())
        .filter(|&len| len <= MAX_DESCRIPTION_BYTES)
        .ok_or_else(unknown_description)
}

fn unknown_description() -> Error {
    let message = "the lists of tensors differ, and a rank described its list in a form that this \
                   version of libdist does not know: use the same version on all ranks";
    Error::new(ErrorKind::Mismatch, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks_of(lists: &[&str]) -> Option<(Rank, Vec<Rank>)> {
        let records: Vec<_> = lists.iter().map(|list| hash_record(list.as_bytes())).collect();
        DifferingRanks::of(&records).map(|ranks| (ranks.reference, ranks.others))
    }

    #[test]
    fn the_reference_has_the_most_frequent_list() {
        assert_eq!(ranks_of(&["a"]), None);
        assert_eq!(ranks_of(&["a", "a", "a"]), None);
        assert_eq!(ranks_of(&["a", "b"]), Some((0, vec![1])));
        assert_eq!(ranks_of(&["b", "a", "a"]), Some((1, vec![0])));
        assert_eq!(ranks_of(&["c", "a", "b", "a", "b"]), Some((1, vec![0, 2, 4])));
    }

    #[test]
    fn the_length_of_a_description_is_bounded() {
        let record = |len: u64| {
            let mut record = [0; RECORD_BYTES];
            record[..8].copy_from_slice(&len.to_le_bytes());
            description_len(&record).ok()
        };
        assert_eq!(record(77), Some(77));
        assert_eq!(record(MAX_DESCRIPTION_BYTES as u64), Some(MAX_DESCRIPTION_BYTES));
        assert_eq!(record(MAX_DESCRIPTION_BYTES as u64 + 1), None);
        assert_eq!(record(u64::MAX), None);
    }
}
