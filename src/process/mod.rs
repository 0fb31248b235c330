//! Child processes that work together: starts them, detects which child ends first and how, and
//! ends the remaining children. Also gives the layers that must not import `sys` access to this
//! process, its threads and its files.
//!
//! | file | content |
//! |---|---|
//! | [`process_exit`] | the exit status of a process, as text |
//! | [`guardian`] | a process that kills the children after this process is gone |
//! | [`child_group`] | starts, watches, signals and kills child processes |
//! | [`supervise`] | runs a child group to its end, and finds the failure that ended it |
//! | [`forked_children`] | forks of this process that each run a function and end together |
//! | [`death_witness`] | a process that reports the death of this process to other hosts |
//! | [`exit_hook`] | a function that runs when this process ends in order |
//! | [`child_result`] | the result of a forked child for its parent |
//! | [`descriptor`] | new descriptors above the standard streams |
//! | [`request_socket`] | gives a text about this process to programs of the same user |
//! | [`this_process`] | properties of this process and its host |
//! | [`thread`] | starts and recognises threads of the library |
//! | [`library`] | loads and lists shared objects (dynamic libraries) |
//! | [`atomic_file`] | writes a file completely or not at all |
//!
//! A [`child_group::ChildProcessGroup`] guarantees:
//!
//! * Every child leads a process group of its own.
//! * After the `ChildProcessGroup` is dropped or this process is killed, no process of these
//!   process groups is left.
//! * A child is reaped only after its process group has ended. Until then the kernel does not reuse
//!   the ID, so no signal can reach an unrelated process.
//! * Every wait has a deadline.
//!
//! This module does not depend on ranks, stores, environment variables or output.
#![allow(
    unsafe_code,
    reason = "the compiler cannot check the code between fork and exec, or the memory that forks share"
)]

pub mod atomic_file;
pub mod child_group;
pub mod child_result;
pub mod death_witness;
pub mod descriptor;
pub mod exit_hook;
pub mod forked_children;
pub mod guardian;
pub mod library;
pub mod process_exit;
pub mod request_socket;
pub mod supervise;
pub mod this_process;
pub mod thread;
