//! Recursive halving: in each round, two partners split the blocks that both have, and each partner
//! continues with one half. The same rounds in reverse order gather the halves again; this is
//! recursive doubling (R. Rabenseifner, 2004).
//!
//! ```text
//! 4 workers   worker 0        worker 1        worker 2        worker 3
//! round 1     keeps 0..2      keeps 0..2      keeps 2..4      keeps 2..4
//! round 2     keeps 0..1      keeps 1..2      keeps 2..3      keeps 3..4
//! ```

use std::ops::Range;

/// One round of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HalvingRound {
    /// The worker index of the partner.
    pub partner: usize,
    /// The blocks with which the worker continues.
    pub kept_blocks: Range<usize>,
    /// The blocks with which the partner continues.
    pub sent_blocks: Range<usize>,
}

/// Returns the rounds of worker `number`. The number of workers, `workers`, is a power of two and
/// equals the number of blocks. After the last round, the worker has only block `number`.
pub fn rounds(workers: usize, number: usize) -> Vec<HalvingRound> {
    let mut all = Vec::new();
    let mut blocks = 0..workers;
    while blocks.len() > 1 {
        let middle = blocks.start + blocks.len() / 2;
        let (low, high) = (blocks.start..middle, middle..blocks.end);
        let partner = number ^ low.len();
        let (kept_blocks, sent_blocks) = if number < middle { (low, high) } else { (high, low) };
        blocks = kept_blocks.clone();
        all.push(HalvingRound { partner, kept_blocks, sent_blocks });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_agree_and_each_worker_ends_with_its_block() {
        for workers in [1, 2, 4, 8, 16, 32, 64] {
            for number in 0..workers {
                let mine = rounds(workers, number);
                assert_eq!(mine.len(), workers.ilog2() as usize);
                for (i, round) in mine.iter().enumerate() {
                    let theirs = &rounds(workers, round.partner)[i];
                    assert_eq!((theirs.partner, &theirs.kept_blocks), (number, &round.sent_blocks));
                    assert_eq!(
                        (&theirs.sent_blocks, round.kept_blocks.len()),
                        (&round.kept_blocks, round.sent_blocks.len())
                    );
                }
                let last = mine.last().map_or(0..1, |round| round.kept_blocks.clone());
                assert_eq!(last, number..number + 1);
            }
        }
    }
}
