//! Generates the C headers `include/dist.h` and `include/dist_backend.h` from `src/ffi`, and the
//! same interface for Python.
//!
//! Each exported function is defined by an invocation of the macro `dist_export!`, and cbindgen
//! does not expand macros. So the generator works in these steps:
//!
//! 1. `items` converts the invocations into plain functions.
//! 2. `sections` assigns the items to the sections of the headers.
//! 3. `header` runs cbindgen for each section and joins the results.
//! 4. `python` writes the module for Python's `ctypes` from the same items.
//!
//! The build of the library does not need this package. `cargo xtask header` writes the headers,
//! and `cargo xtask python` writes the module. Tests check that the committed files agree with the
//! source.
#![allow(clippy::panic, clippy::expect_used, reason = "a generator fails by panicking")]

mod header;
mod initializer;
mod items;
mod python;
mod sections;

pub use python::{PythonInterface, generate_python};
use std::path::Path;

/// Generates the texts of `dist.h` and `dist_backend.h` from the source tree at `root`.
pub fn generate_headers(root: &Path) -> [String; 2] {
    let scratch = std::env::temp_dir().join(format!("dist-headers-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).expect("a folder for the items of a section");
    let headers = header::generate_headers(root, &scratch);
    std::fs::remove_dir_all(&scratch).expect("removing the folder");
    headers
}

/// Returns the names of the functions that `dist_export!` defines in the source tree at `root`.
pub fn exported_names(root: &Path) -> Vec<String> {
    items::exported_names(&items::read_items(root))
}
