//! Generates the C headers `include/dist.h` and `include/dist_backend.h` from `src/ffi`.
//!
//! cbindgen does not expand macros, and each exported function is defined by one invocation of
//! `dist_export!`. The generator therefore unwraps them into plain functions first (`items`). Then
//! it runs cbindgen for each section of a header (`sections`) and joins the sections (`header`).
//!
//! The library's build does not need this package. `cargo xtask header` writes the headers, and a
//! test compares them with the source.
#![allow(clippy::panic, clippy::expect_used, reason = "a generator fails by panicking")]

mod header;
mod initializer;
mod items;
mod sections;

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
