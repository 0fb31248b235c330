//! Data-parallel training: a reducer that averages gradients while they are computed, and a
//! sampler.
//!
//! A reducer corresponds to the part of PyTorch's DistributedDataParallel below autograd (c10d's
//! `Reducer`). The caller marks each gradient that is ready. When all gradients of a bucket are
//! ready, the bucket is reduced. Buckets are sent in the order of the layout, so all ranks issue
//! the same operations in the same order ([`launch`]). A step ends with one agreement of all ranks
//! ([`ballot`]).
//!
//! # Retry of a failed step
//! The operations of a group run in order, so a rank contributes to the agreement only after all
//! its buckets are reduced. If one rank has received the agreement on a step, every other rank has
//! all results of the step. After a failure, a rank without the agreement gets it from a rank that
//! has it ([`regroup`]). If no rank has it, all ranks reduce the same gradients again.
//!
//! This module does not depend on C types, on back ends, or on how operations run.

mod array;
mod ballot;
mod bucket_callback;
mod bucket_task;
mod check;
mod checkpoint;
mod clip;
mod create;
mod device;
mod device_bucket;
mod end;
mod hook;
mod join;
mod launch;
mod layout;
mod memory;
mod operation;
mod options;
mod outer;
mod own_grads;
mod param;
mod records;
mod reducer_state;
mod regroup;
mod report;
pub mod sampler;
mod send;
mod shard;
mod shard_split;
mod sparse;
mod sparse_bucket;
mod state_agreement;
mod stats;
mod step;
mod step_log;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod values;
mod weights;

pub use ballot::VoteDelivery;
pub use bucket_callback::{BucketView, OnBucket};
pub use clip::NormType;
pub use hook::{HookBody, HookCall, HookChoice, HookFunction};
pub use options::{DividePolicy, MissingPolicy, ReducerOptions};
pub use outer::{Outer, OuterOptimizer, OuterOptions, OuterStats, OuterUpdate};
pub use param::{MOST_PARAMS, Param, ParamRole};
pub use reducer_state::Reducer;
pub use shard::{Shard, ShardOptions, ShardRange};
pub use stats::ReducerStats;
pub use values::ParamSelection;
