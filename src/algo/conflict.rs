//! What is said where one rank sends another more or less than that one expects.

use crate::base::error::{Error, ErrorKind};
use crate::transport::{Descriptor, PeerName};

/// How much one rank sends to another, and how much that one expects, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conflict<'a> {
    pub(super) from: &'a PeerName,
    pub(super) sent: u64,
    pub(super) to: &'a PeerName,
    pub(super) expected: u64,
}

impl Conflict<'_> {
    /// The error of the one who found it; `culprit` is the other.
    pub(super) fn error(&self, descriptor: &Descriptor, culprit: &PeerName) -> Error {
        let Self { from, sent, to, expected } = self;
        let element = descriptor.dtype.map_or(1, |dtype| dtype.size() as u64);
        let message = format!(
            "ranks disagree about how much goes between them in {descriptor}: {from} sends {} elements to {to}, which \
             expects {}",
            sent / element,
            expected / element
        );
        Error::new(ErrorKind::Mismatch, message).with_culprit(culprit.rank)
    }
}
