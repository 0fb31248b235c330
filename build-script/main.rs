//! Link arguments of the shared library, and the C headers.
//!
//! cbindgen does not look into macros, so the exported functions, each defined by one invocation of
//! `dist_export!`, are unwrapped into plain functions first ([`items`]). [`header`] has cbindgen
//! write each section of a header ([`sections`]) and puts the sections together. From the same pass
//! comes the list of exports that a test compares with the built library. Everything goes to
//! `OUT_DIR`; `cargo xtask header` copies the headers to `include/`.
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
    // Threads and thread-locals of the library must survive a dlclose.
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
