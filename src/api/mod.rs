//! What the C interface offers, in Rust: process state, rendezvous, groups, argument checks, and
//! the order of calls.
//!
//! Must not know: concrete back ends and transports (only the registry in `backend`), system calls,
//! C types.

pub mod activity;
mod all_equal;
pub mod batch;
pub mod bytes;
pub mod call;
mod call_options;
pub mod callbacks;
pub mod collective;
mod debug;
mod ear;
pub mod environment;
mod error_file;
mod events;
pub mod exchange;
mod fusion;
pub mod group;
mod independence;
pub mod issue;
mod keys;
mod launch;

mod lineage;
pub mod memory;
pub mod monitored;
mod observer;
pub mod operator;
mod outbox;
mod outcome;
mod placement;
pub mod point_to_point;
pub mod probe;
mod prompt;
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
pub mod supports;
pub mod trace;
mod verdict;
pub mod work;
pub mod work_list;

#[cfg(test)]
mod tests;

pub use bytes::{BytesCall, Deliver};
pub use call::{Call, CallOptions};
pub use group::{Group, GroupOptions};
pub use operator::{Operator, OperatorCall};
pub use runtime::InitOptions;
pub use shrink::ShrinkOptions;
pub use store::StoreHandle;
pub use subgroup::SubgroupOptions;
pub use work::{Progress, Work};
