//! `cargo xtask miri`: runs tests in Miri, an interpreter that checks every memory access. The
//! tests cover the kernels, the memory views, and one pattern of the algorithms. This code uses raw
//! addresses. It makes no foreign calls, which Miri does not support.
//!
//! Miri requires a nightly compiler. It supports only the vector instructions that every processor
//! has, so the kernels select their portable loops. Because Miri is slow, the tests of the kernels
//! try fewer values under it (`cfg(miri)`).

use crate::workspace::repository_root;
use crate::{Arguments, CommandResult, run};
use std::process::Command;
use std::time::Duration;

/// The time limit of the command. The interpretation takes most of the time.
const LIMIT: Duration = Duration::from_secs(1800);
const VERSION_TIMEOUT: Duration = Duration::from_secs(60);

/// The prefixes of the names of the tests that run. The tests of the other algorithm patterns are
/// left out: they use so many sizes that they would take an hour.
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

/// Returns the command `cargo miri` of the nightly toolchain. Removes the variables by which the
/// toolchain of this program would be used instead.
fn miri() -> Command {
    let mut miri = run::command("rustup");
    miri.args(["run", "nightly", "cargo", "miri"]).current_dir(repository_root());
    for name in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "CARGO_ENCODED_RUSTFLAGS"] {
        miri.env_remove(name);
    }
    miri
}
