//! The progress that a rank publishes to the other ranks of its domain: its finished steps, its
//! current operation, and whether it writes to memory of other ranks.

use super::descriptor::Descriptor;
use crate::base::sync::{AtomicU64, Ordering};

/// The progress of one rank. It proves that a slot may be reused, and it describes the rank in
/// messages.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct RankProgress {
    /// The last finished step. The rank no longer reads any control slot or data slot of this step
    /// or an earlier one.
    finished_step: AtomicU64,
    /// The last finished operation: the last word of its descriptor.
    finished_operation: AtomicU64,
    /// The last entered operation: its descriptor.
    entered_operation: [AtomicU64; 3],
    /// One word for each [`RemoteWritePurpose`]: not 0 while the owner writes to memory of other
    /// ranks.
    remote_writes: [AtomicU64; 2],
}

/// The purpose of a write to memory of another rank. A rank makes one call at a time for each
/// purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteWritePurpose {
    /// The write belongs to a collective of the group.
    Collective,
    /// The write belongs to a message.
    Message,
}

/// A guard: while it exists, its rank may write to memory of other ranks.
#[derive(Debug)]
pub struct RemoteWriteGuard<'a>(&'a AtomicU64);

impl Drop for RemoteWriteGuard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl RankProgress {
    /// Publishes the operation that the owner enters.
    pub fn enter(&self, descriptor: &[u64; 3]) {
        for (cell, &word) in self.entered_operation.iter().zip(descriptor) {
            cell.store(word, Ordering::Relaxed);
        }
    }

    /// Publishes that the owner has finished an operation, and every step up to `step`. `word` is
    /// the last word of the operation's descriptor.
    pub fn finish_operation(&self, step: u64, word: u64) {
        self.finished_operation.store(word, Ordering::Relaxed);
        self.finish_step(step);
    }

    /// Publishes that the owner has finished every step up to `step` of its current operation.
    pub fn finish_step(&self, step: u64) {
        self.finished_step.store(step, Ordering::Release);
    }

    /// Returns the last step that the owner has certainly finished.
    pub fn finished_step(&self) -> u64 {
        self.finished_step.load(Ordering::Acquire)
    }

    /// Returns whether the owner has entered an operation and not finished it.
    pub fn is_in_operation(&self) -> bool {
        let finished = self.finished_operation.load(Ordering::Relaxed);
        self.order_key() > Descriptor::order_key_from_word(finished)
    }

    /// Returns whether the owner has entered this operation of the group (see
    /// [`Descriptor::order_key`]), or a later one.
    pub fn has_entered(&self, order_key: u64) -> bool {
        self.order_key() >= order_key
    }

    fn order_key(&self) -> u64 {
        Descriptor::order_key_from_word(self.entered_operation[2].load(Ordering::Relaxed))
    }

    /// Marks the owner as writing to memory of other ranks. The owner calls this before its last
    /// check whether their domain has failed.
    pub fn begin_remote_write(&self, purpose: RemoteWritePurpose) -> RemoteWriteGuard<'_> {
        let word = &self.remote_writes[purpose as usize];
        word.swap(1, Ordering::SeqCst);
        RemoteWriteGuard(word)
    }

    /// Returns whether the owner may be writing to memory of other ranks. If the caller has failed
    /// the domain before this call and gets false, the owner never writes again: this function is a
    /// read-modify-write, so it is ordered after the failure.
    pub fn is_writing_remotely(&self, purpose: RemoteWritePurpose) -> bool {
        self.remote_writes[purpose as usize].fetch_add(0, Ordering::SeqCst) != 0
    }

    /// Returns the address of the word for this purpose.
    pub(super) fn remote_write_address(&self, purpose: RemoteWritePurpose) -> usize {
        (&raw const self.remote_writes[purpose as usize]).addr()
    }

    /// Describes the last known activity of the owner, for messages. `with_label` adds the text of
    /// the label.
    pub fn describe(&self, with_label: impl Fn(Descriptor) -> Descriptor) -> String {
        let words = std::array::from_fn(|i| self.entered_operation[i].load(Ordering::Relaxed));
        let finished = self.finished_operation.load(Ordering::Relaxed);
        match Descriptor::decode(words).map(with_label) {
            None => "has entered no operation yet".to_owned(),
            Some(entered) if entered.order_key() > Descriptor::order_key_from_word(finished) => {
                format!("was in {entered}")
            }
            Some(entered) => format!("last finished {entered}"),
        }
    }
}
