//! Data-parallel training: a reducer that averages gradients while they are computed, and a
//! sampler.
//!
//! A reducer corresponds to the part of PyTorch's DistributedDataParallel below autograd (c10d's
//! `Reducer`). Its terms:
//!
//! | term | meaning |
//! |---|---|
//! | bucket | gradients of one element type and device that are reduced together |
//! | slot | the part of a bucket's memory for one gradient, if the reducer provides the memory |
//! | layout | the assignment of gradients to buckets, and the order of the buckets ([`layout`]) |
//! | mark | the caller's statement that a gradient is ready, or is unused on this rank |
//! | vote | 0 for a step, otherwise a bit set of this rank's reasons against the step |
//! | ballot | the vote and the used parameters of a rank, or of all ranks combined ([`ballot`]) |
//! | agreement | the combined ballot, which every rank receives at the end of a step |
//! | work | the handle of an operation in the queue of the group |
//!
//! The caller marks each gradient that is ready. When all gradients of a bucket are ready, the
//! bucket is reduced. Buckets are sent in the order of the layout, so all ranks issue the same
//! operations in the same order ([`launch`]). A step with two buckets on one rank:
//!
//! ```text
//! call of the training loop    operation of the group
//! begin(weight)                sum of the weights, if the divisor needs the weights
//! ready(3), ready(2)           all_reduce of bucket 0, which has the gradients 3 and 2
//! ready(1), unused(0)          all_reduce of bucket 1, which has the gradients 1 and 0
//! end(vote)                    all_reduce of the ballots, which gives the agreement
//! ```
//!
//! # Retry of a failed step
//! The operations of a group run in order, so a rank contributes to the agreement only after all
//! its buckets are reduced. If one rank has received the agreement on a step, every other rank has
//! all results of the step. After a failure, a rank without the agreement gets the agreement from a
//! rank that has it ([`regroup`]). If no rank has the agreement, all ranks reduce the same
//! gradients again.
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
