//! The setup of the shared-memory segment between the processes of one host. The *presence mark* of
//! a rank is its nonce (the random number that it published before) in its presence record in the
//! segment.
//!
//! 1. Every rank has registered with the registry of its process and has published the name of that
//!    registry ([`neighbour`](crate::transport::neighbour)).
//! 2. Each process makes the missing links to the processes of the other ranks.
//! 3. The lowest rank (the creator) creates the segment, writes its presence mark in it, and sends
//!    the descriptor to all members.
//! 4. Each member maps the segment, checks the creator's mark, writes its own mark, and sends a
//!    confirmation.
//! 5. The creator checks the mark of each member.
//!
//! A segment counts as shared between the creator and a member only if each of the two has read the
//! mark of the other. A rank that cannot complete its part sends this to the other ranks, whose
//! setup then fails too.

use super::ShmDomain;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorContext, ErrorKind, RankFault, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::sort::sort_by_key;
use crate::sys::process_status;
use crate::sys::shm::Segment;
use crate::sys::socket;
use crate::transport::neighbour::{
    FrameKind, NeighbourLink, NeighbourMember, PeerRoute, ProcessAddress, SetupLoss, SetupPeer,
};
use crate::transport::region::{Region, RegionGeometry};
use crate::transport::{HeartbeatConfig, PeerName, cma};
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, pause, wait_until};
use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The time between two checks whether the setup was cancelled.
const CANCEL_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The time before a descriptor is sent again that the kernel has refused because too many
/// descriptors are under way between processes.
const RESEND_INTERVAL: Duration = Duration::from_millis(1);

/// The data that one rank of the host has published.
#[derive(Clone, Debug)]
pub struct ShmMember {
    /// The name of the socket of the rank's process ([`NeighbourMember::socket_name`]).
    pub socket: String,
    /// The nonce of the rank.
    pub nonce: Nonce,
}

/// The parameters of a join.
#[derive(Debug)]
pub struct ShmJoinConfig<'a> {
    /// The id of the group.
    pub group: GroupId,
    /// The display names of the ranks of the host, in rank order.
    pub peers: &'a Arc<[PeerName]>,
    /// The sockets and nonces of the same ranks, in the same order.
    pub members: &'a [ShmMember],
    /// The index of this rank in both lists.
    pub me: Rank,
    /// The deadline of the setup.
    pub deadline: &'a Deadline,
    /// The heartbeat configuration of the ranks.
    pub vitals: HeartbeatConfig,
}

/// Shares a segment with the other members. This call polls `cancelled` periodically; if it returns
/// an error, the wait ends.
///
/// # Errors
/// The error of `cancelled`; `Connection` or `Timeout` with the name of the member that could not
/// be reached; `OutOfMemory`, `System`.
pub fn join(
    member: &Arc<NeighbourMember>,
    config: &ShmJoinConfig<'_>,
    geometry: RegionGeometry,
    wait_policy: WaitPolicy,
    cancelled: &dyn Fn() -> Option<Error>,
) -> Result<ShmDomain> {
    join_with(member, config, SegmentPlan { geometry, created: None }, wait_policy, cancelled)
}

/// The segment of a setup.
#[derive(Debug)]
pub struct SegmentPlan {
    /// The geometry of the segment.
    pub geometry: RegionGeometry,
    /// The segment, if this rank is the creator and has created it before the setup.
    pub created: Option<Segment>,
}

/// As [`join`], with a segment that the creator may have created before.
///
/// # Errors
/// As [`join`].
pub fn join_with(
    member: &Arc<NeighbourMember>,
    config: &ShmJoinConfig<'_>,
    plan: SegmentPlan,
    wait_policy: WaitPolicy,
    cancelled: &dyn Fn() -> Option<Error>,
) -> Result<ShmDomain> {
    let mut setup = SegmentSetup { member, config, cancelled, peers: Vec::new() };
    setup.run(plan, wait_policy).inspect_err(|_| setup.report_failure())
}

/// Creates a segment for these ranks.
///
/// # Errors
/// `OutOfMemory`; `System` with the call that the system refuses.
pub fn create_segment(geometry: RegionGeometry) -> Result<Segment> {
    Segment::create_sparse(geometry.bytes()?, geometry.initial_bytes()?)
}

/// Returns whether the limit on the size of files is smaller than a segment for these ranks.
///
/// # Errors
/// `System`.
pub fn exceeds_file_limit(geometry: RegionGeometry) -> Result<bool> {
    Segment::exceeds_file_limit(geometry.bytes()?)
}

/// The setup on one rank.
struct SegmentSetup<'a> {
    member: &'a Arc<NeighbourMember>,
    config: &'a ShmJoinConfig<'a>,
    cancelled: &'a dyn Fn() -> Option<Error>,
    /// The other ranks to which there is a route, with their indices.
    peers: Vec<(Rank, SetupPeer)>,
}

impl SegmentSetup<'_> {
    fn run(&mut self, plan: SegmentPlan, wait_policy: WaitPolicy) -> Result<ShmDomain> {
        let (config, SegmentPlan { geometry, created }) = (self.config, plan);
        self.connect_peers()?;
        let segment = match (config.me, created) {
            (0, Some(segment)) => segment,
            (0, None) => create_segment(geometry)?,
            _ => self.receive_segment(geometry.bytes()?)?,
        };
        let (mapping, descriptor) = segment.into_mapping()?;
        let region = Region::new(geometry, Box::new(mapping))?;
        if config.me == 0 {
            self.send_segment(&region, &descriptor)?;
        } else {
            self.confirm_mapping(&region)?;
        }
        let routes = self.peers.iter().map(|(_, peer)| peer.route.clone()).collect();
        ShmDomain::new(region, config, wait_policy, self.member, routes)
    }

    fn name(&self, index: Rank) -> &PeerName {
        &self.config.peers[index]
    }

    /// Finds the routes to all other ranks. Connects to the processes to which this process makes
    /// the link, and then waits for the links that the other processes make.
    fn connect_peers(&mut self) -> Result<()> {
        let (member, config) = (self.member, self.config);
        let others = (0..config.members.len()).filter(|&index| index != config.me);
        let mut awaited = Vec::new();
        for index in others {
            let (name, socket) = (self.name(index), &config.members[index].socket);
            let process = ProcessAddress::registry(socket).ok_or_else(|| {
                Error::new(ErrorKind::Connection, format!("{name} has the address \"{socket}\""))
            })?;
            let route = if member.is_own_process(process) {
                PeerRoute::SameProcess
            } else if member.connects_to(process) {
                let link = member.connect(process, config.deadline).map_err(|error| {
                    let what = format_args!("cannot reach {name} over its Unix socket");
                    error.context(what).with_culprit(name.rank)
                })?;
                PeerRoute::Link(link)
            } else {
                awaited.push((index, process));
                continue;
            };
            self.peers.push((index, SetupPeer { process, rank: name.rank, route }));
        }
        for (&(index, process), link) in awaited.iter().zip(self.wait_for_links(&awaited)?) {
            let (rank, route) = (self.name(index).rank, PeerRoute::Link(link));
            self.peers.push((index, SetupPeer { process, rank, route }));
        }
        sort_by_key(&mut self.peers, |&(index, _)| index);
        Ok(())
    }

    /// Waits for the links that other processes make. This is one wait and not one for each link,
    /// because each wait polls before it sleeps.
    fn wait_for_links(&self, awaited: &[(Rank, Nonce)]) -> Result<Vec<Arc<NeighbourLink>>> {
        let member = self.member;
        let (found, mut wakeup) = (RefCell::new(Vec::new()), None);
        let missing = || {
            let index = awaited.get(found.borrow().len()).map(|&(index, _)| index);
            let name = index.map(|index| self.name(index).to_string());
            format!("waiting on this host for {}", name.unwrap_or_default())
        };
        self.wait(member.links_changed(), missing, || {
            let mut found = found.borrow_mut();
            while let Some(&(index, process)) = awaited.get(found.len()) {
                // Register for the wakeup before the check, so that no change is missed.
                wakeup.get_or_insert_with(|| member.await_link(process));
                let Some(link) = member.find_link(process) else {
                    let pid = member.ended_pid(process)?;
                    let is_gone = pid == self.name(index).pid && process_status::is_gone(pid, None);
                    return is_gone.then(|| Err(self.death_error(index)));
                };
                found.push(link);
                wakeup = None;
            }
            Some(Ok(()))
        })??;
        Ok(found.into_inner())
    }

    /// Waits until `ready` returns a value. `describe` names the awaited event.
    fn wait<T>(
        &self,
        doorbell: &Doorbell,
        describe: impl Fn() -> String,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        let deadline = self.config.deadline;
        loop {
            let slice = deadline.capped(CANCEL_CHECK_INTERVAL);
            let policy = WaitPolicy::SLEEP_SOON;
            if let Ok(value) = wait_until(doorbell, policy, &slice, || None, &mut ready) {
                return Ok(value);
            }
            if deadline.has_passed() {
                let ms = deadline.elapsed().as_millis();
                let message = format!("no answer within {ms} ms");
                return Err(Error::new(ErrorKind::Timeout, message).context(describe()));
            }
            (self.cancelled)().map_or(Ok(()), Err)?;
        }
    }

    /// Waits for an event of a peer during the setup. Fails if the peer is lost before.
    fn wait_for_peer<T>(
        &self,
        (index, peer): &(Rank, SetupPeer),
        step: &str,
        mut event: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        let name = self.name(*index);
        let describe = || format!("{name}: {step}");
        self.member.await_frames_of(peer.rank);
        self.wait(self.member.setup_changed(), describe, || {
            // Check for a loss first: a peer may send the event before it is lost.
            let loss = self.member.setup_loss(peer);
            if let Some(value) = event() {
                return Some(Ok(value));
            }
            loss.map(|loss| Err(self.loss_error(*index, peer, step, loss)))
        })?
        .map_err(|error| match error.culprit() {
            Some(_) => error,
            None => error.with_culprit(name.rank),
        })
    }

    /// The creator's part of the setup: writes its mark, sends the descriptor of the segment to all
    /// members, and then checks their marks.
    fn send_segment(&self, region: &Region, segment: &OwnedFd) -> Result<()> {
        region.presence(0).write_nonce(presence_mark(&self.config.members[0]));
        cma::publish_write_cookie(region, 0)?;
        for (index, peer) in &self.peers {
            self.send_descriptor(*index, peer, segment)?;
        }
        for peer in &self.peers {
            let has_mapped = || self.member.has_mapped(&peer.1).then_some(());
            self.wait_for_peer(peer, "waiting for it to map the segment", has_mapped)?;
            self.check_presence_mark(region, peer.0)?;
        }
        Ok(())
    }

    fn send_descriptor(&self, index: Rank, peer: &SetupPeer, segment: &OwnedFd) -> Result<()> {
        loop {
            let fd = Some(segment.as_fd());
            let sent = self.member.send(&peer.route, FrameKind::Segment, peer.rank, fd);
            let Err(cause) = sent else { return Ok(()) };
            if socket::has_too_many_in_flight(&cause) && !self.config.deadline.has_passed() {
                pause(RESEND_INTERVAL, self.config.deadline);
                continue;
            }
            let step = "sending the segment to it";
            if peer.route.has_ended() {
                return Err(self.loss_error(index, peer, step, SetupLoss::ProcessEnded));
            }
            let name = self.name(index);
            return Err(
                Error::connection(format_args!("{name}: {step}"), cause).with_culprit(name.rank)
            );
        }
    }

    /// The first half of a member's part of the setup: receives the segment from the creator.
    fn receive_segment(&self, len: usize) -> Result<Segment> {
        let creator = self.creator()?;
        let take = || self.member.take_segment(&creator.1);
        let descriptor = self.wait_for_peer(creator, "waiting for its segment", take)?;
        let descriptor = descriptor.ok_or_else(|| {
            let message = "the peer sent a descriptor, but this process did not receive it: it may \
                           have reached its limit of open descriptors (ulimit -n)";
            Error::new(ErrorKind::System, message)
        });
        descriptor
            .and_then(|descriptor| Segment::open(descriptor, len))
            .context(|| format!("the segment of {}", self.name(0)))
    }

    /// The second half of a member's part of the setup: checks the creator's mark, writes the mark
    /// of this member, and sends the confirmation.
    fn confirm_mapping(&self, region: &Region) -> Result<()> {
        let me = self.config.me;
        self.check_presence_mark(region, 0)?;
        region.presence(me).write_nonce(presence_mark(&self.config.members[me]));
        cma::publish_write_cookie(region, me)?;
        let (index, creator) = self.creator()?;
        self.member.send(&creator.route, FrameKind::Mapped, creator.rank, None).map_err(|cause| {
            let name = self.name(*index);
            Error::connection(format_args!("{name}: confirming the mapping"), cause)
                .with_culprit(name.rank)
        })
    }

    fn creator(&self) -> Result<&(Rank, SetupPeer)> {
        let creator = self.peers.iter().find(|(index, _)| *index == 0);
        creator.ok_or_else(|| Error::internal("no route to the creator of the segment"))
    }

    /// Returns the error for a member that was lost during `step`. The error says that the member
    /// died, if the kernel reports the exit of its process.
    fn loss_error(&self, index: Rank, peer: &SetupPeer, step: &str, loss: SetupLoss) -> Error {
        let name = self.name(index);
        let message = match (loss, peer.route.link()) {
            (SetupLoss::JoinFailed, _) => "it does not join the group",
            (_, Some(link)) if link.ended_with_process(name.pid) => return self.death_error(index),
            _ => "its process closed the connection",
        };
        let error = Error::new(ErrorKind::Connection, message);
        error.context(format_args!("{name}: {step}")).with_culprit(name.rank)
    }

    fn death_error(&self, index: Rank) -> Error {
        let name = self.name(index);
        let message = format!("{name} died while the ranks of its host set up their shared memory");
        let error = Error::new(ErrorKind::PeerFailed, message).with_culprit(name.rank);
        error.with_fault(RankFault::Died)
    }

    fn check_presence_mark(&self, region: &Region, index: Rank) -> Result<()> {
        if region.presence(index).read_nonce() == presence_mark(&self.config.members[index]) {
            return Ok(());
        }
        let name = self.name(index);
        let message = format!("the segment does not have the presence mark of {name}");
        Err(Error::new(ErrorKind::Connection, message).with_culprit(name.rank))
    }

    /// Tells the other ranks that this rank does not join.
    fn report_failure(&self) {
        for (_, peer) in &self.peers {
            // A peer whose process has ended needs no message.
            drop(self.member.send(&peer.route, FrameKind::JoinFailed, peer.rank, None));
        }
    }
}

/// Returns the presence mark of a member: its nonce as two words.
fn presence_mark(member: &ShmMember) -> [u64; 2] {
    let word = |from: usize| {
        let bytes = &member.nonce.0[from..from + 8];
        bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
    };
    [word(0), word(8)]
}
