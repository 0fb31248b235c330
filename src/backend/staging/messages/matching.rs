//! Matches the requests to send (RTS) of the senders with the receives that the caller has posted.
//! As in the matching engine for host memory, the RTS of one sender match in the order of sending,
//! and the receives match in the order of posting. If a message does not fit the receive that it
//! matches, the receive fails, and the message remains for the next receive.

use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::Rank;
use std::collections::VecDeque;

/// The RTS of a staged message. The sender may be any rank, including this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StagingRts {
    pub(super) from: Rank,
    /// The number that the sender has assigned to the message.
    pub(super) number: u64,
    pub(super) tag: u32,
    pub(super) dtype: DataType,
    pub(super) len: usize,
}

/// The criteria of a posted receive, with which a message must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceiveCriteria {
    /// The position in the order of posting.
    pub(super) id: u64,
    pub(super) from: Option<Rank>,
    pub(super) tag: Option<u32>,
    pub(super) dtype: DataType,
    pub(super) max_bytes: usize,
}

/// The outcome of a match.
#[derive(Debug)]
pub(super) enum MatchOutcome {
    /// The receive gets this message.
    Matched(ReceiveCriteria, StagingRts),
    /// The matched message does not fit the receive.
    DoesNotFit(ReceiveCriteria, Error),
}

/// The posted receives without a message, and the unexpected messages (RTS without a receive) of a
/// group.
#[derive(Debug, Default)]
pub(super) struct StagingMatcher {
    posted: VecDeque<ReceiveCriteria>,
    unexpected: VecDeque<StagingRts>,
}

fn is_match(criteria: &ReceiveCriteria, rts: &StagingRts) -> bool {
    criteria.from.is_none_or(|from| from == rts.from)
        && criteria.tag.is_none_or(|tag| tag == rts.tag)
}

fn check_fit(criteria: ReceiveCriteria, rts: StagingRts) -> MatchOutcome {
    let StagingRts { from, tag, dtype, len, .. } = rts;
    let what = if dtype != criteria.dtype {
        format!("has elements of {dtype}, and the receive has elements of {}", criteria.dtype)
    } else if len > criteria.max_bytes {
        format!("has {len} bytes, and the receive buffer has {}", criteria.max_bytes)
    } else {
        return MatchOutcome::Matched(criteria, rts);
    };
    let message = format!("the message from rank {from} with tag {tag} {what}");
    MatchOutcome::DoesNotFit(criteria, Error::new(ErrorKind::Mismatch, message).with_culprit(from))
}

impl StagingMatcher {
    /// Adds a receive, and returns its match if there is one. If the matched message is cancelled
    /// later, the caller adds the receive again.
    pub(super) fn post(&mut self, criteria: ReceiveCriteria) -> Option<MatchOutcome> {
        let found = self.unexpected.iter().position(|rts| is_match(&criteria, rts));
        let Some(rts) = found.and_then(|index| self.unexpected.get(index).copied()) else {
            let later = self.posted.iter().position(|other| other.id > criteria.id);
            self.posted.insert(later.unwrap_or(self.posted.len()), criteria);
            return None;
        };
        let outcome = check_fit(criteria, rts);
        if matches!(outcome, MatchOutcome::Matched(..)) {
            self.unexpected.retain(|other| *other != rts);
        }
        Some(outcome)
    }

    /// Adds the RTS of a message. Returns the outcomes of the receives that the message matched:
    /// receives that it does not fit, and then at most one receive that gets the message. If that
    /// receive is cancelled later, the caller adds the RTS again.
    pub(super) fn add_rts(&mut self, rts: StagingRts) -> Vec<MatchOutcome> {
        let mut outcomes = Vec::new();
        while let Some(index) = self.posted.iter().position(|criteria| is_match(criteria, &rts)) {
            let Some(criteria) = self.posted.remove(index) else { break };
            outcomes.push(check_fit(criteria, rts));
            if matches!(outcomes.last(), Some(MatchOutcome::Matched(..))) {
                return outcomes;
            }
        }
        let later = |other: &StagingRts| other.from == rts.from && other.number > rts.number;
        let position = self.unexpected.iter().position(later);
        self.unexpected.insert(position.unwrap_or(self.unexpected.len()), rts);
        outcomes
    }

    /// Removes the RTS of a cancelled message.
    pub(super) fn remove_rts(&mut self, from: Rank, number: u64) {
        self.unexpected.retain(|rts| (rts.from, rts.number) != (from, number));
    }

    /// Removes a cancelled receive.
    pub(super) fn cancel_receive(&mut self, id: u64) {
        self.posted.retain(|criteria| criteria.id != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rts_of(from: Rank, number: u64, tag: u32, len: usize) -> StagingRts {
        StagingRts { from, number, tag, dtype: DataType::F32, len }
    }

    fn criteria_of(id: u64, from: Option<Rank>, tag: Option<u32>) -> ReceiveCriteria {
        ReceiveCriteria { id, from, tag, dtype: DataType::F32, max_bytes: 8 }
    }

    fn matched_ids(outcome: Option<MatchOutcome>) -> (u64, u64) {
        match outcome {
            Some(MatchOutcome::Matched(criteria, rts)) => (criteria.id, rts.number),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn matching_follows_send_and_post_order() {
        let mut matching = StagingMatcher::default();
        assert!(matching.add_rts(rts_of(1, 1, 5, 8)).is_empty());
        assert!(matching.add_rts(rts_of(1, 2, 5, 4)).is_empty());
        assert!(matching.add_rts(rts_of(2, 1, 6, 4)).is_empty());
        assert_eq!(matched_ids(matching.post(criteria_of(1, None, Some(6)))), (1, 1));
        assert_eq!(matched_ids(matching.post(criteria_of(2, Some(1), None))), (2, 1));
        assert!(matching.post(criteria_of(4, None, None)).is_some());
        assert!(matching.post(criteria_of(6, None, None)).is_none());
        // A receive that is posted again returns to its position.
        assert!(matching.post(criteria_of(5, Some(1), None)).is_none());
        assert_eq!(matched_ids(matching.add_rts(rts_of(1, 9, 0, 0)).pop()), (5, 9));
        matching.cancel_receive(6);
        assert!(matching.add_rts(rts_of(3, 1, 0, 0)).is_empty());
        matching.remove_rts(3, 1);
        assert!(matching.post(criteria_of(7, None, None)).is_none());
    }

    #[test]
    fn misfit_message_stays_for_the_next_receive() {
        let mut matching = StagingMatcher::default();
        let small = ReceiveCriteria { max_bytes: 4, ..criteria_of(1, None, None) };
        let other = ReceiveCriteria { dtype: DataType::I32, ..criteria_of(2, None, None) };
        for criteria in [small, other, criteria_of(3, None, None)] {
            assert!(matching.post(criteria).is_none());
        }
        let outcomes = matching.add_rts(rts_of(0, 1, 0, 8));
        assert!(
            matches!(
                outcomes[..],
                [
                    MatchOutcome::DoesNotFit(..),
                    MatchOutcome::DoesNotFit(..),
                    MatchOutcome::Matched(..)
                ]
            ),
            "{outcomes:?}"
        );
        assert!(matching.add_rts(rts_of(0, 2, 0, 8)).is_empty());
        assert!(matches!(matching.post(small), Some(MatchOutcome::DoesNotFit(..))));
        assert_eq!(matched_ids(matching.post(criteria_of(4, None, None))), (4, 2));
    }
}
