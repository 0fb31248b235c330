//! Who is there: the roll call of an exchange that waits for long, who came late, and who is named
//! at the deadline. The head of [`super::exchange`] says what it is good for.

use super::exchange::{Body, Exchange, Parcel, send_rest};
use super::lane::Mark;
use crate::algo::Operation;
use crate::base::buffer::Src;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::transport::frame::{Excuse, HEADER_BYTES, Header, Kind};
use crate::transport::pulse::whereabouts;
use crate::transport::{Descriptor, Direction};
use crate::wait::watch::Seconds;
use std::time::Duration;

/// After how long a rank says that it is there, to all ranks, in groups up to `CLOSE` of them; in
/// larger ones, where that would make many streams, after half of the time allowed, and to its
/// team.
const ROLL_CALL: Duration = Duration::from_millis(250);
const CLOSE: usize = 64;

/// For how long a rank that cannot name who is late lets others report first.
const GRACE: Duration = Duration::from_millis(300);

/// The same in operations between nodes, where those who share a node with the late one know more.
const GRACE_OF_NODES: Duration = Duration::from_millis(150);

/// How long a rank that has found a mismatch waits until the others know that it is in the
/// operation.
const ANNOUNCEMENT: Duration = Duration::from_secs(1);

/// How many marks of presence of one rank are taken at a look.
const MARKS: usize = 64;

impl Exchange<'_> {
    pub(super) fn roll_call(&self) -> Duration {
        let half = self.operation.deadline().allowed() / 2;
        if self.is_close() { half.min(ROLL_CALL) } else { half }
    }

    fn is_close(&self) -> bool {
        self.endpoint.size() <= CLOSE
    }

    /// Who is called: ranks that called something else may be in another team.
    fn others(&self) -> Vec<Rank> {
        let mine = self.endpoint.rank();
        let others = |rank: &Rank| *rank != mine;
        if self.is_close() {
            (0..self.endpoint.size()).filter(others).collect()
        } else {
            self.team.members().iter().copied().filter(others).collect()
        }
    }

    /// Says once that this rank is there, and looks who else is; true where there is something to
    /// send or something has come, which may be what a posted message waits for.
    pub(super) fn call_roll(&mut self) -> Result<bool> {
        let others = self.others();
        let says = self.mark_presence(&others);
        let mut came = 0;
        for peer in others {
            let is_inside = |parcel: &Parcel<'_>| {
                parcel.peer == peer
                    && parcel.lane == 0
                    && matches!(parcel.body, Body::In { done: Some(_), .. })
            };
            if self.pending.iter().any(is_inside) {
                continue;
            }
            // Only whose message is waited for must be there.
            for _ in 0..MARKS {
                let Ok(Some(header)) = self.next_header(peer, 0, &mut came) else { break };
                let is_later = header.descriptor.moment() > self.operation.descriptor.moment();
                if is_later || !self.pass_presence(peer, 0, &header)? {
                    if !is_later {
                        self.agree(peer, &header)?;
                    }
                    let peer = &mut self.lane.peers[peer];
                    if peer.heard < header.descriptor.moment() {
                        peer.excuse = header.excuse;
                    }
                    peer.heard = header.descriptor.moment();
                    peer.waits_for = None;
                    break;
                }
            }
        }
        Ok(says || came > 0)
    }

    /// Posts a mark of presence for each of the others, once in an operation; true if there is
    /// something to send.
    fn mark_presence(&mut self, others: &[Rank]) -> bool {
        let excuse = self.waits_for();
        let header = Header { kind: Kind::Presence, excuse, ..self.header(0, 1, 0, 0) };
        self.lane.mark(others, &header)
    }

    /// Tells the others that this rank is in the operation, before it waits for the label of
    /// another rank. They find the mismatch by the mark, and one that can ask for the label reports
    /// it. Waits until the marks are sent, since the first connection to a rank takes a moment and
    /// nothing is sent during the wait for a label.
    pub(super) fn announce(&mut self) {
        let others = self.others();
        self.mark_presence(&others);
        let limit = Deadline::after(ANNOUNCEMENT);
        while self.endpoint.failure().is_none() && !limit.has_passed() {
            if self.send_marks() {
                continue;
            }
            let is_open = |mark: &Mark| !self.pending.iter().any(|parcel| parcel.is_before(mark));
            if !self.lane.marks.iter().any(is_open) {
                break;
            }
            self.endpoint.rest(&self.wishes(), limit.left());
        }
    }

    /// Sends marks of presence between messages, as far as goes; true if anything moved.
    pub(super) fn send_marks(&mut self) -> bool {
        let mut moved = false;
        let (endpoint, pending) = (self.endpoint, &self.pending);
        self.lane.marks.retain_mut(|mark| {
            if pending.iter().any(|parcel| parcel.is_before(mark)) {
                return true;
            }
            let sent = send_rest(endpoint, mark.peer, 0, &mark.header, Src::empty(), mark.done);
            // Whoever has left needs no mark of presence.
            let Ok(sent) = sent else { return false };
            mark.done += sent;
            moved |= sent > 0;
            mark.done < HEADER_BYTES
        });
        moved
    }

    /// The members that have not been seen in the operation.
    fn missing(&self) -> Vec<Rank> {
        let moment = self.operation.descriptor.moment();
        let members = self.team.members().iter().copied();
        let is_missing =
            |&rank: &Rank| rank != self.endpoint.rank() && self.lane.peers[rank].heard < moment;
        members.filter(is_missing).collect()
    }

    /// Whose messages are waited for, or who does not take any.
    pub(super) fn awaited(&self, direction: Direction) -> Vec<Rank> {
        let parcels = self.pending.iter().filter(|parcel| parcel.direction() == direction);
        let mut awaited: Vec<Rank> = parcels.map(|parcel| parcel.peer).collect();
        awaited.sort_unstable();
        awaited.dedup();
        awaited
    }

    /// Who is late for certain: those who are missing and waited for. A rank that is missing may
    /// also have finished long ago and needed none of this one's messages.
    fn culprits(&self, missing: &[Rank]) -> Vec<Rank> {
        let of = |direction| {
            let mut awaited = self.awaited(direction);
            awaited.retain(|rank| missing.contains(rank));
            awaited
        };
        Some(of(Direction::In))
            .filter(|late| !late.is_empty())
            .unwrap_or_else(|| of(Direction::Out))
    }

    /// A look in a wait that has become long: who of those whose messages are waited for has been
    /// seen in the operation?
    pub(super) fn look_around(&self, awaited: Vec<Rank>) {
        let moment = self.operation.descriptor.moment();
        let has_come = |rank: Rank| self.lane.peers[rank].heard >= moment;
        let blame = |rank: Rank, by: Duration| match self.lane.peers[rank].excuse {
            Some(excuse) => (excuse.rank, by.min(excuse.waited)),
            None => (rank, by),
        };
        self.lateness.look(awaited.into_iter(), has_come, blame);
    }

    /// For whom this rank has waited in the operation, for those who wait for this rank.
    pub(super) fn excuse(&self) -> Option<Excuse> {
        let (rank, waited) = self.operation.probe.latest()?;
        Excuse::new(rank, waited)
    }

    pub(super) fn grace(&self) -> Duration {
        match (self.nodes, self.culprits(&self.missing()).is_empty()) {
            (_, true) => GRACE,
            (true, false) => GRACE_OF_NODES,
            (false, false) => Duration::ZERO,
        }
    }

    /// A long wait, for the log.
    #[cold]
    pub(super) fn tell(&self, lasted: Seconds) {
        let Operation { descriptor, group, .. } = self.operation;
        crate::log!(
            Level::Warn,
            "{descriptor} of group {group}: {} has waited {lasted} for {}",
            self.me(),
            self.names(&self.waited_for())
        );
    }

    /// Who is to blame for a wait, as far as this rank can tell.
    fn waited_for(&self) -> Vec<Rank> {
        let missing = self.missing();
        let late = [
            self.culprits(&missing),
            missing,
            self.awaited(Direction::In),
            self.awaited(Direction::Out),
        ];
        late.into_iter().find(|late| !late.is_empty()).unwrap_or_default()
    }

    /// For whom this rank waits, and for how long it has, for those who wait for this rank.
    fn waits_for(&self) -> Option<Excuse> {
        let mut awaited =
            self.awaited(Direction::In).into_iter().chain(self.awaited(Direction::Out));
        Excuse::new(awaited.next()?, self.operation.deadline().elapsed())
    }

    /// Who ranks are, where each was seen last, and what it says that it does elsewhere; of one
    /// that waited there itself also for whom, and so on.
    fn names(&self, ranks: &[Rank]) -> String {
        let say = |(&rank, answer): (&Rank, Option<String>)| {
            let mut text = format!("{}{}", self.last_seen(rank), whereabouts(answer.as_deref()));
            let mut chain = vec![self.endpoint.rank(), rank];
            while let Some(next) = self.lane.peers[chain[chain.len() - 1]].waits_for
                && next < self.lane.peers.len()
                && !chain.contains(&next)
            {
                text = format!("{text}, and waited there for {}", self.last_seen(next));
                chain.push(next);
            }
            text
        };
        ranks.iter().zip(self.endpoint.ask(ranks)).map(say).collect::<Vec<_>>().join("; ")
    }

    fn last_seen(&self, rank: Rank) -> String {
        let name = self.endpoint.peer(rank);
        match self.lane.peers[rank].heard {
            0 => format!("{name}, which was seen in no operation yet"),
            heard => {
                let sequence = Descriptor::sequence_at(heard);
                format!("{name}, which was last seen in operation #{sequence}")
            }
        }
    }

    pub(super) fn late(&self) -> Error {
        let late = self.waited_for();
        let Operation { descriptor, .. } = self.operation;
        let deadline = self.operation.deadline();
        let message = format!(
            "{descriptor} of {} timed out after {} ms (allowed: {} ms) waiting for {}",
            self.me(),
            deadline.elapsed().as_millis(),
            deadline.allowed().as_millis(),
            self.names(&late)
        );
        let error = Error::new(ErrorKind::Timeout, message);
        match late.first() {
            Some(&rank) => error.with_culprit(rank),
            None => error,
        }
    }
}
