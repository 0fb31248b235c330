//! Bootstrap exchange among the members of the new group, over their links to the coordinator,
//! which is the new rank 0. In each phase, a member sends its contribution to the coordinator and
//! receives the contributions of all members.
//!
//! If a link closes, the exchange fails, and the remaining members agree on another group.

use super::BuildFailure;
use super::messages::ShrinkMessage;
use crate::backend::BootstrapExchange;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::transport::survivor_rendezvous::{SurvivorLink, SurvivorSession};
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

/// The phase after the phases of the back end: its result is the ready notice.
pub(super) const READY_PHASE: &str = "ready";

/// How much longer a member waits than the coordinator. Also the timeout for reporting a failure.
const FOLLOWER_GRACE: Duration = Duration::from_millis(500);

/// How long one wait lasts before the member checks for a reason to cancel.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The exchange between the members of a committed proposal.
#[derive(Debug)]
pub(super) struct LinkExchange<'a> {
    session: &'a SurvivorSession<'a>,
    /// The members' ranks in the failed group.
    members: &'a [Rank],
    /// The index of this rank in `members`.
    me: Rank,
    pub(super) links: RefCell<Vec<(Rank, SurvivorLink)>>,
    limit: Deadline,
    received: RefCell<LinkContributions>,
}

#[derive(Debug, Default)]
struct LinkContributions {
    /// Contributions by phase and member.
    by_phase: HashMap<String, HashMap<Rank, Vec<u8>>>,
    complete: HashMap<String, Vec<Vec<u8>>>,
    failure: Option<Error>,
}

impl<'a> LinkExchange<'a> {
    pub(super) fn new(
        session: &'a SurvivorSession<'a>,
        members: &'a [Rank],
        me: Rank,
        links: Vec<(Rank, SurvivorLink)>,
        limit: &Deadline,
    ) -> Self {
        // The coordinator's limit ends first, so that it names the missing members.
        let limit =
            if me == 0 { *limit } else { Deadline::after(limit.remaining() + FOLLOWER_GRACE) };
        Self {
            session,
            members,
            me,
            links: RefCell::new(links),
            limit,
            received: RefCell::default(),
        }
    }

    /// Returns whether another round without the lost member can succeed.
    pub(super) fn classify_failure(&self, error: Error) -> BuildFailure {
        let is_retryable = self.received.borrow().failure.is_some()
            || matches!(
                error.kind(),
                ErrorKind::PeerFailed
                    | ErrorKind::Connection
                    | ErrorKind::Timeout
                    | ErrorKind::Aborted
            );
        if is_retryable { BuildFailure::Retryable(error) } else { BuildFailure::Fatal(error) }
    }

    /// Reads all messages that have arrived.
    fn poll_links(&self) {
        let received = &mut *self.received.borrow_mut();
        for (from, link) in self.links.borrow_mut().iter_mut() {
            loop {
                match link.poll() {
                    Ok(Some(frame)) => {
                        self.store_message(received, *from, ShrinkMessage::decode(&frame))
                    }
                    Ok(None) => break,
                    Err(cause) => {
                        let name = self.session.name(self.members[*from]);
                        let message = format!(
                            "the connection with {name} was lost while the new group was \
                                     created: {cause}"
                        );
                        let error = Error::new(ErrorKind::PeerFailed, message);
                        received.failure.get_or_insert(error);
                        break;
                    }
                }
            }
        }
    }

    fn store_message(
        &self,
        received: &mut LinkContributions,
        from: Rank,
        message: Option<ShrinkMessage>,
    ) {
        match message {
            Some(ShrinkMessage::Contribution { phase, bytes }) if self.me == 0 => {
                received.by_phase.entry(phase).or_default().insert(from, bytes);
            }
            Some(ShrinkMessage::AllContributions { phase, list })
                if list.len() == self.members.len() =>
            {
                received.complete.insert(phase, list);
            }
            Some(ShrinkMessage::Abandoned(reason)) => drop(received.failure.get_or_insert(reason)),
            _ => crate::log!(LogLevel::Warn, "an unexpected message of member {from} is dropped"),
        }
    }

    /// Waits until `ready` returns a value from the received messages.
    fn wait_for<T>(
        &self,
        cancelled: &dyn Fn() -> Option<Error>,
        missing: &dyn Fn(&LinkContributions) -> Vec<Rank>,
        ready: &dyn Fn(&mut LinkContributions) -> Option<T>,
    ) -> Result<T> {
        loop {
            self.poll_links();
            if let Some(found) = ready(&mut self.received.borrow_mut()) {
                return Ok(found);
            }
            if let Some(reason) = self.received.borrow().failure.clone().or_else(cancelled) {
                return Err(reason);
            }
            if self.limit.has_passed() {
                return Err(self.timeout_error(&missing(&self.received.borrow())));
            }
            let slice = self.limit.capped(POLL_INTERVAL);
            SurvivorSession::wait_for_links(
                self.links.borrow().iter().map(|(_, link)| link),
                &slice,
            )?;
        }
    }

    /// Reports to the coordinator that this member's group is ready, and waits for the ready
    /// notice.
    pub(super) fn confirm_ready(&self) -> Result<()> {
        let never_cancelled = || None;
        if self.me != 0 {
            return self.all_gather(READY_PHASE, b"", &never_cancelled).map(drop);
        }
        let list = self
            .collect(READY_PHASE, b"", &never_cancelled)
            .inspect_err(|error| self.publish_failure(error))?;
        let bytes =
            ShrinkMessage::AllContributions { phase: READY_PHASE.to_owned(), list }.encode();
        // The group is formed. A member that misses this notice gets it from another member.
        self.links.borrow().iter().for_each(|(_, link)| drop(link.send(&bytes, &self.limit)));
        Ok(())
    }

    /// Collects the contributions of all members to a phase, on the coordinator.
    pub(super) fn collect(
        &self,
        phase: &str,
        mine: &[u8],
        cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        let size = self.members.len();
        let part = ShrinkMessage::Contribution { phase: phase.to_owned(), bytes: mine.to_vec() };
        self.store_message(&mut self.received.borrow_mut(), 0, Some(part));
        let missing = |received: &LinkContributions| {
            let has_arrived = |member: &Rank| {
                received.by_phase.get(phase).is_some_and(|parts| parts.contains_key(member))
            };
            (0..size).filter(|member| !has_arrived(member)).collect()
        };
        let ready = |received: &mut LinkContributions| {
            let parts = received.by_phase.get(phase).filter(|parts| parts.len() == size)?;
            (0..size).map(|member| parts.get(&member).cloned()).collect::<Option<Vec<_>>>()
        };
        let list = self.wait_for(cancelled, &missing, &ready)?;
        self.received.borrow_mut().by_phase.remove(phase);
        Ok(list)
    }

    fn send_to_links(&self, message: &ShrinkMessage, limit: &Deadline) -> Result<()> {
        let bytes = message.encode();
        self.links.borrow().iter().try_for_each(|(_, link)| link.send(&bytes, limit))
    }

    fn timeout_error(&self, missing: &[Rank]) -> Error {
        let names = missing.iter().map(|&member| self.session.name(self.members[member]));
        let names: Vec<String> = names.map(ToString::to_string).collect();
        let message = format!(
            "{} did not respond within {} ms while the new group was created",
            names.join(", "),
            self.limit.timeout().as_millis()
        );
        Error::new(ErrorKind::Timeout, message)
    }
}

impl BootstrapExchange for LinkExchange<'_> {
    fn all_gather(
        &self,
        phase: &str,
        mine: &[u8],
        cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        if self.me != 0 {
            let part =
                ShrinkMessage::Contribution { phase: phase.to_owned(), bytes: mine.to_vec() };
            self.send_to_links(&part, &self.limit)?;
            return self
                .wait_for(cancelled, &|_| vec![0], &|received| received.complete.remove(phase));
        }
        let list = self.collect(phase, mine, cancelled)?;
        let all = ShrinkMessage::AllContributions { phase: phase.to_owned(), list };
        self.send_to_links(&all, &self.limit)?;
        let ShrinkMessage::AllContributions { list, .. } = all else { return Ok(Vec::new()) };
        Ok(list)
    }

    fn publish_failure(&self, reason: &Error) {
        let name = self.session.name(self.members[self.me]);
        let reason =
            Error::new(reason.kind(), format!("{name} failed to create the new group: {reason}"));
        if let Err(error) =
            self.send_to_links(&ShrinkMessage::Abandoned(reason), &Deadline::after(FOLLOWER_GRACE))
        {
            crate::log!(
                LogLevel::Info,
                "cannot report the failure of this rank to the other ranks: {error}"
            );
        }
    }

    fn peer_failure(&self) -> Option<Error> {
        self.poll_links();
        self.received.borrow().failure.clone()
    }
}
