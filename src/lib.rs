//! libdist: collective communication between the processes of a training job, behind a C ABI.
//!
//! The C interface is `include/dist.h`, generated from [`ffi`]. The Rust modules are public for the
//! project's own programs and tests; they promise no stability.
//!
//! Data flows one way, from top to bottom:
//!
//! | layer | what it is |
//! |---|---|
//! | [`ffi`] | the C ABI: parse, call, convert |
//! | [`api`] | process state, rendezvous, groups, argument checks, order of calls |
//! | [`backend`] | one trait; `solo` for a single rank, `native` for shared memory, `nccl` for GPUs |
//! | [`algo`] | one file per algorithm, over the two transport traits |
//! | [`transport`] | the traits, and `inproc` and `shm` behind them |
//! | [`store`] | key-value stores: hash, prefix, file, TCP, the caller's own |
//! | [`kernel`] | element type x operator loops |
//! | [`device`] | the CUDA driver, loaded at run time |
//! | [`process`] | start, watch and end child processes |
//! | [`wait`] | the one waiting primitive, doorbells, the service thread |
//! | [`sys`] | system calls, without policy |
//! | [`base`] | errors, types, deadlines, configuration, log |
//!
//! `ARCHITECTURE.md` has the rules that a test enforces.

// Tests may wait as they like.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod algo;
pub mod api;
pub mod backend;
pub mod base;
pub mod device;

pub mod ffi;
pub mod kernel;
pub mod process;
pub mod store;
pub mod sys;
pub mod transport;
pub mod wait;
