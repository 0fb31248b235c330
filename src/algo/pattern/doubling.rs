//! Recursive doubling for any number of members: the roles of the members and the partners of each
//! round.
//!
//! The number of workers is the largest power of two that is at most the number of members. Only
//! workers take part in the rounds. Every other member is an *extra rank*: it sends its vector to
//! the next member, which is a worker, and receives the result from that worker at the end.
//!
//! ```text
//! 6 members       0      1      2      3      4      5
//! role          extra  worker extra  worker worker worker
//! worker index           0             1      2      3
//! ```

/// The role of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoublingRole {
    /// The member sends its vector to the next member and waits for the result.
    Extra,
    /// The member is a worker.
    Worker {
        /// The index among the workers.
        worker_index: usize,
        /// Whether the member before the worker is an extra rank, whose vector the worker folds
        /// into its own.
        has_extra: bool,
    },
}

/// Returns the number of workers: the largest power of two that is at most `size`.
pub fn worker_count(size: usize) -> usize {
    1 << size.ilog2()
}

/// Returns the role of a member.
pub fn role_of(size: usize, me: usize) -> DoublingRole {
    let extra = size - worker_count(size);
    match me {
        _ if me >= 2 * extra => DoublingRole::Worker { worker_index: me - extra, has_extra: false },
        _ if me.is_multiple_of(2) => DoublingRole::Extra,
        _ => DoublingRole::Worker { worker_index: me / 2, has_extra: true },
    }
}

/// Returns the member that has this worker index.
pub fn worker_member(size: usize, worker_index: usize) -> usize {
    let extra = size - worker_count(size);
    if worker_index < extra { 2 * worker_index + 1 } else { worker_index + extra }
}

/// Returns the worker indices of a worker's partners, one per round. The nearest partner comes
/// first.
pub fn worker_partners(size: usize, worker_index: usize) -> impl Iterator<Item = usize> {
    (0..worker_count(size).ilog2()).map(move |round| worker_index ^ (1 << round))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_ends_with_the_parts_of_all_ranks() {
        for size in 1..=64usize {
            let mut parts: Vec<u64> = (0..size).map(|me| 1 << me).collect();
            for me in 0..size {
                match role_of(size, me) {
                    DoublingRole::Extra => {
                        assert!(matches!(
                            role_of(size, me + 1),
                            DoublingRole::Worker { has_extra: true, .. }
                        ))
                    }
                    DoublingRole::Worker { worker_index: number, has_extra: takes } => {
                        assert_eq!(worker_member(size, number), me);
                        if takes {
                            assert_eq!(role_of(size, me - 1), DoublingRole::Extra);
                            parts[me] |= parts[me - 1];
                        }
                    }
                }
            }
            for round in 0..worker_count(size).ilog2() as usize {
                let before = parts.clone();
                for number in 0..worker_count(size) {
                    let partner = worker_partners(size, number).nth(round).unwrap();
                    assert_eq!(worker_partners(size, partner).nth(round), Some(number));
                    parts[worker_member(size, number)] |= before[worker_member(size, partner)];
                }
            }
            let all = if size == 64 { u64::MAX } else { (1 << size) - 1 };
            for number in 0..worker_count(size) {
                assert_eq!(parts[worker_member(size, number)], all);
            }
        }
    }
}
