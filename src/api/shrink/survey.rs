//! What a rank knows of the others while they look for each other, and whether some of them may go
//! on. Pure.

use crate::base::error::{Error, ErrorKind};
use crate::base::ids::Rank;

/// How a rank stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It may come.
    Awaited,
    /// The group has failed because of it: it is not waited for, and not taken.
    Blamed,
    /// It does not come, for this reason, and may be alive.
    Absent(String),
    /// It has died.
    Dead,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Survey {
    standings: Vec<Standing>,
}

impl Survey {
    /// Before anybody was asked. Whom the failure names as dead or not responding is not waited
    /// for.
    pub(super) fn new(size: usize, failure: &Error) -> Self {
        let mut standings = vec![Standing::Awaited; size];
        if failure.kind() == ErrorKind::PeerFailed
            && let Some(standing) = failure.culprit().and_then(|rank| standings.get_mut(rank))
        {
            *standing = Standing::Blamed;
        }
        Self { standings }
    }

    pub(super) fn is_awaited(&self, rank: Rank) -> bool {
        self.standings[rank] == Standing::Awaited
    }

    pub(super) fn is_blamed(&self, rank: Rank) -> bool {
        self.standings[rank] == Standing::Blamed
    }

    pub(super) fn is_dead(&self, rank: Rank) -> bool {
        self.standings[rank] == Standing::Dead
    }

    /// Notes what has become known of a rank. Nobody comes back from the dead, and of several
    /// reasons the first stays.
    pub(super) fn note(&mut self, rank: Rank, standing: Standing) {
        let known = &mut self.standings[rank];
        if *known == Standing::Awaited || standing == Standing::Dead {
            *known = standing;
        }
    }

    /// A rank has come, perhaps after all; false where it is not taken.
    pub(super) fn welcome(&mut self, rank: Rank) -> bool {
        if matches!(self.standings[rank], Standing::Blamed | Standing::Dead) {
            return false;
        }
        self.standings[rank] = Standing::Awaited;
        true
    }

    /// Whether these, in order, are enough to go on: more than half of those who are not proven
    /// dead, or half of them with the lowest. So that of two parts that do not reach each other one
    /// goes on at most.
    pub(super) fn may_go_on(&self, members: &[Rank]) -> bool {
        let mut alive = (0..self.standings.len()).filter(|&rank| !self.is_dead(rank));
        let lowest = alive.next();
        let count = usize::from(lowest.is_some()) + alive.count();
        match (2 * members.len()).cmp(&count) {
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Equal => members.first().copied() == lowest,
            std::cmp::Ordering::Less => false,
        }
    }

    /// Those who do not come and are not proven dead, and why, for messages.
    pub(super) fn absent(&self, members: &[Rank]) -> Vec<(Rank, &str)> {
        let absent = self.standings.iter().enumerate().filter_map(|(rank, standing)| {
            let why = match standing {
                Standing::Absent(why) => why.as_str(),
                Standing::Awaited => "it has not come",
                Standing::Blamed => "the group has failed because of it",
                Standing::Dead => return None,
            };
            (!members.contains(&rank)).then_some((rank, why))
        });
        absent.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(size: usize, dead: &[Rank]) -> Survey {
        let mut survey = Survey::new(size, &Error::new(ErrorKind::Aborted, "enough"));
        dead.iter().for_each(|&rank| survey.note(rank, Standing::Dead));
        survey
    }

    #[test]
    fn of_two_parts_at_most_one_goes_on() {
        for size in 1..=8 {
            for dead in 0..1_u32 << size {
                let ranks = |bits: u32| -> Vec<Rank> {
                    (0..size).filter(|rank| bits >> rank & 1 == 1).collect()
                };
                let survey = survey(size, &ranks(dead));
                let alive = ((1_u32 << size) - 1) & !dead;
                for part in (0..1_u32 << size).filter(|part| part & dead == 0) {
                    let (one, other) = (ranks(part), ranks(alive & !part));
                    let both = survey.may_go_on(&one) && survey.may_go_on(&other);
                    assert!(!both || other.is_empty() && one.is_empty(), "{one:?} {other:?}");
                }
                assert!(alive == 0 || survey.may_go_on(&ranks(alive)));
            }
        }
    }

    #[test]
    fn the_culprit_is_not_waited_for_and_the_dead_stay_dead() {
        let blamed = Error::new(ErrorKind::PeerFailed, "rank 1 died").with_culprit(1);
        let mut survey = Survey::new(3, &blamed);
        assert!(survey.is_blamed(1) && survey.is_awaited(0));
        assert!(!survey.welcome(1));
        survey.note(1, Standing::Dead);
        survey.note(1, Standing::Absent("late".to_owned()));
        assert!(survey.is_dead(1));
        survey.note(0, Standing::Absent("late".to_owned()));
        survey.note(0, Standing::Absent("later".to_owned()));
        assert_eq!(survey.absent(&[2]), [(0, "late")]);
        assert!(survey.welcome(0) && survey.is_awaited(0) && !survey.welcome(1));
        let late = Error::new(ErrorKind::Timeout, "rank 1 is late").with_culprit(1);
        assert!(Survey::new(3, &late).is_awaited(1));
    }
}
