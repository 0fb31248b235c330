//! Error text for two ranks whose calls differ: in the algorithm, in a count, or in a label within
//! a batch.

use crate::base::error::{Error, ErrorKind};
use crate::base::label::Label;
use crate::base::plural::Plural;
use crate::transport::{Descriptor, OpKind, PeerName};
use std::fmt;

/// A function that returns the name of the algorithm with this number. The protocols receive it as
/// a value, because they must not depend on the table of algorithms.
pub(super) type AlgorithmNameFn = fn(OpKind, u8) -> Option<&'static str>;

/// Describes the call `this` of one rank, for an error text that compares it with the call `other`
/// of another rank. The description contains the algorithm only if the two calls differ in nothing
/// else.
pub(super) fn describe_against(
    this: &Descriptor,
    other: &Descriptor,
    algorithm_name: AlgorithmNameFn,
) -> String {
    let differs = this != other && Descriptor { algorithm: this.algorithm, ..*other } == *this;
    match algorithm_name(this.kind, this.algorithm).filter(|_| differs) {
        Some(name) => format!("{this} with the algorithm \"{name}\""),
        None => this.to_string(),
    }
}

/// The first call of a batch to which two ranks gave different labels. The calls of the batch were
/// merged into one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LabelMismatch {
    /// The number of the call, from 1; 0 if no call is known.
    call_number: usize,
    own_label: Label,
    peer_label: Label,
}

impl LabelMismatch {
    /// Finds the first mismatch. The first entry of each list is the label of the whole operation.
    /// The other entries are the labels of the calls, in order.
    pub(super) fn find(ours: &[Label], theirs: &[Label]) -> Self {
        let calls = ours.iter().zip(theirs).enumerate().skip(1);
        let mut found = calls.map(|(number, (&ours, &theirs))| Self {
            call_number: number,
            own_label: ours,
            peer_label: theirs,
        });
        let none = Self { call_number: 0, own_label: Label::NONE, peer_label: Label::NONE };
        found.find(|call| call.own_label != call.peer_label).unwrap_or(none)
    }
}

impl fmt::Display for LabelMismatch {
    /// Writes for instance `; call 3 of the batch has the label "a" on the first rank and the label
    /// "b" on the second`. Writes nothing if no call is known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call_number, own_label: ours, peer_label: theirs } = self;
        if *call_number == 0 {
            return Ok(());
        }
        let name = |label: &Label| match label.is_none() {
            true => "no label".to_owned(),
            false => format!("the label {label}"),
        };
        let (ours, theirs) = (name(ours), name(theirs));
        write!(
            f,
            "; call {call_number} of the batch has {ours} on the first rank and {theirs} on the second"
        )
    }
}

/// The number of bytes that one rank sends to another, and the number that the receiver expects.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountMismatch<'a> {
    pub(super) sender: &'a PeerName,
    pub(super) sent_bytes: u64,
    pub(super) receiver: &'a PeerName,
    pub(super) expected_bytes: u64,
}

impl CountMismatch<'_> {
    /// Returns the error for the rank that found the mismatch. `culprit` is the other rank.
    pub(super) fn to_error(self, descriptor: &Descriptor, culprit: &PeerName) -> Error {
        let Self { sender: from, sent_bytes: sent, receiver: to, expected_bytes: expected } = self;
        let element = descriptor.dtype.map_or(1, |dtype| dtype.size() as u64);
        let message = format!(
            "count mismatch in {descriptor}: {from} sends {} to {to}, which expects {}",
            Plural(sent / element, "element"),
            expected / element
        );
        Error::new(ErrorKind::Mismatch, message).with_culprit(culprit.rank)
    }
}
