//! How all ranks of a group agree on groups made from it.
//!
//! The call is one of the group's collectives: it takes its place in the order, and gathers a
//! record of each rank by one all_gather, whose description no call of a user has, so that a rank
//! which calls something else is told apart. From the records all ranks compute the same. The first
//! member's nonce becomes the new group's id.
//!
//! Where the records show that the ranks disagree, they exchange their definitions by letters,
//! outside of the order of operations, so that each can say what was said by whom. The records tell
//! who says the same, so that one rank speaks for all of those, and no more speak than a message
//! shows. That fails nothing but the call.

use super::definition::{DIFFERENT_SHOWN, Definition, How, conflict_of};
use super::exchange::MemberExchange;
use super::{Agreed, SubgroupOptions, default_name, list_in_name};
use crate::algo::Operation;
use crate::api::group::Group;
use crate::backend::{self, Exchange as _};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::{Deadline, LateDeadline};
use crate::base::debug::Values;
use crate::base::error::{Error, Result};
use crate::base::ids::{Nonce, Rank};
use crate::base::label::Label;
use crate::process::this;
use crate::transport::{Descriptor, Extent, OpKind};
use crate::wait::Interrupt;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

const MAGIC: [u8; 7] = *b"libdist";
const RECORD_BYTES: usize = 48;

/// In place of a colour: none.
const NO_COLOR: i32 = -1;

/// What each rank tells all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    how: How,
    nonce: Nonce,
    definition: [u8; 16],
    color: i32,
    key: i32,
}

impl Record {
    fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..7].copy_from_slice(&MAGIC);
        bytes[7] = self.how as u8;
        bytes[8..24].copy_from_slice(&self.nonce.0);
        bytes[24..40].copy_from_slice(&self.definition);
        bytes[40..44].copy_from_slice(&self.color.to_le_bytes());
        bytes[44..].copy_from_slice(&self.key.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let how = How::from_code(*bytes.get(7)?).filter(|_| bytes[..7] == MAGIC)?;
        Some(Self {
            how,
            nonce: Nonce(bytes.get(8..24)?.try_into().ok()?),
            definition: bytes.get(24..40)?.try_into().ok()?,
            color: i32::from_le_bytes(bytes.get(40..44)?.try_into().ok()?),
            key: i32::from_le_bytes(bytes.get(44..48)?.try_into().ok()?),
        })
    }

    fn takes_part(&self) -> bool {
        self.color != NO_COLOR
    }
}

/// Whether all who take part say the same.
fn agree(records: &[Record]) -> bool {
    let mut part = records.iter().filter(|record| record.takes_part());
    let definitions =
        part.next().is_none_or(|first| part.all(|r| r.definition == first.definition));
    definitions && records.iter().all(|record| record.how == records[0].how)
}

/// A group of a list of ranks.
pub(super) fn on_list(
    group: &Arc<Group>,
    ranks: &[Rank],
    backend: &str,
    options: &SubgroupOptions,
    deadline: &Deadline,
) -> Result<Agreed> {
    let backend = backend::canonical(backend);
    let name = options.name.clone().unwrap_or_default();
    let definition = Definition::new(How::New, &name, ranks, &backend);
    let (records, sequence) = ask_all(group, &definition, (0, 0), deadline)?;
    let name = match name.as_str() {
        "" => default_name(group, &list_in_name(ranks), "#", sequence),
        _ => name,
    };
    Ok(Agreed {
        id: records[ranks[0]].nonce,
        name,
        members: ranks.to_vec(),
        lease: None,
        number: None,
    })
}

/// A group for each colour; that of this rank.
pub(super) fn on_colors(
    group: &Arc<Group>,
    (color, key): (Option<u32>, i32),
    backend: &str,
    options: &SubgroupOptions,
    deadline: &Deadline,
) -> Result<Option<Agreed>> {
    let name = options.name.clone().unwrap_or_default();
    let definition = match color {
        Some(_) => Definition::new(How::Split, &name, &[], &backend::canonical(backend)),
        None => Definition::new(How::Split, "", &[], ""),
    };
    let own = match color {
        None => NO_COLOR,
        Some(color) => i32::try_from(color)
            .map_err(|_| Error::invalid(format!("color {color}: 0 to {} is possible", i32::MAX)))?,
    };
    let (records, sequence) = ask_all(group, &definition, (own, key), deadline)?;
    if own == NO_COLOR {
        return Ok(None);
    }
    let same = records.iter().enumerate().filter(|(_, record)| record.color == own);
    let mut members: Vec<(i32, Rank)> = same.map(|(rank, record)| (record.key, rank)).collect();
    members.sort_unstable();
    let members: Vec<Rank> = members.into_iter().map(|(_, rank)| rank).collect();
    let name = match name.as_str() {
        "" => default_name(group, &format!(":color{own}"), "#", sequence),
        _ => name,
    };
    Ok(Some(Agreed { id: records[members[0]].nonce, name, members, lease: None, number: None }))
}

/// The records of all ranks, which agree, and the number of the operation by which they were
/// gathered.
fn ask_all(
    group: &Arc<Group>,
    definition: &Definition,
    (color, key): (i32, i32),
    deadline: &Deadline,
) -> Result<(Vec<Record>, u64)> {
    let (nonce, how) = (this::fresh_nonce()?, definition.how());
    let record = Record { how, nonce, definition: definition.fingerprint(), color, key };
    let (bytes, sequence) = gather(group, &record.encode(), deadline)?;
    let unreadable = || Error::internal("what ranks say about a new group cannot be read");
    let records: Vec<Record> = bytes
        .chunks_exact(RECORD_BYTES)
        .map(Record::decode)
        .collect::<Option<_>>()
        .ok_or_else(unreadable)?;
    if agree(&records) {
        return Ok((records, sequence));
    }
    Err(explain(group, definition, &records, &bytes, deadline)?)
}

/// One all_gather, in its turn.
fn gather(group: &Group, mine: &[u8], deadline: &Deadline) -> Result<(Vec<u8>, u64)> {
    let mut all = vec![0; mine.len() * group.size()];
    let ticket = group.queue.issue();
    let sequence = ticket.sequence();
    let descriptor = Descriptor {
        kind: OpKind::AllGather,
        // Calls of users have one.
        dtype: None,
        op: None,
        root: None,
        extent: Extent::Count(mine.len() as u64),
        sequence,
        algorithm: 0,
        part: 0,
        label: Label::NONE,
    };
    let recv = Dst::from(all.as_mut_slice());
    let late = LateDeadline::from(*deadline);
    let operation = Operation::of(descriptor, Src::from(mine), recv, &late);
    let operation = Operation { group: group.name(), probe: &group.observer, ..operation };
    let runs = group.queue.has_turn(&ticket);
    let record = group.record(&descriptor, Instant::now(), runs);
    let outcome = match group.queue.wait_turn(&ticket, &late, || group.failure()) {
        Ok(_turn) => {
            record.runs();
            group.carry_out(&operation, Values::Any)
        }
        Err(Interrupt::Halted(error)) => Err(error),
        Err(Interrupt::Deadline) => Err(group.overtaken(&descriptor, deadline)),
    };
    record.end(&outcome);
    outcome.inspect_err(|error| group.hand_out(error)).map(|()| (all, sequence))
}

/// Who says the same, for each of the different definitions, in the order of their first ranks.
fn parties(records: &[Record]) -> Vec<Vec<Rank>> {
    let mut known: HashMap<[u8; 16], usize> = HashMap::new();
    let mut parties: Vec<Vec<Rank>> = Vec::new();
    for (rank, record) in records.iter().enumerate() {
        let party = *known.entry(record.definition).or_insert(parties.len());
        match parties.get_mut(party) {
            Some(ranks) => ranks.push(rank),
            None => parties.push(vec![rank]),
        }
    }
    parties
}

/// The error that says what each rank has said. Failing to find out is an error too.
fn explain(
    group: &Arc<Group>,
    definition: &Definition,
    records: &[Record],
    bytes: &[u8],
    deadline: &Deadline,
) -> Result<Error> {
    let mut id = Nonce::default();
    // Never used before, since each record has a fresh nonce.
    id.0.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
    let everyone: Vec<Rank> = (0..group.size()).collect();
    let mut parties = parties(records);
    let more = parties.len().saturating_sub(DIFFERENT_SHOWN);
    parties.truncate(DIFFERENT_SHOWN);
    let speaks = parties.iter().any(|ranks| ranks[0] == group.rank());
    let mine = if speaks { definition.encode() } else { Vec::new() };
    let mailbox = group.open_mailbox()?;
    let exchange =
        MemberExchange::new(group, mailbox, &everyone, group.rank(), (id, "of all"), deadline);
    let all =
        exchange.all("definition", &mine, &|| None).inspect_err(|error| exchange.give_up(error))?;
    let told: Option<Vec<_>> =
        parties.iter().map(|ranks| Definition::decode(all.get(ranks[0])?)).collect();
    let told = told.ok_or_else(|| Error::internal("a definition cannot be read"))?;
    let different: Vec<_> = parties.into_iter().zip(&told).collect();
    Ok(conflict_of(group.name(), &different, more))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_bytes() {
        let (nonce, definition) = (Nonce([3; 16]), [4; 16]);
        let record = Record { how: How::Split, nonce, definition, color: 5, key: -6 };
        assert_eq!(Record::decode(&record.encode()), Some(record));
        assert_eq!(Record::decode(&[0; RECORD_BYTES]), None);
        assert_eq!(Record::decode(&record.encode()[..47]), None);
    }

    #[test]
    fn those_who_take_no_part_need_not_agree_but_must_call_the_same() {
        let nonce = Nonce::default();
        let record =
            |how, byte, color| Record { how, nonce, definition: [byte; 16], color, key: 0 };
        let (split, none) = (record(How::Split, 1, 0), record(How::Split, 2, NO_COLOR));
        assert!(agree(&[split, none, record(How::Split, 1, 7)]));
        assert!(agree(&[none, none]));
        assert!(!agree(&[split, record(How::Split, 2, 0)]));
        assert!(!agree(&[none, record(How::New, 1, 0)]));
    }

    #[test]
    fn one_rank_speaks_for_all_who_say_the_same() {
        let record = |byte| Record {
            how: How::New,
            nonce: Nonce([byte; 16]),
            definition: [byte; 16],
            color: 0,
            key: 0,
        };
        let said = [2, 1, 2, 3, 1].map(record);
        assert_eq!(parties(&said), [vec![0, 2], vec![1, 4], vec![3]]);
    }
}
