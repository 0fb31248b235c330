//! The options that a caller may set for a single call, in addition to its arguments.

use crate::base::debug::NanCheck;
use crate::base::label::Label;

/// The buffer location in the caller's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferLocation {
    /// The caller does not specify the location.
    Unspecified,
    /// Host memory.
    Host,
    /// The memory of the device with this index.
    Device(usize),
}

/// The options of a single call.
#[derive(Clone, Debug)]
pub struct CallOptions {
    /// The time limit in milliseconds. 0 selects the group's time limit, and `u64::MAX` means no
    /// limit.
    pub timeout_ms: u64,
    /// The factor of the operator `PREMUL_SUM`. 0 means that no factor is set; then a call with
    /// `PREMUL_SUM` fails.
    pub premul_scale: f64,
    /// If set, vectors are reduced in the order of the ranks. Then the result, including rounding,
    /// does not depend on which hosts the ranks are on.
    pub canonical: bool,
    /// The name of the algorithm to use; `None` lets the back end choose.
    pub algorithm: Option<String>,
    /// The elements (for example NaN) that the call rejects in its buffers. The debug settings may
    /// reject more elements in every call.
    pub nan_check: NanCheck,
    /// The location of the buffers.
    pub location: BufferLocation,
    /// The device stream on which the operation runs, for buffers in device memory.
    pub stream: Option<usize>,
    /// The label of the call: a name for log and error texts. It must be equal on all ranks.
    pub label: Label,
    /// If set, a send completes only after a receive has matched its message.
    pub synchronous: bool,
}

impl CallOptions {
    /// The default options.
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

    /// Returns whether an option names a device or a stream.
    pub(in crate::api) fn is_for_device(&self) -> bool {
        self.stream.is_some() || matches!(self.location, BufferLocation::Device(_))
    }
}

impl Default for CallOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}
