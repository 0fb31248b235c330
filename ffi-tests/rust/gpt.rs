//! Tests `c-examples/gpt`: the losses of a training do not depend on the number of ranks, on the
//! sharding between ranks, or on a restart. The death of a rank changes them only little.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "in a test a broken assumption is a failure"
)]

mod interface;
#[path = "program/mod.rs"]
mod program;
mod program_paths;
#[path = "ctests/toolchain.rs"]
mod toolchain;

use program::{FinishedProgram, RunningProgram, TestFolder};
use program_paths::DISTRUN;
use std::path::{Path, PathBuf};
use std::process::Command;
use toolchain::Compiler;

/// The largest relative difference between the losses of different numbers of ranks.
const LOSS_TOLERANCE: f64 = 1e-4;
/// The largest relative difference for a training that lost a rank: one step uses only the
/// sequences of the remaining ranks.
const LOSS_TOLERANCE_AFTER_KILL: f64 = 0.05;
/// The options of a model that trains in about a second.
const SMALL_MODEL: [&str; 4] = ["--width", "32", "--context", "24"];
/// The middle step of a training of 50 steps.
const MIDDLE_STEP: &str = "25";

const FILES: [&str; 15] = [
    "gpt.c",
    "options.c",
    "text.c",
    "model.c",
    "layers.c",
    "attention.c",
    "pass.c",
    "forward.c",
    "backward.c",
    "adam.c",
    "trainer.c",
    "optimizer.c",
    "recover.c",
    "restart.c",
    "checkpoint.c",
];

/// Compiles the example. Each test has a program with its own name.
fn compile(name: &str) -> Option<PathBuf> {
    let files = FILES.map(|file| format!("../../c-examples/gpt/{file}"));
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    Some(Compiler::find()?.program_with(name, &files, &["-O3"]))
}

/// Runs a training under distrun.
fn train(program: &Path, ranks: &str, options: &[&str]) -> FinishedProgram {
    let mut command = Command::new(DISTRUN);
    command.args(["--nproc-per-node", ranks, "--on-failure", "continue"]);
    command.arg(program).args(SMALL_MODEL).args(options);
    let ended = RunningProgram::start(command, |_| {}).wait();
    assert_eq!(ended.status, 0, "{}\n{}", ended.stdout, ended.stderr);
    ended
}

/// Returns the last loss of a training that ends on this number of ranks.
fn final_loss(ended: &FinishedProgram, ranks: &str) -> f64 {
    let identical = format!("identical on {ranks} ranks");
    let mut lines = ended.stdout.lines().filter(|line| line.ends_with(&identical));
    let line = lines.next().unwrap_or_else(|| panic!("{}\n{}", ended.stdout, ended.stderr));
    let (_, loss) = line.split_once("final loss ").expect(line);
    loss.split(' ').next().unwrap().parse().expect(line)
}

/// Returns the hash of the final parameters.
fn parameters(ended: &FinishedProgram) -> &str {
    let (_, hash) = ended.stdout.split_once("parameters ").expect(&ended.stdout);
    hash.split(',').next().unwrap()
}

fn assert_close(loss: f64, expected: f64, margin: f64) {
    let difference = (loss / expected - 1.0).abs();
    assert!(difference <= margin, "{loss} instead of {expected}");
}

#[test]
fn losses_do_not_depend_on_ranks_or_shares() {
    let Some(program) = compile("gpt_losses") else { return };
    let alone = final_loss(&train(&program, "1", &[]), "1");
    assert!(alone < 2.5, "the model learned nothing: {alone}");
    for ranks in ["3", "4"] {
        for zero in ["0", "1", "2"] {
            let shared = train(&program, ranks, &["--zero", zero]);
            assert_close(final_loss(&shared, ranks), alone, LOSS_TOLERANCE);
        }
    }
}

#[test]
fn training_continues_after_a_killed_rank() {
    let Some(program) = compile("gpt_survive") else { return };
    let undisturbed = final_loss(&train(&program, "4", &[]), "4");
    for zero in ["0", "1"] {
        for rank in ["0", "2"] {
            let options =
                ["--survive", "--zero", zero, "--die-at", MIDDLE_STEP, "--die-rank", rank];
            let disturbed = train(&program, "4", &options);
            assert!(
                disturbed.stdout.contains("after step 24: 3 of 4 ranks go on"),
                "{}",
                disturbed.stdout
            );
            assert_close(final_loss(&disturbed, "3"), undisturbed, LOSS_TOLERANCE_AFTER_KILL);
        }
    }
}

#[test]
fn training_resumes_on_other_rank_count() {
    let Some(program) = compile("gpt_resume") else { return };
    for zero in ["0", "1", "2"] {
        let whole = train(&program, "4", &["--zero", zero]);
        for ranks in ["4", "3", "1"] {
            let folder = TestFolder::new();
            let path = folder.path("checkpoint");
            let options = ["--zero", zero, "--checkpoint", &path];
            train(&program, "4", &[&options[..], &["--steps", MIDDLE_STEP]].concat());
            let resumed = train(&program, ranks, &[&options[..], &["--resume"]].concat());
            assert!(resumed.stdout.contains("continues after step 25"), "{}", resumed.stdout);
            assert_close(final_loss(&resumed, ranks), final_loss(&whole, "4"), LOSS_TOLERANCE);
            if ranks == "4" {
                assert_eq!(parameters(&resumed), parameters(&whole));
            }
        }
    }
}

#[test]
fn a_checkpoint_of_another_model_is_refused() {
    let Some(program) = compile("gpt_refused") else { return };
    let folder = TestFolder::new();
    let path = folder.path("checkpoint");
    train(&program, "2", &["--steps", "1", "--checkpoint", &path]);
    let mut command = Command::new(DISTRUN);
    command.args(["--nproc-per-node", "2"]).arg(&program);
    command.args(["--width", "64", "--checkpoint", &path, "--resume"]);
    let refused = RunningProgram::start(command, |_| {}).wait();
    assert_eq!(refused.status, 2, "{}\n{}", refused.stdout, refused.stderr);
    assert!(
        refused.stderr.contains("the checkpoint is of --width 32, not 64"),
        "{}",
        refused.stderr
    );
}
