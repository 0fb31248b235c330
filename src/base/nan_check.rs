//! Which elements a caller wants to hear of.

/// Which elements of a buffer nobody wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum NanCheck {
    /// Any may be there.
    #[default]
    Off = 0,
    /// What is not a number may not.
    RejectNan = 1,
    /// What is not a finite number may not.
    RejectNonFinite = 2,
}
