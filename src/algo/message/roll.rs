//! Who is there: the roll call of an exchange that waits for long, and who is named at the deadline. The head of
//! [`super::exchange`] says what it is good for.

use super::exchange::{Body, Exchange, Parcel, send_rest};
use crate::algo::Operation;
use crate::base::buffer::Src;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::Direction;
use crate::transport::frame::{HEADER_BYTES, Header, Kind};
use crate::transport::pulse::whereabouts;
use std::time::Duration;

/// After how long a rank says that it is there, to all ranks, in groups up to `CLOSE` of them; in larger ones, where
/// that would make many streams, after half of the time allowed, and to its team.
const ROLL_CALL: Duration = Duration::from_millis(250);
const CLOSE: usize = 64;

/// For how long a rank that cannot name who is late lets others report first.
const GRACE: Duration = Duration::from_millis(300);

/// The same in operations between nodes, where those who share a node with the late one know more.
const GRACE_OF_NODES: Duration = Duration::from_millis(150);

/// How many marks of presence of one rank are taken at a look.
const MARKS: usize = 64;

impl Exchange<'_> {
    pub(super) fn roll_call(&self) -> Duration {
        let half = self.operation.deadline.allowed() / 2;
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

    /// Says once that this rank is there, and looks who else is; true where there is something to send or something
    /// has come, which may be what a posted message waits for.
    pub(super) fn call_roll(&mut self) -> Result<bool> {
        let others = self.others();
        let header = Header { kind: Kind::Presence, ..self.header(0, 1, 0, 0) };
        let says = self.lane.mark(&others, &header);
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
                let is_later = header.descriptor.sequence > self.operation.descriptor.sequence;
                if is_later || !self.pass_presence(peer, 0, &header)? {
                    if !is_later {
                        self.agree(peer, &header)?;
                    }
                    self.lane.peers[peer].heard = header.descriptor.sequence;
                    break;
                }
            }
        }
        Ok(says || came > 0)
    }

    /// Sends marks of presence between messages, as far as goes; true if anything moved.
    pub(super) fn send_marks(&mut self) -> bool {
        let mut moved = false;
        let (endpoint, pending) = (self.endpoint, &self.pending);
        self.lane.marks.retain_mut(|mark| {
            let is_amid = |parcel: &Parcel<'_>| {
                (parcel.peer, parcel.lane) == (mark.peer, 0) && parcel.is_begun()
            };
            if pending.iter().any(is_amid) {
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
        let sequence = self.operation.descriptor.sequence;
        let members = self.team.members().iter().copied();
        let is_missing =
            |&rank: &Rank| rank != self.endpoint.rank() && self.lane.peers[rank].heard < sequence;
        members.filter(is_missing).collect()
    }

    /// Whose messages are waited for, or who does not take any.
    fn awaited(&self, direction: Direction) -> Vec<Rank> {
        let parcels = self.pending.iter().filter(|parcel| parcel.direction() == direction);
        let mut awaited: Vec<Rank> = parcels.map(|parcel| parcel.peer).collect();
        awaited.sort_unstable();
        awaited.dedup();
        awaited
    }

    /// Who is late for certain: those who are missing and waited for. A rank that is missing may also have finished
    /// long ago and needed none of this one's messages.
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

    pub(super) fn grace(&self) -> Duration {
        match (self.nodes, self.culprits(&self.missing()).is_empty()) {
            (_, true) => GRACE,
            (true, false) => GRACE_OF_NODES,
            (false, false) => Duration::ZERO,
        }
    }

    pub(super) fn late(&self) -> Error {
        let missing = self.missing();
        let late = [
            self.culprits(&missing),
            missing,
            self.awaited(Direction::In),
            self.awaited(Direction::Out),
        ];
        let late = late.into_iter().find(|late| !late.is_empty()).unwrap_or_default();
        let say = |(&rank, answer): (&Rank, Option<String>)| {
            let name = self.endpoint.peer(rank);
            let elsewhere = whereabouts(answer.as_deref());
            match self.lane.peers[rank].heard {
                0 => format!("{name}, which was seen in no operation yet{elsewhere}"),
                heard => format!("{name}, which was last seen in operation #{heard}{elsewhere}"),
            }
        };
        let names: Vec<String> = late.iter().zip(self.endpoint.ask(&late)).map(say).collect();
        let Operation { descriptor, deadline, .. } = self.operation;
        let message = format!(
            "{descriptor} of {} timed out after {} ms (allowed: {} ms) waiting for {}",
            self.me(),
            deadline.elapsed().as_millis(),
            deadline.allowed().as_millis(),
            names.join("; ")
        );
        let error = Error::new(ErrorKind::Timeout, message);
        match late.first() {
            Some(&rank) => error.with_culprit(rank),
            None => error,
        }
    }
}
