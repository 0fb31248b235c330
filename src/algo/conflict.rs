//! What is said where one rank sends another more or less than that one expects.

use crate::base::error::{Error, ErrorKind};
use crate::base::label::Label;
use crate::transport::{Descriptor, PeerName};
use std::fmt;

/// Which of the calls of a batch that became one operation two ranks labelled differently: the
/// first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DifferingCall {
    /// From 1; 0 where none is known.
    number: usize,
    ours: Label,
    theirs: Label,
}

impl DifferingCall {
    /// Of two operations whose labels are those of the whole and, behind it, those of the calls.
    pub(super) fn of(ours: &[Label], theirs: &[Label]) -> Self {
        let calls = ours.iter().zip(theirs).enumerate().skip(1);
        let mut found = calls.map(|(number, (&ours, &theirs))| Self { number, ours, theirs });
        let none = Self { number: 0, ours: Label::NONE, theirs: Label::NONE };
        found.find(|call| call.ours != call.theirs).unwrap_or(none)
    }
}

impl fmt::Display for DifferingCall {
    /// For instance `; call 3 of the batch has the label "a" on the one and "b" on the other`.
    /// Nothing if none is known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, ours, theirs } = self;
        if *number == 0 {
            return Ok(());
        }
        let name = |label: &Label| match label.is_none() {
            true => "no label".to_owned(),
            false => format!("the label {label}"),
        };
        let (ours, theirs) = (name(ours), name(theirs));
        write!(f, "; call {number} of the batch has {ours} on the one and {theirs} on the other")
    }
}

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
