//! Liveness queries to other nodes. There are two queries about a rank: for its activity outside
//! the collectives of the group, and for the labels of its operation. If an operation waits for the
//! rank without success, the error message contains the answers.
//!
//! A node leader (the first rank of a node) sends the query to the leader of the rank's node, over
//! their control channel. A rank that is not a leader sends no query. It lets its own leader
//! report the error first.

use super::control::LeaderChannel;
use super::control_frame::ControlFrame;
use super::mesh::{LabelQuery, TcpMeshShared};
use crate::base::deadline::Deadline;
use crate::base::ids::Rank;
use crate::base::label::Label;
use crate::base::sync::lock;
use crate::transport::heartbeat;
use crate::wait::{WaitPolicy, wait_until};
use std::time::Duration;

/// The limit of [`TcpMeshShared::query_labels`]. After a mismatch, a leader waits this long for the
/// labels from another node, and any other rank waits this long for its leader's report.
const LABEL_TIMEOUT: Duration = Duration::from_secs(1);

impl TcpMeshShared {
    /// Returns the number of `rank` within the domain of this node, or `None` if `rank` is on
    /// another node.
    fn domain_rank(&self, rank: Rank) -> Option<Rank> {
        let domain = self.domain.as_ref();
        (0..domain.size()).find(|&local| domain.peer(local).rank == rank)
    }

    /// See [`Endpoint::query_activities`](crate::transport::Endpoint::query_activities).
    pub(super) fn query_activity(&self, ranks: &[Rank]) -> Vec<Option<String>> {
        let remote: Vec<Rank> =
            ranks.iter().copied().filter(|&rank| self.domain_rank(rank).is_none()).collect();
        if self.is_leader() {
            lock(&self.activity_answers).extend(remote.iter().map(|&rank| (rank, None)));
            for &rank in &remote {
                if let Some(channel) = self.control_channel(self.members[rank].node) {
                    channel.send(&ControlFrame::AskActivity(rank));
                }
            }
        }
        let (limit, local_ranks) = (
            Deadline::after(heartbeat::ACTIVITY_QUERY_TIMEOUT),
            ranks.iter().filter_map(|&rank| self.domain_rank(rank)).collect::<Vec<_>>(),
        );
        let mut local_answers = self.domain.query_activities(&local_ranks).into_iter();
        if !remote.is_empty() {
            let all_answered = || {
                (self.is_leader() && lock(&self.activity_answers).values().all(Option::is_some))
                    .then_some(())
            };
            // The outcome of the wait does not matter: the answers that have arrived are used.
            drop(wait_until(
                &self.doorbell,
                WaitPolicy::SLEEP_SOON,
                &limit,
                || self.domain.failure(),
                all_answered,
            ));
        }
        let mut answers = std::mem::take(&mut *lock(&self.activity_answers));
        let answer = |&rank: &Rank| match self.domain_rank(rank) {
            Some(_) => local_answers.next().flatten(),
            None if self.is_leader() => answers.remove(&rank).flatten(),
            // A rank that is not a leader sends no query.
            None => Some(String::new()),
        };
        ranks.iter().map(answer).collect()
    }

    /// See [`Endpoint::labels`](crate::transport::Endpoint::labels). A rank that is not a leader
    /// cannot query other nodes. Its leader takes part in the same operation, also finds the
    /// mismatch, and reports it first. Such a rank therefore only waits here until the group has
    /// failed, or until the limit.
    pub(super) fn query_labels(&self, rank: Rank, sequence: u64) -> Vec<Label> {
        if let Some(local) = self.domain_rank(rank) {
            return self.domain.region().labels(local).labels_of(sequence);
        }
        *lock(&self.label_query) = Some(LabelQuery { rank, sequence, labels: None });
        if let Some(channel) = self.control_channel(self.members[rank].node) {
            channel.send(&ControlFrame::AskLabels(rank, sequence));
        }
        let answered = || {
            let asked = lock(&self.label_query);
            asked.as_ref().is_none_or(|asked| asked.labels.is_some()).then_some(())
        };
        let limit = Deadline::after(LABEL_TIMEOUT);
        drop(wait_until(
            &self.doorbell,
            WaitPolicy::SLEEP_SOON,
            &limit,
            || self.domain.failure(),
            answered,
        ));
        let asked = lock(&self.label_query).take();
        asked.and_then(|asked| asked.labels).unwrap_or_default()
    }

    /// Answers another leader's query for the labels of an operation of a rank of this node.
    pub(super) fn answer_label_query(&self, rank: Rank, sequence: u64, channel: &LeaderChannel) {
        if let Some(local) = self.domain_rank(rank) {
            let labels = self.domain.region().labels(local).labels_of(sequence);
            channel.try_send(&ControlFrame::Labels(rank, sequence, labels));
        }
    }

    /// Stores the labels that another leader has sent. Drops them if this rank has no query for
    /// them.
    pub(super) fn store_label_answer(&self, rank: Rank, sequence: u64, labels: Vec<Label>) {
        let mut asked = lock(&self.label_query);
        if let Some(asked) = asked.as_mut().filter(|it| (it.rank, it.sequence) == (rank, sequence))
        {
            asked.labels = Some(labels);
        }
        drop(asked);
        self.doorbell.notify();
    }

    /// Answers another leader's query for the activity of a rank of this node.
    pub(super) fn answer_activity_query(&self, rank: Rank, channel: &LeaderChannel) {
        if let Some(local) = self.domain_rank(rank) {
            channel.try_send(&ControlFrame::Activity(rank, self.domain.last_activity(local)));
        }
    }

    /// Stores the activity text that another leader has sent. Drops it if this rank has no query
    /// for it.
    pub(super) fn store_activity_answer(&self, rank: Rank, text: String) {
        if let Some(answer) = lock(&self.activity_answers).get_mut(&rank) {
            *answer = Some(text);
            self.doorbell.notify();
        }
    }
}
