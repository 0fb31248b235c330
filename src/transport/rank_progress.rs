//! What a rank tells the others of its domain about itself: which steps it has finished, what it is
//! in, and whether it writes to their memory.

use super::descriptor::Descriptor;
use crate::base::sync::{AtomicU64, Ordering};

/// What a rank last did; for messages, and for proving that a slot may be reused.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct RankProgress {
    /// Every step up to this one is finished: the rank reads no line or slot of it any more.
    finished_step: AtomicU64,
    /// The last operation finished, by the last word of its descriptor.
    finished_operation: AtomicU64,
    /// The operation last entered.
    entered_operation: [AtomicU64; 3],
    /// Not 0 while the owner writes to memory of other ranks, a word for each
    /// [`RemoteWritePurpose`].
    remote_writes: [AtomicU64; 2],
}

/// What a rank writes to memory of others for: the calls of either are made one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteWritePurpose {
    /// A collective of the group.
    Collective,
    /// A message.
    Message,
}

/// While this lives, its rank may write to memory of others.
#[derive(Debug)]
pub struct RemoteWriteGuard<'a>(&'a AtomicU64);

impl Drop for RemoteWriteGuard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl RankProgress {
    /// The owner enters an operation.
    pub fn enter(&self, descriptor: &[u64; 3]) {
        for (cell, &word) in self.entered_operation.iter().zip(descriptor) {
            cell.store(word, Ordering::Relaxed);
        }
    }

    /// The owner has finished the operation whose descriptor's last word this is, and with it every
    /// step up to `step`.
    pub fn finish_operation(&self, step: u64, word: u64) {
        self.finished_operation.store(word, Ordering::Relaxed);
        self.finish_step(step);
    }

    /// The owner has finished every step up to `step` of the operation that it is in.
    pub fn finish_step(&self, step: u64) {
        self.finished_step.store(step, Ordering::Release);
    }

    /// The last step that the owner has finished for certain.
    pub fn finished_step(&self) -> u64 {
        self.finished_step.load(Ordering::Acquire)
    }

    /// True where the owner has entered an operation and not left it.
    pub fn is_in_operation(&self) -> bool {
        let finished = self.finished_operation.load(Ordering::Relaxed);
        self.order_key() > Descriptor::order_key_from_word(finished)
    }

    /// True where the owner was last seen entering this operation of the group (see
    /// [`Descriptor::order_key`]), or a later one.
    pub fn has_entered(&self, order_key: u64) -> bool {
        self.order_key() >= order_key
    }

    fn order_key(&self) -> u64 {
        Descriptor::order_key_from_word(self.entered_operation[2].load(Ordering::Relaxed))
    }

    /// The owner begins to write to memory of others: before it looks for the last time whether
    /// their domain has failed.
    pub fn begin_remote_write(&self, purpose: RemoteWritePurpose) -> RemoteWriteGuard<'_> {
        let word = &self.remote_writes[purpose as usize];
        word.swap(1, Ordering::SeqCst);
        RemoteWriteGuard(word)
    }

    /// Whether the owner may be writing to memory of others. Whoever has failed the domain, and
    /// sees by a read-modify-write behind that that it is not, will see no more of it.
    pub fn is_writing_remotely(&self, purpose: RemoteWritePurpose) -> bool {
        self.remote_writes[purpose as usize].fetch_add(0, Ordering::SeqCst) != 0
    }

    /// Where the word lies by which that is seen.
    pub(super) fn remote_write_address(&self, purpose: RemoteWritePurpose) -> usize {
        (&raw const self.remote_writes[purpose as usize]).addr()
    }

    /// What the owner was last seen doing, for messages; `with_label` adds the text of its label.
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
