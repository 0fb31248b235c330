//! The program of `cargo xtask header` and `cargo xtask python`. It generates the headers, or the
//! interface for Python with the argument `python`, and writes the files that have changed.
#![allow(clippy::print_stdout, reason = "a command-line program prints its results")]
#![allow(clippy::expect_used, reason = "a generator fails by panicking")]

use std::path::Path;

const ABI_NOTE: &str = "add an entry to CHANGELOG.md under \"ABI\"";

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace");
    if std::env::args().nth(1).as_deref() == Some("python") {
        let python = dist_headers::generate_python(root);
        let note = "commit it together with the change of the header";
        update(root, "python/src/libdist/_abi.py", &python.module, note);
        update(root, "python/src/libdist/_abi.pyi", &python.stub, note);
        return;
    }
    let [dist, backend] = dist_headers::generate_headers(root);
    update(root, "include/dist.h", &dist, ABI_NOTE);
    update(root, "include/dist_backend.h", &backend, ABI_NOTE);
}

/// Writes a generated file if it differs from the present file.
fn update(root: &Path, name: &str, text: &str, note: &str) {
    let path = root.join(name);
    if std::fs::read_to_string(&path).is_ok_and(|present| present == text) {
        println!("{name} is up to date");
        return;
    }
    std::fs::write(&path, text).expect("writing a generated file");
    println!("{name} has changed; {note}");
}
