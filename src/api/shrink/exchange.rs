//! How the members of the new group tell each other what their back end needs to meet: over their
//! links to the leader, which is the new rank 0. Each sends its part of a phase there and gets all
//! of them back.
//!
//! The end of a link ends the exchange: whoever was lost, the members that remain agree on another
//! group.

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

/// The phase behind those of the back end.
pub(super) const READY_PHASE: &str = "ready";

/// How much longer than the leader the others wait.
const FOLLOWER_GRACE: Duration = Duration::from_millis(500);

/// How long to wait in one go before asking whether there is a reason not to.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The exchange between members that have agreed.
#[derive(Debug)]
pub(super) struct LinkExchange<'a> {
    session: &'a SurvivorSession<'a>,
    /// Ranks in the group that has failed.
    members: &'a [Rank],
    /// Which of them is this one.
    me: Rank,
    pub(super) links: RefCell<Vec<(Rank, SurvivorLink)>>,
    limit: Deadline,
    received: RefCell<LinkContributions>,
}

#[derive(Debug, Default)]
struct LinkContributions {
    /// By phase and member.
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
        // The leader says who is missing.
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

    /// Whether it is worth trying again without whoever was lost.
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

    /// Hears what is there already.
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
                        let message =
                            format!("{name} was lost while the new group was made: {cause}");
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
            _ => crate::log!(LogLevel::Warn, "a word of member {from} fits nothing and is dropped"),
        }
    }

    /// Waits until `prepared` takes something out of what was heard.
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

    /// Tells the leader that this member's group is ready, and waits for its word that those of all
    /// are.
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
        // It is there: whoever does not hear so here hears it of another member.
        self.links.borrow().iter().for_each(|(_, link)| drop(link.send(&bytes, &self.limit)));
        Ok(())
    }

    /// What all members contribute to a phase, as the leader hears it.
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
            "{} did not go on within {} ms while the new group was made",
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
            Error::new(reason.kind(), format!("{name} gave up making the new group: {reason}"));
        if let Err(error) =
            self.send_to_links(&ShrinkMessage::Abandoned(reason), &Deadline::after(FOLLOWER_GRACE))
        {
            crate::log!(LogLevel::Info, "telling the other ranks why this one gave up: {error}");
        }
    }

    fn peer_failure(&self) -> Option<Error> {
        self.poll_links();
        self.received.borrow().failure.clone()
    }
}
