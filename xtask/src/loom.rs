//! `cargo xtask loom`: runs the protocols between threads through all their interleavings.
//!
//! The command makes a separate build, in which the atomics of `base::sync` are those of the model
//! checker.

use crate::run::{self, FinishedProcess};
use crate::workspace::cargo;
use crate::{Arguments, CommandResult};
use std::time::Duration;

/// The time limit; the build takes most of the time.
const LIMIT: Duration = Duration::from_secs(1800);

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    Arguments::new(rest).finish()?;
    Ok(run_models()?.success())
}

/// Builds the models and runs them.
pub(crate) fn run_models() -> Result<FinishedProcess, String> {
    let mut test = cargo();
    // Without optimisation, the models take minutes. Each model runs on one thread, regardless of
    // the threads that it models.
    test.args(["test", "--lib", "--package", "dist", "--target-dir", "target/loom", "loom_"]);
    test.env("RUSTFLAGS", "--cfg loom").env_remove("CARGO_ENCODED_RUSTFLAGS");
    run::run_visibly(&mut test, LIMIT)
}
