//! Pairwise exchange: in round `distance` everybody sends that far ahead, and hears from that far
//! behind.

/// Whom `me` sends to in a round.
pub fn to(size: usize, me: usize, distance: usize) -> usize {
    (me + distance) % size
}

/// Whom `me` hears from in a round.
pub fn from(size: usize, me: usize, distance: usize) -> usize {
    (me + size - distance) % size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_meets_everybody_once() {
        for size in 1..=64 {
            for me in 0..size {
                let mut met: Vec<usize> =
                    (1..size).map(|distance| to(size, me, distance)).collect();
                for distance in 1..size {
                    assert_eq!(from(size, to(size, me, distance), distance), me);
                }
                met.sort_unstable();
                let others: Vec<usize> = (0..size).filter(|&other| other != me).collect();
                assert_eq!(met, others);
            }
        }
    }
}
