//! The bootstrap exchange between the ranks of an inner group, over the exchange of the group.
//!
//! The exchange of the group needs all ranks in each phase, but inner groups have different phases.
//! Therefore all ranks run numbered rounds together. In each round, a rank contributes its next
//! phase, or reports that its inner group is complete. The rounds end when all ranks have reported.

use crate::backend::linked_failures::renumber_outwards;
use crate::backend::{BootstrapExchange, GroupFailureState};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use std::cell::Cell;

/// The bootstrap exchange of one inner group.
pub(super) struct InnerGroupExchange<'a> {
    /// The numbers in the group of the members. Empty on a rank without an inner group.
    pub(super) members: &'a [Rank],
    /// The name of the rounds, which no other exchange of the group has.
    pub(super) name: String,
    /// The exchange of the group.
    pub(super) group_exchange: &'a dyn BootstrapExchange,
    pub(super) failure_state: &'a dyn GroupFailureState,
    /// The number of rounds that this rank has run.
    pub(super) rounds: Cell<u32>,
}

/// The contribution of a rank whose inner group is complete.
const COMPLETE: &[u8] = b"complete";

impl InnerGroupExchange<'_> {
    /// Runs one round, and returns the contributions of all ranks of the group. An error of
    /// `check_cancelled` and the returned error have the numbers of the group.
    fn run_round(
        &self,
        contribution: &[u8],
        check_cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        let round = self.rounds.replace(self.rounds.get() + 1);
        let check = || self.failure_state.failure().or_else(check_cancelled);
        self.group_exchange.all_gather(&format!("{}-{round}", self.name), contribution, &check)
    }

    /// Runs rounds until the inner groups of all ranks are complete.
    ///
    /// # Errors
    /// The errors of the exchange of the group.
    pub(super) fn finish(&self) -> Result<()> {
        let is_complete = |bytes: &Vec<u8>| bytes == COMPLETE;
        while !self.run_round(COMPLETE, &|| None)?.iter().all(is_complete) {}
        Ok(())
    }

    fn renumber_inwards(&self, error: Error) -> Error {
        error.renumber_culprit(|rank| self.members.iter().position(|&member| member == rank))
    }
}

impl BootstrapExchange for InnerGroupExchange<'_> {
    fn all_gather(
        &self,
        phase: &str,
        contribution: &[u8],
        check_cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        if self.members.len() == 1 {
            return Ok(vec![contribution.to_vec()]);
        }
        let check = || check_cancelled().map(|error| renumber_outwards(error, self.members));
        let all = self.run_round(&encode(phase, contribution), &check);
        let all = all.map_err(|error| self.renumber_inwards(error))?;
        let contribution_of = |(member, &rank): (usize, &Rank)| {
            all.get(rank).and_then(|bytes| decode(phase, bytes)).ok_or_else(|| {
                let message = format!(
                    "a rank of a two-level group is not in the phase \"{phase}\": use the same \
                     back end, in the same version, on all ranks"
                );
                Error::new(ErrorKind::Mismatch, message).with_culprit(member)
            })
        };
        self.members.iter().enumerate().map(contribution_of).collect()
    }

    fn publish_failure(&self, reason: &Error) {
        let reason = renumber_outwards(reason.clone(), self.members);
        self.group_exchange.publish_failure(&reason);
        self.failure_state.fail(&reason);
    }

    fn peer_failure(&self) -> Option<Error> {
        self.group_exchange.peer_failure().map(|error| self.renumber_inwards(error))
    }
}

/// Encodes the name of a phase and a contribution to it.
fn encode(phase: &str, contribution: &[u8]) -> Vec<u8> {
    [phase.as_bytes(), b"\0", contribution].concat()
}

/// Decodes a contribution. Returns `None` for a contribution to another phase.
fn decode(phase: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    Some(bytes.strip_prefix(phase.as_bytes())?.strip_prefix(b"\0")?.to_vec())
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::backend::DoorbellListener;
    use crate::base::sync::lock;
    use std::collections::HashMap;
    use std::sync::{Barrier, Mutex, Weak};

    /// An exchange between threads, whose ranks must all run the same phases.
    #[derive(Default)]
    struct ThreadBoard(Mutex<HashMap<String, Vec<Option<Vec<u8>>>>>);

    struct ThreadExchange<'a> {
        rank: Rank,
        board: &'a ThreadBoard,
        barrier: &'a Barrier,
    }

    impl BootstrapExchange for ThreadExchange<'_> {
        fn all_gather(
            &self,
            phase: &str,
            contribution: &[u8],
            _: &dyn Fn() -> Option<Error>,
        ) -> Result<Vec<Vec<u8>>> {
            let write = |row: &mut Vec<Option<Vec<u8>>>| {
                row.resize(4, None);
                row[self.rank] = Some(contribution.to_vec());
            };
            write(lock(&self.board.0).entry(phase.to_owned()).or_default());
            self.barrier.wait();
            let row: Option<Vec<_>> = lock(&self.board.0)[phase].iter().cloned().collect();
            Ok(row.expect("all ranks run the same phases"))
        }

        fn publish_failure(&self, _: &Error) {}

        fn peer_failure(&self) -> Option<Error> {
            None
        }
    }

    #[derive(Debug)]
    struct NeverFailed;

    impl GroupFailureState for NeverFailed {
        fn failure(&self) -> Option<Error> {
            None
        }

        fn fail(&self, _: &Error) {}

        fn add_listener(&self, _: Weak<dyn DoorbellListener>) {}
    }

    /// The groups {0, 2} and {1} and no group run different numbers of phases.
    #[test]
    fn groups_with_different_phases_finish_together() {
        let (board, barrier) = (ThreadBoard::default(), Barrier::new(4));
        let groups: [&[Rank]; 4] = [&[0, 2], &[1], &[0, 2], &[]];
        let run = |rank: Rank| {
            let outer = ThreadExchange { rank, board: &board, barrier: &barrier };
            let exchange = InnerGroupExchange {
                members: groups[rank],
                name: "inner".to_owned(),
                group_exchange: &outer,
                failure_state: &NeverFailed,
                rounds: Cell::new(0),
            };
            let gather =
                |phase: &str| exchange.all_gather(phase, rank.to_string().as_bytes(), &|| None);
            let gathered = match rank {
                0 | 2 => vec![gather("card").unwrap(), gather("met").unwrap()],
                1 => vec![gather("card").unwrap()],
                _ => vec![],
            };
            exchange.finish().unwrap();
            (gathered, exchange.rounds.get())
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|rank| scope.spawn(move || run(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let both = vec![b"0".to_vec(), b"2".to_vec()];
        assert_eq!(results[0], (vec![both.clone(), both], 3));
        assert_eq!(results[1], (vec![vec![b"1".to_vec()]], 3));
        assert_eq!(results[3], (vec![], 3));
        assert_eq!(results[2], results[0]);
    }

    #[test]
    fn contributions_belong_to_one_phase() {
        let bytes = encode("card", b"one");
        assert_eq!(decode("card", &bytes).as_deref(), Some(&b"one"[..]));
        for (phase, bytes) in
            [("met", &bytes[..]), ("car", &bytes), ("card", COMPLETE), ("card", b"")]
        {
            assert_eq!(decode(phase, bytes), None, "{phase}");
        }
    }
}
