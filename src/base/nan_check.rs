//! The NaN check: which elements of buffers an operation rejects.

/// The elements that the NaN check rejects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum NanCheck {
    /// Accepts all elements.
    #[default]
    Off = 0,
    /// Rejects NaN.
    RejectNan = 1,
    /// Rejects NaN and infinities.
    RejectNonFinite = 2,
}
