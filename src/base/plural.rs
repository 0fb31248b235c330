//! [`Plural`]: a number with its noun in the right form.

use std::fmt;

/// Displays a number and a noun, for example `1 node` and `2 nodes`. The plural of the noun must
/// end in "s".
#[derive(Clone, Copy, Debug)]
pub struct Plural<N>(pub N, pub &'static str);

impl<N: Copy + PartialEq + From<u8> + fmt::Display> fmt::Display for Plural<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Self(number, noun) = self;
        let ending = if number == N::from(1) { "" } else { "s" };
        write!(f, "{number} {noun}{ending}")
    }
}

#[cfg(test)]
mod tests {
    use super::Plural;

    #[test]
    fn only_one_is_singular() {
        let texts = [0_usize, 1, 2].map(|number| Plural(number, "node").to_string());
        assert_eq!(texts, ["0 nodes", "1 node", "2 nodes"]);
    }
}
