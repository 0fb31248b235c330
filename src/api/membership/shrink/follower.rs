//! The follower's side of a membership round: a rank joins a lower rank (a candidate for the
//! coordinator), and accepts its proposal.

use super::attempt::{
    CommittedProposal, DEATH_CHECK_INTERVAL, PROBE_INTERVAL, ShrinkAttempt, ShrinkStop, may_rejoin,
};
use super::messages::{MembershipProposal, SEND_TIMEOUT, ShrinkMessage};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::transport::survivor_rendezvous::{SurvivorConnectResult, SurvivorLink};
use crate::wait::pause;
use std::time::Duration;

/// The interval between two polls of a pending connection. Polling is needed because nothing
/// notifies this thread.
const CONNECT_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The outcome of [`ShrinkAttempt::follow`].
#[derive(Debug)]
pub(super) enum FollowOutcome {
    /// The candidate is the coordinator and has committed a proposal that includes this rank.
    Agreed(CommittedProposal),
    /// The candidate does not coordinate. The reason is recorded as the candidate's membership
    /// status.
    NotCoordinator,
    /// The candidate has closed the connection, because it has died or starts another round.
    Reconnect,
}

/// The outcome of one attempt to join a candidate.
enum JoinOutcome {
    /// The attempt has this outcome, which is also the outcome for the round.
    Ended(FollowOutcome),
    /// The candidate has abandoned its shrink call, for this reason.
    Abandoned(Error),
}

/// The event that ended a wait for the candidate's next message.
enum FollowerEvent {
    Message(ShrinkMessage),
    Closed,
    TimedOut,
}

impl ShrinkAttempt<'_> {
    /// Joins a candidate and follows it until the round has an outcome for this rank.
    ///
    /// # Errors
    /// The reason why this rank must end its shrink call.
    pub(super) fn follow(
        &mut self,
        candidate: Rank,
    ) -> std::result::Result<FollowOutcome, ShrinkStop> {
        let limit = self.deadline.capped(self.window);
        loop {
            match self.join_candidate(candidate, &limit)? {
                JoinOutcome::Ended(outcome) => return Ok(outcome),
                JoinOutcome::Abandoned(reason)
                    if may_rejoin(candidate, &reason) && !limit.has_passed() =>
                {
                    pause(PROBE_INTERVAL, &limit);
                }
                JoinOutcome::Abandoned(reason) => {
                    self.mark_absent(candidate, format!("it gave up: {reason}"));
                    return Ok(FollowOutcome::NotCoordinator);
                }
            }
        }
    }

    fn join_candidate(
        &mut self,
        candidate: Rank,
        join_limit: &Deadline,
    ) -> std::result::Result<JoinOutcome, ShrinkStop> {
        let ended = |outcome| Ok(JoinOutcome::Ended(outcome));
        let Some(mut link) = self.connect_to(candidate, join_limit) else {
            return ended(FollowOutcome::NotCoordinator);
        };
        self.record_node_deaths();
        let mut reported = self.membership.dead_ranks();
        if link.send(&ShrinkMessage::Join(reported.clone()).encode(), join_limit).is_err() {
            return ended(FollowOutcome::Reconnect);
        }
        let (mut message_limit, mut agreed) = (*join_limit, None::<MembershipProposal>);
        loop {
            let message = match self.await_message(&mut link, &message_limit, &mut reported)? {
                FollowerEvent::Message(message) => message,
                FollowerEvent::Closed => return ended(FollowOutcome::Reconnect),
                FollowerEvent::TimedOut => {
                    let ms = message_limit.timeout().as_millis();
                    self.mark_absent(candidate, format!("it did not answer within {ms} ms"));
                    return ended(FollowOutcome::NotCoordinator);
                }
            };
            match message {
                // The candidate is alive. It follows a lower rank and becomes the coordinator if no
                // lower rank does, or it coordinates. If it then sends no more notices, this rank
                // leaves it after one window, as the ranks do that it has not answered. Otherwise
                // those ranks would form the group without this rank.
                ShrinkMessage::Wait | ShrinkMessage::Welcome => {
                    message_limit = self.deadline.capped(self.window)
                }
                ShrinkMessage::Propose(proposal) if proposal.members.contains(&self.me()) => {
                    if link
                        .send(&ShrinkMessage::Accept(proposal.id).encode(), &message_limit)
                        .is_err()
                    {
                        return ended(FollowOutcome::Reconnect);
                    }
                    message_limit = self.deadline.capped(self.window);
                    agreed = Some(proposal);
                }
                ShrinkMessage::Commit(id) => {
                    if let Some(proposal) = agreed.take_if(|proposal| proposal.id == id) {
                        let links = vec![(0, link)];
                        return ended(FollowOutcome::Agreed(CommittedProposal { proposal, links }));
                    }
                }
                ShrinkMessage::Refuse(reason) => return Err(reason.into()),
                ShrinkMessage::GroupFormed(formed) => {
                    return Err(self.stop_for_formed_group(candidate, &formed));
                }
                ShrinkMessage::Abandoned(reason) => return Ok(JoinOutcome::Abandoned(reason)),
                _ => {
                    self.mark_absent(candidate, "it sent an unexpected message");
                    return ended(FollowOutcome::NotCoordinator);
                }
            }
        }
    }

    /// Connects to a candidate. If this fails, records the reason and returns `None`.
    fn connect_to(&mut self, candidate: Rank, limit: &Deadline) -> Option<SurvivorLink> {
        let connect = self.session.connect(candidate);
        loop {
            match connect.poll() {
                Some(SurvivorConnectResult::Reached(link)) => return Some(link),
                Some(call_outcome) => {
                    self.mark_unreachable(candidate, &call_outcome);
                    return None;
                }
                None if limit.has_passed() => {
                    let ms = limit.timeout().as_millis();
                    self.mark_absent(
                        candidate,
                        format!("no connection with it was established within {ms} ms"),
                    );
                    return None;
                }
                None => {
                    self.pending_followers.send_wait_notices(self.session, self.window);
                    pause(CONNECT_POLL_INTERVAL, limit);
                }
            }
        }
    }

    /// Waits for the next message of the candidate. While it waits, sends wait notices to the ranks
    /// that want to follow this rank. Also sends the candidate the deaths that this rank can prove,
    /// unless they are in the list `reported`.
    fn await_message(
        &mut self,
        link: &mut SurvivorLink,
        limit: &Deadline,
        reported: &mut Vec<Rank>,
    ) -> Result<FollowerEvent> {
        loop {
            match link.poll() {
                Ok(Some(frame)) => {
                    return Ok(ShrinkMessage::decode(&frame)
                        .map_or(FollowerEvent::Closed, FollowerEvent::Message));
                }
                Ok(None) if limit.has_passed() => return Ok(FollowerEvent::TimedOut),
                Ok(None) => {
                    let until = self.pending_followers.send_wait_notices(self.session, self.window);
                    self.session.wait([&*link], &limit.capped(until.min(DEATH_CHECK_INTERVAL)))?;
                    self.record_node_deaths();
                    let dead = self.membership.dead_ranks();
                    if dead != *reported {
                        let message = ShrinkMessage::Deaths(dead.clone()).encode();
                        if link.send(&message, &Deadline::after(SEND_TIMEOUT)).is_err() {
                            return Ok(FollowerEvent::Closed);
                        }
                        *reported = dead;
                    }
                }
                Err(_) => return Ok(FollowerEvent::Closed),
            }
        }
    }
}
