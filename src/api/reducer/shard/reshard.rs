//! Distribution of states: zeros for a new shard, or the states of the ranks of a former group.
//!
//! Each rank sends a record of its part to all ranks. For each part of the former group, one rank
//! then sends its data: the owner, or a rank with a copy. All ranks take the parameters from this
//! data, and the states of the elements that they now update.

use super::super::memory::GradMemory;
use super::split::SplitPiece;
use super::{LocalShard, Reducer, ShardOptions, updated_by};
use crate::api::collective::bytes::BytesCall;
use crate::api::collective::call::CallOptions;
use crate::api::group::process_group::Group;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::ids::Rank;
use serde_json::{Value, json};
use std::collections::HashMap;
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

/// Returns this rank's part of the states and the number of completed gathers, after the ranks have
/// redistributed the states. `old` is the same data for the former group.
///
/// # Errors
/// `Mismatch` on all ranks if their options differ; `NotFound` if no rank has the states of a rank
/// of the former group; the errors of collectives.
pub(super) fn redistribute(
    reducer: &Reducer,
    group: &Arc<Group>,
    options: &ShardOptions,
    old: Option<(&LocalShard, u64)>,
) -> Result<(LocalShard, u64)> {
    let call = CallOptions { timeout_ms: options.timeout_ms, ..CallOptions::DEFAULT };
    let own = ShardRecord {
        former: old.map(|(local, _)| (local.rank, local.split.ranks)),
        gathers: old.map_or(0, |(_, gathers)| gathers),
        options: format!("states {:?}, copies {}", options.states, options.copies),
    };
    let records = exchange(group, &own, &call)?;
    let fresh = LocalShard::new(reducer, group, options);
    let Some(known) = records.iter().find(|record| record.former.is_some()) else {
        return Ok((fresh, 0));
    };
    let ranks = known.former.map_or(0, |(_, ranks)| ranks);
    let memory = Arc::clone(&reducer.lock().memory);
    let redistribution =
        Redistribution { reducer, group, memory: &memory, call: &call, fresh: &fresh };
    // If states are lost, no rank sends anything.
    let holders: Vec<Rank> = (0..ranks)
        .map(|part| holder(&records, part, options.copies).ok_or_else(|| lost_part_error(part)))
        .collect::<Result<_>>()?;
    for (part, holder) in holders.into_iter().enumerate() {
        redistribution.send_part(part, ranks, holder, old.map(|(local, _)| local))?;
    }
    Ok((fresh, known.gathers))
}

fn exchange(group: &Group, own: &ShardRecord, call: &CallOptions) -> Result<Vec<ShardRecord>> {
    let bytes = own.encode();
    let gathered = group.run_bytes(&BytesCall::all_gather(Src::from(&bytes[..])), call)?;
    let records: Option<Vec<ShardRecord>> =
        gathered.unwrap_or_default().iter().map(|bytes| ShardRecord::decode(bytes)).collect();
    let records = records.filter(|records| !records.is_empty()).ok_or_else(|| {
        let message = "the ranks have different versions of libdist: use the same one on all ranks";
        Error::new(ErrorKind::Mismatch, message)
    })?;
    let first = &records[0];
    if let Some(rank) = records.iter().position(|record| record.options != first.options) {
        let message = format!(
            "the ranks have different options: rank 0 has {}, and rank {rank} {}",
            first.options, records[rank].options
        );
        return Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank));
    }
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

/// Returns a rank that has the states of a rank of the former group: that rank, or a rank with a
/// copy.
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
    reducer: &'d Reducer,
    group: &'d Arc<Group>,
    memory: &'d GradMemory,
    call: &'d CallOptions,
    fresh: &'d LocalShard,
}

impl Redistribution<'_> {
    /// Sends a part from one rank; all ranks take their elements from it.
    fn send_part(
        &self,
        part: usize,
        ranks: usize,
        holder: Rank,
        old: Option<&LocalShard>,
    ) -> Result<()> {
        let split = super::split::ShardSplit::of(&self.memory.layout, ranks);
        let pieces = split.pieces(&self.memory.layout, part);
        let is_own = holder == self.group.rank();
        let sent = match old.filter(|_| is_own) {
            Some(old) => self.encode(part, &pieces, old),
            None => Vec::new(),
        };
        let call = BytesCall::broadcast(Src::from(&sent[..]), holder);
        let strings = self.group.run_bytes(&call, self.call);
        let strings =
            strings.context(|| format!("the states of rank {part} of the former group"))?;
        let bytes = strings.and_then(|strings| strings.into_iter().next()).unwrap_or(sent);
        self.take(&pieces, &bytes)
    }

    /// Returns the states and the values of pieces that this rank has.
    fn encode(&self, part: usize, pieces: &[SplitPiece], old: &LocalShard) -> Vec<u8> {
        let mut bytes = Vec::new();
        let held = old.pieces.iter().filter(|held| held.owner == part);
        for held in held {
            let range = held.offset..held.offset + held.piece.count;
            old.states.iter().for_each(|state| state.write_to(range.clone(), &mut bytes));
        }
        for piece in pieces {
            let values = piece.values(&self.reducer.params).as_src();
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
            let values = piece.values(&self.reducer.params);
            let (part, rest) = left.split_at_checked(values.len()).ok_or_else(wrong)?;
            values.copy_from(Src::from(part));
            left = rest;
        }
        if left.is_empty() { Ok(()) } else { Err(wrong()) }
    }
}

/// The pieces of a rank, by parameter.
pub(super) type ByParam = HashMap<usize, Vec<usize>>;

impl LocalShard {
    pub(super) fn by_param(&self) -> ByParam {
        let mut map = ByParam::new();
        for (index, held) in self.pieces.iter().enumerate() {
            map.entry(held.piece.param).or_default().push(index);
        }
        map
    }

    /// Copies a state of the elements that this rank has from the bytes of a piece.
    pub(super) fn take_state(
        &self,
        wanted: &ByParam,
        state: usize,
        from: &SplitPiece,
        bytes: &[u8],
    ) {
        for &index in wanted.get(&from.param).into_iter().flatten() {
            let held = self.pieces[index];
            let begin = held.piece.begin.max(from.begin);
            let end = held.piece.range().end.min(from.range().end);
            if begin >= end {
                continue;
            }
            let size = size_of::<f32>();
            let part = &bytes[(begin - from.begin) * size..(end - from.begin) * size];
            self.states[state].read_from(held.offset + begin - held.piece.begin, part);
        }
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
