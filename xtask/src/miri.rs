//! `cargo xtask miri`: runs code that accesses memory by address and makes no foreign calls in an
//! interpreter that checks every access. The code consists of the kernels, the memory views, and
//! one pattern of the algorithms.
//!
//! Miri requires a nightly compiler. It supports only the vector instructions that every machine
//! has, so the kernels' run-time selection uses the portable loops. Under Miri, their tests try
//! fewer values (`cfg(miri)`).

use crate::workspace::repository_root;
use crate::{Arguments, CommandResult, run};
use std::process::Command;
use std::time::Duration;

/// The time limit; the interpretation takes most of the time.
const LIMIT: Duration = Duration::from_secs(1800);
const VERSION_TIMEOUT: Duration = Duration::from_secs(60);

/// The prefixes of the tests that run. The tests of the other patterns use so many sizes that they
/// would take an hour.
const TEST_PREFIXES: [&str; 3] = ["base::buffer::", "kernel::", "algo::pattern::halving::"];

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    Arguments::new(rest).finish()?;
    run::run_checked(miri().arg("--version"), VERSION_TIMEOUT).map_err(|problem| {
        format!(
            "cannot run Miri: {problem}; to install it: `rustup toolchain install nightly --profile minimal --component miri,rust-src`"
        )
    })?;
    let mut test = miri();
    test.args(["test", "--lib", "--package", "dist", "--target-dir", "target/miri", "--"]);
    Ok(run::run_visibly(test.args(TEST_PREFIXES), LIMIT)?.success())
}

/// Returns `cargo miri` of the nightly toolchain, regardless of the toolchain that started this
/// program.
fn miri() -> Command {
    let mut miri = run::command("rustup");
    miri.args(["run", "nightly", "cargo", "miri"]).current_dir(repository_root());
    for name in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "CARGO_ENCODED_RUSTFLAGS"] {
        miri.env_remove(name);
    }
    miri
}
