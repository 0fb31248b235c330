//! The options of a single call, in addition to its arguments.

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
    /// The deadline in milliseconds; 0 selects the group's, `u64::MAX` none.
    pub timeout_ms: u64,
    /// The factor of `PREMUL_SUM`. 0 means that it is not set, so `PREMUL_SUM` refuses it.
    pub premul_scale: f64,
    /// If set, vectors are reduced in rank order, so that the result does not depend on the
    /// location of the ranks.
    pub canonical: bool,
    /// The name of an algorithm.
    pub algorithm: Option<String>,
    /// The elements to reject in the call's buffers, in addition to the elements that the debug
    /// settings reject in every call.
    pub nan_check: NanCheck,
    /// The location of the buffers.
    pub location: BufferLocation,
    /// The stream of the operation, for buffers in device memory.
    pub stream: Option<usize>,
    /// The label of the call, which must be equal on all ranks.
    pub label: Label,
    /// If set, a send completes only once a receive has matched its message.
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
