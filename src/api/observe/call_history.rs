//! The history of the collectives that one rank has called in one group, as a number and a hash.
//!
//! Most back ends compare the calls of the ranks only as far as the ranks wait for each other. For
//! example, the root of a broadcast waits for no other rank, so it does not notice that the others
//! called a reduction. The histories of the ranks are compared when the ranks leave the group
//! (`group::call_comparison`).
//!
//! The hash of the history is the sum of the hashes of the calls. The sequence number of a call is
//! a part of its hash, so the sum depends on the order of the calls. But it does not depend on the
//! order in which concurrent threads add their calls.

use crate::algo::ArgumentsHash;
use crate::base::label::Label;
use crate::transport::{CountSpec, Descriptor};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The moment at which a call is added to the history of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) enum HistoryMoment {
    /// The caller has the turn of the group's queue.
    InTurn,
    /// Another call may have the turn.
    Concurrent,
    /// The group has failed, so the history ends before the call.
    AfterFailure,
}

/// A number of calls and the sum of their hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::api) struct CallSum {
    pub(in crate::api) calls: u64,
    pub(in crate::api) hash: u64,
}

/// The history of one group on one rank.
#[derive(Debug)]
pub(in crate::api) struct CallHistory {
    /// The calls that were added by a thread that had the turn of the group's queue.
    in_turn: AtomicCallSum,
    /// The other calls.
    concurrent: AtomicCallSum,
    /// True if the program has got the failure of the group from a call.
    is_failure_known: AtomicBool,
    /// The sequence number of the first call after the failure of the group; `u64::MAX` if there is
    /// none.
    end: AtomicU64,
}

#[derive(Debug, Default)]
struct AtomicCallSum {
    calls: AtomicU64,
    hash: AtomicU64,
}

impl AtomicCallSum {
    fn load(&self) -> CallSum {
        let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        CallSum { calls: load(&self.calls), hash: load(&self.hash) }
    }
}

impl Default for CallHistory {
    fn default() -> Self {
        Self {
            in_turn: AtomicCallSum::default(),
            concurrent: AtomicCallSum::default(),
            is_failure_known: AtomicBool::new(false),
            end: AtomicU64::new(u64::MAX),
        }
    }
}

impl CallHistory {
    /// Adds a call. `last_word` is the last word of its encoded descriptor, and `arguments` is the
    /// hash of its arguments. The caller has the turn of the group's queue, so no other thread runs
    /// this function for the same group. Therefore plain loads and stores suffice. The fast path
    /// may notice the failure of the group only later; then this function relies on what the
    /// program knows. A call on a list of tensors never comes here ([`Descriptor::compared`]).
    #[inline]
    pub(in crate::api) fn add_in_turn(
        &self,
        last_word: u64,
        arguments: ArgumentsHash,
        label: &Label,
    ) {
        if self.is_failure_known() {
            return self.end_before_word(last_word);
        }
        let CallSum { calls, hash } = self.in_turn.load();
        let sum = hash.wrapping_add(arguments.of_call(last_word, label));
        self.in_turn.calls.store(calls + 1, Ordering::Relaxed);
        self.in_turn.hash.store(sum, Ordering::Relaxed);
    }

    #[cold]
    fn end_before_word(&self, last_word: u64) {
        let order_key = Descriptor::order_key_from_word(last_word);
        self.end_before(Descriptor::sequence_from_order_key(order_key));
    }

    /// Adds a call, or ends the history before it.
    pub(in crate::api) fn add_at(&self, moment: HistoryMoment, descriptor: &Descriptor) {
        match moment {
            HistoryMoment::InTurn => {
                let words = compared_words(descriptor);
                self.add_in_turn(words[2], ArgumentsHash::of(&words), &descriptor.label);
            }
            HistoryMoment::Concurrent => self.add(descriptor),
            HistoryMoment::AfterFailure => self.end_before(descriptor.sequence),
        }
    }

    /// Adds a call. Any thread may add calls at any time. The read-modify-writes wait for all
    /// earlier stores of this core, so a call that has the turn uses [`Self::add_in_turn`].
    fn add(&self, descriptor: &Descriptor) {
        let hash = call_hash(descriptor);
        self.concurrent.calls.fetch_add(1, Ordering::Relaxed);
        self.concurrent.hash.fetch_add(hash, Ordering::Relaxed);
    }

    /// Ends the history before the call with this sequence number, because the group has already
    /// failed. After a failure, the ranks of a correct program stop at different calls and may go
    /// on with different calls.
    fn end_before(&self, sequence: u64) {
        self.end.fetch_min(sequence, Ordering::Relaxed);
    }

    /// Returns whether the history has the call with this sequence number, if it is recorded.
    pub(in crate::api) fn contains(&self, sequence: u64) -> bool {
        sequence < self.end.load(Ordering::Relaxed)
    }

    /// Records that the program gets the failure of the group from a call.
    pub(in crate::api) fn mark_failure_as_known(&self) {
        self.is_failure_known.store(true, Ordering::Relaxed);
    }

    /// Returns whether the program has got the failure of the group from a call.
    pub(in crate::api) fn is_failure_known(&self) -> bool {
        self.is_failure_known.load(Ordering::Relaxed)
    }

    /// Returns the number of calls and the hash of the history.
    pub(in crate::api) fn sum(&self) -> CallSum {
        let (first, second) = (self.in_turn.load(), self.concurrent.load());
        CallSum { calls: first.calls + second.calls, hash: first.hash.wrapping_add(second.hash) }
    }
}

/// Returns the hash of a call in the history.
pub(in crate::api) fn call_hash(descriptor: &Descriptor) -> u64 {
    let words = compared_words(descriptor);
    ArgumentsHash::of(&words).of_call(words[2], &descriptor.label)
}

/// Returns the words of [`Descriptor::compared`]. The algorithm does not matter, because
/// [`ArgumentsHash`] ignores it.
fn compared_words(descriptor: &Descriptor) -> [u64; 3] {
    match descriptor.count_spec {
        CountSpec::TensorList => descriptor.compared().encode(),
        _ => descriptor.encode(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::OpKind;

    fn call(kind: OpKind, sequence: u64) -> Descriptor {
        Descriptor {
            kind,
            dtype: None,
            op: None,
            root: None,
            count_spec: CountSpec::Count(4),
            sequence,
            algorithm: 0,
            part: 0,
            label: Label::NONE,
        }
    }

    fn add_in_turn(history: &CallHistory, call: &Descriptor) {
        history.add_at(HistoryMoment::InTurn, call);
    }

    fn sum_of(calls: &[Descriptor]) -> CallSum {
        let history = CallHistory::default();
        calls.iter().for_each(|call| history.add(call));
        history.sum()
    }

    #[test]
    fn history_depends_on_the_order_of_the_calls() {
        let (broadcast, reduce) = (OpKind::Broadcast, OpKind::Reduce);
        let one = sum_of(&[call(broadcast, 1), call(reduce, 2)]);
        assert_ne!(one, sum_of(&[call(reduce, 1), call(broadcast, 2)]));
        assert_eq!(one, sum_of(&[call(reduce, 2), call(broadcast, 1)]));
        assert_eq!(one.calls, 2);
    }

    #[test]
    fn history_has_the_same_sum_in_turn_and_concurrently() {
        let history = CallHistory::default();
        let [first, second] = [1, 2].map(|sequence| call(OpKind::Reduce, sequence));
        history.add(&first);
        add_in_turn(&history, &second);
        assert_eq!(history.sum(), sum_of(&[first, second]));
        let chosen = Descriptor { algorithm: 7, ..second };
        assert_eq!(history.sum(), sum_of(&[first, chosen]));
    }

    #[test]
    fn history_ends_at_the_first_call_after_the_failure() {
        let history = CallHistory::default();
        let [first, second, third] = [1, 2, 3].map(|sequence| call(OpKind::Reduce, sequence));
        history.add(&first);
        history.mark_failure_as_known();
        add_in_turn(&history, &third);
        history.end_before(second.sequence);
        add_in_turn(&history, &third);
        assert_eq!(history.sum(), sum_of(&[first]));
        assert_eq!([1, 2, 3].map(|sequence| history.contains(sequence)), [true, false, false]);
    }

    #[test]
    fn history_depends_on_the_label() {
        let labelled =
            |text| Descriptor { label: Label::new(text).unwrap(), ..call(OpKind::Broadcast, 1) };
        assert_ne!(sum_of(&[labelled("a")]), sum_of(&[labelled("b")]));
    }
}
