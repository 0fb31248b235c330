//! Agreement of all ranks of a group (the parent) on the new groups that are created from it.
//!
//! The call takes a place in the order of the parent's collectives and runs one all_gather. Each
//! rank contributes a record with a hash of its definition of the new group and a nonce (a new
//! random number). The descriptor of this all_gather differs from every call that a user can make,
//! so a rank that calls another operation gets a mismatch. From the records, all ranks compute the
//! same members. The nonce of the first member becomes the id of the new group.
//!
//! If the records show that ranks disagree, the ranks exchange their definitions, so that the error
//! on each rank can name all definitions. For this they use control messages (internal messages of
//! the library), which have no place in the order of collectives. The records show which ranks have
//! equal definitions. Of the ranks with equal definitions, only the lowest sends its definition. At
//! most [`MAX_DEFINITIONS_SHOWN`] ranks send. A disagreement fails only the call, not the parent.

use super::control_channel::{GroupNumber, NameLease};
use super::definition::{
    CreationCall, GroupDefinition, MAX_DEFINITIONS_SHOWN, grouped_conflict_error,
};
use super::exchange::{MemberExchange, NewMembers};
use crate::algo::Operation;
use crate::api::group::create::MAX_NAME_BYTES;
use crate::api::group::process_group::Group;
use crate::api::observe::deadlock::{AwaitedWork, AwaitedWorkKind, BlockedCallGuard};
use crate::backend::{self, BootstrapExchange as _};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::debug::NanCheck;
use crate::base::error::{Error, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::label::Label;
use crate::process::this_process;
use crate::transport::{CountSpec, Descriptor, OpKind};
use crate::wait::WaitInterrupt;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

const MAGIC: [u8; 7] = *b"libdist";
const RECORD_BYTES: usize = 48;

/// The colour in the record of a rank that gets no group in a split.
const NO_COLOR: i32 = -1;

/// The properties of a new group that its members have agreed on.
#[derive(Debug)]
pub(super) struct AgreedGroup {
    pub(super) id: GroupId,
    pub(super) name: String,
    /// The members as ranks of the parent, in the order of their new ranks.
    pub(super) members: Vec<Rank>,
    /// The right to the group's name, if only the members create the group.
    pub(super) name_lease: Option<NameLease>,
    /// The number in the group's default name, if only the members create the group and the caller
    /// gave no name.
    pub(super) number: Option<GroupNumber>,
}

/// The record of one rank in the all_gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DefinitionRecord {
    creation_call: CreationCall,
    nonce: Nonce,
    fingerprint: [u8; 16],
    color: i32,
    key: i32,
}

impl DefinitionRecord {
    fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..7].copy_from_slice(&MAGIC);
        bytes[7] = self.creation_call as u8;
        bytes[8..24].copy_from_slice(&self.nonce.0);
        bytes[24..40].copy_from_slice(&self.fingerprint);
        bytes[40..44].copy_from_slice(&self.color.to_le_bytes());
        bytes[44..].copy_from_slice(&self.key.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let creation_call =
            CreationCall::from_code(*bytes.get(7)?).filter(|_| bytes[..7] == MAGIC)?;
        Some(Self {
            creation_call,
            nonce: Nonce(bytes.get(8..24)?.try_into().ok()?),
            fingerprint: bytes.get(24..40)?.try_into().ok()?,
            color: i32::from_le_bytes(bytes.get(40..44)?.try_into().ok()?),
            key: i32::from_le_bytes(bytes.get(44..48)?.try_into().ok()?),
        })
    }

    fn is_participant(&self) -> bool {
        self.color != NO_COLOR
    }
}

/// Returns whether all ranks made the same call, and all ranks that get a group have the same
/// definition.
fn is_unanimous(records: &[DefinitionRecord]) -> bool {
    let mut participants = records.iter().filter(|record| record.is_participant());
    let has_one_definition = participants
        .next()
        .is_none_or(|first| participants.all(|r| r.fingerprint == first.fingerprint));
    has_one_definition
        && records.iter().all(|record| record.creation_call == records[0].creation_call)
}

/// Agrees on a group with the members `ranks`.
pub(super) fn agree_on_ranks(
    group: &Arc<Group>,
    ranks: &[Rank],
    backend: &str,
    name: Option<&str>,
    deadline: &Deadline,
) -> Result<AgreedGroup> {
    let backend = backend::canonical_name(backend);
    let name = name.unwrap_or_default();
    let definition = GroupDefinition::new(CreationCall::New, name, ranks, &backend);
    let (records, sequence) = exchange_records(group, &definition, 0, 0, deadline)?;
    let name = match name {
        "" => default_name(group.name(), &ranks_in_name(ranks), "#", sequence),
        _ => name.to_owned(),
    };
    Ok(AgreedGroup {
        id: records[ranks[0]].nonce,
        name,
        members: ranks.to_vec(),
        name_lease: None,
        number: None,
    })
}

/// Agrees on one group for each colour, and returns the group of this rank.
pub(super) fn agree_on_colors(
    group: &Arc<Group>,
    color: Option<u32>,
    key: i32,
    backend: &str,
    name: Option<&str>,
    deadline: &Deadline,
) -> Result<Option<AgreedGroup>> {
    let name = name.unwrap_or_default();
    let definition = match color {
        Some(_) => {
            GroupDefinition::new(CreationCall::Split, name, &[], &backend::canonical_name(backend))
        }
        None => GroupDefinition::new(CreationCall::Split, "", &[], ""),
    };
    let own_color = match color {
        None => NO_COLOR,
        Some(color) => i32::try_from(color).map_err(|_| {
            Error::invalid(format!("color {color} is out of range: pass 0 to {}", i32::MAX))
        })?,
    };
    let (records, sequence) = exchange_records(group, &definition, own_color, key, deadline)?;
    if own_color == NO_COLOR {
        return Ok(None);
    }
    let same = records.iter().enumerate().filter(|(_, record)| record.color == own_color);
    let mut members: Vec<(i32, Rank)> = same.map(|(rank, record)| (record.key, rank)).collect();
    members.sort_unstable();
    let members: Vec<Rank> = members.into_iter().map(|(_, rank)| rank).collect();
    let name = match name {
        "" => default_name(group.name(), &format!(":color{own_color}"), "#", sequence),
        _ => name.to_owned(),
    };
    Ok(Some(AgreedGroup {
        id: records[members[0]].nonce,
        name,
        members,
        name_lease: None,
        number: None,
    }))
}

/// Returns the records of all ranks and the sequence number of the all_gather. If the records
/// disagree, returns the error with all definitions.
fn exchange_records(
    group: &Arc<Group>,
    definition: &GroupDefinition,
    color: i32,
    key: i32,
    deadline: &Deadline,
) -> Result<(Vec<DefinitionRecord>, u64)> {
    let (nonce, creation_call) = (this_process::random_nonce()?, definition.creation_call());
    let record = DefinitionRecord {
        creation_call,
        nonce,
        fingerprint: definition.fingerprint(),
        color,
        key,
    };
    let (bytes, sequence) = gather_records(group, &record.encode(), deadline)?;
    let decode = |(rank, bytes)| {
        let unreadable = || Error::malformed_peer_data(rank, "the definition of a new group");
        DefinitionRecord::decode(bytes).ok_or_else(unreadable)
    };
    let records: Vec<DefinitionRecord> =
        bytes.chunks_exact(RECORD_BYTES).enumerate().map(decode).collect::<Result<_>>()?;
    if is_unanimous(&records) {
        return Ok((records, sequence));
    }
    Err(conflict_error(group, definition, &records, &bytes, deadline)?)
}

/// Gathers the records of all ranks with one all_gather, which waits for its turn in the group's
/// queue. Returns the records and the sequence number of the all_gather.
fn gather_records(group: &Group, own_record: &[u8], deadline: &Deadline) -> Result<(Vec<u8>, u64)> {
    let mut all = vec![0; own_record.len() * group.size()];
    let ticket = group.queue.issue();
    let sequence = ticket.sequence();
    let descriptor = Descriptor {
        kind: OpKind::AllGather,
        // A call of a user always has a data type, so no call has the same descriptor.
        dtype: None,
        op: None,
        root: None,
        count_spec: CountSpec::Count(own_record.len() as u64),
        sequence,
        algorithm: 0,
        part: 0,
        label: Label::NONE,
    };
    let recv = Dst::from(all.as_mut_slice());
    let late = LazyDeadline::from(*deadline);
    let operation = Operation::of(descriptor, Src::from(own_record), recv, &late);
    let operation = Operation { group: group.name(), observer: &group.observer, ..operation };
    let awaited = AwaitedWork { kind: AwaitedWorkKind::Collective, deadlines: [*deadline; 2] };
    let _guard =
        BlockedCallGuard::work(Arc::as_ptr(&group.queue).addr(), ticket.sequence(), awaited);
    let runs = group.queue.has_turn(&ticket);
    let record = group.record_collective(&descriptor, Instant::now(), runs);
    let outcome = match group.queue.wait_turn(&ticket, &late, || group.failure()) {
        Ok(_turn) => {
            record.mark_running();
            group.carry_out(&operation, NanCheck::Off)
        }
        Err(WaitInterrupt::Aborted(error)) => Err(error),
        Err(WaitInterrupt::Deadline) => Err(group.fail_expired_call(&descriptor, deadline)),
    };
    record.end(&outcome);
    outcome.inspect_err(|error| group.report_to_caller(error)).map(|()| (all, sequence))
}

/// Returns a list of ranks for each different definition, ordered by the lowest rank of each list.
fn ranks_by_definition(records: &[DefinitionRecord]) -> Vec<Vec<Rank>> {
    let mut indices: HashMap<[u8; 16], usize> = HashMap::new();
    let mut holders: Vec<Vec<Rank>> = Vec::new();
    for (rank, record) in records.iter().enumerate() {
        let index = *indices.entry(record.fingerprint).or_insert(holders.len());
        match holders.get_mut(index) {
            Some(ranks) => ranks.push(rank),
            None => holders.push(vec![rank]),
        }
    }
    holders
}

/// Returns the error that names the definitions of all ranks. Fails if the definitions cannot be
/// exchanged.
fn conflict_error(
    group: &Arc<Group>,
    definition: &GroupDefinition,
    records: &[DefinitionRecord],
    bytes: &[u8],
    deadline: &Deadline,
) -> Result<Error> {
    let mut id = Nonce::default();
    // No earlier exchange has used this id, because each record has a new nonce. All ranks compute
    // the same id.
    id.0.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
    let everyone: Vec<Rank> = (0..group.size()).collect();
    let mut holders = ranks_by_definition(records);
    let more = holders.len().saturating_sub(MAX_DEFINITIONS_SHOWN);
    holders.truncate(MAX_DEFINITIONS_SHOWN);
    let sends_definition = holders.iter().any(|ranks| ranks[0] == group.rank());
    let mine = if sends_definition { definition.encode() } else { Vec::new() };
    let channel = group.open_control_channel()?;
    let new = NewMembers { id, name: "(all ranks)", members: &everyone, me: group.rank() };
    let exchange = MemberExchange::new(group, channel, new, deadline);
    let all = exchange
        .all_gather("definition", &mine, &|| None)
        .inspect_err(|error| exchange.publish_failure(error))?;
    let decode = |ranks: &Vec<Rank>| {
        let unreadable = || Error::malformed_peer_data(ranks[0], "the definition of a new group");
        all.get(ranks[0]).and_then(|bytes| GroupDefinition::decode(bytes)).ok_or_else(unreadable)
    };
    let definitions: Vec<_> = holders.iter().map(decode).collect::<Result<_>>()?;
    let different: Vec<_> = holders.into_iter().zip(&definitions).collect();
    Ok(grouped_conflict_error(group.name(), &different, more))
}

/// Returns a default name for a new group, which is equal on all members. For example,
/// `world[0,2]#5`.
pub(super) fn default_name(parent: &str, members: &str, mark: &str, count: u64) -> String {
    let name = format!("{}{members}{mark}{count}", parent);
    if name.len() <= MAX_NAME_BYTES {
        return name;
    }
    // The name can be too long for a group that was derived in many steps. Then it is replaced by
    // its start and a hash.
    let short = &blake3::hash(name.as_bytes()).to_hex()[..16];
    let start: String = parent.chars().take(MAX_NAME_BYTES / 8).collect();
    format!("{start}~{short}{mark}{count}")
}

/// The maximum number of ranks that a default name lists.
const RANKS_IN_NAME: usize = 8;

/// Returns the part of a default name for these ranks: `[0,2]`, or `[100 ranks 1a2b3c4d]` with a
/// hash for a long list.
pub(super) fn ranks_in_name(ranks: &[Rank]) -> String {
    if ranks.len() <= RANKS_IN_NAME {
        let ranks: Vec<String> = ranks.iter().map(ToString::to_string).collect();
        return format!("[{}]", ranks.join(","));
    }
    let fingerprint = GroupDefinition::new(CreationCall::MembersOnly, "", ranks, "").fingerprint();
    let short: String = fingerprint[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("[{} ranks {short}]", ranks.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_record_round_trips() {
        let (nonce, definition) = (Nonce([3; 16]), [4; 16]);
        let record = DefinitionRecord {
            creation_call: CreationCall::Split,
            nonce,
            fingerprint: definition,
            color: 5,
            key: -6,
        };
        assert_eq!(DefinitionRecord::decode(&record.encode()), Some(record));
        assert_eq!(DefinitionRecord::decode(&[0; RECORD_BYTES]), None);
        assert_eq!(DefinitionRecord::decode(&record.encode()[..47]), None);
    }

    #[test]
    fn non_participants_need_only_the_same_call() {
        let nonce = Nonce::default();
        let record = |how, byte, color| DefinitionRecord {
            creation_call: how,
            nonce,
            fingerprint: [byte; 16],
            color,
            key: 0,
        };
        let (split, none) =
            (record(CreationCall::Split, 1, 0), record(CreationCall::Split, 2, NO_COLOR));
        assert!(is_unanimous(&[split, none, record(CreationCall::Split, 1, 7)]));
        assert!(is_unanimous(&[none, none]));
        assert!(!is_unanimous(&[split, record(CreationCall::Split, 2, 0)]));
        assert!(!is_unanimous(&[none, record(CreationCall::New, 1, 0)]));
    }

    #[test]
    fn equal_definitions_are_grouped_by_rank() {
        let record = |byte| DefinitionRecord {
            creation_call: CreationCall::New,
            nonce: Nonce([byte; 16]),
            fingerprint: [byte; 16],
            color: 0,
            key: 0,
        };
        let records = [2, 1, 2, 3, 1].map(record);
        assert_eq!(ranks_by_definition(&records), [vec![0, 2], vec![1, 4], vec![3]]);
    }
}
