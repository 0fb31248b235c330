//! Counts the messages of a group over a plug-in, for the search for deadlocks.
//!
//! The plug-in does not report which messages have been matched. So this module counts the messages
//! that were sent and received. After a message has failed, it is unknown whether the message was
//! matched, and the counts are no longer reported.

use super::task::TaskKind;
use crate::backend::{Delivery, MessageCounts, MessageTraffic, UnmatchedMessage};
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::sync::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;

#[derive(Debug, Default)]
pub(super) struct MessageCounter {
    state: Mutex<CounterState>,
}

#[derive(Debug, Default)]
struct CounterState {
    /// The messages that were sent and received. The list of posted receives stays empty.
    counts: MessageCounts,
    open: BTreeMap<u64, OpenMessage>,
    last_number: u64,
    /// The number of threads that are submitting a message.
    submitting: usize,
    /// Whether the counts may be wrong.
    is_unknown: bool,
}

/// A message that is not complete.
#[derive(Debug)]
struct OpenMessage {
    work_id: usize,
    kind: TaskKind,
    peer: Option<Rank>,
    tag: Option<u32>,
    /// For a send: its position among the messages to the same rank with the same tag, from 1.
    position: u64,
}

impl CounterState {
    fn forget_counts(&mut self) {
        self.is_unknown = true;
        self.counts = MessageCounts::default();
        self.open = BTreeMap::new();
    }
}

impl MessageCounter {
    /// Begins a message. The plug-in must get it after this call. Returns the number of the
    /// message.
    pub(super) fn begin(
        &self,
        kind: TaskKind,
        (peer, tag): (Option<Rank>, Option<u32>),
        work_id: usize,
    ) -> u64 {
        let mut state = lock(&self.state);
        state.submitting += 1;
        state.last_number += 1;
        // The order in which two threads submit is not known.
        if state.submitting > 1 || state.counts.is_too_long() {
            state.forget_counts();
        }
        let number = state.last_number;
        if state.is_unknown {
            return number;
        }
        let position = match (kind, peer, tag) {
            (TaskKind::Send, Some(peer), Some(tag)) => {
                let count = state.counts.sent.entry((peer, tag)).or_default();
                *count += 1;
                *count
            }
            _ => 0,
        };
        state.open.insert(number, OpenMessage { work_id, kind, peer, tag, position });
        number
    }

    /// Records that the plug-in has got the message.
    pub(super) fn end_submission(&self) {
        lock(&self.state).submitting -= 1;
    }

    /// Ends a message.
    pub(super) fn end(&self, number: u64, outcome: &Result<Delivery>) {
        let mut state = lock(&self.state);
        let message = state.open.remove(&number);
        match outcome {
            Ok(delivery) if message.is_some_and(|it| it.kind == TaskKind::Receive) => {
                *state.counts.received.entry((delivery.peer, delivery.tag)).or_default() += 1;
            }
            Ok(_) => {}
            Err(_) => state.forget_counts(),
        }
    }

    /// See [`crate::transport::PointToPoint::traffic`].
    pub(super) fn traffic(&self, work_id: usize) -> MessageTraffic {
        let state = lock(&self.state);
        let receives = state.open.values().filter(|message| message.kind == TaskKind::Receive);
        let posted = receives.map(|message| (message.peer, message.tag)).collect();
        let counts = MessageCounts { posted, ..state.counts.clone() };
        if state.is_unknown || counts.is_too_long() {
            return MessageTraffic::default();
        }
        let unmatched = |message: &OpenMessage| match (message.kind, message.peer, message.tag) {
            (TaskKind::Send, Some(to), Some(tag)) => {
                Some(UnmatchedMessage::CountedSend { to, tag, position: message.position })
            }
            (TaskKind::Receive, from, tag) => Some(UnmatchedMessage::CountedReceive { from, tag }),
            _ => None,
        };
        let own = state.open.values().filter(|message| message.work_id == work_id);
        let unmatched = own.filter_map(unmatched).collect();
        MessageTraffic { counts: Some(counts), unmatched, ..MessageTraffic::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::{Error, ErrorKind};

    fn begin(counter: &MessageCounter, kind: TaskKind, tag: Option<u32>, work_id: usize) -> u64 {
        let number = counter.begin(kind, (Some(1), tag), work_id);
        counter.end_submission();
        number
    }

    #[test]
    fn messages_are_counted_by_peer_and_tag() {
        let counter = MessageCounter::default();
        let first = begin(&counter, TaskKind::Send, Some(3), 10);
        begin(&counter, TaskKind::Send, Some(3), 11);
        let receive = begin(&counter, TaskKind::Receive, None, 12);
        counter.end(first, &Ok(Delivery { peer: 1, tag: 3, bytes: 0 }));
        let send = UnmatchedMessage::CountedSend { to: 1, tag: 3, position: 2 };
        assert_eq!(counter.traffic(11).unmatched, [send]);
        assert_eq!(counter.traffic(10).unmatched, []);
        let wanted = UnmatchedMessage::CountedReceive { from: Some(1), tag: None };
        assert_eq!(counter.traffic(12).unmatched, [wanted]);
        let counts = counter.traffic(0).counts.unwrap();
        assert_eq!((counts.sent_to(1, Some(3)), counts.received_from(1, None)), (2, 0));
        assert!(counts.may_receive(1, 9));
        counter.end(receive, &Ok(Delivery { peer: 1, tag: 9, bytes: 0 }));
        let counts = counter.traffic(0).counts.unwrap();
        assert_eq!(counts.received_from(1, Some(9)), 1);
        assert!(!counts.may_receive(1, 9));
    }

    #[test]
    fn counts_that_may_be_wrong_are_not_reported() {
        let is_known = |counter: &MessageCounter| counter.traffic(0).counts.is_some();
        let counter = MessageCounter::default();
        let number = begin(&counter, TaskKind::Receive, Some(3), 1);
        assert!(is_known(&counter));
        counter.end(number, &Err(Error::new(ErrorKind::Timeout, "late")));
        assert!(!is_known(&counter));
        // Two threads submit at the same time.
        let counter = MessageCounter::default();
        counter.begin(TaskKind::Send, (Some(1), Some(3)), 1);
        counter.begin(TaskKind::Send, (Some(1), Some(3)), 2);
        assert!(!is_known(&counter));
        // There are too many tags.
        let counter = MessageCounter::default();
        for tag in 0..2000 {
            begin(&counter, TaskKind::Send, Some(tag), 1);
        }
        assert!(!is_known(&counter));
    }
}
