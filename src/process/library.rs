//! Shared objects that this process loads, for the layers that make no system calls.

pub use crate::sys::library::{Library, loaded_paths, own_directory};
