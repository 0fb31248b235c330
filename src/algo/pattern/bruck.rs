//! Bruck's rounds: the distance doubles with each round, so that after about log2 of `size` rounds
//! each member has data from all members (J. Bruck and others, 1997). The all-gather, the
//! all-to-all and the dissemination barrier use these rounds.
//!
//! ```text
//! 6 members, all-gather    round 1   round 2   round 3
//! distance                       1         2         4
//! blocks sent                    1         2         2
//! blocks held afterwards         2         4         6
//! ```

use std::iter::successors;

/// One round. In the all-gather, a member sends to the member `distance` behind it, and receives
/// from the member `distance` ahead of it. The all-to-all and the barrier use the opposite
/// direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BruckRound {
    /// The distance between sender and receiver. In the all-gather, each member holds this number
    /// of blocks before the round.
    pub distance: usize,
    /// The number of blocks that an all-gather member sends, starting with its own block.
    pub blocks: usize,
}

/// Returns the rounds for `size` members.
pub fn rounds(size: usize) -> impl Iterator<Item = BruckRound> {
    let distances = successors(Some(1), |distance| Some(distance * 2));
    let distances = distances.take_while(move |&distance| distance < size);
    distances.map(move |distance| BruckRound { distance, blocks: distance.min(size - distance) })
}

/// Returns the blocks of an all-to-all that move in the round with this distance. The index of a
/// block is its total distance: the number of positions from its sender to its receiver. The block
/// moves in the rounds whose distances are the set bits of its index. For example, block 5 moves in
/// the rounds with the distances 1 and 4.
pub fn moving_blocks(size: usize, distance: usize) -> impl Iterator<Item = usize> {
    (0..size).filter(move |total_distance| total_distance & distance != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_travels_its_full_distance() {
        for size in 1..=64 {
            for total_distance in 0..size {
                let is_moving = |round: &BruckRound| {
                    moving_blocks(size, round.distance).any(|block| block == total_distance)
                };
                let distance_moved: usize =
                    rounds(size).filter(is_moving).map(|round| round.distance).sum();
                assert_eq!(distance_moved, total_distance);
            }
            assert!(
                rounds(size).all(|round| moving_blocks(size, round.distance).count() <= size / 2)
            );
        }
    }

    #[test]
    fn every_rank_ends_with_all_blocks_in_order() {
        for size in 1..=64 {
            let mut blocks_of: Vec<Vec<usize>> = (0..size).map(|me| vec![me]).collect();
            for BruckRound { distance, blocks } in rounds(size) {
                let before = blocks_of.clone();
                for (me, mine) in blocks_of.iter_mut().enumerate() {
                    assert_eq!(mine.len(), distance);
                    mine.extend(&before[(me + distance) % size][..blocks]);
                }
            }
            for (me, mine) in blocks_of.iter().enumerate() {
                let all: Vec<usize> = (0..size).map(|i| (me + i) % size).collect();
                assert_eq!(mine, &all);
            }
        }
    }
}
