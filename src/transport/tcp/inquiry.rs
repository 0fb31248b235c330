//! What ranks of other nodes are doing elsewhere, for the message of an operation that has waited
//! for them in vain. A leader asks the leader of their node; whoever is none lets its leader speak
//! first.

use super::control::Line;
use super::door::lock;
use super::frame::Frame;
use super::mesh::{LabelInquiry, Shared};
use crate::base::deadline::Deadline;
use crate::base::ids::Rank;
use crate::base::label::Label;
use crate::transport::pulse;
use crate::wait::{Pace, until};
use std::time::Duration;

/// How long a rank that found a mismatch waits for the labels of another node, or for its leader's
/// report.
const LABEL_PATIENCE: Duration = Duration::from_secs(1);

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

    /// See [`Endpoint::labels`](crate::transport::Endpoint::labels). A rank that is not a leader
    /// cannot ask other nodes: its leader, which takes part in the same operation, finds the
    /// mismatch too, and reports it first.
    pub(super) fn ask_labels(&self, rank: Rank, sequence: u64) -> Vec<Label> {
        if let Some(local) = self.local(rank) {
            return self.domain.region().labels(local).all(sequence);
        }
        *lock(&self.labels_asked) = Some(LabelInquiry { rank, sequence, labels: None });
        let line = lock(&self.lines).get(self.members[rank].node).cloned().flatten();
        if let Some(line) = line.filter(|_| self.leads) {
            line.say(&Frame::AskLabels(rank, sequence));
        }
        let answered = || {
            let asked = lock(&self.labels_asked);
            asked.as_ref().is_none_or(|asked| asked.labels.is_some()).then_some(())
        };
        let limit = Deadline::after(LABEL_PATIENCE);
        drop(until(&self.bell, Pace::PATIENT, &limit, || self.domain.failure(), answered));
        let asked = lock(&self.labels_asked).take();
        asked.and_then(|asked| asked.labels).unwrap_or_default()
    }

    /// Another leader asks for the labels of an operation of a rank of this node.
    pub(super) fn tell_labels(&self, rank: Rank, sequence: u64, line: &Line) {
        if let Some(local) = self.local(rank) {
            let labels = self.domain.region().labels(local).all(sequence);
            line.say_if_room(&Frame::Labels(rank, sequence, labels));
        }
    }

    /// Another leader answers; an answer without a question is dropped.
    pub(super) fn heard_labels(&self, rank: Rank, sequence: u64, labels: Vec<Label>) {
        let mut asked = lock(&self.labels_asked);
        if let Some(asked) = asked.as_mut().filter(|it| (it.rank, it.sequence) == (rank, sequence))
        {
            asked.labels = Some(labels);
        }
        drop(asked);
        self.bell.ring();
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
