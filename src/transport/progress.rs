//! What a rank tells the others of its domain about itself: which steps it has finished, what it is
//! in, and whether it writes to their memory.

use super::descriptor::Descriptor;
use crate::base::sync::{AtomicU64, Ordering};

/// What a rank last did; for messages, and for proving that a slot may be reused.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Progress {
    /// Every step up to this one is finished: the rank reads no line or slot of it any more.
    done: AtomicU64,
    /// The last operation finished, by the last word of its descriptor.
    finished: AtomicU64,
    /// The operation last entered.
    entered: [AtomicU64; 3],
    /// Not 0 while the owner writes to memory of other ranks, a word for each [`Purpose`].
    reaching: [AtomicU64; 2],
}

/// What a rank writes to memory of others for: the calls of either are made one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A collective of the group.
    Collective,
    /// A message.
    Message,
}

/// While this lives, its rank may write to memory of others.
#[derive(Debug)]
pub struct Reaching<'a>(&'a AtomicU64);

impl Drop for Reaching<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Progress {
    /// The owner enters an operation.
    pub fn enter(&self, descriptor: &[u64; 3]) {
        for (cell, &word) in self.entered.iter().zip(descriptor) {
            cell.store(word, Ordering::Relaxed);
        }
    }

    /// The owner has finished the operation whose descriptor's last word this is, and with it every
    /// step up to `step`.
    pub fn finish(&self, step: u64, word: u64) {
        self.finished.store(word, Ordering::Relaxed);
        self.pass(step);
    }

    /// The owner has finished every step up to `step` of the operation that it is in.
    pub fn pass(&self, step: u64) {
        self.done.store(step, Ordering::Release);
    }

    /// The last step that the owner has finished for certain.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    /// True where the owner has entered an operation and not left it.
    pub fn is_inside(&self) -> bool {
        let finished = self.finished.load(Ordering::Relaxed);
        self.moment() > Descriptor::moment_of(finished)
    }

    /// True where the owner was last seen entering this operation of the group (see
    /// [`Descriptor::moment`]), or a later one.
    pub fn has_entered(&self, moment: u64) -> bool {
        self.moment() >= moment
    }

    fn moment(&self) -> u64 {
        Descriptor::moment_of(self.entered[2].load(Ordering::Relaxed))
    }

    /// The owner begins to write to memory of others: before it looks for the last time whether
    /// their domain has failed.
    pub fn reach(&self, purpose: Purpose) -> Reaching<'_> {
        let word = &self.reaching[purpose as usize];
        word.swap(1, Ordering::SeqCst);
        Reaching(word)
    }

    /// Whether the owner may be writing to memory of others. Whoever has failed the domain, and
    /// sees by a read-modify-write behind that that it is not, will see no more of it.
    pub fn is_reaching(&self, purpose: Purpose) -> bool {
        self.reaching[purpose as usize].fetch_add(0, Ordering::SeqCst) != 0
    }

    /// Where the word lies by which that is seen.
    pub(super) fn reaching_address(&self, purpose: Purpose) -> usize {
        (&raw const self.reaching[purpose as usize]).addr()
    }

    /// What the owner was last seen doing, for messages; `with_label` adds the text of its label.
    pub fn describe(&self, with_label: impl Fn(Descriptor) -> Descriptor) -> String {
        let words = std::array::from_fn(|i| self.entered[i].load(Ordering::Relaxed));
        let finished = self.finished.load(Ordering::Relaxed);
        match Descriptor::decode(words).map(with_label) {
            None => "has entered no operation yet".to_owned(),
            Some(entered) if entered.moment() > Descriptor::moment_of(finished) => {
                format!("was in {entered}")
            }
            Some(entered) => format!("last finished {entered}"),
        }
    }
}
