//! `cargo xtask miri`: the parts that touch memory by address and call nothing outside, under an
//! interpreter that sees every access: the kernels and the views of memory; and one pattern of the
//! algorithms.
//!
//! Miri comes with a nightly compiler only. It knows no vector instructions but those that every
//! machine has, so that the kernels' choice at run time falls on the portable loops by itself;
//! their tests try fewer values there (`cfg(miri)`).

use crate::workspace::repository_root;
use crate::{Arguments, CommandResult, run};
use std::process::Command;
use std::time::Duration;

/// Most of it is interpreting.
const LIMIT: Duration = Duration::from_secs(1800);
const VERSION_TIMEOUT: Duration = Duration::from_secs(60);

/// What is run: the beginnings of tests' names. The other patterns' tests go through so many sizes
/// that it would take an hour.
const TEST_PREFIXES: [&str; 3] = ["base::buffer::", "kernel::", "algo::pattern::halving::"];

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    Arguments::new(rest).finish()?;
    run::run_checked(miri().arg("--version"), VERSION_TIMEOUT).map_err(|why| {
        format!(
            "Miri cannot be run; `rustup toolchain install nightly --profile minimal --component miri,rust-src` installs it. {why}"
        )
    })?;
    let mut test = miri();
    test.args(["test", "--lib", "--package", "dist", "--target-dir", "target/miri", "--"]);
    Ok(run::run_visibly(test.args(TEST_PREFIXES), LIMIT)?.success())
}

/// `cargo miri` of the nightly toolchain, whichever one this program was started by.
fn miri() -> Command {
    let mut miri = run::command("rustup");
    miri.args(["run", "nightly", "cargo", "miri"]).current_dir(repository_root());
    for name in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "CARGO_ENCODED_RUSTFLAGS"] {
        miri.env_remove(name);
    }
    miri
}
