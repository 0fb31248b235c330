//! Ring: in each step, each member sends one block to the next member and receives one block from
//! the previous member. The blocks have the numbers of the members. After `size - 1` steps, every
//! block has visited every member.

/// Returns the member after `me`.
pub fn next_member(size: usize, me: usize) -> usize {
    (me + 1) % size
}

/// Returns the member before `me`.
pub fn previous_member(size: usize, me: usize) -> usize {
    (me + size - 1) % size
}

/// Returns the block that `me` sends in a step. In step 0, a member sends its own block. In each
/// later step, it sends the block that it received in the previous step.
pub fn sent_block(size: usize, me: usize, step: usize) -> usize {
    (me + size - step % size) % size
}

/// Returns the block that `me` receives in a step.
pub fn received_block(size: usize, me: usize, step: usize) -> usize {
    sent_block(size, me, step + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_visits_every_rank_and_peers_agree() {
        for size in 1..=64 {
            for me in 0..size {
                assert_eq!(previous_member(size, next_member(size, me)), me);
                let mut seen = vec![false; size];
                seen[sent_block(size, me, 0)] = true;
                for step in 0..size - 1 {
                    let block = received_block(size, me, step);
                    assert_eq!(block, sent_block(size, previous_member(size, me), step));
                    assert_eq!(block, sent_block(size, me, step + 1));
                    assert!(!std::mem::replace(&mut seen[block], true));
                }
                assert!(seen.into_iter().all(|seen| seen));
            }
        }
    }
}
