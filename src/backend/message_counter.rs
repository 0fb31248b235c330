//! Counts the messages of a group, for the search for deadlocks.
//!
//! Plug-ins and the staging of device memory do not report which messages have been matched. So
//! this module counts the messages that were sent and received. After a message has failed, it is
//! unknown whether the message was matched, and the counts are no longer reported.

use super::{Completion, Delivery, MessageCounts, MessageTraffic, UnmatchedMessage};
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::sync::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageDirection {
    Send,
    Receive,
}

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
    direction: MessageDirection,
    peer: Option<Rank>,
    tag: Option<u32>,
    /// For a send: its position among the messages to the same rank with the same tag, from 1.
    position: u64,
}

impl OpenMessage {
    fn is_receive(&self) -> bool {
        self.direction == MessageDirection::Receive
    }

    fn unmatched(&self) -> Option<UnmatchedMessage> {
        match (self.direction, self.peer, self.tag) {
            (MessageDirection::Send, Some(to), Some(tag)) => {
                Some(UnmatchedMessage::CountedSend { to, tag, position: self.position })
            }
            (MessageDirection::Receive, from, tag) => {
                Some(UnmatchedMessage::CountedReceive { from, tag })
            }
            (MessageDirection::Send, ..) => None,
        }
    }
}

impl CounterState {
    fn forget_counts(&mut self) {
        self.is_unknown = true;
        self.counts = MessageCounts::default();
        self.open = BTreeMap::new();
    }
}

impl MessageCounter {
    /// Begins a message. The engine must get it after this call. Returns the number of the message.
    pub(super) fn begin(
        &self,
        direction: MessageDirection,
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
        let position = match (direction, peer, tag) {
            (MessageDirection::Send, Some(peer), Some(tag)) => {
                let count = state.counts.sent.entry((peer, tag)).or_default();
                *count += 1;
                *count
            }
            _ => 0,
        };
        state.open.insert(number, OpenMessage { work_id, direction, peer, tag, position });
        number
    }

    /// Records that the engine has got the message.
    pub(super) fn end_submission(&self) {
        lock(&self.state).submitting -= 1;
    }

    /// Ends a message.
    pub(super) fn end(&self, number: u64, outcome: &Result<Delivery>) {
        let mut state = lock(&self.state);
        let message = state.open.remove(&number);
        match outcome {
            Ok(delivery) if message.is_some_and(|it| it.is_receive()) => {
                *state.counts.received.entry((delivery.peer, delivery.tag)).or_default() += 1;
            }
            Ok(_) => {}
            Err(_) => state.forget_counts(),
        }
    }

    /// See [`crate::transport::PointToPoint::traffic`].
    pub(super) fn traffic(&self, work_id: usize) -> MessageTraffic {
        let state = lock(&self.state);
        let receives = state.open.values().filter(|message| message.is_receive());
        let posted = receives.map(|message| (message.peer, message.tag)).collect();
        let counts = MessageCounts { posted, ..state.counts.clone() };
        if state.is_unknown || counts.is_too_long() {
            return MessageTraffic::default();
        }
        let own = state.open.values().filter(|message| message.work_id == work_id);
        let unmatched = own.filter_map(OpenMessage::unmatched).collect();
        MessageTraffic { counts: Some(counts), unmatched, ..MessageTraffic::default() }
    }
}

/// The completion of a counted message. It ends the message in the counter.
#[derive(Debug)]
pub(super) struct CountedCompletion {
    counter: Arc<MessageCounter>,
    number: u64,
    inner: Arc<dyn Completion>,
}

impl CountedCompletion {
    /// Begins a message. `submit` passes the message to the engine with the new completion.
    pub(super) fn submit(
        counter: &Arc<MessageCounter>,
        direction: MessageDirection,
        peer_and_tag: (Option<Rank>, Option<u32>),
        inner: Arc<dyn Completion>,
        submit: impl FnOnce(Arc<dyn Completion>),
    ) {
        let number = counter.begin(direction, peer_and_tag, inner.work_id());
        submit(Arc::new(Self { counter: Arc::clone(counter), number, inner }));
        counter.end_submission();
    }
}

impl Completion for CountedCompletion {
    fn complete(&self, outcome: Result<Delivery>) {
        self.counter.end(self.number, &outcome);
        self.inner.complete(outcome);
    }

    fn is_awaited(&self) -> bool {
        self.inner.is_awaited()
    }

    fn work_id(&self) -> usize {
        self.inner.work_id()
    }

    fn complete_allocated(&self, delivery: Delivery, bytes: Vec<u8>) {
        self.counter.end(self.number, &Ok(delivery));
        self.inner.complete_allocated(delivery, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::{Error, ErrorKind};

    fn begin(
        counter: &MessageCounter,
        direction: MessageDirection,
        tag: Option<u32>,
        work_id: usize,
    ) -> u64 {
        let number = counter.begin(direction, (Some(1), tag), work_id);
        counter.end_submission();
        number
    }

    #[test]
    fn messages_are_counted_by_peer_and_tag() {
        let counter = MessageCounter::default();
        let first = begin(&counter, MessageDirection::Send, Some(3), 10);
        begin(&counter, MessageDirection::Send, Some(3), 11);
        let receive = begin(&counter, MessageDirection::Receive, None, 12);
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

    /// The completion of the caller; it has the id of a work.
    #[derive(Debug, Default)]
    struct CallerCompletion(Mutex<usize>);

    impl Completion for CallerCompletion {
        fn complete(&self, _: Result<Delivery>) {
            *lock(&self.0) += 1;
        }

        fn work_id(&self) -> usize {
            10
        }
    }

    #[test]
    fn completion_ends_the_message_in_the_counter() {
        let (counter, inner) = (Arc::default(), Arc::<CallerCompletion>::default());
        let mut posted = None;
        let done = Arc::clone(&inner) as Arc<dyn Completion>;
        let wanted = (None, Some(3));
        CountedCompletion::submit(&counter, MessageDirection::Receive, wanted, done, |done| {
            posted = Some(done);
        });
        let posted = posted.unwrap();
        assert_eq!(posted.work_id(), 10);
        let receive = UnmatchedMessage::CountedReceive { from: None, tag: Some(3) };
        assert_eq!(counter.traffic(10).unmatched, [receive]);
        posted.complete(Ok(Delivery { peer: 1, tag: 3, bytes: 0 }));
        assert_eq!((counter.traffic(10).unmatched, *lock(&inner.0)), (Vec::new(), 1));
        assert_eq!(counter.traffic(0).counts.unwrap().received_from(1, Some(3)), 1);
        // Another message begins when the first one has been submitted.
        begin(&counter, MessageDirection::Send, Some(3), 1);
        assert!(counter.traffic(0).counts.is_some());
    }

    #[test]
    fn counts_that_may_be_wrong_are_not_reported() {
        let is_known = |counter: &MessageCounter| counter.traffic(0).counts.is_some();
        let counter = MessageCounter::default();
        let number = begin(&counter, MessageDirection::Receive, Some(3), 1);
        assert!(is_known(&counter));
        counter.end(number, &Err(Error::new(ErrorKind::Timeout, "late")));
        assert!(!is_known(&counter));
        // Two threads submit at the same time.
        let counter = MessageCounter::default();
        counter.begin(MessageDirection::Send, (Some(1), Some(3)), 1);
        counter.begin(MessageDirection::Send, (Some(1), Some(3)), 2);
        assert!(!is_known(&counter));
        // There are too many tags.
        let counter = MessageCounter::default();
        for tag in 0..2000 {
            begin(&counter, MessageDirection::Send, Some(tag), 1);
        }
        assert!(!is_known(&counter));
    }
}
