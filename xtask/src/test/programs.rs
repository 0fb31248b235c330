//! The C programs against the staged release build: the examples on several numbers of ranks,
//! README's program.

use super::report::{Checked, PASSED, Report};
use crate::examples::{
    self, ALL_REDUCE, HELLO, OVERLAP, RING, SEND_RECV, SPAWN, STORE_DIRECTORY, SURVIVE,
    TRAIN_DIGITS, Training, distrun,
};
use crate::workspace::{self, Stage};
use crate::{run, tools};
use std::path::Path;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(180);
/// Accuracy that a trained network must reach, in percent.
const ACCURACY: f64 = 93.0;
/// By how much the losses may differ between numbers of ranks.
const TOLERANCE: f64 = 1e-4;

/// The time that distrun gives ranks between a failure and SIGKILL, and a little more.
const LAUNCHERS_GRACE: Duration = Duration::from_millis(1500);
/// A training of so many epochs takes longer than that.
const SURVIVED_EPOCHS: &str = "400";

/// Returns the staged build, unless there is none to test.
pub(super) fn run(report: &mut Report) -> Option<Stage> {
    let mut stage = None;
    report.check("release build", || {
        stage = Some(workspace::release()?);
        Ok(PASSED)
    });
    let stage = stage?;
    hello_and_all_reduce(report, &stage);
    for ranks in [1, 3] {
        report.check(&format!("example overlap, {ranks} ranks"), || {
            let text = output(&stage, ranks, &OVERLAP.compile(&stage)?, &[])?;
            all_said(
                &text,
                (0..ranks).map(|rank| format!("rank {rank} of {ranks}: 8 layers correct")),
            )
        });
    }
    for ranks in [1, 4] {
        report.check(&format!("example send_recv, {ranks} ranks"), || {
            let text = output(&stage, ranks, &SEND_RECV.compile(&stage)?, &[])?;
            let answers = (1..ranks).map(|rank| format!("rank 0: 1000 squares from rank {rank}"));
            all_said(&text, answers.chain(["rank 0: all squares correct".to_owned()]))
        });
        report.check(&format!("example ring, {ranks} ranks"), || {
            let text = output(&stage, ranks, &RING.compile(&stage)?, &[])?;
            all_said(
                &text,
                (0..ranks).map(|rank| format!("rank {rank} of {ranks}: the sums agree")),
            )
        });
    }
    for ranks in [1, 3] {
        report.check(&format!("example spawn, {ranks} ranks"), || {
            let mut command = run::command(SPAWN.compile(&stage)?);
            let text = run::must(command.arg(ranks.to_string()), LIMIT)?.text;
            let said = format!("pi is about 3.1415926536, says each of {ranks} ranks");
            all_said(&text, std::iter::once(said))
        });
    }
    report.check("example store_directory, twice 3 ranks", || store_directory(&stage));
    train_digits(report, &stage);
    survive(report, &stage);
    survive_under_distrun(report, &stage);
    report.check("README's program", || readme_program(&stage));
    Some(stage)
}

fn hello_and_all_reduce(report: &mut Report, stage: &Stage) {
    report.check("example hello, 3 ranks", || {
        let text = output(stage, 3, &HELLO.compile(stage)?, &[])?;
        all_said(&text, (0..3).map(|rank| format!("hello from rank {rank} of 3")))
    });
    for ranks in [1, 4] {
        report.check(&format!("example all_reduce, {ranks} ranks"), || {
            let text = output(stage, ranks, &ALL_REDUCE.compile(stage)?, &[])?;
            all_said(&text, (0..ranks).map(|rank| format!("rank {rank} of {ranks}: 1000 sums")))
        });
    }
}

/// The second time in the directory that the first has left.
fn store_directory(stage: &Stage) -> Checked {
    let program = STORE_DIRECTORY.compile(stage)?;
    let folder = workspace::scratch("directory_store")?;
    tools::fresh_folder(&folder)?;
    let folder = folder.to_str().ok_or("the target folder's name is not UTF-8")?;
    for _ in 0..2 {
        let text = output(stage, 3, &program, &[folder, "sum"])?;
        all_said(&text, (0..3).map(|rank| format!("rank {rank} of 3: the sum is 6")))?;
    }
    Ok(PASSED)
}

fn train_digits(report: &mut Report, stage: &Stage) {
    let mut program = None;
    report.check("example train_digits compiles", || {
        program = Some(TRAIN_DIGITS.compile(stage)?);
        Ok(PASSED)
    });
    let Some(program) = program else { return };

    let mut reference = None;
    for ranks in [1, 3, 4, 7] {
        report.check(&format!("example train_digits, {ranks} ranks"), || {
            let training = Training::read(&output(stage, ranks, &program, &[])?)?;
            println!("{}", training.result);
            judge(&training, reference.get_or_insert_with(|| training.clone()), ranks)
        });
    }
    report.check("example train_digits --no-sync", || {
        let mut command = distrun(stage, 2, &program);
        let finished = run::quiet(command.args(["--no-sync", "--epochs", "2"]), LIMIT)?;
        if finished.code() != Some(1) || !finished.text.contains("weights differ: rank 0 ") {
            return Err(format!("{}{}", finished.ending(), finished.tail()));
        }
        Ok(PASSED)
    });
}

/// Three of eight ranks are killed, then two of the rest.
fn survive(report: &mut Report, stage: &Stage) {
    report.check("example survive, 8 ranks, then 5, then 3", || {
        let mut command = run::command(SURVIVE.compile(stage)?);
        let kills = ["0@100", "3@100", "6@100", "1@300", "7@300"];
        command.args(["--ranks", "8"]).args(kills.iter().flat_map(|kill| ["--kill", kill]));
        let training = Training::read(&run::must(&mut command, LIMIT)?.text)?;
        println!("{}", training.result);
        let enough = training.accuracy().is_some_and(|percent| percent >= ACCURACY);
        if !enough || !training.result.ends_with("weights identical on 3 ranks") {
            return Err(format!("\"{}\" is not what survivors are to reach", training.result));
        }
        Ok(PASSED)
    });
}

/// A rank dies under the launcher, and the others go on for longer than the launcher gives ranks
/// after a failure.
fn survive_under_distrun(report: &mut Report, stage: &Stage) {
    report.check("example survive under distrun, 4 ranks, then 3", || {
        let program = SURVIVE.compile(stage)?;
        let mut command = run::command(&stage.distrun);
        command.args(["--nproc-per-node", "4", "--on-failure", "continue", "--min-ranks", "3"]);
        command.arg(program).args(["--epochs", SURVIVED_EPOCHS, "--kill", "2@10"]);
        let began = Instant::now();
        let text = run::must(&mut command, LIMIT)?.text;
        if began.elapsed() < LAUNCHERS_GRACE {
            return Err(format!(
                "{:?} is too short to tell: raise SURVIVED_EPOCHS",
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

fn judge(training: &Training, reference: &Training, ranks: usize) -> Checked {
    let identical = format!("weights identical on {ranks} ranks");
    if !training.result.ends_with(&identical) {
        return Err(format!("\"{}\" does not end with \"{identical}\"", training.result));
    }
    if training.accuracy().is_none_or(|percent| percent < ACCURACY) {
        return Err(format!("\"{}\" is below {ACCURACY} %", training.result));
    }
    let distance = training.distance(reference);
    if distance > TOLERANCE {
        return Err(format!("an epoch's loss differs by {distance} from that on 1 rank"));
    }
    Ok(PASSED)
}

/// The first C program of README, compiled and run as it stands there.
fn readme_program(stage: &Stage) -> Checked {
    let readme = std::fs::read_to_string(workspace::root().join("README.md"))
        .map_err(|cause| format!("README.md: {cause}"))?;
    let (_, rest) = readme.split_once("```c\n").ok_or("README.md has no C program")?;
    let (source, _) = rest.split_once("```").ok_or("README.md's C program has no end")?;
    let folder = workspace::scratch("readme")?;
    let file = folder.join("first.c");
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&file, source))
        .map_err(|cause| format!("{}: {cause}", file.display()))?;
    let program = examples::compile(stage, "readme_first", &[file])?;
    output(stage, 2, &program, &[])?;
    Ok(PASSED)
}

/// The output of a program on that many ranks that must end well.
fn output(
    stage: &Stage,
    ranks: usize,
    program: &Path,
    arguments: &[&str],
) -> Result<String, String> {
    let finished = run::must(distrun(stage, ranks, program).args(arguments), LIMIT)?;
    Ok(finished.text)
}

fn all_said(text: &str, expected: impl Iterator<Item = String>) -> Checked {
    for words in expected {
        if !text.contains(&words) {
            return Err(format!("\"{words}\" is missing from the output:\n{text}"));
        }
    }
    Ok(PASSED)
}
