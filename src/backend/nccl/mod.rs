//! The NCCL back end. It runs operations on the memory of one GPU per rank.
//!
//! This is a device back end. The host back end of the group serves host memory, detects dead
//! ranks, and owns the failure state ([`super::device_map`]). The modules, in the order in which a
//! group uses them:
//!
//! - [`library`] and [`functions`] find libnccl at run time.
//! - [`bootstrap`] creates the communicator of the ranks, and [`comm`] owns it.
//! - [`calls`] and [`types`] translate an operation to NCCL calls.
//! - [`group`] is the back end of a group. [`launch`] enqueues the operations of one or several
//!   groups together.
//! - [`watchdog`] is the thread that monitors the [`enqueued`] operations.
//!
//! The back end itself never reads or writes a buffer. If no earlier operation of the group is
//! waiting in the group's queue, the thread that issues an operation also enqueues it on the
//! stream. Therefore, if one thread issues operations of several groups on one stream, the stream
//! contains them in the order of the program.
//!
//! This module does not depend on other back ends or on its callers.
#![allow(unsafe_code, reason = "calls the functions of NCCL")]

mod bootstrap;
mod calls;
mod comm;
mod concurrent_groups;
mod device_timing;
mod enqueued;
mod event_pool;
mod functions;
mod group;
mod launch;
pub mod library;
mod memory;
mod options;
mod quiescence;
mod types;
mod watchdog;

pub use functions::function_names;
pub(super) use group::NcclFactory;
pub use group::check_host_support;
pub use types::check_support;
