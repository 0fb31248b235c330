//! Who is there: the roll call of an exchange that waits for long, and who is named at the deadline. The head of
//! [`super::exchange`] says what it is good for.

use super::exchange::{Body, Exchange, Parcel};
use crate::algo::Operation;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::frame::{Header, Kind};
use std::time::Duration;

/// After how long a rank says that it is there, in teams up to `CLOSE` members; in larger ones, where that would
/// make many streams, after half of the time allowed.
const ROLL_CALL: Duration = Duration::from_millis(250);
const CLOSE: usize = 64;

/// For how long a rank that cannot name who is late lets others report first.
const GRACE: Duration = Duration::from_millis(300);

/// The same in operations between nodes, where those who share a node with the late one know more.
const GRACE_OF_NODES: Duration = Duration::from_millis(150);

impl Exchange<'_> {
    pub(super) fn roll_call(&self) -> Duration {
        let half = self.operation.deadline.allowed() / 2;
        if self.team.size() <= CLOSE { half.min(ROLL_CALL) } else { half }
    }

    /// Says once that this rank is there, and looks who else is.
    pub(super) fn call_roll(&mut self) -> Result<()> {
        let others = self.team.members().iter().copied();
        let others: Vec<Rank> = others.filter(|&rank| rank != self.endpoint.rank()).collect();
        let header = Header { kind: Kind::Presence, ..self.header(0, 1, 0, 0) };
        self.lane.mark(&others, &header);
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
            while let Ok(Some(header)) = self.next_header(peer, 0, &mut 0) {
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
        Ok(())
    }

    /// The members that have not been seen in the operation.
    fn missing(&self) -> Vec<Rank> {
        let sequence = self.operation.descriptor.sequence;
        let members = self.team.members().iter().copied();
        let is_missing =
            |&rank: &Rank| rank != self.endpoint.rank() && self.lane.peers[rank].heard < sequence;
        members.filter(is_missing).collect()
    }

    pub(super) fn grace(&self) -> Duration {
        match (self.nodes, self.missing().is_empty()) {
            (_, true) => GRACE,
            (true, false) => GRACE_OF_NODES,
            (false, false) => Duration::ZERO,
        }
    }

    pub(super) fn late(&self) -> Error {
        let mut late = self.missing();
        if late.is_empty() {
            late.extend(self.wishes().iter().map(|wish| wish.peer));
            late.sort_unstable();
            late.dedup();
        }
        let say = |&rank: &Rank| {
            let name = self.endpoint.peer(rank);
            match self.lane.peers[rank].heard {
                0 => format!("{name}, which was seen in no operation yet"),
                heard => format!("{name}, which was last seen in operation #{heard}"),
            }
        };
        let names: Vec<String> = late.iter().map(say).collect();
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
