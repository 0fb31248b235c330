//! [`GrowingPause`]: a number of waits that skip a phase, because the phase has failed.

/// The longest pause is this many times as long as the first one.
const MAX_PAUSE_FACTOR: u32 = 64;

/// A pause. `FIRST` is the length of the first pause, in waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrowingPause<const FIRST: u32> {
    /// The length of the next pause, in waits.
    next_len: u32,
    /// The number of waits that the current pause still has.
    left: u32,
}

impl<const FIRST: u32> GrowingPause<FIRST> {
    pub(super) const NONE: Self = Self { next_len: FIRST, left: 0 };
    /// The length of the longest pause, in waits.
    pub(super) const MAX: u32 = FIRST * MAX_PAUSE_FACTOR;

    /// Counts a wait. Returns false if the wait skips the phase.
    pub(super) fn begin_wait(&mut self) -> bool {
        let has_ended = self.left == 0;
        self.left = self.left.saturating_sub(1);
        has_ended
    }

    /// Begins a pause. Each pause is twice as long as the previous one.
    pub(super) fn begin(&mut self) {
        *self = Self { next_len: (2 * self.next_len).min(Self::MAX), left: self.next_len };
    }
}
