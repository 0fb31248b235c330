//! The NCCL back end: operations on the memory of one GPU per rank.
//!
//! This is the device back end of a group. The host back end serves host memory, detects dead
//! ranks, and owns the failure state ([`super::device_map`]). The modules, in the order of a
//! group's life:
//!
//! - [`library`] and [`functions`] find libnccl at run time.
//! - [`bootstrap`] creates the communicator of the ranks, and [`comm`] owns it.
//! - [`calls`] and [`types`] translate an operation to NCCL calls.
//! - [`group`] is the back end of a group, and [`launch`] enqueues the operations of several groups
//!   as one batch.
//! - [`watchdog`] is the thread that monitors the [`enqueued`] operations.
//!
//! The back end never reads or writes a buffer. If no operation of the group is queued before an
//! operation, the issuing thread enqueues it. So the operations of several groups on one stream
//! have the order of the program.
//!
//! This module does not depend on other back ends or on its callers.
#![allow(unsafe_code, reason = "calls the functions of NCCL")]

mod bootstrap;
mod calls;
mod comm;
mod enqueued;
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
