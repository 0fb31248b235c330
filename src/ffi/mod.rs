//! The C ABI: parses arguments, calls the API, converts results. Only this module has raw C types
//! and `no_mangle`.
//!
//! [`dist_export!`](guard) defines every exported function. It adds the panic boundary, the check
//! for use after fork, and the capture of the error. `include/dist.h` is generated from this
//! module; the doc comment of a function is its text in the header.
//!
//! This module does not depend on algorithms, transports, kernels, system calls or store
//! implementations.
#![allow(unsafe_code, reason = "C callers pass raw pointers")]
#![allow(unreachable_pub, reason = "exported functions are public in private modules")]
#![allow(clippy::missing_safety_doc, reason = "the header documents the obligations of C callers")]

#[macro_use]
mod guard;
mod args;
mod backend_call;
mod backend_communicator;
mod backend_host;
mod backend_mpi;
mod handle;
mod last_error;
mod names;
mod recv_status;
mod sized_struct;
mod status;
mod submit;

pub mod backend;
pub mod backend_operation_types;
pub mod backend_types;
pub mod batch;
pub mod blob;
pub mod bytes;
pub mod callbacks;
pub mod collective;
pub mod collective_blocks;
pub mod collective_v;
pub mod completion;
pub mod constants;
pub mod culprit;
pub mod debug;
pub mod group;
pub mod group_new;
pub mod group_shrink;
mod hook;
pub mod log;
pub mod memory;
pub mod message;
pub mod monitored;
pub mod operator;
pub mod outer;
pub mod outer_types;
pub mod point_to_point;
pub mod reducer;
mod reducer_args;
pub mod reducer_step;
pub mod runtime;
pub mod sampler;
pub mod shard;
pub mod shard_types;
pub mod spawn;
pub mod store;
pub mod store_create;
pub mod store_custom;
pub mod store_handle;
pub mod store_queue;
pub mod store_types;
pub mod tensor_list;
pub mod trace;
pub mod train_types;
pub mod types;
pub mod work;
pub mod work_list;
