//! Build script: sets the link arguments of the shared library.
#![allow(clippy::print_stdout, reason = "a build script speaks to cargo on standard output")]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdist.so.0");
    // The library's threads and thread-locals must remain valid after a dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
