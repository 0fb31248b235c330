//! The progress that a rank publishes to the other ranks of its domain: its finished steps, its
//! current operation, and whether it writes to memory of other ranks.

use super::descriptor::Descriptor;
use crate::base::sync::{AtomicU64, Ordering};

/// The progress of one rank. The finished step proves to a writer that it may reuse a control slot
/// or data slot. The operations appear in error messages.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct RankProgress {
    /// The last finished step. The rank no longer reads any control slot or data slot of this step
    /// or an earlier one.
    finished_step: AtomicU64,
    /// The last word of the descriptor of the last finished operation. The word has the operation's
    /// order key.
    finished_operation: AtomicU64,
    /// The descriptor of the last entered operation.
    entered_operation: [AtomicU64; 3],
    /// One word for each [`RemoteWritePurpose`]. The word is not 0 while the owner writes to memory
    /// of other ranks for that purpose.
    remote_writes: [AtomicU64; 2],
}

/// The purpose of a write to memory of another rank. For each purpose, a rank makes at most one
/// such write at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteWritePurpose {
    /// The write belongs to a collective of the group.
    Collective,
    /// The write belongs to a message.
    Message,
}

/// A guard that marks its rank as writing to memory of other ranks, until the guard is dropped.
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

    /// Publishes that the owner has finished an operation and every step up to `step`. `word` is
    /// the last word of the operation's descriptor.
    pub fn finish_operation(&self, step: u64, word: u64) {
        self.finished_operation.store(word, Ordering::Relaxed);
        self.finish_step(step);
    }

    /// Publishes that the owner has finished an operation that used no step of this domain.
    pub fn finish_foreign_operation(&self, word: u64) {
        self.finished_operation.store(word, Ordering::Relaxed);
    }

    /// Publishes that the owner has finished every step up to `step` of its current operation.
    pub fn finish_step(&self, step: u64) {
        self.finished_step.store(step, Ordering::Release);
    }

    /// Returns the last step that the owner has published as finished.
    pub fn finished_step(&self) -> u64 {
        self.finished_step.load(Ordering::Acquire)
    }

    /// Returns whether the owner has entered an operation that it has not finished.
    pub fn is_in_operation(&self) -> bool {
        let finished = self.finished_operation.load(Ordering::Relaxed);
        self.order_key() > Descriptor::order_key_from_word(finished)
    }

    /// Returns whether the owner has entered the operation with this order key
    /// ([`Descriptor::order_key`]), or a later operation of the group.
    pub fn has_entered(&self, order_key: u64) -> bool {
        self.order_key() >= order_key
    }

    fn order_key(&self) -> u64 {
        Descriptor::order_key_from_word(self.entered_operation[2].load(Ordering::Relaxed))
    }

    /// Marks the owner as writing to memory of other ranks. After this call and before the write,
    /// the owner must check whether the domain has failed.
    pub fn begin_remote_write(&self, purpose: RemoteWritePurpose) -> RemoteWriteGuard<'_> {
        let word = &self.remote_writes[purpose as usize];
        word.swap(1, Ordering::SeqCst);
        RemoteWriteGuard(word)
    }

    /// Returns whether the owner may be writing to memory of other ranks. If the caller has failed
    /// the domain before this call and the result is false, the owner never writes again.
    ///
    /// The reason is that this function and [`RankProgress::begin_remote_write`] are both
    /// read-modify-writes of the same word, so one of the two comes first:
    ///
    /// - If `begin_remote_write` comes first, this function finds the mark and returns true until
    ///   the write has ended.
    /// - If this function comes first, `begin_remote_write` reads the word from it. The owner then
    ///   also sees the failure in the check that follows, and does not write.
    pub fn is_writing_remotely(&self, purpose: RemoteWritePurpose) -> bool {
        self.remote_writes[purpose as usize].fetch_add(0, Ordering::SeqCst) != 0
    }

    /// Returns the address of the remote-write word for this purpose.
    pub(super) fn remote_write_address(&self, purpose: RemoteWritePurpose) -> usize {
        (&raw const self.remote_writes[purpose as usize]).addr()
    }

    /// Describes the last known operation of the owner, for error messages. `with_label` adds the
    /// text of the label to the descriptor.
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
