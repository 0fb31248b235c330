//! Pairwise exchange: in round `distance`, each member sends to the member `distance` ahead of it,
//! and receives from the member `distance` behind it.

/// Returns the member to which `me` sends in a round.
pub fn send_peer(size: usize, me: usize, distance: usize) -> usize {
    (me + distance) % size
}

/// Returns the member from which `me` receives in a round.
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
