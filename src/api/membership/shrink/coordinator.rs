//! The coordinator's side of a membership round. A rank becomes the coordinator if no lower rank is
//! expected to join. The coordinator collects the joins of the other ranks, proposes the joined
//! ranks as members of the new group, and commits the proposal when all members have accepted it.

use super::attempt::{
    CommittedProposal, DEATH_CHECK_INTERVAL, NoticeSchedule, PROBE_INTERVAL, ShrinkAttempt,
    ShrinkStop, may_rejoin,
};
use super::membership::MembershipStatus;
use super::messages::{MembershipProposal, SEND_TIMEOUT, ShrinkMessage};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::process::this_process;
use crate::transport::survivor_rendezvous::{
    PendingSurvivorConnect, SurvivorConnectResult, SurvivorLink, SurvivorSession,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The minimum time for which the coordinator gathers members, even if the window has ended. In
/// this time it finds out whether lost peers are alive.
const LOST_PEER_CHECK_TIME: Duration = Duration::from_millis(200);

/// The coordinator's probe of a rank that has not joined. A probe is a connection with which the
/// coordinator finds out whether the rank is alive.
#[derive(Debug)]
enum PeerProbe {
    /// The connection is being established.
    Connecting(PendingSurvivorConnect),
    /// The connection is established: the rank is alive, or another process holds its socket. If
    /// the rank dies, the link closes.
    Open(SurvivorLink),
    /// This rank could not connect, and nothing proves the death of the rank. It tries again at
    /// this time.
    Retry(Deadline),
    /// The probe has a final result.
    Done,
}

/// The coordinator's connections to the other ranks.
#[derive(Debug, Default)]
struct CoordinatorLinks {
    /// Ranks that have joined and got a welcome.
    joined: BTreeMap<Rank, SurvivorLink>,
    /// Ranks that have connected and have not sent a message.
    unjoined: BTreeMap<Rank, SurvivorLink>,
    /// The probes of ranks that have not joined.
    probes: BTreeMap<Rank, PeerProbe>,
    /// The ranks to which the last attempt to connect failed, without a proof of their death.
    unproven: BTreeSet<Rank>,
    notices: NoticeSchedule,
}

impl CoordinatorLinks {
    /// Sends the wait notices that are due to the joined ranks. Returns the time until the next
    /// notices.
    fn send_wait_notices(&mut self, window: Duration) -> Duration {
        if self.notices.take_due(window) {
            let message = ShrinkMessage::Wait.encode();
            let limit = Deadline::after(SEND_TIMEOUT);
            self.joined.retain(|_, link| link.send(&message, &limit).is_ok());
        }
        self.notices.remaining()
    }

    fn links(&self) -> impl Iterator<Item = &SurvivorLink> {
        let open = self.probes.values().filter_map(|probe| match probe {
            PeerProbe::Open(link) => Some(link),
            PeerProbe::Connecting(_) | PeerProbe::Retry(_) | PeerProbe::Done => None,
        });
        self.joined.values().chain(self.unjoined.values()).chain(open)
    }

    fn has_pending_connect(&self) -> bool {
        let is_pending = |probe| matches!(probe, &PeerProbe::Connecting(_) | &PeerProbe::Retry(_));
        self.probes.values().any(is_pending)
    }

    /// Returns whether a probe has no final result, so that it may still prove the death of a rank.
    fn has_open_probe(&self) -> bool {
        self.probes.values().any(|probe| !matches!(probe, PeerProbe::Done))
    }
}

impl ShrinkAttempt<'_> {
    /// Collects the ranks that join, and agrees with them on the members of the new group.
    ///
    /// # Errors
    /// `PeerFailed` if the joined ranks are not a quorum; the coordinator also sends this error to
    /// them. `Aborted` if other ranks have already formed a group.
    pub(super) fn coordinate(&mut self) -> std::result::Result<CommittedProposal, ShrinkStop> {
        let mut peers = CoordinatorLinks {
            unjoined: self.pending_followers.take_links(),
            ..CoordinatorLinks::default()
        };
        let until = self.deadline.capped(self.window);
        loop {
            self.gather_members(&mut peers, &until)?;
            let members = self.joined_members(&peers);
            if !self.membership.has_quorum(&members) {
                let reason = self.no_quorum_error(&members);
                let message = ShrinkMessage::Refuse(reason.clone()).encode();
                let limit = Deadline::after(SEND_TIMEOUT);
                // If a rank does not get this message, it notices that the connection closes.
                peers.joined.values().for_each(|link| drop(link.send(&message, &limit)));
                return Err(reason.into());
            }
            if let Some(agreed) = self.propose_members(&mut peers, members)? {
                return Ok(agreed);
            }
        }
    }

    fn joined_members(&self, peers: &CoordinatorLinks) -> Vec<Rank> {
        [self.me()].into_iter().chain(peers.joined.keys().copied()).collect()
    }

    /// Waits until all expected ranks have joined, or until the window ends at `until`.
    fn gather_members(
        &mut self,
        peers: &mut CoordinatorLinks,
        until: &Deadline,
    ) -> std::result::Result<(), ShrinkStop> {
        let until = if until.remaining() < LOST_PEER_CHECK_TIME {
            self.deadline.capped(LOST_PEER_CHECK_TIME)
        } else {
            *until
        };
        loop {
            self.accept_joins(peers);
            self.read_reported_deaths(peers);
            self.record_node_deaths();
            let until_notice = peers.send_wait_notices(self.window);
            self.probe_unjoined(peers)?;
            let missing: Vec<Rank> = (0..self.group.size())
                .filter(|&rank| rank != self.me() && self.membership.is_expected(rank))
                .filter(|rank| !peers.joined.contains_key(rank))
                .collect();
            let has_quorum = || self.membership.has_quorum(&self.joined_members(peers));
            // Between hosts, a refused connection is no proof: a firewall refuses it, too. So the
            // quorum counts only after the absence limit.
            let is_complete = missing.is_empty() && !self.awaits_proof(peers);
            if is_complete && (!peers.has_open_probe() || has_quorum()) {
                return Ok(());
            }
            if until.has_passed() {
                let ms = self.window.as_millis();
                let reason = format!("it did not call dist_group_shrink within {ms} ms");
                missing.into_iter().for_each(|rank| self.mark_absent(rank, reason.clone()));
                return Ok(());
            }
            let slice = match peers.has_pending_connect() {
                true => until_notice.min(PROBE_INTERVAL),
                false => until_notice.min(DEATH_CHECK_INTERVAL),
            };
            self.session.wait(peers.links(), &until.capped(slice))?;
        }
    }

    /// Returns true if a rank may be alive that this rank cannot connect to, or that the group's
    /// failure names and that has not answered yet.
    fn awaits_proof(&self, peers: &CoordinatorLinks) -> bool {
        let unanswered = peers.probes.iter().filter(|&(&rank, probe)| {
            self.membership.is_blamed(rank) && matches!(probe, PeerProbe::Connecting(_))
        });
        let mut ranks = peers.unproven.iter().chain(unanswered.map(|(rank, _)| rank));
        ranks.any(|&rank| self.may_answer(rank))
    }

    /// Reads the messages of the joined ranks, and removes the ranks that have closed their
    /// connections.
    fn read_reported_deaths(&mut self, peers: &mut CoordinatorLinks) {
        let mut reports = Vec::new();
        peers.joined.retain(|_, link| {
            loop {
                match link.poll().map(|frame| frame.as_deref().map(ShrinkMessage::decode)) {
                    Ok(Some(Some(ShrinkMessage::Deaths(dead)))) => reports.push(dead),
                    // Other messages answer an earlier proposal.
                    Ok(Some(_)) => {}
                    Ok(None) => return true,
                    Err(_) => return false,
                }
            }
        });
        for dead in reports {
            self.record_reported_deaths(&dead, |rank| peers.joined.contains_key(&rank));
        }
    }

    /// Accepts new connections and answers join messages.
    fn accept_joins(&mut self, peers: &mut CoordinatorLinks) {
        // If a rank connects again, its earlier connection was lost, and the new one replaces it.
        peers.unjoined.extend(self.session.take_arrivals());
        for (rank, mut link) in std::mem::take(&mut peers.unjoined) {
            match link.poll().map(|frame| frame.as_deref().map(ShrinkMessage::decode)) {
                Ok(Some(Some(ShrinkMessage::Join(dead)))) if rank > self.me() => {
                    self.answer_join(peers, rank, link);
                    self.record_reported_deaths(&dead, |rank| peers.joined.contains_key(&rank));
                }
                Ok(Some(_)) => crate::log!(
                    LogLevel::Warn,
                    "rank {rank} sent an unexpected message and is dropped"
                ),
                Ok(None) => drop(peers.unjoined.insert(rank, link)),
                Err(_) => {}
            }
        }
    }

    fn answer_join(&mut self, peers: &mut CoordinatorLinks, rank: Rank, link: SurvivorLink) {
        let limit = Deadline::after(SEND_TIMEOUT);
        if !self.membership.admit(rank) {
            let message = format!(
                "rank {rank} is not admitted to epoch {}: it caused the failure of the group",
                self.epoch()
            );
            let reason = Error::new(ErrorKind::PeerFailed, message).with_culprit(rank);
            drop(link.send(&ShrinkMessage::Refuse(reason).encode(), &limit));
        } else if link.send(&ShrinkMessage::Welcome.encode(), &limit).is_ok() {
            peers.probes.remove(&rank);
            peers.unproven.remove(&rank);
            peers.joined.insert(rank, link);
        }
    }

    /// Probes the ranks that have not joined, to find out whether they are alive.
    fn probe_unjoined(
        &mut self,
        peers: &mut CoordinatorLinks,
    ) -> std::result::Result<(), ShrinkStop> {
        let me = self.me();
        for rank in (0..self.group.size()).filter(|&rank| rank != me) {
            if peers.joined.contains_key(&rank) || self.membership.is_dead(rank) {
                peers.probes.remove(&rank);
                peers.unproven.remove(&rank);
                continue;
            }
            let previous = peers.probes.remove(&rank);
            let previous =
                previous.unwrap_or_else(|| PeerProbe::Connecting(self.session.connect(rank)));
            let probe = self.update_probe(&mut peers.unproven, rank, previous)?;
            peers.probes.insert(rank, probe);
        }
        Ok(())
    }

    /// Polls the probe of a rank and returns its new state. Connects again if the connection was
    /// lost, or if the rank has abandoned its shrink call and may call again.
    fn update_probe(
        &mut self,
        unproven: &mut BTreeSet<Rank>,
        rank: Rank,
        probe: PeerProbe,
    ) -> std::result::Result<PeerProbe, ShrinkStop> {
        let mut link = match probe {
            PeerProbe::Done => return Ok(PeerProbe::Done),
            PeerProbe::Retry(at) if at.has_passed() => {
                return Ok(PeerProbe::Connecting(self.session.connect(rank)));
            }
            PeerProbe::Retry(at) => return Ok(PeerProbe::Retry(at)),
            PeerProbe::Connecting(connect) => match connect.poll() {
                None => return Ok(PeerProbe::Connecting(connect)),
                Some(SurvivorConnectResult::Reached(link)) => {
                    self.record_reached(unproven, rank)?;
                    link
                }
                Some(call_outcome) => {
                    self.mark_unreachable(rank, &call_outcome);
                    return Ok(self.probe_after_failure(unproven, rank, &call_outcome));
                }
            },
            PeerProbe::Open(link) => link,
        };
        match link.poll().map(|frame| frame.as_deref().map(ShrinkMessage::decode)) {
            Ok(None | Some(Some(ShrinkMessage::Wait))) => Ok(PeerProbe::Open(link)),
            Ok(Some(Some(ShrinkMessage::GroupFormed(formed)))) => {
                Err(self.stop_for_formed_group(rank, &formed))
            }
            Ok(Some(Some(ShrinkMessage::Abandoned(reason)))) if !may_rejoin(rank, &reason) => {
                self.mark_absent(rank, format!("it gave up: {reason}"));
                Ok(PeerProbe::Done)
            }
            Err(_) | Ok(Some(Some(ShrinkMessage::Abandoned(_)))) => {
                Ok(PeerProbe::Connecting(self.session.connect(rank)))
            }
            Ok(Some(_)) => {
                self.mark_absent(rank, "it sent an unexpected message");
                Ok(PeerProbe::Done)
            }
        }
    }

    /// Handles a rank that can be reached, perhaps again. If it is lower than this rank, it is the
    /// better coordinator.
    fn record_reached(
        &mut self,
        unproven: &mut BTreeSet<Rank>,
        rank: Rank,
    ) -> std::result::Result<(), ShrinkStop> {
        let was_unreachable = self.membership.is_unreachable(rank);
        unproven.remove(&rank);
        if was_unreachable && self.membership.admit(rank) && rank < self.me() {
            return Err(ShrinkStop::NewRound);
        }
        Ok(())
    }

    /// Returns the state of a probe that could not connect.
    fn probe_after_failure(
        &mut self,
        unproven: &mut BTreeSet<Rank>,
        rank: Rank,
        outcome: &SurvivorConnectResult,
    ) -> PeerProbe {
        let SurvivorConnectResult::Unreachable(reason) = outcome else {
            unproven.remove(&rank);
            return PeerProbe::Done;
        };
        if !self.may_answer(rank) {
            unproven.remove(&rank);
            self.mark_absent(rank, reason.message());
            return PeerProbe::Done;
        }
        unproven.insert(rank);
        PeerProbe::Retry(self.absence_limit.capped(PROBE_INTERVAL))
    }

    /// Proposes the members to the joined ranks, and commits if all of them accept. Returns `None`
    /// if a member was lost or did not accept in time.
    fn propose_members(
        &mut self,
        peers: &mut CoordinatorLinks,
        members: Vec<Rank>,
    ) -> Result<Option<CommittedProposal>> {
        let (id, epoch) = (this_process::random_nonce()?, self.epoch());
        let proposal = MembershipProposal { id, epoch, members };
        let limit = self.deadline.capped(self.window.max(SEND_TIMEOUT));
        let message = ShrinkMessage::Propose(proposal.clone()).encode();
        let before = peers.joined.len();
        peers.joined.retain(|_, link| link.send(&message, &limit).is_ok());
        let mut waiting: Vec<Rank> = peers.joined.keys().copied().collect();
        while peers.joined.len() == before && !waiting.is_empty() {
            let until_notice = peers.send_wait_notices(self.window);
            let joined = &mut peers.joined;
            waiting.retain(|rank| !has_agreed(joined, *rank, &proposal));
            if joined.len() < before || waiting.is_empty() {
                break;
            }
            if limit.has_passed() {
                let reason = format!("it did not agree within {} ms", limit.timeout().as_millis());
                for rank in &waiting {
                    joined.remove(rank);
                    self.membership.record_status(*rank, MembershipStatus::Absent(reason.clone()));
                }
                break;
            }
            SurvivorSession::wait_for_links(
                waiting.iter().filter_map(|rank| joined.get(rank)),
                &limit.capped(until_notice),
            )?;
        }
        let joined = &mut peers.joined;
        if joined.len() < before {
            return Ok(None);
        }
        let message = ShrinkMessage::Commit(proposal.id).encode();
        // If a member does not get the commit, it does not take part in the bootstrap exchange,
        // which then fails.
        joined.values().for_each(|link| drop(link.send(&message, &limit)));
        let joined = std::mem::take(joined);
        let links = joined.into_values().enumerate().map(|(at, link)| (at + 1, link)).collect();
        Ok(Some(CommittedProposal { proposal, links }))
    }

    /// Returns the error for the case that the joined ranks are not a quorum.
    fn no_quorum_error(&self, members: &[Rank]) -> Error {
        let absent = self.membership.absent_ranks(members);
        let names =
            absent.iter().map(|&(rank, reason)| format!("{}: {reason}", self.session.name(rank)));
        let names: Vec<String> = names.collect();
        let failed = self.failure_suffix();
        let message = format!(
            "only ranks {members:?} joined{failed}, which is no majority of the ranks that are not \
             proven dead (of two equal halves, the half with the lowest rank continues): the other \
             ranks may continue without them. {}",
            names.join("; ")
        );
        let error = Error::new(ErrorKind::PeerFailed, message);
        absent.first().map(|&(rank, _)| rank).into_iter().fold(error, Error::with_culprit)
    }
}

/// Returns whether a member has accepted the proposal. If the member has closed the connection,
/// removes the member from `joined`.
fn has_agreed(
    joined: &mut BTreeMap<Rank, SurvivorLink>,
    rank: Rank,
    proposal: &MembershipProposal,
) -> bool {
    let Some(link) = joined.get_mut(&rank) else { return false };
    loop {
        match link.poll() {
            Ok(Some(frame)) => {
                if ShrinkMessage::decode(&frame) == Some(ShrinkMessage::Accept(proposal.id)) {
                    return true;
                }
                // This message answers an earlier proposal.
            }
            Ok(None) => return false,
            Err(_) => {
                joined.remove(&rank);
                return false;
            }
        }
    }
}
