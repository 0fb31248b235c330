//! Pairwise exchange: in round `distance` everybody sends that far ahead, and hears from that far
//! behind.

/// Whom `me` sends to in a round.
pub fn send_peer(size: usize, me: usize, distance: usize) -> usize {
    (me + distance) % size
}

/// Whom `me` hears from in a round.
pub fn receive_peer(size: usize, me: usize, distance: usize) -> usize {
    (me + size - distance) % size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_exchanges_once() {
        for size in 1..=64 {
            for me in 0..size {
                let mut send_peers: Vec<usize> =
                    (1..size).map(|distance| send_peer(size, me, distance)).collect();
                for distance in 1..size {
                    assert_eq!(receive_peer(size, send_peer(size, me, distance), distance), me);
                }
                send_peers.sort_unstable();
                let others: Vec<usize> = (0..size).filter(|&other| other != me).collect();
                assert_eq!(send_peers, others);
            }
        }
    }
}
