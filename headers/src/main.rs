//! The program of `cargo xtask header`. It generates the headers, and writes those in `include/`
//! that have changed.
#![allow(clippy::print_stdout, reason = "a command-line program prints its results")]
#![allow(clippy::expect_used, reason = "a generator fails by panicking")]

use std::path::Path;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace");
    for (name, text) in
        ["dist.h", "dist_backend.h"].iter().zip(dist_headers::generate_headers(root))
    {
        let committed = root.join("include").join(name);
        if std::fs::read_to_string(&committed).is_ok_and(|present| present == text) {
            println!("include/{name} is up to date");
            continue;
        }
        std::fs::write(&committed, text).expect("writing a header");
        println!("include/{name} has changed; add an entry to CHANGELOG.md under \"ABI\"");
    }
}
