//! libdist's back end over MPI: a shared object that libdist loads, and that needs the libmpi it
//! was built for.
//!
//! ```text
//! vtable -> part -> collective | messages -> mpi (this crate's view of MPI) -> mpi-sys
//!                   process (one MPI in each process)
//! ```
//!
//! Guarantees:
//! - Nothing unwinds into C, nothing is printed, the process is never ended.
//! - Only communicators of this crate's own are used, with MPI_ERRORS_RETURN; a host program's are
//!   left alone.
//! - MPI is called as its thread level allows ([`process`]): what it does not allow is refused.
//! - Memory is used from submit to the end of the request. What MPI cannot take back is said by
//!   `release`, and what it may still use of this crate's is never freed.
//!
//! The kernels, and the vocabulary that they need, are the library's own source files: a sum of f16
//! is the same here. It does not link libdist.

mod abilities;
mod base;
mod collective;
mod failure;
mod family;
mod host;
mod messages;
mod mpi;
mod operators;
mod part;
mod process;
mod processors;
mod request;
mod types;
mod vtable;

/// The interface, as bindgen reads dist.h.
#[allow(
    non_camel_case_types,
    non_upper_case_globals,
    dead_code,
    clippy::all,
    clippy::pedantic,
    reason = "generated"
)]
mod interface {
    include!(concat!(env!("OUT_DIR"), "/dist.rs"));
}

#[allow(dead_code, unused_imports, reason = "used in part only")]
#[path = "../../../src/kernel/mod.rs"]
mod kernel;
