//! Build script: sets the link arguments of the shared library and generates the C headers.
//!
//! cbindgen does not expand macros, and each exported function is defined by one invocation of
//! `dist_export!`. The script therefore unwraps them into plain functions first ([`items`]).
//! [`header`] runs cbindgen for each section of a header ([`sections`]) and joins the sections. The
//! same pass writes the list of exports, which a test compares with the built library. All output
//! goes to `OUT_DIR`; `cargo xtask header` copies the headers to `include/`.
#![allow(clippy::panic, clippy::expect_used, reason = "a build script fails by panicking")]
#![allow(clippy::print_stdout, reason = "a build script speaks to cargo on standard output")]

mod header;
mod initializer;
mod items;
mod sections;

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed={}", items::FFI_FOLDER);
    println!("cargo::rerun-if-changed=cbindgen.toml");
    println!("cargo::rerun-if-changed=build-script");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdist.so.0");
    // The library's threads and thread-locals must remain valid after a dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");

    let out = PathBuf::from(cargo_variable("OUT_DIR"));
    let items = items::read_items();
    let write = |name: &str, text: String| {
        std::fs::write(out.join(name), text).unwrap_or_else(|e| panic!("writing {name}: {e}"));
    };
    write("exports.txt", items::exported_names(&items).join("\n"));
    let [dist, backend] = header::generate_headers(&items, &out);
    write("dist.h", dist);
    write("dist_backend.h", backend);
}

#[allow(
    clippy::disallowed_methods,
    reason = "cargo speaks to build scripts through the environment"
)]
fn cargo_variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo did not set {name}"))
}
