//! distrun, dist-store, dist-doctor and dist-bench in one file, for the Python package. The
//! programs share most of their code, so that one file is much smaller than four.
//!
//! The name in `argv[0]` selects the program. The commands of the Python package set it.
#![allow(clippy::print_stderr, reason = "a program reports its errors")]

use std::path::Path;
use std::process::ExitCode;

/// The exit status for a wrong command line, as in the programs.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let called_as = std::env::args_os().next().unwrap_or_default();
    match Path::new(&called_as).file_name().and_then(|name| name.to_str()) {
        Some("distrun") => bundled_distrun::main(),
        Some("dist-store") => bundled_dist_store::main(),
        Some("dist-doctor") => bundled_dist_doctor::main(),
        Some("dist-bench") => bundled_dist_bench::main(),
        _ => {
            eprintln!("dist-programs: argv[0] is not the name of a program of libdist");
            ExitCode::from(EXIT_USAGE)
        }
    }
}
