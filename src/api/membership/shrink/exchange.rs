//! Bootstrap exchange among the members of the new group. It uses the members' links to the
//! coordinator, which is rank 0 of the new group.
//!
//! If a link closes, the exchange fails, and the remaining members agree on another group in a new
//! round.

use super::messages::ShrinkMessage;
use crate::api::membership::bootstrap::{
    BootstrapContributions, BootstrapMessage, MEMBER_GRACE, StarLinks, collect_phase,
    log_unreported_failure, run_phase,
};
use crate::backend::BootstrapExchange;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::transport::survivor_rendezvous::{SurvivorLink, SurvivorSession};
use std::cell::RefCell;
use std::time::Duration;

/// The name of the last phase of the exchange. The phases before it create the back end. In this
/// phase each member reports that its part of the group is complete. The coordinator then sends the
/// *ready notice*: the group is complete on all members.
pub(super) const READY_PHASE: &str = "ready";

/// The interval at which a wait checks whether it is cancelled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The bootstrap exchange between the members of the new group, after they have agreed on the list
/// of members.
#[derive(Debug)]
pub(super) struct LinkExchange<'a> {
    session: &'a SurvivorSession<'a>,
    /// The members' ranks in the failed group, in the order of their new ranks.
    members: &'a [Rank],
    /// This member's rank in the new group, which is its index in `members`.
    me: Rank,
    /// The links, each with the peer's rank in the new group.
    pub(super) links: RefCell<Vec<(Rank, SurvivorLink)>>,
    limit: Deadline,
    received: RefCell<BootstrapContributions>,
}

/// The reason why the creation of a group failed.
#[derive(Debug)]
pub(super) enum BuildFailure {
    /// A member was lost. The remaining ranks may start another round.
    Retryable(Error),
    /// This rank cannot continue.
    Fatal(Error),
}

impl<'a> LinkExchange<'a> {
    pub(super) fn new(
        session: &'a SurvivorSession<'a>,
        members: &'a [Rank],
        me: Rank,
        links: Vec<(Rank, SurvivorLink)>,
        limit: &Deadline,
    ) -> Self {
        // The coordinator's limit is earlier than the limits of the other members. So the
        // coordinator reports a timeout first, and its error names the missing members.
        let limit =
            if me == 0 { *limit } else { Deadline::after(limit.remaining() + MEMBER_GRACE) };
        Self {
            session,
            members,
            me,
            links: RefCell::new(links),
            limit,
            received: RefCell::new(BootstrapContributions::new(me, members.len())),
        }
    }

    /// Returns the kind of a failure. It is retryable if a link was lost, if a member has reported
    /// a failure, or if the error is of a kind that a lost member causes.
    pub(super) fn classify_failure(&self, error: Error) -> BuildFailure {
        let is_retryable = self.received.borrow().failure().is_some()
            || matches!(
                error.kind(),
                ErrorKind::PeerFailed
                    | ErrorKind::Connection
                    | ErrorKind::Timeout
                    | ErrorKind::Aborted
            );
        if is_retryable { BuildFailure::Retryable(error) } else { BuildFailure::Fatal(error) }
    }

    /// Reads and stores all messages that have arrived. Returns whether there was a message or a
    /// new failure.
    fn poll_links(&self) -> bool {
        let received = &mut *self.received.borrow_mut();
        let mut has_new = false;
        for (from, link) in self.links.borrow_mut().iter_mut() {
            loop {
                match link.poll() {
                    Ok(Some(frame)) => {
                        has_new = true;
                        store_message(received, *from, ShrinkMessage::decode(&frame));
                    }
                    Ok(None) => break,
                    Err(cause) => {
                        has_new |= received.failure().is_none();
                        let name = self.session.name(self.members[*from]);
                        let message = format!(
                            "the connection with {name} was lost while the new group was \
                                     created: {cause}"
                        );
                        received.fail(Error::new(ErrorKind::PeerFailed, message));
                        break;
                    }
                }
            }
        }
        has_new
    }

    /// Runs the last phase: reports to the coordinator that the group is complete on this member,
    /// and waits for the ready notice. The coordinator waits for all reports and then sends the
    /// ready notice.
    pub(super) fn confirm_ready(&self) -> Result<()> {
        let never_cancelled = || None;
        if self.me != 0 {
            return run_phase(self, READY_PHASE, b"", &never_cancelled).map(drop);
        }
        let list = collect_phase(self, READY_PHASE, b"", &never_cancelled)
            .inspect_err(|error| self.publish_failure(error))?;
        let bytes = ready_notice(list).encode();
        // The group is now formed. A member that does not get this notice begins another round. The
        // members that it asks answer that the group is formed.
        self.links.borrow().iter().for_each(|(_, link)| drop(link.send(&bytes, &self.limit)));
        Ok(())
    }

    fn send_to_links(&self, message: &ShrinkMessage, limit: &Deadline) -> Result<()> {
        let bytes = message.encode();
        self.links.borrow().iter().try_for_each(|(_, link)| link.send(&bytes, limit))
    }
}

/// Returns the ready notice, which has the contributions of all members to the last phase.
pub(super) fn ready_notice(list: Vec<Vec<u8>>) -> ShrinkMessage {
    let phase = READY_PHASE.to_owned();
    ShrinkMessage::Bootstrap(BootstrapMessage::AllContributions { phase, list })
}

fn store_message(
    received: &mut BootstrapContributions,
    from: Rank,
    message: Option<ShrinkMessage>,
) {
    let is_expected = match message {
        Some(ShrinkMessage::Bootstrap(message)) => received.store(from, message),
        Some(ShrinkMessage::Abandoned(reason)) => {
            received.fail(reason);
            true
        }
        _ => false,
    };
    if !is_expected {
        crate::log!(LogLevel::Warn, "an unexpected message of member {from} is dropped");
    }
}

impl StarLinks for LinkExchange<'_> {
    fn contributions(&self) -> &RefCell<BootstrapContributions> {
        &self.received
    }

    fn send(&self, message: BootstrapMessage) -> Result<()> {
        self.send_to_links(&ShrinkMessage::Bootstrap(message), &self.limit)
    }

    fn await_messages(
        &self,
        _missing: &[Rank],
        cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<bool> {
        if self.poll_links() {
            return Ok(true);
        }
        if let Some(reason) = cancelled() {
            return Err(reason);
        }
        if self.limit.has_passed() {
            return Ok(false);
        }
        let links = self.links.borrow();
        let slice = self.limit.capped(POLL_INTERVAL);
        SurvivorSession::wait_for_links(links.iter().map(|(_, link)| link), &slice)?;
        Ok(true)
    }

    fn timeout_error(&self, _phase: &str, missing: &[Rank]) -> Error {
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
        run_phase(self, phase, mine, cancelled)
    }

    fn publish_failure(&self, reason: &Error) {
        let name = self.session.name(self.members[self.me]);
        let reason =
            Error::new(reason.kind(), format!("{name} failed to create the new group: {reason}"));
        let message = ShrinkMessage::Abandoned(reason);
        if let Err(error) = self.send_to_links(&message, &Deadline::after(MEMBER_GRACE)) {
            log_unreported_failure(&error);
        }
    }

    fn peer_failure(&self) -> Option<Error> {
        self.poll_links();
        self.received.borrow().failure()
    }
}
