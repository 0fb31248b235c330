//! Recursive halving: partners share the work on what both have, and each goes on with its half.
//! Run backwards it is recursive doubling, which gathers the halves again (R. Rabenseifner, 2004).

use std::ops::Range;

/// One round of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// With whom.
    pub partner: usize,
    /// The blocks that it goes on with.
    pub keeps: Range<usize>,
    /// The blocks that the partner goes on with.
    pub gives: Range<usize>,
}

/// The rounds of worker `number` of `workers`, a power of two, over as many blocks; at the end it
/// has block `number`.
pub fn rounds(workers: usize, number: usize) -> Vec<Round> {
    let mut all = Vec::new();
    let mut have = 0..workers;
    while have.len() > 1 {
        let middle = have.start + have.len() / 2;
        let (low, high) = (have.start..middle, middle..have.end);
        let partner = number ^ low.len();
        let (keeps, gives) = if number < middle { (low, high) } else { (high, low) };
        have = keeps.clone();
        all.push(Round { partner, keeps, gives });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_agree_and_everybody_ends_with_its_own_block() {
        for workers in [1, 2, 4, 8, 16, 32, 64] {
            for number in 0..workers {
                let mine = rounds(workers, number);
                assert_eq!(mine.len(), workers.ilog2() as usize);
                for (i, round) in mine.iter().enumerate() {
                    let theirs = &rounds(workers, round.partner)[i];
                    assert_eq!((theirs.partner, &theirs.keeps), (number, &round.gives));
                    assert_eq!(
                        (&theirs.gives, round.keeps.len()),
                        (&round.keeps, round.gives.len())
                    );
                }
                let last = mine.last().map_or(0..1, |round| round.keeps.clone());
                assert_eq!(last, number..number + 1);
            }
        }
    }
}
