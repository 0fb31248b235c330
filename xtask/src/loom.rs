//! `cargo xtask loom`: the protocols between threads, run through all their interleavings.
//!
//! A build of its own, in which the atomics of `base::sync` are the model checker's.

use crate::run::{self, FinishedProcess};
use crate::workspace::cargo;
use crate::{Arguments, CommandResult};
use std::time::Duration;

/// Most of it is building.
const LIMIT: Duration = Duration::from_secs(1800);

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    Arguments::new(rest).finish()?;
    Ok(run_models()?.success())
}

/// Builds the models and runs them.
pub(crate) fn run_models() -> Result<FinishedProcess, String> {
    let mut test = cargo();
    // Without optimisation the models take minutes; each is one thread, whatever it models.
    test.args(["test", "--lib", "--package", "dist", "--target-dir", "target/loom", "loom_"]);
    test.env("RUSTFLAGS", "--cfg loom").env_remove("CARGO_ENCODED_RUSTFLAGS");
    run::run_visibly(&mut test, LIMIT)
}
