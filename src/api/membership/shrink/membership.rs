//! A rank's view of the other ranks during a shrink, and the quorum rule, which prevents that two
//! separated sets of ranks both continue. The module has no side effects.

use crate::base::error::{Error, ErrorKind};
use crate::base::ids::Rank;

/// What this rank knows about another rank during a shrink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MembershipStatus {
    /// The rank may join, so it is awaited.
    Expected,
    /// The group's failure names the rank as its culprit. The rank is not awaited and not admitted.
    Blamed,
    /// This rank cannot connect to the rank now, for this reason, and nothing proves its death. The
    /// coordinator tries again until the absence limit.
    Unreachable(String),
    /// The rank is not awaited, for this reason. It may be alive, and may still join.
    Absent(String),
    /// The rank is proven dead.
    Dead,
}

/// The membership statuses of all ranks of the group.
#[derive(Debug)]
pub(super) struct MembershipView {
    statuses: Vec<MembershipStatus>,
}

impl MembershipView {
    /// Creates the view at the start of a shrink. All ranks are expected, except a rank that the
    /// group's failure names as dead or not responding.
    pub(super) fn new(size: usize, failure: &Error) -> Self {
        let mut statuses = vec![MembershipStatus::Expected; size];
        if failure.kind() == ErrorKind::PeerFailed
            && let Some(status) = failure.culprit().and_then(|rank| statuses.get_mut(rank))
        {
            *status = MembershipStatus::Blamed;
        }
        Self { statuses }
    }

    pub(super) fn is_expected(&self, rank: Rank) -> bool {
        self.statuses[rank] == MembershipStatus::Expected
    }

    pub(super) fn is_blamed(&self, rank: Rank) -> bool {
        self.statuses[rank] == MembershipStatus::Blamed
    }

    pub(super) fn is_dead(&self, rank: Rank) -> bool {
        self.statuses[rank] == MembershipStatus::Dead
    }

    pub(super) fn is_unreachable(&self, rank: Rank) -> bool {
        matches!(self.statuses[rank], MembershipStatus::Unreachable(_))
    }

    /// Sets the status of a rank if the rank is expected or cannot be reached. `Dead` replaces any
    /// status. So if there are several reasons, the first stays.
    pub(super) fn record_status(&mut self, rank: Rank, status: MembershipStatus) {
        let known = &mut self.statuses[rank];
        let is_open =
            matches!(known, MembershipStatus::Expected | MembershipStatus::Unreachable(_));
        if is_open || status == MembershipStatus::Dead {
            *known = status;
        }
    }

    /// Returns the ranks that are proven dead, in ascending order.
    pub(super) fn dead_ranks(&self) -> Vec<Rank> {
        (0..self.statuses.len()).filter(|&rank| self.is_dead(rank)).collect()
    }

    /// Admits a rank that asks to join, even if it was recorded as absent. Returns false for a
    /// blamed or dead rank, which is not admitted.
    pub(super) fn admit(&mut self, rank: Rank) -> bool {
        if matches!(self.statuses[rank], MembershipStatus::Blamed | MembershipStatus::Dead) {
            return false;
        }
        self.statuses[rank] = MembershipStatus::Expected;
        true
    }

    /// Returns whether `members`, which are in ascending order, are a quorum. A quorum is more than
    /// half of the ranks that are not proven dead, or exactly half of them including the lowest of
    /// them. If the network splits the ranks into two parts, at most one part has a quorum. For
    /// example, of 4 ranks that are not proven dead, ranks 0 and 1 are a quorum, and ranks 2 and 3
    /// are not.
    pub(super) fn has_quorum(&self, members: &[Rank]) -> bool {
        let mut alive = (0..self.statuses.len()).filter(|&rank| !self.is_dead(rank));
        let lowest = alive.next();
        let count = usize::from(lowest.is_some()) + alive.count();
        match (2 * members.len()).cmp(&count) {
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Equal => members.first().copied() == lowest,
            std::cmp::Ordering::Less => false,
        }
    }

    /// Returns the ranks that have not joined and are not proven dead, each with the reason, for
    /// error texts.
    pub(super) fn absent_ranks(&self, members: &[Rank]) -> Vec<(Rank, &str)> {
        let absentees = self.statuses.iter().enumerate().filter_map(|(rank, status)| {
            let reason = match status {
                MembershipStatus::Absent(reason) | MembershipStatus::Unreachable(reason) => {
                    reason.as_str()
                }
                MembershipStatus::Expected => "it has not joined",
                MembershipStatus::Blamed => "it caused the failure of the group",
                MembershipStatus::Dead => return None,
            };
            (!members.contains(&rank)).then_some((rank, reason))
        });
        absentees.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view_with_dead(size: usize, dead: &[Rank]) -> MembershipView {
        let mut view = MembershipView::new(size, &Error::new(ErrorKind::Aborted, "enough"));
        dead.iter().for_each(|&rank| view.record_status(rank, MembershipStatus::Dead));
        view
    }

    #[test]
    fn at_most_one_partition_has_quorum() {
        for size in 1..=8 {
            for dead in 0..1_u32 << size {
                let ranks = |bits: u32| -> Vec<Rank> {
                    (0..size).filter(|rank| bits >> rank & 1 == 1).collect()
                };
                let view = view_with_dead(size, &ranks(dead));
                let alive = ((1_u32 << size) - 1) & !dead;
                for part in (0..1_u32 << size).filter(|part| part & dead == 0) {
                    let (one, other) = (ranks(part), ranks(alive & !part));
                    let both = view.has_quorum(&one) && view.has_quorum(&other);
                    assert!(!both || other.is_empty() && one.is_empty(), "{one:?} {other:?}");
                }
                assert!(alive == 0 || view.has_quorum(&ranks(alive)));
            }
        }
    }

    #[test]
    fn blamed_and_dead_ranks_are_not_admitted() {
        let blamed = Error::new(ErrorKind::PeerFailed, "rank 1 died").with_culprit(1);
        let mut view = MembershipView::new(3, &blamed);
        assert!(view.is_blamed(1) && view.is_expected(0));
        assert!(!view.admit(1));
        view.record_status(1, MembershipStatus::Dead);
        view.record_status(1, MembershipStatus::Absent("late".to_owned()));
        assert!(view.is_dead(1));
        view.record_status(0, MembershipStatus::Absent("late".to_owned()));
        view.record_status(0, MembershipStatus::Absent("later".to_owned()));
        assert_eq!(view.absent_ranks(&[2]), [(0, "late")]);
        assert!(view.admit(0) && view.is_expected(0) && !view.admit(1));
        let refused = || MembershipStatus::Unreachable("connection refused".to_owned());
        view.record_status(0, refused());
        assert!(!view.is_expected(0) && !view.is_dead(0));
        view.record_status(0, MembershipStatus::Absent("later".to_owned()));
        view.record_status(0, refused());
        assert_eq!((view.absent_ranks(&[2]), view.dead_ranks()), (vec![(0, "later")], vec![1]));
        let late = Error::new(ErrorKind::Timeout, "rank 1 is late").with_culprit(1);
        assert!(MembershipView::new(3, &late).is_expected(1));
    }
}
