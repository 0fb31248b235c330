//! Child processes that work together: start them, see who ends first and how, and end the rest.
//!
//! | file | what it is |
//! |---|---|
//! | [`process_exit`] | how a process ended, in words |
//! | [`guardian`] | a process that ends ours when we cannot |
//! | [`child_group`] | the children: started, watched, signalled, cleared away |
//! | [`supervise`] | the life of a crew up to its end, and whose failure ended it |
//! | [`forked_children`] | forks of this process that each run a function, and end together |
//! | [`child_result`] | what a fork leaves for its parent to read |
//! | [`this_process`] | this process itself, for layers that make no system calls |
//! | [`thread`] | threads of the library, for the same layers |
//! | [`atomic_file`] | files that are seen whole or not at all |
//!
//! What is promised of a crew: every child leads a process group, and whatever is in that group is
//! gone when the crew is dropped or this process is killed; nothing is reaped before its group has
//! been ended, so that no signal can reach a stranger whose process number was used before; every
//! wait has a deadline.
//!
//! It knows nothing of ranks, stores, environment variables or output.
#![allow(
    unsafe_code,
    reason = "what runs between fork and exec, and what forks share, is outside of what the compiler can check"
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
