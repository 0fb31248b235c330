//! Bootstrap exchange among the members of a new group. It uses control messages between ranks of
//! the parent, and not the store.
//!
//! If a member fails, it reports the failure to the coordinator (the first member), and the
//! coordinator forwards it to the other members.

use super::control_channel::ControlChannel;
use super::definition::format_ranks;
use super::message::{ExchangeKey, SubgroupMessage};
use super::send_window::message_engine;
use crate::api::group::process_group::Group;
use crate::api::membership::bootstrap::{
    BootstrapContributions, BootstrapMessage, MEMBER_GRACE, StarLinks, log_unreported_failure,
    run_phase,
};
use crate::backend::BootstrapExchange;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, RankFault, Result};
use crate::base::ids::{GroupId, Rank};
use crate::base::log::LogLevel;
use crate::process::this_process;
use crate::transport::heartbeat::DEPARTURE_GRACE;
use crate::wait::slow_wait::{DisplaySeconds, SlowWaitWatch};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// The members of the new group, and the group's id and name.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewMembers<'a> {
    pub(super) id: GroupId,
    pub(super) name: &'a str,
    /// The members as ranks of the parent, in the order of their new ranks.
    pub(super) members: &'a [Rank],
    /// This process's rank in the new group, which is its index in `members`.
    pub(super) me: Rank,
}

/// The bootstrap exchange between the members of a new group. The members have already agreed on
/// the group's id.
#[derive(Debug)]
pub(super) struct MemberExchange<'a> {
    parent: &'a Group,
    channel: Arc<ControlChannel>,
    new: NewMembers<'a>,
    deadline: &'a Deadline,
    /// The time limit of the current phase on this rank.
    limit: Cell<Deadline>,
    watch: RefCell<SlowWaitWatch>,
    received: RefCell<BootstrapContributions>,
    departures: DepartureCheck,
}

impl<'a> MemberExchange<'a> {
    pub(super) fn new(
        parent: &'a Group,
        channel: Arc<ControlChannel>,
        new: NewMembers<'a>,
        deadline: &'a Deadline,
    ) -> Self {
        Self {
            parent,
            channel,
            new,
            deadline,
            limit: Cell::new(*deadline),
            watch: RefCell::default(),
            received: RefCell::new(BootstrapContributions::new(new.me, new.members.len())),
            departures: DepartureCheck::default(),
        }
    }

    fn key(&self) -> ExchangeKey {
        ExchangeKey::Id(self.new.id)
    }

    /// Returns the ranks of the parent to which this rank sends: all other members if it is the
    /// coordinator, otherwise only the coordinator.
    fn recipients(&self) -> &'a [Rank] {
        if self.new.me == 0 { &self.new.members[1..] } else { &self.new.members[..1] }
    }

    /// Converts ranks of the new group to ranks of the parent.
    fn in_parent(&self, members: &[Rank]) -> Vec<Rank> {
        members.iter().map(|&member| self.new.members[member]).collect()
    }

    fn store_message(&self, from: Rank, message: SubgroupMessage) {
        let mut received = self.received.borrow_mut();
        let Some(member) = self.new.members.iter().position(|&rank| rank == from) else { return };
        let is_expected = match message {
            SubgroupMessage::Bootstrap(message) => received.store(member, message),
            SubgroupMessage::Abandoned(reason) => {
                received.fail(reason);
                true
            }
            _ => false,
        };
        if !is_expected {
            crate::log!(LogLevel::Warn, "an unexpected control message of rank {from} is dropped");
        }
    }

    /// Logs a long wait for some ranks of the parent.
    #[cold]
    fn log_wait(&self, absent: &[Rank], waited: DisplaySeconds) {
        crate::log!(
            LogLevel::Warn,
            "group {}: {} of group {} has waited {waited} for {} of that group to join",
            self.new.name,
            self.parent.rank_location().name,
            self.parent.name(),
            format_ranks(absent)
        );
    }

    /// Stores the messages that have already arrived, without waiting.
    fn poll_channel(&self) {
        while let Some((from, message)) = self.channel.try_take(&self.key()) {
            self.store_message(from, message);
        }
    }
}

impl Drop for MemberExchange<'_> {
    fn drop(&mut self) {
        self.channel.end_exchange(self.new.id);
    }
}

impl StarLinks for MemberExchange<'_> {
    fn contributions(&self) -> &RefCell<BootstrapContributions> {
        &self.received
    }

    fn begin_phase(&self) {
        self.watch.borrow_mut().reset();
        if self.new.me != 0 {
            self.limit.set(Deadline::after(self.deadline.remaining() + MEMBER_GRACE));
        }
    }

    fn send(&self, message: BootstrapMessage) -> Result<()> {
        let (message, limit) = (SubgroupMessage::Bootstrap(message), self.limit.get());
        let sent =
            self.channel.send(self.parent, self.recipients(), &self.key(), &message, &limit)?;
        if self.new.me == 0 { self.channel.await_sent(self.parent, &sent, &limit) } else { Ok(()) }
    }

    fn await_messages(
        &self,
        missing: &[Rank],
        cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<bool> {
        let absent = self.in_parent(missing);
        let on_poll = || {
            self.watch.borrow_mut().check(|waited| self.log_wait(&absent, waited));
            match cancelled() {
                Some(reason) => Err(reason),
                None => self.departures.check(self.parent, &absent),
            }
        };
        let limit = self.limit.get();
        let found = self.channel.next_message(self.parent, &self.key(), &limit, &on_poll)?;
        let Some((from, message)) = found else { return Ok(false) };
        self.store_message(from, message);
        Ok(true)
    }

    fn timeout_error(&self, phase: &str, missing: &[Rank]) -> Error {
        let message = format!(
            "rank {} of the new group {} waited {} ms for {} ({} of group {}) to finish the phase \
             \"{phase}\" of its creation",
            self.new.me,
            self.new.name,
            self.deadline.elapsed().as_millis(),
            format_ranks(missing),
            format_ranks(&self.in_parent(missing)),
            self.parent.name(),
        );
        Error::new(ErrorKind::Timeout, message)
    }
}

impl BootstrapExchange for MemberExchange<'_> {
    fn all_gather(
        &self,
        phase: &str,
        mine: &[u8],
        cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        run_phase(self, phase, mine, cancelled)
    }

    fn publish_failure(&self, reason: &Error) {
        self.poll_channel();
        let known_failure = self.received.borrow().failure();
        if known_failure.is_some() && self.new.me != 0 {
            // The coordinator already knows this failure: it comes from the coordinator, which also
            // reports it to the other members.
            return;
        }
        let own_error = || {
            let kind = match reason.kind() {
                kind @ (ErrorKind::Timeout | ErrorKind::Mismatch) => kind,
                _ => ErrorKind::PeerFailed,
            };
            let text = format!(
                "rank {} (pid {}, host {}) failed to create group {}: {reason}",
                self.new.me,
                this_process::pid(),
                this_process::host_name(),
                self.new.name
            );
            Error::new(kind, text)
        };
        let message = SubgroupMessage::Abandoned(known_failure.unwrap_or_else(own_error));
        let limit = Deadline::after(MEMBER_GRACE);
        let sent = self.channel.send_and_await(
            self.parent,
            self.recipients(),
            &self.key(),
            &message,
            &limit,
        );
        if let Err(error) = sent {
            log_unreported_failure(&error);
        }
    }

    fn peer_failure(&self) -> Option<Error> {
        self.poll_channel();
        self.received.borrow().failure().or_else(|| self.parent.failure())
    }
}

/// Detects that an awaited rank has left the parent. A departure counts only after a grace period
/// ([`DEPARTURE_GRACE`]), because messages that the rank has sent before may still arrive.
#[derive(Debug, Default)]
pub(super) struct DepartureCheck {
    /// The end of the grace period. It starts when the departure is first seen.
    since: Cell<Option<Deadline>>,
}

impl DepartureCheck {
    /// Checks that no awaited rank has left the parent.
    ///
    /// # Errors
    /// `PeerFailed`, which names a rank that left more than [`DEPARTURE_GRACE`] ago.
    pub(super) fn check(&self, parent: &Group, awaited: &[Rank]) -> Result<()> {
        let engine = message_engine(parent)?;
        let departed = awaited.iter().find_map(|&rank| Some((rank, engine.departure_error(rank)?)));
        let Some((rank, cause)) = departed else {
            self.since.set(None);
            return Ok(());
        };
        let since = self.since.get().unwrap_or_else(|| Deadline::after(DEPARTURE_GRACE));
        self.since.set(Some(since));
        // Messages of a rank that has died have arrived before its death is known.
        let has_died = cause.culprit_details().is_some_and(|it| it.fault == RankFault::Died);
        if !has_died && !since.has_passed() {
            return Ok(());
        }
        let message = format!("rank {rank} of group {} did not join: {cause}", parent.name());
        Err(Error::new(ErrorKind::PeerFailed, message).with_culprit(rank))
    }
}
