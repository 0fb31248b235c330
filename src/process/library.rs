//! Loads and lists shared objects (dynamic libraries). This file re-exports functions of `sys` for
//! the layers that must not import `sys`.

pub use crate::sys::library::{Library, loaded_paths, own_directory};
