//! Build script: refuses targets on which libdist cannot work, and sets the link arguments of the
//! shared library.
#![allow(clippy::print_stdout, reason = "a build script speaks to cargo on standard output")]
#![allow(clippy::disallowed_methods, reason = "cargo passes the target in environment variables")]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Some(reason) = unsupported_target() {
        println!("cargo::error={reason}");
        return;
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdist.so.0");
    // The library's threads and thread-locals must remain valid after a dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

/// Returns why libdist cannot work on the target, as one line.
fn unsupported_target() -> Option<String> {
    let target = |name: &str| std::env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    let needs = [
        ("POINTER_WIDTH", "64", "addresses of 64 bits"),
        ("ENDIAN", "little", "a little-endian processor"),
        ("OS", "linux", "Linux"),
    ];
    let (name, _, need) = needs.into_iter().find(|&(name, wanted, _)| target(name) != wanted)?;
    let found = target(name);
    Some(format!("libdist needs {need}, but this target has {} \"{found}\"", name.to_lowercase()))
}
