//! The cipher suites of the handshake. Two processes use the best suite that both support.

/// A cipher suite of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CipherSuite {
    /// ChaCha20-Poly1305, which every processor supports.
    ChaChaPoly = 1,
    /// AES-256-GCM. It needs the processor features that graviola needs.
    AesGcm = 2,
}

impl CipherSuite {
    /// Returns the suite with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::ChaChaPoly, Self::AesGcm].into_iter().find(|&suite| suite as u8 == number)
    }

    /// Returns the name of the Noise protocol with this suite.
    pub(super) fn protocol_name(self) -> &'static str {
        match self {
            Self::ChaChaPoly => "Noise_NNpsk0_25519_ChaChaPoly_SHA256",
            Self::AesGcm => "Noise_NNpsk0_25519_AESGCM_SHA256",
        }
    }
}

/// The suites that a process supports. [`CipherSuite::ChaChaPoly`] is always one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CipherSet(u8);

impl CipherSet {
    /// Only the suite that every processor supports.
    pub const EVERY_PROCESSOR: Self = Self(CipherSuite::ChaChaPoly as u8);

    /// Returns the suites that this processor supports.
    pub fn of_this_processor() -> Self {
        match graviola::util::is_cpu_supported() {
            true => Self(CipherSuite::ChaChaPoly as u8 | CipherSuite::AesGcm as u8),
            false => Self::EVERY_PROCESSOR,
        }
    }

    /// Returns the number of this set for a message.
    pub fn number(self) -> u8 {
        self.0
    }

    /// Returns the set with this number. Suites that this version does not know are left out.
    pub fn from_number(number: u8) -> Self {
        let known = CipherSuite::ChaChaPoly as u8 | CipherSuite::AesGcm as u8;
        Self(number & known | CipherSuite::ChaChaPoly as u8)
    }

    /// Returns the suite for a connection between a process with this set and one with the other.
    pub fn best_common(self, other: Self) -> CipherSuite {
        match self.0 & other.0 & CipherSuite::AesGcm as u8 {
            0 => CipherSuite::ChaChaPoly,
            _ => CipherSuite::AesGcm,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_common_suite_is_symmetric_and_supported_by_both() {
        let both = CipherSet::from_number(3);
        let one = CipherSet::EVERY_PROCESSOR;
        assert_eq!(both.best_common(both), CipherSuite::AesGcm);
        for (left, right) in [(both, one), (one, both), (one, one)] {
            assert_eq!(left.best_common(right), CipherSuite::ChaChaPoly);
        }
        for number in 0..=u8::MAX {
            let set = CipherSet::from_number(number);
            assert_eq!(CipherSet::from_number(set.number()), set);
            assert_eq!(CipherSet::EVERY_PROCESSOR.best_common(set), CipherSuite::ChaChaPoly);
        }
        for suite in [CipherSuite::ChaChaPoly, CipherSuite::AesGcm] {
            assert_eq!(CipherSuite::from_number(suite as u8), Some(suite));
        }
        assert_eq!(CipherSuite::from_number(0), None);
    }
}
