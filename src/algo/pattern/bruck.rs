//! Bruck's rounds: the distances double, so that after about log2 of `size` rounds each member has
//! data from all members (J. Bruck and others, 1997). The dissemination barrier uses the same
//! rounds.

use std::iter::successors;

/// One round: a member sends to the member `distance` behind it, and receives from the member
/// `distance` ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BruckRound {
    /// The distance. It is also the number of blocks that each member has before the round.
    pub distance: usize,
    /// The number of blocks that are sent, starting with the first.
    pub blocks: usize,
}

/// Returns the rounds for `size` members.
pub fn rounds(size: usize) -> impl Iterator<Item = BruckRound> {
    let distances = successors(Some(1), |distance| Some(distance * 2));
    let distances = distances.take_while(move |&distance| distance < size);
    distances.map(move |distance| BruckRound { distance, blocks: distance.min(size - distance) })
}

/// Returns the blocks of an all-to-all that move in the round with this distance. A block is
/// identified by its total distance.
pub fn moving_blocks(size: usize, distance: usize) -> impl Iterator<Item = usize> {
    (0..size).filter(move |way| way & distance != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_travels_its_full_distance() {
        for size in 1..=64 {
            for way in 0..size {
                let is_moving = |round: &BruckRound| {
                    moving_blocks(size, round.distance).any(|moves| moves == way)
                };
                let distance_moved: usize =
                    rounds(size).filter(is_moving).map(|round| round.distance).sum();
                assert_eq!(distance_moved, way);
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
