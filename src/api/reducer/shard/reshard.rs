//! Distribution of states: zeros for a new shard, or the states of the ranks of a former group.
//!
//! Each rank sends a [`ShardRecord`] to all ranks, so that all ranks know whose states each rank
//! has. Part r is the states and values of the elements that rank r of the former group owned. For
//! each part, one rank broadcasts the data: the owner, or a rank with a copy. From this data, all
//! ranks take the values of the parameters, and the states of the elements that they update in the
//! new group.

use super::super::memory::GradMemory;
use super::super::param::Param;
use super::super::records;
use super::super::shard_split::{ShardSplit, SplitPiece};
use super::local::{LocalShard, ShardOptions, updated_by};
use crate::api::collective::call::CallOptions;
use crate::api::group::process_group::Group;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::ids::Rank;
use serde_json::{Value, json};
use std::sync::Arc;

/// The record that a rank sends to all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ShardRecord {
    /// The rank's number in the former group, and the size of that group; `None` if the rank has no
    /// states.
    former: Option<(usize, usize)>,
    gathers: u64,
    /// The names of the states, and the number of copies.
    options: String,
}

impl ShardRecord {
    fn encode(&self) -> Vec<u8> {
        let former = self.former.map(|(rank, ranks)| json!([rank, ranks]));
        json!({ "former": former, "gathers": self.gathers, "options": self.options })
            .to_string()
            .into_bytes()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(bytes).ok()?;
        let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let former = match value.get("former")? {
            Value::Null => None,
            pair => Some((number(pair.get(0)?)?, number(pair.get(1)?)?)),
        };
        Some(Self {
            former,
            gathers: value.get("gathers")?.as_u64()?,
            options: value.get("options")?.as_str()?.to_owned(),
        })
    }
}

/// The parameters and the bucket memory of a reducer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardModel<'m> {
    pub(super) params: &'m [Param],
    pub(super) memory: &'m GradMemory,
}

/// The states of a rank in a group.
#[derive(Debug)]
pub(super) struct ShardSnapshot {
    pub(super) local: Arc<LocalShard>,
    /// The number of completed gathers.
    pub(super) gathers: u64,
}

/// Returns this rank's part of the states and the number of completed gathers, after the ranks have
/// redistributed the states. `old` is this rank's part in the former group, if it had one.
///
/// # Errors
/// `Mismatch` on all ranks if their options differ; `NotFound` on all ranks if no rank has the
/// states of a rank of the former group; the errors of collectives.
pub(super) fn redistribute(
    model: ShardModel<'_>,
    group: &Arc<Group>,
    options: &ShardOptions,
    old: Option<ShardSnapshot>,
) -> Result<ShardSnapshot> {
    let call = CallOptions { timeout_ms: options.timeout_ms, ..CallOptions::DEFAULT };
    let own = ShardRecord {
        former: old.as_ref().map(|old| (old.local.rank, old.local.split.ranks)),
        gathers: old.as_ref().map_or(0, |old| old.gathers),
        options: format!("states {:?}, copies {}", options.states, options.copies),
    };
    let records = exchange(group, &own, &call)?;
    let fresh = LocalShard::new(&model.memory.layout, group, options);
    let Some(known) = records.iter().find(|record| record.former.is_some()) else {
        return Ok(ShardSnapshot { local: Arc::new(fresh), gathers: 0 });
    };
    let ranks = known.former.map_or(0, |(_, ranks)| ranks);
    let redistribution = Redistribution { model, group, call: &call, fresh: &fresh };
    // If a part is lost, all ranks return the error here, before any rank sends data.
    let holders: Vec<Rank> = (0..ranks)
        .map(|part| holder(&records, part, options.copies).ok_or_else(|| lost_part_error(part)))
        .collect::<Result<_>>()?;
    let old = old.as_ref().map(|old| &*old.local);
    for (part, holder) in holders.into_iter().enumerate() {
        redistribution.send_part(part, ranks, holder, old)?;
    }
    Ok(ShardSnapshot { local: Arc::new(fresh), gathers: known.gathers })
}

fn exchange(group: &Group, own: &ShardRecord, call: &CallOptions) -> Result<Vec<ShardRecord>> {
    let records = records::exchange(group, &own.encode(), ShardRecord::decode, call)?;
    records::check_equal_options(records.iter().map(|record| record.options.as_str()))?;
    let mut old = records.iter().filter_map(|record| Some((record.former?.1, record.gathers)));
    if let Some(known) = old.next()
        && old.any(|other| other != known)
    {
        let message =
            "the ranks have states of different groups: create the shard again on all ranks";
        return Err(Error::new(ErrorKind::Mismatch, message));
    }
    Ok(records)
}

/// Returns a rank that has the states of part `part`: the owner, or a rank with a copy. `copy`
/// counts from 0 for the owner.
fn holder(records: &[ShardRecord], part: usize, copies: usize) -> Option<Rank> {
    let has = |record: &ShardRecord, copy: usize| {
        let Some((rank, ranks)) = record.former else { return false };
        updated_by(rank, ranks, copies).nth(copy) == Some(part)
    };
    (0..copies).find_map(|copy| records.iter().position(|record| has(record, copy)))
}

fn lost_part_error(part: usize) -> Error {
    let message = format!(
        "the states of rank {part} of the former group were lost with the rank: create the shard \
         again and load a checkpoint (dist_shard_load); a shard with two `copies` survives such a \
         loss"
    );
    Error::new(ErrorKind::NotFound, message)
}

struct Redistribution<'d> {
    model: ShardModel<'d>,
    group: &'d Arc<Group>,
    call: &'d CallOptions,
    fresh: &'d LocalShard,
}

impl Redistribution<'_> {
    /// Broadcasts a part of the former group from the rank `holder`. Every rank takes the data of
    /// its elements from the part.
    fn send_part(
        &self,
        part: usize,
        ranks: usize,
        holder: Rank,
        old: Option<&LocalShard>,
    ) -> Result<()> {
        let layout = &self.model.memory.layout;
        let pieces = ShardSplit::of(layout, ranks).pieces(layout, part);
        let is_own = holder == self.group.rank();
        let sent = match old.filter(|_| is_own) {
            Some(old) => self.encode(part, &pieces, old),
            None => Vec::new(),
        };
        let bytes = records::broadcast(self.group, &sent, holder, self.call)
            .context(|| format!("the states of rank {part} of the former group"))?;
        self.take(&pieces, &bytes)
    }

    /// Returns the states and the values of pieces that this rank has.
    fn encode(&self, part: usize, pieces: &[SplitPiece], old: &LocalShard) -> Vec<u8> {
        let mut bytes = Vec::new();
        for held in old.pieces.iter().filter(|held| held.owner == part) {
            old.write_states(held, &mut bytes);
        }
        for piece in pieces {
            let values = piece.values(self.model.params).as_src();
            let begin = bytes.len();
            bytes.resize(begin + values.len(), 0);
            Dst::from(&mut bytes[begin..]).copy_from(values);
        }
        bytes
    }

    fn take(&self, pieces: &[SplitPiece], bytes: &[u8]) -> Result<()> {
        let wrong = || {
            let message =
                "the states have an unknown format: use the same version of libdist on all ranks";
            Error::new(ErrorKind::Mismatch, message)
        };
        let wanted = self.fresh.by_param();
        let mut left = bytes;
        for piece in pieces {
            for state in 0..self.fresh.states.len() {
                let (part, rest) =
                    left.split_at_checked(piece.count * size_of::<f32>()).ok_or_else(wrong)?;
                self.fresh.take_state(&wanted, state, piece, part);
                left = rest;
            }
        }
        for piece in pieces {
            let values = piece.values(self.model.params);
            let (part, rest) = left.split_at_checked(values.len()).ok_or_else(wrong)?;
            values.copy_from(Src::from(part));
            left = rest;
        }
        if left.is_empty() { Ok(()) } else { Err(wrong()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(former: Option<(usize, usize)>) -> ShardRecord {
        ShardRecord { former, gathers: 3, options: "o".to_owned() }
    }

    #[test]
    fn owners_come_before_copies() {
        let all: Vec<ShardRecord> = (0..4).map(|rank| record(Some((rank, 4)))).collect();
        assert_eq!(
            (0..4).map(|part| holder(&all, part, 2)).collect::<Vec<_>>(),
            [0, 1, 2, 3].map(Some)
        );
        // Rank 2 died. Rank 3 has a copy, and is now the third rank.
        let left = [all[0].clone(), all[1].clone(), all[3].clone(), record(None)];
        assert_eq!(holder(&left, 2, 2), Some(2));
        assert_eq!(holder(&left, 2, 1), None);
        assert_eq!(holder(&left, 3, 2), Some(2));
        // Ranks 2 and 3 died.
        assert_eq!(holder(&all[..2], 2, 2), None);
        assert_eq!(holder(&all[..2], 3, 2), Some(0));
    }

    #[test]
    fn a_record_is_read_back() {
        for known in [record(None), record(Some((2, 5)))] {
            assert_eq!(ShardRecord::decode(&known.encode()), Some(known));
        }
        assert_eq!(ShardRecord::decode(b"{}"), None);
    }
}
