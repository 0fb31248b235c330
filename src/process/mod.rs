//! Child processes that work together: starts them, detects which child ends first and how, and
//! ends the remaining children.
//!
//! | file | content |
//! |---|---|
//! | [`process_exit`] | the exit status of a process, as text |
//! | [`guardian`] | a process that kills the children after this process is gone |
//! | [`child_group`] | starts, watches, signals and kills child processes |
//! | [`supervise`] | runs a child group to its end, and finds the failure that ended it |
//! | [`forked_children`] | forks of this process that each run a function and end together |
//! | [`child_result`] | the result of a forked child for its parent |
//! | [`this_process`] | this process, for layers that make no system calls |
//! | [`thread`] | threads of the library, for the same layers |
//! | [`atomic_file`] | files that are written completely or not at all |
//!
//! The guarantees of a [`child_group::ChildProcessGroup`]: every child leads a process group. All
//! processes in these groups are gone after the group is dropped or this process is killed. No
//! child is reaped before its process group has ended, so no signal can reach an unrelated process
//! with a reused process ID. Every wait has a deadline.
//!
//! This module does not depend on ranks, stores, environment variables or output.
#![allow(
    unsafe_code,
    reason = "the compiler cannot check the code between fork and exec, or the memory that forks share"
)]

pub mod atomic_file;
pub mod child_group;
pub mod child_result;
pub mod forked_children;
pub mod guardian;
pub mod library;
pub mod process_exit;
pub mod supervise;
pub mod this_process;
pub mod thread;
