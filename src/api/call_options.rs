//! What a single call may choose, beside its arguments.

use crate::base::debug::NanCheck;
use crate::base::label::Label;

/// Where the caller says that the buffers of a call lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferLocation {
    /// It does not say.
    Unspecified,
    /// In host memory.
    Host,
    /// In the memory of a device.
    Device(usize),
}

/// What a single call may choose.
#[derive(Clone, Debug)]
pub struct CallOptions {
    /// The deadline in milliseconds; 0 for the group's, `u64::MAX` for none.
    pub timeout_ms: u64,
    /// The factor of `PREMUL_SUM`; 0 is refused there, since it is what was not set.
    pub premul_scale: f64,
    /// Vectors are folded in the order of ranks at once, so that the result does not depend on
    /// where ranks are.
    pub canonical: bool,
    /// An algorithm by name.
    pub algorithm: Option<String>,
    /// Which elements may not be in its buffers, beside those that may not be in any call's.
    pub nan_check: NanCheck,
    /// Where its buffers lie.
    pub location: BufferLocation,
    /// The stream that it is put into, for buffers on a device.
    pub stream: Option<usize>,
    /// The label of the call, which all ranks give alike.
    pub label: Label,
    /// A send is done only once a receive has matched its message.
    pub synchronous: bool,
}

impl CallOptions {
    /// Those of a call that chooses nothing.
    pub const DEFAULT: Self = Self {
        timeout_ms: 0,
        premul_scale: 0.0,
        canonical: false,
        algorithm: None,
        nan_check: NanCheck::Off,
        location: BufferLocation::Unspecified,
        stream: None,
        label: Label::NONE,
        synchronous: false,
    };

    /// Whether it has anything to do with a device.
    pub(super) fn is_for_device(&self) -> bool {
        self.stream.is_some() || matches!(self.location, BufferLocation::Device(_))
    }
}

impl Default for CallOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}
