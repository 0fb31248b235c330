//! libdist: collective communication between the processes of a training job, with a C ABI.
//!
//! The C interface is `include/dist.h`, generated from [`ffi`]. The Rust modules are public for the
//! project's own programs and tests, without a promise of stability.
//!
//! Dependencies point one way: a layer imports only layers below it.
//!
//! | layer | content |
//! |---|---|
//! | [`ffi`] | the C ABI: parse, call, convert |
//! | [`api`] | process state, rendezvous, groups, argument checks, order of calls |
//! | [`backend`] | one trait; `solo` (one rank), `native` (host memory), `nccl` (GPUs), plug-ins |
//! | [`algo`] | one file per algorithm, over the two transport traits |
//! | [`transport`] | the transport traits, and their implementations |
//! | [`store`] | key-value stores: hash, prefix, file, TCP, the caller's own |
//! | [`kernel`] | loops that reduce and copy vectors, for each element type and operator |
//! | [`device`] | the CUDA driver, loaded at run time |
//! | [`security`] | the job's secret, and the handshake that proves it |
//! | [`process`] | this process; starting, supervising and ending child processes |
//! | [`wait`] | the one wait primitive, doorbells (words for sleepers), the service thread |
//! | [`sys`] | system calls, without policy |
//! | [`base`] | errors, types, deadlines, configuration, log |
//!
//! `ARCHITECTURE.md` lists the layers that each layer must not import. A test enforces this list.

// Tests may use any kind of wait.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod algo;
pub mod api;
pub mod backend;
pub mod base;
pub mod device;

pub mod ffi;
pub mod kernel;
pub mod process;
pub mod security;
pub mod store;
pub mod sys;
pub mod transport;
pub mod wait;
