//! GPUs: the CUDA driver, which is loaded at run time, and wrappers for the back ends that use
//! device memory.
//!
//! Building and loading the library needs no part of CUDA. [`driver`] contains the function table,
//! [`context`] the primary context of a device, and [`stream`] streams, events and copies.
//! [`memory`] contains device memory and the query for the device of an address. [`pinned`]
//! contains host memory that devices copy from and to directly.
//!
//! No function waits for a device; a caller that waits polls an event, within its deadline. Handles
//! of the driver are words; any thread may use them while the right context is current on that
//! thread.
//!
//! This module does not depend on collectives, back ends or deadlines.
#![allow(unsafe_code, reason = "this layer calls the CUDA driver")]

pub mod context;
pub mod driver;
pub mod memory;
pub mod pinned;
pub mod stream;

pub use context::CudaContext;
pub use pinned::PinnedMemory;
pub use stream::{CudaEvent, CudaStream};
