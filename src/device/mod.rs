//! GPUs: the CUDA driver, found at run time, and what is made of it for back ends that work with
//! device memory.
//!
//! Nothing of CUDA is needed to build or to load the library. [`driver`] is the table of functions,
//! [`context`] a device's primary context, [`stream`] streams, events and copies, [`memory`] where
//! a buffer lies, and memory of devices, [`pinned`] host memory that devices copy from and to by
//! themselves.
//!
//! No function waits for a device: who waits asks an event again and again, within a deadline.
//! Handles of the driver are words, which any thread may use while the right context is current on
//! it.
//!
//! Must not know: collectives, back ends, deadlines.
#![allow(unsafe_code, reason = "this layer is where the CUDA driver is called")]

pub mod context;
pub mod driver;
pub mod memory;
pub mod pinned;
pub mod stream;

pub use context::CudaContext;
pub use pinned::PinnedMemory;
pub use stream::{CudaEvent, CudaStream};
