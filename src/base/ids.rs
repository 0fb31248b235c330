//! Ranks, group sizes, and the random identifiers that distinguish the attempts (restarts) of a
//! job.

use std::fmt;

/// A rank within a group. The C API's ranks are `int32_t`; within the library they index tables.
pub type Rank = usize;

/// The number of ranks of a group.
pub type WorldSize = usize;

/// The maximum number of ranks of a group.
pub const MAX_WORLD_SIZE: WorldSize = 1 << 16;

/// Sixteen random bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Nonce(pub [u8; 16]);

/// The identifier of a group in one attempt of a job. All shared objects of a group contain this
/// identifier, so that no rank reads an object of an earlier attempt.
pub type GroupId = Nonce;

impl Nonce {
    /// Parses the 32 hexadecimal digits that [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 32 {
            return None;
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let high = char::from(pair[0]).to_digit(16)?;
            let low = char::from(pair[1]).to_digit(16)?;
            *byte = u8::try_from(high * 16 + low).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonce_text_round_trips() {
        let nonce = Nonce(*b"0123456789abcdef");
        assert_eq!(Nonce::parse(&nonce.to_string()), Some(nonce));
        assert_eq!(Nonce::parse("zz"), None);
        assert_eq!(Nonce::parse(&"g".repeat(32)), None);
    }
}
