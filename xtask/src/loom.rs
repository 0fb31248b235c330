//! `cargo xtask loom`: checks the protocols between threads with the model checker loom, which runs
//! all interleavings.
//!
//! The command makes a separate build, in which `base::sync` uses the atomics of loom.

use crate::run::{self, FinishedProcess};
use crate::workspace::cargo;
use crate::{Arguments, CommandResult};
use std::time::Duration;

/// The time limit of the command. The build takes most of the time.
const LIMIT: Duration = Duration::from_secs(1800);

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    Arguments::new(rest).finish()?;
    Ok(run_models()?.success())
}

/// Builds the models and runs them.
pub(crate) fn run_models() -> Result<FinishedProcess, String> {
    let mut test = cargo();
    // The profile of the tests optimises a little. Without optimisation, the models would take
    // minutes. A model runs all threads that it models on one thread.
    test.args(["test", "--lib", "--package", "dist", "--target-dir", "target/loom", "loom_"]);
    test.env("RUSTFLAGS", "--cfg loom").env_remove("CARGO_ENCODED_RUSTFLAGS");
    run::run_visibly(&mut test, LIMIT)
}
