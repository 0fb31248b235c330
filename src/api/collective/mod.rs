//! Collective calls: arguments and checks, batches and fusion, lists of tensors, the fast path,
//! operators of the caller, and operations that are enqueued on a device.

mod all_equal;
pub(in crate::api) mod barrier_messages;
mod barrier_state;
pub mod batch;
mod batch_overlap;
pub mod blocking;
mod buffer_location;
pub mod bytes;
pub mod call;
mod call_observer;
pub(in crate::api) mod call_options;
pub(in crate::api) mod checked_keys;
mod device_launch;
pub(in crate::api) mod fast_path;
mod fusion;
pub mod monitored_barrier;
pub mod operator;
pub mod prepared_call;
mod queued_call;
pub mod tensor_list;
mod turn;
