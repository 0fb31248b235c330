//! Collective calls: checks, batches, fusion, the fast path, operators and device launches.

pub(in crate::api) mod all_equal;
pub(in crate::api) mod barrier_messages;
pub mod batch;
pub(in crate::api) mod batch_overlap;
pub mod blocking;
pub(in crate::api) mod buffer_location;
pub mod bytes;
pub mod call;
pub(in crate::api) mod call_observer;
pub(in crate::api) mod call_options;
pub(in crate::api) mod device_launch;
pub(in crate::api) mod fast_path;
pub(in crate::api) mod fusion;
pub mod monitored_barrier;
pub mod operator;
