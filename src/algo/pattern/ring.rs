//! The ring: everybody hands what it has to the next one, again and again.

/// The member after `me`.
pub fn next_member(size: usize, me: usize) -> usize {
    (me + 1) % size
}

/// The member before `me`.
pub fn previous_member(size: usize, me: usize) -> usize {
    (me + size - 1) % size
}

/// The block that `me` sends in a step. In step 0 it is its own; in each later one, what came in
/// the step before.
pub fn sent_block(size: usize, me: usize, step: usize) -> usize {
    (me + size - step % size) % size
}

/// The block that `me` receives in a step.
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
