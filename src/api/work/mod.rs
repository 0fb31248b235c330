//! Works (asynchronous operations): their issue, the run queue of a group, their outcomes,
//! completion callbacks, and completion events.

pub mod callbacks;
mod device_wait;
mod events;
pub mod handle;
pub mod issue;
pub(in crate::api) mod latest_only_sender;
pub mod progress;
pub mod queue;
mod wait;
pub mod work_list;
pub(in crate::api) mod work_outcome;
