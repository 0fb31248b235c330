//! GPUs: the CUDA driver, which is loaded at run time, and wrappers of its functions for the back
//! ends that use device memory.
//!
//! Building and loading the library needs no part of CUDA. The files:
//!
//! - [`driver`]: the function table of the driver.
//! - [`context`]: the primary context of a device.
//! - [`stream`]: streams, events and copies.
//! - [`memory`]: device memory, and the query for the device of an address.
//! - [`pinned`]: host memory that devices copy from and to directly.
//!
//! Freeing memory may wait for a device. No other function waits: a caller that waits polls an
//! event, within its deadline. Contexts, streams and events of the driver are integers here. Any
//! thread may use them while the right context is current on that thread.
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
