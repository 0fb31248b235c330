//! What a blocked call needs from other processes, and whether the record of a process shows that
//! it has not done this.

use super::blocked_record::BlockedRecord;
use super::message_memory::MessageMemory;
use crate::api::observe::operation_details::CallSizes;
use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::base::ids::{Rank, WorldSize};
use crate::transport::{
    CountSpec, Descriptor, MessageCounts, MessageTraffic, OpKind, UnmatchedMessage,
};
use std::time::Instant;

/// The maximum number of bytes that NCCL may copy to its buffers before the peer receives. A send
/// of at most this length may wait only for earlier work of its stream, and then end without the
/// peer. NCCL has at most 64 channels with 4 MiB each, unless `NCCL_BUFFSIZE` is larger.
const MAX_BUFFERED_BYTES: usize = 256 << 20;

/// A call that a process must make. Without it, or without one of its alternatives, the blocked
/// call cannot end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::api) struct Need {
    pub(super) alternatives: Vec<RankNeed>,
}

/// A call of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RankNeed {
    /// The rank of the process in the group of the blocked call.
    pub(super) rank: Rank,
    pub(super) call: NeededCall,
}

/// The call that a process must make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NeededCall {
    /// A collective with this sequence number.
    Collective(u64),
    /// A collective with this sequence number, as an algorithm has reported at this time.
    Participation { sequence: u64, reported: Instant },
    /// A send. This rank has processed this number of bytes of the process.
    Send { received: u64 },
    /// A send with this tag, or with any tag. This rank has received this number of such messages
    /// of the process.
    CountedSend { tag: Option<u32>, received: u64, memory: MessageMemory },
    /// A receive of the message that was announced under this number.
    Receive { number: u64 },
    /// A receive of the message at this position among the messages of this rank with the tag.
    CountedReceive { tag: u32, position: u64, memory: MessageMemory },
    /// The creation of the group that this rank creates: the short id of the parent, and the name.
    /// This rank has processed this number of bytes of the process.
    Joining { received: u64, parent: u64, name: String },
}

/// The group of a blocked call, and the rank of this process in the group.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallerRank {
    pub(super) group: u64,
    pub(super) rank: Rank,
}

impl From<RankNeed> for Need {
    fn from(need: RankNeed) -> Self {
        Self { alternatives: vec![need] }
    }
}

impl Need {
    /// Returns the need for a message of a rank; `None` if a message of it is partly received.
    pub(in crate::api) fn message_of(rank: Rank, traffic: &MessageTraffic) -> Option<Self> {
        Some(RankNeed::message(rank, None, traffic, MessageMemory::Host)?.into())
    }

    /// Returns the need for a message of any of these ranks, as far as they are present.
    pub(in crate::api) fn message_of_any(
        ranks: impl Iterator<Item = Rank>,
        traffic: &MessageTraffic,
    ) -> Option<Self> {
        Self::any_message(ranks, None, traffic, MessageMemory::Host)
    }

    /// As [`Need::message_of_any`], with a tag. The tag counts only for engines that count
    /// messages.
    fn any_message(
        ranks: impl Iterator<Item = Rank>,
        tag: Option<u32>,
        traffic: &MessageTraffic,
        memory: MessageMemory,
    ) -> Option<Self> {
        let present = ranks.filter(|rank| !traffic.departed.contains(rank));
        let alternatives = present.map(|rank| RankNeed::message(rank, tag, traffic, memory));
        let alternatives: Vec<RankNeed> = alternatives.collect::<Option<_>>()?;
        (!alternatives.is_empty()).then_some(Self { alternatives })
    }

    /// Returns the need that a rank joins the creation of a group with this name.
    pub(in crate::api) fn joining(
        rank: Rank,
        traffic: &MessageTraffic,
        parent: u64,
        name: &str,
    ) -> Option<Self> {
        let (received, name) = (traffic.received_from(rank)?, name.to_owned());
        let call = NeededCall::Joining { received, parent, name };
        Some(RankNeed { rank, call }.into())
    }
}

impl RankNeed {
    fn message(
        rank: Rank,
        tag: Option<u32>,
        traffic: &MessageTraffic,
        memory: MessageMemory,
    ) -> Option<Self> {
        let call = match &traffic.counts {
            Some(counts) => {
                let received = counts.received_from(rank, tag);
                NeededCall::CountedSend { tag, received, memory }
            }
            None => NeededCall::Send { received: traffic.received_from(rank)? },
        };
        Some(Self { rank, call })
    }

    /// Returns whether the record of the process shows that it has not made the call. The record
    /// was read for the first time at `first_read`.
    pub(super) fn is_unmet(
        &self,
        caller: CallerRank,
        record: &BlockedRecord,
        first_read: Instant,
    ) -> bool {
        let state = record.groups.get(&caller.group).filter(|state| state.rank == self.rank);
        state.is_some_and(|state| match &self.call {
            NeededCall::Collective(sequence) => state.issued < *sequence,
            // The process has done its part of all earlier collectives. If the algorithm still
            // waits after that, it waits for this collective.
            NeededCall::Participation { sequence, reported } => {
                state.issued < *sequence && state.is_idle && *reported > first_read
            }
            NeededCall::Send { received } => state.has_sent_at_most(caller.rank, *received),
            NeededCall::CountedSend { tag, received, memory } => {
                let counts = state.counts_of(*memory);
                counts.is_some_and(|counts| counts.sent_to(caller.rank, *tag) <= *received)
            }
            NeededCall::Receive { number } => state.announced.contains(&(caller.rank, *number)),
            NeededCall::CountedReceive { tag, position, memory } => {
                state.counts_of(*memory).is_some_and(|counts| {
                    counts.received_from(caller.rank, Some(*tag)) < *position
                        && !counts.may_receive(caller.rank, *tag)
                })
            }
            NeededCall::Joining { received, parent, name } => {
                let is_joining = record
                    .joining
                    .as_ref()
                    .is_some_and(|(group, joined)| (group, joined) == (parent, name));
                !is_joining && state.has_sent_at_most(caller.rank, *received)
            }
        })
    }
}

/// Returns what a collective needs: the calls of the ranks whose data this rank gets.
pub(super) fn needs_of_collective(
    descriptor: &Descriptor,
    sizes: &CallSizes,
    me: Rank,
    size: WorldSize,
) -> Vec<Need> {
    let ranks = data_sources(descriptor, sizes, me, size);
    let call = NeededCall::Collective(descriptor.sequence);
    let ranks = ranks.into_iter().filter(|&rank| rank != me && rank < size);
    ranks.map(|rank| RankNeed { rank, call: call.clone() }.into()).collect()
}

fn data_sources(
    descriptor: &Descriptor,
    sizes: &CallSizes,
    me: Rank,
    size: WorldSize,
) -> Vec<Rank> {
    let is_root = descriptor.root == Some(me);
    let root = || descriptor.root.into_iter().collect();
    let outputs = sizes.outputs.as_deref().unwrap_or_default();
    let is_empty = |output: &Vec<u64>| output.iter().product::<u64>() == 0;
    let (has_output, has_blocks) = (!outputs.iter().all(is_empty), outputs.len() > 1);
    match descriptor.kind {
        OpKind::Barrier => (0..size).collect(),
        // Such a call may end without the other ranks.
        _ if descriptor.count_spec == CountSpec::Count(0) => Vec::new(),
        OpKind::AllReduce | OpKind::AllGather | OpKind::ReduceScatter | OpKind::AllToAll => {
            (0..size).collect()
        }
        OpKind::Reduce | OpKind::Gather if is_root => (0..size).collect(),
        OpKind::Broadcast | OpKind::Scatter if !is_root => root(),
        OpKind::Scan | OpKind::Exscan => (0..me).collect(),
        OpKind::ReduceScatterV if has_output => (0..size).collect(),
        OpKind::ScatterV if has_output && !is_root => root(),
        OpKind::AllGatherV | OpKind::AllToAllV | OpKind::GatherV if has_blocks => {
            let blocks = outputs.iter().enumerate().filter(|(_, block)| !is_empty(block));
            blocks.map(|(rank, _)| rank).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns what a message needs. Rank `me` of a group of `size` ranks sends or receives it.
pub(super) fn needs_of_message(
    traffic: &MessageTraffic,
    memory: MessageMemory,
    me: Rank,
    size: WorldSize,
) -> Vec<Need> {
    let others = || (0..size).filter(move |&rank| rank != me);
    let need = |message: &UnmatchedMessage| match *message {
        UnmatchedMessage::Send { to, number } => {
            Some(RankNeed { rank: to, call: NeededCall::Receive { number } }.into())
        }
        UnmatchedMessage::Receive { from: Some(from) } if from == me => {
            Some(RankNeed { rank: me, call: NeededCall::Send { received: 0 } }.into())
        }
        UnmatchedMessage::Receive { from: Some(from) } => Need::message_of(from, traffic),
        UnmatchedMessage::Receive { from: None } => Need::message_of_any(others(), traffic),
        UnmatchedMessage::CountedReceive { from, tag } => {
            let counts = traffic.counts.as_ref()?;
            if from.is_none_or(|from| from == me)
                && counts.sent_to(me, tag) > counts.received_from(me, tag)
            {
                // This rank has sent the message itself.
                return None;
            }
            match from {
                Some(from) => Some(RankNeed::message(from, tag, traffic, memory)?.into()),
                None => Need::any_message(others(), tag, traffic, memory),
            }
        }
        UnmatchedMessage::CountedSend { to, .. } if to == me => None,
        UnmatchedMessage::CountedSend { to, tag, position } => {
            let call = NeededCall::CountedReceive { tag, position, memory };
            Some(RankNeed { rank: to, call }.into())
        }
    };
    traffic.unmatched.iter().filter_map(need).collect()
}

/// Returns what a message needs that is enqueued on a device and has this position among the
/// messages to or from the same rank. The k-th send belongs to the k-th receive.
pub(super) fn needs_of_enqueued_message(
    message: &MessageDescriptor,
    position: u64,
    own_counts: &MessageCounts,
    me: Rank,
) -> Option<Need> {
    let (rank, tag, memory) = (message.peer?, MessageCounts::NO_TAG, MessageMemory::Device);
    let bytes = message.count.saturating_mul(message.dtype.size());
    let is_own = rank == me && own_counts.sent_to(me, Some(tag)) >= position;
    let call = match message.is_outgoing {
        _ if position == 0 || is_own => return None,
        true if rank == me || bytes <= MAX_BUFFERED_BYTES => return None,
        true => NeededCall::CountedReceive { tag, position, memory },
        false => NeededCall::CountedSend { tag: Some(tag), received: position - 1, memory },
    };
    Some(RankNeed { rank, call }.into())
}
