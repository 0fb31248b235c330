//! Child processes that work together: start them, see who ends first and how, and end the rest.
//!
//! | file | what it is |
//! |---|---|
//! | [`ending`] | how a process ended, in words |
//! | [`guardian`] | a process that ends ours when we cannot |
//! | [`crew`] | the children: started, watched, signalled, cleared away |
//! | [`supervise`] | the life of a crew up to its end, and whose failure ended it |
//! | [`forks`] | forks of this process that each run a function, and end together |
//! | [`witness`] | what a fork leaves for its parent to read |
//! | [`this`] | this process itself, for layers that make no system calls |
//! | [`thread`] | threads of the library, for the same layers |
//! | [`whole_file`] | files that are seen whole or not at all |
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

pub mod crew;
pub mod ending;
pub mod forks;
pub mod guardian;
pub mod library;
pub mod supervise;
pub mod this;
pub mod thread;
pub mod whole_file;
pub mod witness;
