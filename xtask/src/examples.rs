//! The C programs of `c-examples`: compiles them with the system's compiler, runs them (most
//! through a launcher), and reads their results.

use crate::workspace::{StagedBuild, repository_root, scratch_folder};
use crate::{run, tools};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const COMPILE_LIMIT: Duration = Duration::from_secs(300);

/// A C program and its sources, as paths below `c-examples`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CExample {
    pub(crate) name: &'static str,
    sources: &'static [&'static str],
}

pub(crate) const HELLO: CExample = CExample { name: "hello", sources: &["hello.c"] };
pub(crate) const ALL_REDUCE: CExample = CExample { name: "all_reduce", sources: &["all_reduce.c"] };
pub(crate) const OVERLAP: CExample = CExample { name: "overlap", sources: &["overlap.c"] };
pub(crate) const SEND_RECV: CExample = CExample { name: "send_recv", sources: &["send_recv.c"] };
pub(crate) const RING: CExample = CExample { name: "ring", sources: &["ring.c"] };
pub(crate) const SPAWN: CExample = CExample { name: "spawn", sources: &["spawn.c"] };
pub(crate) const STORE_DIRECTORY: CExample = CExample {
    name: "store_directory",
    sources: &[
        "store_directory/store_directory.c",
        "store_directory/directory_store.c",
        "store_directory/directory_queues.c",
        "store_directory/directory_files.c",
    ],
};
pub(crate) const TRAIN_DIGITS: CExample = CExample {
    name: "train_digits",
    sources: &[
        "train_digits.c",
        "digits_training/train_options.c",
        "digits_training/digits_data.c",
        "digits_training/mlp.c",
    ],
};

pub(crate) const SURVIVE: CExample = CExample {
    name: "survive",
    sources: &[
        "survive/survive.c",
        "survive/survive_job.c",
        "digits_training/train_options.c",
        "digits_training/digits_data.c",
        "digits_training/mlp.c",
    ],
};

impl CExample {
    /// Compiles the program with the staged library. A warning is an error.
    pub(crate) fn compile(self, stage: &StagedBuild) -> Result<PathBuf, String> {
        let folder = repository_root().join("c-examples");
        let sources: Vec<PathBuf> = self.sources.iter().map(|name| folder.join(name)).collect();
        compile(stage, self.name, &sources)
    }
}

/// Returns the folder for compiled programs.
pub(crate) fn program_folder() -> Result<PathBuf, String> {
    let folder = scratch_folder("examples")?;
    std::fs::create_dir_all(&folder)
        .map_err(|cause| format!("cannot create {}: {cause}", folder.display()))?;
    Ok(folder)
}

/// Compiles a C program with the staged library.
pub(crate) fn compile(
    stage: &StagedBuild,
    name: &str,
    sources: &[PathBuf],
) -> Result<PathBuf, String> {
    let program = program_folder()?.join(name);
    let data = repository_root().join("c-examples/digits_training/data/digits.csv");
    // The variable CC may contain arguments after the compiler's name, as in make.
    let compiler = tools::c_compiler()?;
    let mut words = compiler.split_whitespace();
    let mut cc = run::command(words.next().unwrap_or("cc"));
    cc.args(words)
        .args(["-std=c99", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .arg(format!("-DDIGITS_CSV=\"{}\"", data.display()))
        .arg("-I")
        .arg(&stage.include)
        .args(sources)
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&stage.lib)
        .arg(format!("-Wl,-rpath,{}", stage.lib.display()))
        .args(["-ldist", "-lm"]);
    run::run_checked(&mut cc, COMPILE_LIMIT)?;
    Ok(program)
}

/// Returns a `distrun` command that starts a program on this number of ranks.
pub(crate) fn distrun(stage: &StagedBuild, ranks: usize, program: &Path) -> Command {
    let mut command = run::command(&stage.distrun);
    command.args(["--nproc-per-node", &ranks.to_string()]).arg(program);
    command
}

/// Returns a line without the prefix `[rank] `, which distrun adds.
pub(crate) fn without_rank(line: &str) -> &str {
    let Some((rank, text)) = line.strip_prefix('[').and_then(|rest| rest.split_once("] ")) else {
        return line;
    };
    let named = !rank.is_empty() && rank.bytes().all(|byte| byte.is_ascii_digit());
    if named { text } else { line }
}

/// The results that a run of `train_digits` printed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TrainingResult {
    /// The loss of each epoch.
    pub(crate) losses: Vec<f64>,
    /// The line with the result, `held-out accuracy: …`.
    pub(crate) result: String,
}

const RESULT_PREFIX: &str = "held-out accuracy: ";

impl TrainingResult {
    /// Parses the output of all ranks.
    pub(crate) fn parse_output(text: &str) -> Result<Self, String> {
        let mut training = Self::default();
        for line in text.lines().map(without_rank) {
            if is_result(line) {
                training.result = line.to_string();
            } else if let Some((_, loss)) = line.split_once("  loss ")
                && line.starts_with("epoch ")
            {
                let loss = loss.parse().map_err(|_| format!("no loss in \"{line}\""))?;
                training.losses.push(loss);
            }
        }
        if training.result.is_empty() || training.losses.is_empty() {
            return Err("the output has no epoch or no result".into());
        }
        Ok(training)
    }

    /// Returns the accuracy on the held-out digits, in percent.
    pub(crate) fn accuracy(&self) -> Option<f64> {
        self.result.strip_prefix(RESULT_PREFIX)?.split(' ').next()?.parse().ok()
    }

    /// Returns the largest difference between the losses of two runs. If the runs have different
    /// numbers of epochs, the difference is infinite.
    pub(crate) fn max_loss_difference(&self, other: &Self) -> f64 {
        if self.losses.len() != other.losses.len() {
            return f64::INFINITY;
        }
        let differences = self.losses.iter().zip(&other.losses).map(|(a, b)| (a - b).abs());
        differences.fold(0.0, f64::max)
    }
}

/// Returns true if this line is the result of a training.
pub(crate) fn is_result(line: &str) -> bool {
    line.starts_with(RESULT_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rank_prefix_is_stripped() {
        assert_eq!(without_rank("[0] epoch  1/2"), "epoch  1/2");
        assert_eq!(without_rank("[12]   x"), "  x");
        assert_eq!(without_rank("[warning] x"), "[warning] x");
        assert_eq!(without_rank("plain"), "plain");
    }

    #[test]
    fn a_training_is_read_from_its_lines() {
        let text = "[0] epoch  1/2  loss 1.500000\n[0] epoch  2/2  loss 0.500000\n[1] noise\n\
                    [0] held-out accuracy: 96.1 %, weights identical on 4 ranks\n";
        let training = TrainingResult::parse_output(text).unwrap();
        assert_eq!(training.losses, [1.5, 0.5]);
        assert_eq!(training.accuracy(), Some(96.1));
        assert!(training.max_loss_difference(&training) == 0.0);
        let shorter = TrainingResult { losses: vec![1.5], ..training.clone() };
        assert!(training.max_loss_difference(&shorter).is_infinite());
        assert!(TrainingResult::parse_output("nothing").is_err());
    }
}
