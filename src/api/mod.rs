//! The layer below the C interface: process state, rendezvous, groups, argument checks, and the
//! order of calls.
//!
//! This layer does not depend on concrete back ends or transports (only on the registry in
//! `backend`), on system calls, or on C types.

pub mod activity;
mod all_equal;
pub mod batch;
mod batch_overlap;
pub mod bytes;
pub mod call;
mod call_observer;
mod call_options;
pub mod callbacks;
pub mod collective;
mod debug;
mod device_launch;
pub mod environment;
mod error_file;
mod events;
mod fusion;
pub mod group;
mod group_keys;
pub mod issue;
pub mod sendrecv;

mod abort_propagation;
mod barrier_messages;
mod buffer_location;
pub mod capabilities;
mod fast_path;
mod group_observer;
mod latest_only_sender;
pub mod memory;
pub mod monitored_barrier;
pub mod operator;
pub mod point_to_point;
pub mod probe;
pub mod queue;
pub mod recorder;
pub mod reducer;
pub mod rendezvous;
pub mod runtime;
pub mod shrink;
pub mod spawn;
pub mod store;
mod straggler;
pub mod subgroup;
pub mod trace;
pub mod work;
pub mod work_list;
mod work_outcome;

#[cfg(test)]
mod tests;

pub use bytes::{BytesCall, BytesHandler};
pub use call::{Call, CallOptions};
pub use group::{Group, GroupOptions};
pub use operator::{Operator, OperatorCall};
pub use runtime::InitOptions;
pub use shrink::ShrinkOptions;
pub use store::StoreHandle;
pub use subgroup::SubgroupOptions;
pub use work::{Work, WorkProgress};
