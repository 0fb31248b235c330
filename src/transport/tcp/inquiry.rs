//! What ranks of other nodes are doing elsewhere, for the message of an operation that has waited for them in vain. A
//! leader asks the leader of their node; whoever is none lets its leader speak first.

use super::control::Line;
use super::door::lock;
use super::frame::Frame;
use super::mesh::Shared;
use crate::base::deadline::Deadline;
use crate::base::ids::Rank;
use crate::transport::pulse;
use crate::wait::{Pace, until};

impl Shared {
    /// This rank's domain knows a rank under this number.
    fn local(&self, rank: Rank) -> Option<Rank> {
        let domain = self.domain.as_ref();
        (0..domain.size()).find(|&local| domain.peer(local).rank == rank)
    }

    /// See [`Endpoint::ask`](crate::transport::Endpoint::ask).
    pub(super) fn ask(&self, ranks: &[Rank]) -> Vec<Option<String>> {
        let far: Vec<Rank> =
            ranks.iter().copied().filter(|&rank| self.local(rank).is_none()).collect();
        if self.leads {
            lock(&self.inquiry).extend(far.iter().map(|&rank| (rank, None)));
            let lines = lock(&self.lines).clone();
            for &rank in &far {
                if let Some(Some(line)) = lines.get(self.members[rank].node) {
                    line.say(&Frame::Ask(rank));
                }
            }
        }
        let (limit, near) = (
            Deadline::after(pulse::PATIENCE),
            ranks.iter().filter_map(|&rank| self.local(rank)).collect::<Vec<_>>(),
        );
        let mut near = self.domain.ask(&near).into_iter();
        if !far.is_empty() {
            let all =
                || (self.leads && lock(&self.inquiry).values().all(Option::is_some)).then_some(());
            // Who has answered until then has answered.
            drop(until(&self.bell, Pace::PATIENT, &limit, || self.domain.failure(), all));
        }
        let mut answers = std::mem::take(&mut *lock(&self.inquiry));
        let answer = |&rank: &Rank| match self.local(rank) {
            Some(_) => near.next().flatten(),
            None if self.leads => answers.remove(&rank).flatten(),
            // It has not been asked.
            None => Some(String::new()),
        };
        ranks.iter().map(answer).collect()
    }

    /// Another leader asks what a rank of this node does.
    pub(super) fn tell(&self, rank: Rank, line: &Line) {
        if let Some(local) = self.local(rank) {
            line.say_if_room(&Frame::Does(rank, self.domain.said(local)));
        }
    }

    /// Another leader tells; what nobody has asked for is not kept.
    pub(super) fn heard(&self, rank: Rank, text: String) {
        if let Some(place) = lock(&self.inquiry).get_mut(&rank) {
            *place = Some(text);
            self.bell.ring();
        }
    }
}
