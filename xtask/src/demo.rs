//! `cargo xtask demo`: builds the library and the launcher, and trains a classifier of handwritten
//! digits with several processes.

use crate::examples::{TRAIN_DIGITS, distrun, is_result, without_rank};
use crate::{Arguments, CommandResult, run, workspace};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(600);

/// Runs the command. Its last line is the trainer's result.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let ranks = match arguments.value("--ranks")? {
        None => 4,
        Some(text) => text
            .parse()
            .ok()
            .filter(|ranks| (1..=64).contains(ranks))
            .ok_or_else(|| format!("--ranks takes a number from 1 to 64, not \"{text}\""))?,
    };
    arguments.finish()?;

    println!(
        "Building libdist and its launcher, distrun (the first build takes about 2 minutes on 2 cores)"
    );
    let stage = workspace::stage_demo_build()?;
    println!("Compiling c-examples/train_digits.c");
    let program = TRAIN_DIGITS.compile(&stage)?;
    println!("Training on {ranks} processes");
    let mut result = None;
    let finished = run::run_with_lines(&mut distrun(&stage, ranks, &program), LIMIT, |line| {
        let line = without_rank(line);
        if is_result(line) {
            result = Some(line.to_string());
        } else {
            println!("  {line}");
        }
    })?;
    match result {
        Some(line) if finished.success() => {
            println!("{line}");
            Ok(true)
        }
        _ => Err(format!("the training failed: {}", finished.exit_description())),
    }
}
