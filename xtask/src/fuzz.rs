//! `cargo xtask fuzz`: builds the fuzz targets with coverage instrumentation for libFuzzer, and
//! runs them.
//!
//! The command works with a stable Rust compiler: compiler flags enable LLVM's instrumentation. The
//! crate `libfuzzer-sys` compiles libFuzzer and needs a C++ compiler.

use crate::workspace::{cargo, repository_root, scratch_folder};
use crate::{Arguments, CommandResult, run, tools};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const DEFAULT_SECONDS: u64 = 60;
const BUILD_LIMIT: Duration = Duration::from_secs(1800);
/// A run gets this time in addition to its limit, because it also reads the corpus and exits.
const EXTRA_TIME: Duration = Duration::from_secs(300);
/// The interval of progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Instruments each branch target with a counter, adds a table of these targets, and traces
/// comparisons.
const INSTRUMENTATION_FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Limits the input length in bytes, the time per input in seconds and the memory in MiB, and
/// prints statistics at the end.
const LIBFUZZER_OPTIONS: [&str; 4] =
    ["-max_len=4096", "-timeout=20", "-rss_limit_mb=1024", "-print_final_stats=1"];

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let seconds = match arguments.value("--seconds")? {
        Some(text) => text.parse().map_err(|_| format!("--seconds {text} is not a number"))?,
        None => DEFAULT_SECONDS,
    };
    let merges = arguments.flag("--merge");
    let targets = chosen_targets(&arguments.rest)?;
    let programs = build()?;
    let mut lines = Vec::new();
    let mut clean = true;
    for name in &targets {
        let target = FuzzTarget::new(name, &programs)?;
        let result = target.run(seconds)?;
        clean &= result.finding.is_none();
        if merges {
            target.merge()?;
        }
        lines.push(result.describe(&target));
    }
    println!();
    lines.iter().for_each(|line| println!("{line}"));
    Ok(clean)
}

/// Returns the named targets, or all targets.
fn chosen_targets(names: &[String]) -> Result<Vec<String>, String> {
    let folder = repository_root().join("fuzz/targets");
    let files = fs::read_dir(&folder).map_err(|cause| format!("{}: {cause}", folder.display()))?;
    let stem = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
    let mut all: Vec<String> = files.flatten().filter_map(|file| stem(file.path())).collect();
    all.sort();
    match names.iter().find(|name| !all.contains(name)) {
        Some(name) => {
            Err(format!("no fuzz target \"{name}\"; expected one of: {}", all.join(", ")))
        }
        None if names.is_empty() => Ok(all),
        None => Ok(names.to_vec()),
    }
}

/// Builds all targets. Returns the folder with the programs.
fn build() -> Result<PathBuf, String> {
    if std::env::var_os("CXX").is_none() && !tools::has_program("c++") {
        return Err("no C++ compiler found, and libFuzzer needs one: install g++ or clang \
                    (Debian, Ubuntu: `apt-get install g++`), or set CXX"
            .into());
    }
    let host = tools::host_target()?;
    let mut build = cargo();
    // Name the target explicitly. Otherwise cargo would also use the flags for build scripts.
    build.args(["build", "--release", "--locked", "--manifest-path", "fuzz/Cargo.toml"]);
    build
        .args(["--target", &host])
        .env("RUSTFLAGS", INSTRUMENTATION_FLAGS)
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    build.args(["--target-dir", "fuzz/target"]);
    let built = run::run_visibly(&mut build, BUILD_LIMIT)?;
    if !built.success() {
        return Err(format!("cannot build the fuzz targets: {}", built.exit_description()));
    }
    Ok(repository_root().join("fuzz/target").join(host).join("release"))
}

struct FuzzTarget {
    name: String,
    program: PathBuf,
    /// The corpus in the repository.
    corpus: PathBuf,
    /// The inputs that earlier runs on this machine found.
    found_corpus: PathBuf,
    /// The inputs that caused a failure.
    artifacts: PathBuf,
}

impl FuzzTarget {
    fn new(name: &str, programs: &Path) -> Result<Self, String> {
        let target = Self {
            name: name.to_owned(),
            program: programs.join(name),
            corpus: repository_root().join("fuzz/corpus").join(name),
            found_corpus: scratch_folder("fuzz")?.join(name),
            artifacts: repository_root().join("fuzz/artifacts").join(name),
        };
        for folder in [&target.corpus, &target.found_corpus, &target.artifacts] {
            fs::create_dir_all(folder)
                .map_err(|cause| format!("cannot create {}: {cause}", folder.display()))?;
        }
        Ok(target)
    }

    fn command(&self) -> Command {
        let mut command = run::command(&self.program);
        command
            .args(LIBFUZZER_OPTIONS)
            .arg(format!("-artifact_prefix={}/", self.artifacts.display()));
        command
    }

    fn run(&self, seconds: u64) -> Result<FuzzResult, String> {
        println!("{}: running for {seconds} s", self.name);
        let mut command = self.command();
        command.arg(format!("-max_total_time={seconds}")).args([&self.found_corpus, &self.corpus]);
        let (started, mut shown, mut failed) = (Instant::now(), Instant::now(), false);
        let finished =
            run::run_with_lines(&mut command, Duration::from_secs(seconds) + EXTRA_TIME, |line| {
                failed |= line.contains("panicked at") || line.contains("ERROR: libFuzzer");
                if failed || line.starts_with('#') && shown.elapsed() >= PROGRESS_INTERVAL {
                    shown = Instant::now();
                    println!("{line}");
                }
            })?;
        let mut figures =
            FuzzResult::parse_output(&finished.text, started.elapsed()).ok_or_else(|| {
                format!("{}: the output has no coverage{}", self.name, finished.output_tail())
            })?;
        if !finished.success() {
            let ending = finished.exit_description();
            figures.finding.get_or_insert_with(|| format!("the target ended with {ending}"));
        }
        Ok(figures)
    }

    /// Adds found inputs to the corpus of the repository, the smallest first. An input is added if
    /// it reaches a place in the code that no input of the corpus reaches. The number of times that
    /// a place is reached does not count, so that the corpus stays small. No input is removed.
    fn merge(&self) -> Result<(), String> {
        let mut command = self.command();
        command.args(["-merge=1", "-use_counters=0"]).args([&self.corpus, &self.found_corpus]);
        run::run_checked(&mut command, BUILD_LIMIT).map(|_| ())
    }
}

/// The statistics that libFuzzer printed for a run.
#[derive(Debug, PartialEq, Eq)]
struct FuzzResult {
    executions: u64,
    seconds: u64,
    covered_places: u64,
    total_places: u64,
    /// The input that caused a failure, or another reason why the run failed.
    finding: Option<String>,
}

impl FuzzResult {
    /// Parses the output. Returns `None` if the program was not built for coverage.
    fn parse_output(text: &str, took: Duration) -> Option<Self> {
        let total_places = number_after(text, "inline 8-bit counters): ")?;
        let written = text.split("Test unit written to ").nth(1);
        Some(Self {
            executions: number_after(text, "stat::number_of_executed_units: ").unwrap_or(0),
            seconds: took.as_secs(),
            covered_places: number_after(text.rsplit(" cov: ").next()?, "").unwrap_or(0),
            total_places,
            finding: written.and_then(|rest| rest.lines().next()).map(str::to_owned),
        })
    }

    fn describe(&self, target: &FuzzTarget) -> String {
        let Self { executions, seconds, covered_places, total_places, finding } = self;
        let verdict = match finding {
            None => "no finding".to_owned(),
            Some(input) => format!(
                "FINDING: {input}\n  to repeat: {} {input}\n  after the fix: move the input to {}, \
                 where the tests replay it",
                target.program.display(),
                target.corpus.display()
            ),
        };
        format!(
            "{}: {executions} executions in {seconds} s, {covered_places} of {total_places} code locations covered, {verdict}",
            target.name
        )
    }
}

/// Returns the number after the first occurrence of these words.
fn number_after(text: &str, words: &str) -> Option<u64> {
    let rest = text[text.find(words)? + words.len()..].trim_start();
    rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = "INFO: Loaded 1 modules   (2859 inline 8-bit counters): 2859 [0x55, 0x56),\n\
                         #2\tINITED cov: 45 ft: 46 corp: 1/1b exec/s: 0 rss: 29Mb\n\
                         #9\tNEW    cov: 1033 ft: 3903 corp: 634/97Kb\n";

    #[test]
    fn run_without_finding_is_parsed() {
        let text = format!("{START}stat::number_of_executed_units: 105518\n");
        let figures = FuzzResult::parse_output(&text, Duration::from_secs(40));
        let expected = FuzzResult {
            executions: 105_518,
            seconds: 40,
            covered_places: 1033,
            total_places: 2859,
            finding: None,
        };
        assert_eq!(figures, Some(expected));
    }

    #[test]
    fn finding_is_the_written_input() {
        let text =
            format!("{START}artifact_prefix='a/'; Test unit written to a/crash-1f\nBase64: A\n");
        let figures = FuzzResult::parse_output(&text, Duration::ZERO).unwrap();
        assert_eq!(figures.finding.as_deref(), Some("a/crash-1f"));
    }

    #[test]
    fn program_without_coverage_counters_is_rejected() {
        assert_eq!(FuzzResult::parse_output("#9\tDONE   cov: 1\n", Duration::ZERO), None);
    }

    #[test]
    fn targets_are_the_files_of_the_folder() {
        assert!(chosen_targets(&[]).unwrap().contains(&"store_server".to_owned()));
        assert!(chosen_targets(&["nothing".to_owned()]).unwrap_err().contains("store_client"));
    }
}
