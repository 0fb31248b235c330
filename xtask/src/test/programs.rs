//! Checks of the C programs with the staged release build. They run the examples with several
//! numbers of ranks, and the first program of README.

use super::report::{CheckReport, CheckResult, PASSED};
use crate::examples::{
    self, ALL_REDUCE, HELLO, OVERLAP, RING, SEND_RECV, SPAWN, STORE_DIRECTORY, SURVIVE,
    TRAIN_DIGITS, TrainingResult, distrun,
};
use crate::workspace::{self, StagedBuild};
use crate::{run, tools};
use std::path::Path;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(180);
/// The accuracy that a trained network must reach, in percent.
const MIN_ACCURACY: f64 = 93.0;
/// The maximum difference between the losses for different numbers of ranks.
const MAX_LOSS_DIFFERENCE: f64 = 1e-4;

/// The time from the failure of a rank until distrun sends SIGKILL to the other ranks, with a
/// margin.
const LAUNCHER_KILL_DELAY: Duration = Duration::from_millis(1500);
/// A number of epochs that takes longer than [`LAUNCHER_KILL_DELAY`].
const LONG_TRAINING_EPOCHS: &str = "400";

/// Runs the checks. Returns the staged build, or `None` if the build failed.
pub(super) fn run(report: &mut CheckReport) -> Option<StagedBuild> {
    let mut stage = None;
    report.run_check("release build", || {
        stage = Some(workspace::stage_release_build()?);
        Ok(PASSED)
    });
    let stage = stage?;
    hello_and_all_reduce(report, &stage);
    for ranks in [1, 3] {
        report.run_check(&format!("example overlap, {ranks} ranks"), || {
            let text = output(&stage, ranks, &OVERLAP.compile(&stage)?, &[])?;
            expect_lines(
                &text,
                (0..ranks).map(|rank| format!("rank {rank} of {ranks}: 8 layers correct")),
            )
        });
    }
    for ranks in [1, 4] {
        report.run_check(&format!("example send_recv, {ranks} ranks"), || {
            let text = output(&stage, ranks, &SEND_RECV.compile(&stage)?, &[])?;
            let answers = (1..ranks).map(|rank| format!("rank 0: 1000 squares from rank {rank}"));
            expect_lines(&text, answers.chain(["rank 0: all squares correct".to_owned()]))
        });
        report.run_check(&format!("example ring, {ranks} ranks"), || {
            let text = output(&stage, ranks, &RING.compile(&stage)?, &[])?;
            expect_lines(
                &text,
                (0..ranks).map(|rank| format!("rank {rank} of {ranks}: the sums agree")),
            )
        });
    }
    for ranks in [1, 3] {
        report.run_check(&format!("example spawn, {ranks} ranks"), || {
            let mut command = run::command(SPAWN.compile(&stage)?);
            let text = run::run_checked(command.arg(ranks.to_string()), LIMIT)?.text;
            let expected_line = format!("pi is about 3.1415926536, says each of {ranks} ranks");
            expect_lines(&text, std::iter::once(expected_line))
        });
    }
    report.run_check("example store_directory, twice 3 ranks", || store_directory(&stage));
    train_digits(report, &stage);
    survive(report, &stage);
    survive_under_distrun(report, &stage);
    report.run_check("README's program", || readme_program(&stage));
    Some(stage)
}

fn hello_and_all_reduce(report: &mut CheckReport, stage: &StagedBuild) {
    report.run_check("example hello, 3 ranks", || {
        let text = output(stage, 3, &HELLO.compile(stage)?, &[])?;
        expect_lines(&text, (0..3).map(|rank| format!("hello from rank {rank} of 3")))
    });
    for ranks in [1, 4] {
        report.run_check(&format!("example all_reduce, {ranks} ranks"), || {
            let text = output(stage, ranks, &ALL_REDUCE.compile(stage)?, &[])?;
            expect_lines(&text, (0..ranks).map(|rank| format!("rank {rank} of {ranks}: 1000 sums")))
        });
    }
}

/// Runs the example twice. The second run uses the directory that the first run has written.
fn store_directory(stage: &StagedBuild) -> CheckResult {
    let program = STORE_DIRECTORY.compile(stage)?;
    let folder = workspace::scratch_folder("directory_store")?;
    tools::recreate_folder(&folder)?;
    let folder = folder.to_str().ok_or("the target folder's name is not UTF-8")?;
    for _ in 0..2 {
        let text = output(stage, 3, &program, &[folder, "sum"])?;
        expect_lines(&text, (0..3).map(|rank| format!("rank {rank} of 3: the sum is 6")))?;
    }
    Ok(PASSED)
}

fn train_digits(report: &mut CheckReport, stage: &StagedBuild) {
    let mut program = None;
    report.run_check("example train_digits compiles", || {
        program = Some(TRAIN_DIGITS.compile(stage)?);
        Ok(PASSED)
    });
    let Some(program) = program else { return };

    let mut reference = None;
    for ranks in [1, 3, 4, 7] {
        report.run_check(&format!("example train_digits, {ranks} ranks"), || {
            let training = TrainingResult::parse_output(&output(stage, ranks, &program, &[])?)?;
            println!("{}", training.result);
            check_training(&training, reference.get_or_insert_with(|| training.clone()), ranks)
        });
    }
    report.run_check("example train_digits --no-sync", || {
        let mut command = distrun(stage, 2, &program);
        let finished = run::run_quietly(command.args(["--no-sync", "--epochs", "2"]), LIMIT)?;
        if finished.code() != Some(1) || !finished.text.contains("weights differ: rank 0 ") {
            return Err(format!("{}{}", finished.exit_description(), finished.output_tail()));
        }
        Ok(PASSED)
    });
}

/// Kills three of eight ranks, then two of the remaining ranks.
fn survive(report: &mut CheckReport, stage: &StagedBuild) {
    report.run_check("example survive, 8 ranks, then 5, then 3", || {
        let mut command = run::command(SURVIVE.compile(stage)?);
        let kills = ["0@100", "3@100", "6@100", "1@300", "7@300"];
        command.args(["--ranks", "8"]).args(kills.iter().flat_map(|kill| ["--kill", kill]));
        let training = TrainingResult::parse_output(&run::run_checked(&mut command, LIMIT)?.text)?;
        println!("{}", training.result);
        let enough = training.accuracy().is_some_and(|percent| percent >= MIN_ACCURACY);
        if !enough || !training.result.ends_with("weights identical on 3 ranks") {
            return Err(format!(
                "\"{}\" is not the required result of the survivors",
                training.result
            ));
        }
        Ok(PASSED)
    });
}

/// Kills a rank under the launcher. The training of the other ranks takes longer than
/// [`LAUNCHER_KILL_DELAY`], so the check fails if the launcher ends them.
fn survive_under_distrun(report: &mut CheckReport, stage: &StagedBuild) {
    report.run_check("example survive under distrun, 4 ranks, then 3", || {
        let program = SURVIVE.compile(stage)?;
        let mut command = run::command(&stage.distrun);
        command.args(["--nproc-per-node", "4", "--on-failure", "continue", "--min-ranks", "3"]);
        command.arg(program).args(["--epochs", LONG_TRAINING_EPOCHS, "--kill", "2@10"]);
        let began = Instant::now();
        let text = run::run_checked(&mut command, LIMIT)?.text;
        if began.elapsed() < LAUNCHER_KILL_DELAY {
            return Err(format!(
                "{:?} is below the launcher's delay: raise LONG_TRAINING_EPOCHS",
                began.elapsed()
            ));
        }
        for expected in
            ["3 of 4 ranks go on", "weights identical on 3 ranks", "succeeded without 1 of 4 ranks"]
        {
            if !text.contains(expected) {
                return Err(format!("\"{expected}\" is missing:\n{text}"));
            }
        }
        Ok(PASSED)
    });
}

fn check_training(
    training: &TrainingResult,
    reference: &TrainingResult,
    ranks: usize,
) -> CheckResult {
    let identical = format!("weights identical on {ranks} ranks");
    if !training.result.ends_with(&identical) {
        return Err(format!("\"{}\" does not end with \"{identical}\"", training.result));
    }
    if training.accuracy().is_none_or(|percent| percent < MIN_ACCURACY) {
        return Err(format!("\"{}\" is below {MIN_ACCURACY} %", training.result));
    }
    let distance = training.max_loss_difference(reference);
    if distance > MAX_LOSS_DIFFERENCE {
        return Err(format!("an epoch's loss differs by {distance} from that on 1 rank"));
    }
    Ok(PASSED)
}

/// Compiles and runs the first C program of README unchanged.
fn readme_program(stage: &StagedBuild) -> CheckResult {
    let readme = std::fs::read_to_string(workspace::repository_root().join("README.md"))
        .map_err(|cause| format!("README.md: {cause}"))?;
    let (_, rest) = readme.split_once("```c\n").ok_or("README.md has no C program")?;
    let (source, _) = rest.split_once("```").ok_or("README.md's C program has no end")?;
    let folder = workspace::scratch_folder("readme")?;
    let file = folder.join("first.c");
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&file, source))
        .map_err(|cause| format!("{}: {cause}", file.display()))?;
    let program = examples::compile(stage, "readme_first", &[file])?;
    output(stage, 2, &program, &[])?;
    Ok(PASSED)
}

/// Runs a program on this number of ranks, and returns its output. All ranks must succeed.
fn output(
    stage: &StagedBuild,
    ranks: usize,
    program: &Path,
    arguments: &[&str],
) -> Result<String, String> {
    let finished = run::run_checked(distrun(stage, ranks, program).args(arguments), LIMIT)?;
    Ok(finished.text)
}

fn expect_lines(text: &str, expected: impl Iterator<Item = String>) -> CheckResult {
    for words in expected {
        if !text.contains(&words) {
            return Err(format!("\"{words}\" is missing from the output:\n{text}"));
        }
    }
    Ok(PASSED)
}
