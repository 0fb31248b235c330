//! [`MessageMemory`]: whether a message is in host memory or in device memory.

/// The memory of a message. Messages in host memory never match messages in device memory, so the
/// two are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageMemory {
    Host,
    Device,
}
