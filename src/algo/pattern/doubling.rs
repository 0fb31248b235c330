//! Recursive doubling among a power of two of members, and what the others do: of the first members
//! so many give their part to their neighbour, and get the result back at the end, that a power of
//! two remains.

/// What a member does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It gives its part to the next member and waits for the result.
    Gives,
    /// It is one of the power of two, under this number; `takes`: after the part of the member
    /// before it.
    Works {
        /// The number among those who work.
        number: usize,
        /// It takes the part of the member before it.
        takes: bool,
    },
}

/// How many members work: the largest power of two that is not more than all.
pub fn workers(size: usize) -> usize {
    1 << size.ilog2()
}

/// What a member does.
pub fn role(size: usize, me: usize) -> Role {
    let extra = size - workers(size);
    match me {
        _ if me >= 2 * extra => Role::Works { number: me - extra, takes: false },
        _ if me.is_multiple_of(2) => Role::Gives,
        _ => Role::Works { number: me / 2, takes: true },
    }
}

/// The member that works under a number.
pub fn member(size: usize, number: usize) -> usize {
    let extra = size - workers(size);
    if number < extra { 2 * number + 1 } else { number + extra }
}

/// With whom a worker exchanges, by number, round after round: first the nearest.
pub fn partners(size: usize, number: usize) -> impl Iterator<Item = usize> {
    (0..workers(size).ilog2()).map(move |round| number ^ (1 << round))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_ends_with_the_parts_of_all() {
        for size in 1..=64usize {
            let mut parts: Vec<u64> = (0..size).map(|me| 1 << me).collect();
            for me in 0..size {
                match role(size, me) {
                    Role::Gives => {
                        assert!(matches!(role(size, me + 1), Role::Works { takes: true, .. }))
                    }
                    Role::Works { number, takes } => {
                        assert_eq!(member(size, number), me);
                        if takes {
                            assert_eq!(role(size, me - 1), Role::Gives);
                            parts[me] |= parts[me - 1];
                        }
                    }
                }
            }
            for round in 0..workers(size).ilog2() as usize {
                let before = parts.clone();
                for number in 0..workers(size) {
                    let partner = partners(size, number).nth(round).unwrap();
                    assert_eq!(partners(size, partner).nth(round), Some(number));
                    parts[member(size, number)] |= before[member(size, partner)];
                }
            }
            let all = if size == 64 { u64::MAX } else { (1 << size) - 1 };
            for number in 0..workers(size) {
                assert_eq!(parts[member(size, number)], all);
            }
        }
    }
}
