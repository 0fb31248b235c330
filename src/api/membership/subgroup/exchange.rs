//! Bootstrap exchange among the members of a new group, over control messages of its parent,
//! without the store.
//!
//! In each phase, a member sends its contribution to the coordinator, which is rank 0 of the new
//! group. The coordinator sends all contributions back, so a phase takes two hops. A member that
//! fails reports this to the coordinator, which forwards the failure to the other members. The
//! coordinator waits for missing members until the deadline and then names them. The other members
//! wait [`MEMBER_GRACE`] longer, to receive that error.

use super::control_channel::{ControlChannel, message_engine};
use super::definition::format_ranks;
use super::message::{ExchangeKey, SubgroupMessage};
use crate::api::group::process_group::Group;
use crate::backend::BootstrapExchange;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Rank};
use crate::base::log::LogLevel;
use crate::process::this_process;
use crate::transport::heartbeat::DEPARTURE_GRACE;
use crate::wait::slow_wait::{DisplaySeconds, SlowWaitWatch};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// How much longer the members wait than the coordinator. Also the timeout for reporting a failure.
pub(super) const MEMBER_GRACE: Duration = Duration::from_millis(500);

/// The exchange between the members of a group that has an id.
#[derive(Debug)]
pub(super) struct MemberExchange<'a> {
    parent: &'a Group,
    channel: Arc<ControlChannel>,
    /// The members' ranks in the parent.
    members: &'a [Rank],
    /// The index of this rank in `members`.
    me: Rank,
    id: GroupId,
    name: &'a str,
    deadline: &'a Deadline,
    received: RefCell<MemberContributions>,
    departures: DepartureCheck,
}

#[derive(Debug, Default)]
struct MemberContributions {
    /// Contributions by phase and member.
    by_phase: HashMap<String, HashMap<Rank, Vec<u8>>>,
    complete: HashMap<String, Vec<Vec<u8>>>,
    failure: Option<Error>,
}

impl<'a> MemberExchange<'a> {
    pub(super) fn new(
        parent: &'a Group,
        channel: Arc<ControlChannel>,
        members: &'a [Rank],
        me: Rank,
        (id, name): (GroupId, &'a str),
        deadline: &'a Deadline,
    ) -> Self {
        let (received, departures) = (RefCell::default(), DepartureCheck::default());
        Self { parent, channel, members, me, id, name, deadline, received, departures }
    }

    fn key(&self) -> ExchangeKey {
        ExchangeKey::Id(self.id)
    }

    fn others(&self) -> Vec<Rank> {
        let own = self.members[self.me];
        self.members.iter().copied().filter(|&rank| rank != own).collect()
    }

    fn store_message(&self, from: Rank, message: SubgroupMessage) {
        let mut received = self.received.borrow_mut();
        let Some(member) = self.members.iter().position(|&rank| rank == from) else { return };
        match message {
            SubgroupMessage::Contribution { phase, bytes } if self.me == 0 => {
                received.by_phase.entry(phase).or_default().insert(member, bytes);
            }
            SubgroupMessage::AllContributions { phase, list }
                if member == 0 && list.len() == self.members.len() =>
            {
                received.complete.insert(phase, list);
            }
            SubgroupMessage::Abandoned(reason) => drop(received.failure.get_or_insert(reason)),
            _ => crate::log!(
                LogLevel::Warn,
                "an unexpected control message of rank {from} is dropped"
            ),
        }
    }

    /// Waits until `ready` returns a value from the received messages; returns `None` if the limit
    /// passes first. `missing` returns the awaited ranks of the new group.
    fn wait_for<T>(
        &self,
        limit: &Deadline,
        cancelled: &dyn Fn() -> Option<Error>,
        missing: &dyn Fn(&MemberContributions) -> Vec<Rank>,
        ready: &dyn Fn(&mut MemberContributions) -> Option<T>,
    ) -> Result<Option<T>> {
        let watch = RefCell::new(SlowWaitWatch::default());
        loop {
            if let Some(found) = ready(&mut self.received.borrow_mut()) {
                return Ok(Some(found));
            }
            if let Some(reason) = self.received.borrow().failure.clone() {
                return Err(reason);
            }
            let absent = missing(&self.received.borrow());
            let absent: Vec<Rank> = absent.into_iter().map(|member| self.members[member]).collect();
            let on_poll = || {
                watch.borrow_mut().check(|waited| self.log_wait(&absent, waited));
                match cancelled() {
                    Some(reason) => Err(reason),
                    None => self.departures.check(self.parent, &absent),
                }
            };
            match self.channel.next_message(self.parent, &self.key(), limit, &on_poll)? {
                Some((from, message)) => self.store_message(from, message),
                None => return Ok(None),
            }
        }
    }

    /// Logs a long wait for some ranks of the parent.
    #[cold]
    fn log_wait(&self, absent: &[Rank], waited: DisplaySeconds) {
        crate::log!(
            LogLevel::Warn,
            "group {}: {} of group {} has waited {waited} for {} of that group to join",
            self.name,
            self.parent.rank_location().name,
            self.parent.name(),
            format_ranks(absent)
        );
    }

    /// Runs a phase as the coordinator.
    fn gather_contributions(
        &self,
        phase: &str,
        own_bytes: &[u8],
        cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        let size = self.members.len();
        let own_contribution =
            SubgroupMessage::Contribution { phase: phase.to_owned(), bytes: own_bytes.to_vec() };
        self.store_message(self.members[0], own_contribution);
        let missing = |received: &MemberContributions| {
            let has_arrived = |member: &Rank| {
                received.by_phase.get(phase).is_some_and(|p| p.contains_key(member))
            };
            (0..size).filter(|member| !has_arrived(member)).collect()
        };
        let ready = |received: &mut MemberContributions| {
            let parts = received.by_phase.get(phase).filter(|parts| parts.len() == size)?;
            (0..size).map(|member| parts.get(&member).cloned()).collect::<Option<Vec<_>>>()
        };
        let Some(list) = self.wait_for(self.deadline, cancelled, &missing, &ready)? else {
            return Err(self.timeout_error(phase, &missing(&self.received.borrow())));
        };
        self.received.borrow_mut().by_phase.remove(phase);
        let all = SubgroupMessage::AllContributions { phase: phase.to_owned(), list };
        let sent =
            self.channel.send(self.parent, &self.others(), &self.key(), &all, self.deadline)?;
        self.channel.await_sent(self.parent, &sent, self.deadline)?;
        let SubgroupMessage::AllContributions { list, .. } = all else { return Ok(Vec::new()) };
        Ok(list)
    }

    /// Runs a phase as any other member.
    fn send_contribution(
        &self,
        phase: &str,
        own_bytes: &[u8],
        cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        let part =
            SubgroupMessage::Contribution { phase: phase.to_owned(), bytes: own_bytes.to_vec() };
        let limit = Deadline::after(self.deadline.remaining() + MEMBER_GRACE);
        drop(self.channel.send(self.parent, &self.members[..1], &self.key(), &part, &limit)?);
        let found = self.wait_for(&limit, cancelled, &|_| vec![0], &|received| {
            received.complete.remove(phase)
        })?;
        found.ok_or_else(|| self.timeout_error(phase, &[0]))
    }

    fn timeout_error(&self, phase: &str, missing: &[Rank]) -> Error {
        let in_parent: Vec<Rank> = missing.iter().map(|&member| self.members[member]).collect();
        let message = format!(
            "rank {} of the new group {} waited {} ms for {} ({} of group {}) to finish the phase \
             \"{phase}\" of its creation",
            self.me,
            self.name,
            self.deadline.elapsed().as_millis(),
            format_ranks(missing),
            format_ranks(&in_parent),
            self.parent.name(),
        );
        Error::new(ErrorKind::Timeout, message)
    }

    /// Handles the messages that have arrived already.
    fn poll_channel(&self) {
        while let Some((from, message)) = self.channel.try_take(&self.key()) {
            self.store_message(from, message);
        }
    }
}

impl Drop for MemberExchange<'_> {
    fn drop(&mut self) {
        self.channel.end_exchange(self.id);
    }
}

impl BootstrapExchange for MemberExchange<'_> {
    fn all_gather(
        &self,
        phase: &str,
        mine: &[u8],
        cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        if self.me == 0 {
            self.gather_contributions(phase, mine, cancelled)
        } else {
            self.send_contribution(phase, mine, cancelled)
        }
    }

    fn publish_failure(&self, reason: &Error) {
        self.poll_channel();
        let known_failure = self.received.borrow().failure.clone();
        if known_failure.is_some() && self.me != 0 {
            // The coordinator reported this failure or has received it.
            return;
        }
        let own_error = || {
            let kind = match reason.kind() {
                kind @ (ErrorKind::Timeout | ErrorKind::Mismatch) => kind,
                _ => ErrorKind::PeerFailed,
            };
            let text = format!(
                "rank {} (pid {}, host {}) failed to create group {}: {reason}",
                self.me,
                this_process::pid(),
                this_process::host_name(),
                self.name
            );
            Error::new(kind, text)
        };
        let message = SubgroupMessage::Abandoned(known_failure.unwrap_or_else(own_error));
        let to = if self.me == 0 { self.others() } else { vec![self.members[0]] };
        let limit = Deadline::after(MEMBER_GRACE);
        let outcome = self.channel.send(self.parent, &to, &self.key(), &message, &limit);
        let outcome = outcome.and_then(|sent| self.channel.await_sent(self.parent, &sent, &limit));
        if let Err(error) = outcome {
            crate::log!(
                LogLevel::Info,
                "cannot report the failure of this rank to the other ranks: {error}"
            );
        }
    }

    fn peer_failure(&self) -> Option<Error> {
        self.poll_channel();
        self.received.borrow().failure.clone().or_else(|| self.parent.failure())
    }
}

/// Detects awaited ranks that have departed from the parent. `since` holds the end of the grace
/// period [`DEPARTURE_GRACE`], which starts with the first detection.
#[derive(Debug, Default)]
pub(super) struct DepartureCheck {
    since: Cell<Option<Deadline>>,
}

impl DepartureCheck {
    /// Checks that every awaited rank can still send.
    ///
    /// # Errors
    /// `PeerFailed` naming a rank that departed more than [`DEPARTURE_GRACE`] ago.
    pub(super) fn check(&self, parent: &Group, awaited: &[Rank]) -> Result<()> {
        let engine = message_engine(parent)?;
        let departed = awaited.iter().find_map(|&rank| Some((rank, engine.departure_error(rank)?)));
        let Some((rank, cause)) = departed else {
            self.since.set(None);
            return Ok(());
        };
        let since = self.since.get().unwrap_or_else(|| Deadline::after(DEPARTURE_GRACE));
        self.since.set(Some(since));
        if !since.has_passed() {
            return Ok(());
        }
        let message = format!("rank {rank} of group {} did not join: {cause}", parent.name());
        Err(Error::new(ErrorKind::PeerFailed, message).with_culprit(rank))
    }
}
