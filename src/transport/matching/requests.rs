//! The outstanding requests of an engine: posted sends and receives that have not completed, with
//! their numbers and timers. Also the list of completions to call.
//!
//! Sends, receives and arriving messages share one sequence of ascending numbers. When a request
//! completes, it is removed from its table, and its completion waits in the list until the engine's
//! lock is released.

use super::limits::MAX_OUTSTANDING;
use super::outstanding::{
    CompletedMessage, OutstandingReceive, OutstandingSend, ReceiveStage, SendStage,
};
use super::timers::TimerQueue;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::{Completion, Delivery, ReceiveRequest, SendRequest};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A deadline that is further away than this needs no timer.
const MAX_TIMED_DEADLINE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The number of a send or of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RequestId {
    Send(u64),
    Receive(u64),
}

/// The outstanding requests.
#[derive(Debug)]
pub(super) struct Requests {
    sends: HashMap<u64, OutstandingSend>,
    receives: HashMap<u64, OutstandingReceive>,
    timers: TimerQueue<RequestId>,
    completed: Vec<CompletedMessage>,
    last_number: u64,
}

impl Requests {
    /// Creates a table without requests.
    pub(super) fn new() -> Self {
        Self {
            sends: HashMap::new(),
            receives: HashMap::new(),
            timers: TimerQueue::new(),
            completed: Vec::new(),
            last_number: 0,
        }
    }

    /// Returns a new number.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Returns whether a number has been issued.
    pub(super) fn was_issued(&self, number: u64) -> bool {
        (1..=self.last_number).contains(&number)
    }

    /// Rejects requests beyond the limit of outstanding messages.
    pub(super) fn check_capacity(&self, additional: usize) -> Result<()> {
        if self.sends.len() + self.receives.len() + additional > MAX_OUTSTANDING {
            let message = format!(
                "this rank has reached the limit of {MAX_OUTSTANDING} outstanding messages; wait for some of them \
                 first"
            );
            return Err(Error::new(ErrorKind::OutOfMemory, message));
        }
        Ok(())
    }

    /// Stores a send until it completes. Returns its number.
    pub(super) fn add_send(
        &mut self,
        message: SendRequest,
        completion: Arc<dyn Completion>,
        stage: SendStage,
    ) -> u64 {
        let number = self.next_number();
        let expires_at = expiry_time(&message.deadline);
        if let Some(due) = expires_at {
            self.timers.insert(due, RequestId::Send(number));
        }
        let (exposure_slot, loan) = (None, None);
        let sending =
            OutstandingSend { message, completion, expires_at, stage, exposure_slot, loan };
        self.sends.insert(number, sending);
        number
    }

    /// Stores a receive until it completes. Returns its number. The deadline starts with
    /// [`Requests::start_receive_timer`].
    pub(super) fn add_receive(
        &mut self,
        message: ReceiveRequest,
        completion: Arc<dyn Completion>,
        is_matched: bool,
    ) -> u64 {
        let receive = self.next_number();
        let receiving = OutstandingReceive {
            message,
            completion,
            expires_at: None,
            stage: ReceiveStage::Posted,
            allocated: Vec::new(),
            is_matched,
        };
        self.receives.insert(receive, receiving);
        receive
    }

    /// Starts the deadline of a receive, if the receive has not completed.
    pub(super) fn start_receive_timer(&mut self, receive: u64) {
        if let Some(receiving) = self.receives.get_mut(&receive) {
            receiving.expires_at = expiry_time(&receiving.message.deadline);
            if let Some(due) = receiving.expires_at {
                self.timers.insert(due, RequestId::Receive(receive));
            }
        }
    }

    /// Returns a send.
    pub(super) fn send(&self, number: u64) -> Option<&OutstandingSend> {
        self.sends.get(&number)
    }

    /// Returns a send, so that the caller can change its progress.
    pub(super) fn send_mut(&mut self, number: u64) -> Option<&mut OutstandingSend> {
        self.sends.get_mut(&number)
    }

    /// Returns a receive.
    pub(super) fn receive(&self, receive: u64) -> Option<&OutstandingReceive> {
        self.receives.get(&receive)
    }

    /// Returns a receive, so that the caller can change its progress and its buffer.
    pub(super) fn receive_mut(&mut self, receive: u64) -> Option<&mut OutstandingReceive> {
        self.receives.get_mut(&receive)
    }

    /// Changes the stage of a receive.
    pub(super) fn set_receive_stage(&mut self, receive: u64, stage: ReceiveStage) {
        if let Some(receiving) = self.receives.get_mut(&receive) {
            receiving.stage = stage;
        }
    }

    /// Returns the numbers of all sends that satisfy a condition.
    pub(super) fn sends_where(&self, condition: impl Fn(&OutstandingSend) -> bool) -> Vec<u64> {
        self.sends.iter().filter(|(_, it)| condition(it)).map(|(&number, _)| number).collect()
    }

    /// Returns the numbers of all receives that satisfy a condition, in the order of posting.
    pub(super) fn receives_where(
        &self,
        condition: impl Fn(&OutstandingReceive) -> bool,
    ) -> Vec<u64> {
        let matching = self.receives.iter().filter(|(_, it)| condition(it));
        let mut receives: Vec<u64> = matching.map(|(&receive, _)| receive).collect();
        receives.sort_unstable();
        receives
    }

    /// Returns whether any send satisfies a condition on its number and its state.
    pub(super) fn has_send(&self, condition: impl Fn(u64, &OutstandingSend) -> bool) -> bool {
        self.sends.iter().any(|(&number, sending)| condition(number, sending))
    }

    /// Returns whether no request is outstanding.
    pub(super) fn is_empty(&self) -> bool {
        self.receives.is_empty() && self.sends.is_empty()
    }

    /// Returns whether a caller waits for the receive and no send is outstanding.
    pub(super) fn is_only_waiting_for(&self, receive: u64) -> bool {
        self.sends.is_empty()
            && self.receives.get(&receive).is_some_and(|it| it.completion.is_awaited())
    }

    /// Returns whether there is a request for which no caller waits.
    pub(super) fn has_unawaited(&self) -> bool {
        let sends = self.sends.values().map(|it| &it.completion);
        let mut all = sends.chain(self.receives.values().map(|it| &it.completion));
        all.any(|completion| !completion.is_awaited())
    }

    /// Completes a send. Returns its exposure slot, which the caller releases.
    #[must_use]
    pub(super) fn complete_send(&mut self, number: u64, outcome: Result<Delivery>) -> Option<u16> {
        let sending = self.sends.remove(&number)?;
        if let Some(due) = sending.expires_at {
            self.timers.remove(due, RequestId::Send(number));
        }
        self.complete_unposted(sending.completion, outcome);
        sending.exposure_slot
    }

    /// Completes a receive.
    pub(super) fn complete_receive(&mut self, receive: u64, outcome: Result<Delivery>) {
        let Some(receiving) = self.receives.remove(&receive) else { return };
        if let Some(due) = receiving.expires_at {
            self.timers.remove(due, RequestId::Receive(receive));
        }
        self.completed.push(CompletedMessage::from_receive(receiving, outcome));
    }

    /// Completes a receive that has its whole message, whether or not its FIN has been sent.
    pub(super) fn complete_delivered(&mut self, receive: u64) {
        if let Some(receiving) = self.receives.get(&receive)
            && let ReceiveStage::Delivered(delivery) = receiving.stage
        {
            self.complete_receive(receive, Ok(delivery));
        }
    }

    /// Completes the receives that have their whole message from a peer to which no FIN can be sent
    /// any more.
    pub(super) fn complete_delivered_from(&mut self, peer: Rank) {
        let is_its = |stage| matches!(stage, ReceiveStage::Delivered(it) if it.peer == peer);
        for receive in self.receives_where(|it| is_its(it.stage)) {
            self.complete_delivered(receive);
        }
    }

    /// Completes a message that was never stored as a request.
    pub(super) fn complete_unposted(
        &mut self,
        completion: Arc<dyn Completion>,
        outcome: Result<Delivery>,
    ) {
        self.completed.push(CompletedMessage::new(completion, outcome));
    }

    /// Takes the list of completions. The caller calls them after it has released the engine's
    /// lock.
    pub(super) fn take_completed(&mut self) -> Vec<CompletedMessage> {
        std::mem::take(&mut self.completed)
    }

    /// Returns the time at which the next request expires.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.timers.next_due()
    }

    /// Returns a request that has expired, and removes its timer.
    pub(super) fn take_expired(&mut self) -> Option<RequestId> {
        self.timers.take_due()
    }
}

/// Returns the expiry time of a message, if it has one.
fn expiry_time(deadline: &Deadline) -> Option<Instant> {
    let left = deadline.remaining();
    if left > MAX_TIMED_DEADLINE { None } else { Instant::now().checked_add(left) }
}
