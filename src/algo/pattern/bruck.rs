//! Bruck's rounds: distances double, so that after about log2 of them everybody has heard of
//! everybody (J. Bruck and others, 1997). Also those of the dissemination barrier.

use std::iter::successors;

/// One round: send that far behind, receive from that far ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BruckRound {
    /// How far. It is also the number of blocks that everybody has by now.
    pub distance: usize,
    /// How many blocks are sent, the first ones.
    pub blocks: usize,
}

/// The rounds among `size` members.
pub fn rounds(size: usize) -> impl Iterator<Item = BruckRound> {
    let distances = successors(Some(1), |distance| Some(distance * 2));
    let distances = distances.take_while(move |&distance| distance < size);
    distances.map(move |distance| BruckRound { distance, blocks: distance.min(size - distance) })
}

/// In an all-to-all: the blocks that go on in the round of this distance, by how far each has to go
/// in all.
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
