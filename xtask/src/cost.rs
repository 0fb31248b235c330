//! `cargo xtask cost`: counts the instructions of a 4-byte all_reduce, send and recv. It compares
//! this source tree with another tree.
//!
//! The program `ffi-tests/perf/call_cost.c` is compiled once for each tree, with the header and the
//! release library of this tree. Two processes run it as ranks over shared memory. Rank 0 runs
//! under callgrind, which counts the instructions inside the exported function only
//! (`--toggle-collect`), and writes one file for each call (`--dump-after`). A counted call begins
//! only when the peer has done its part, so that the call never waits. The head of the program
//! explains how.
//!
//! A tree makes [`RUNS`] runs, in turn with the other tree. Its result is the smallest instruction
//! count that is frequent: at least a twentieth of all its calls have exactly this count
//! ([`FREQUENT_SHARE`]). Some calls grow a table, meet a full ring, or wait. Their counts are rare,
//! so they do not change the result.

use crate::workspace::{cargo, repository_root, scratch_folder, target_folder};
use crate::{Arguments, CommandResult, run, tools};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const BUILD_LIMIT: Duration = Duration::from_secs(3600);
const COMPILE_LIMIT: Duration = Duration::from_secs(120);
/// Time limit for one run. On a machine with free cores, a run takes about 5 s.
const RUN_LIMIT: Duration = Duration::from_secs(300);

/// Number of runs per tree.
const RUNS: usize = 3;
/// Number of calls of each kind in one run.
const CALLS: u64 = 60;
/// A count is frequent if at least this share of the calls has it.
const FREQUENT_SHARE: f64 = 0.05;
/// If fewer than this share of the calls have a frequent count, the measurement is invalid.
const MIN_FREQUENT_SHARE: f64 = 0.5;

/// Largest allowed relative growth of a count against the other tree.
const MAX_GROWTH: f64 = 0.02;

/// One kind of call that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CallKind {
    /// The name in the table.
    title: &'static str,
    /// The function of `call_cost.c` that makes one call. When it returns, callgrind ends a file.
    step: &'static str,
    /// The exported function whose instructions count.
    function: &'static str,
}

const ALL_REDUCE: CallKind =
    CallKind { title: "all_reduce", step: "all_reduce", function: "dist_all_reduce" };
const SEND: CallKind = CallKind { title: "send", step: "send_to_one", function: "dist_send" };
const RECV: CallKind = CallKind { title: "recv", step: "receive_from_one", function: "dist_recv" };
const LABELLED: CallKind = CallKind {
    title: "all_reduce, labelled",
    step: "labelled_all_reduce",
    function: "dist_all_reduce",
};

/// The kinds of calls that every tree supports.
const KINDS: [CallKind; 3] = [ALL_REDUCE, SEND, RECV];

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let against = arguments.value("--against")?.map(PathBuf::from);
    arguments.finish()?;
    if !tools::has_program("valgrind") {
        return Err(
            "valgrind not found: install it (Debian, Ubuntu: `apt-get install valgrind`)".into()
        );
    }
    let mut trees = vec![MeasuredTree::build_this()?];
    if let Some(path) = against {
        trees.push(MeasuredTree::open_other(&path)?);
    }
    let mut samples: Vec<CallSamples> = vec![CallSamples::new(); trees.len()];
    for number in 0..RUNS {
        for (tree, samples) in trees.iter().zip(&mut samples) {
            println!("run {} of {RUNS}: {}", number + 1, tree.title);
            tree.count_run(samples)?;
        }
    }
    let mut figures = Vec::new();
    for (tree, samples) in trees.iter().zip(&samples) {
        let counts =
            tree.figures(samples).map_err(|problem| format!("{}: {problem}", tree.title))?;
        figures.push(counts);
    }
    let report = CostReport::of(&figures[0], figures.get(1));
    print!("\n{}", report.text);
    Ok(report.exceeded.is_empty())
}

/// A tree whose library is measured.
#[derive(Debug)]
struct MeasuredTree {
    title: String,
    /// Folder with the compiled program, the link to the library and the files of a run.
    folder: PathBuf,
    has_labels: bool,
}

impl MeasuredTree {
    /// Builds the library of this tree.
    fn build_this() -> Result<Self, String> {
        let mut build = cargo();
        // Also name the package `dist-tools`. It uses more features of a dependency than the
        // library alone. Without it, cargo would build the library again with fewer features.
        build.args(["build", "--release", "--package", "dist", "--package", "dist-tools", "--lib"]);
        if !run::run_visibly(&mut build, BUILD_LIMIT)?.success() {
            return Err("the release build failed".into());
        }
        Self::compile(
            "this tree",
            &repository_root().join("include"),
            &target_folder()?.join("release/libdist.so"),
        )
    }

    /// Opens another tree. Its release build must exist.
    fn open_other(path: &Path) -> Result<Self, String> {
        let path = fs::canonicalize(path)
            .map_err(|cause| format!("--against {}: {cause}", path.display()))?;
        let library = path.join("target/release/libdist.so");
        if !library.is_file() {
            return Err(format!(
                "--against: {} does not exist; build it: cargo build --release --lib --manifest-path {}",
                library.display(),
                path.join("Cargo.toml").display()
            ));
        }
        Self::compile("other tree", &path.join("include"), &library)
    }

    /// Compiles the program with a header and a library.
    fn compile(title: &str, include: &Path, library: &Path) -> Result<Self, String> {
        let folder = scratch_folder("cost")?.join(title.replace(' ', "-"));
        tools::recreate_folder(&folder)?;
        // The program loads the library by its soname, so the link has this name.
        let link = folder.join("libdist.so.0");
        symlink(library, &link)
            .map_err(|cause| format!("cannot create the link {}: {cause}", link.display()))?;
        let header = include.join("dist.h");
        let text = fs::read_to_string(&header)
            .map_err(|cause| format!("cannot read {}: {cause}", header.display()))?;
        let has_labels = text.contains("const char *label;");
        let mut compiler = run::command(tools::c_compiler()?);
        // Forbid tail calls. If a function ended in a tail call, it would return elsewhere, and
        // callgrind would not see its return.
        compiler.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-fno-optimize-sibling-calls"]);
        if has_labels {
            compiler.arg("-DHAS_LABELS");
        }
        compiler
            .arg("-I")
            .arg(include)
            .arg(repository_root().join("ffi-tests/perf/call_cost.c"))
            .arg(&link);
        compiler.arg(format!("-Wl,-rpath,{}", folder.display()));
        compiler.arg("-o").arg(folder.join("call_cost"));
        run::run_checked(&mut compiler, COMPILE_LIMIT)?;
        Ok(Self { title: title.to_owned(), folder, has_labels })
    }

    /// Returns the kinds of calls that this tree's program makes.
    fn kinds(&self) -> impl Iterator<Item = CallKind> {
        KINDS.into_iter().chain(self.has_labels.then_some(LABELLED))
    }

    /// Runs both ranks once, and adds the counts of the calls on rank 0.
    fn count_run(&self, samples: &mut CallSamples) -> Result<(), String> {
        let run_folder = self.folder.join("run");
        tools::recreate_folder(&run_folder)?;
        let program = self.folder.join("call_cost");
        let mut counted = without_settings("valgrind");
        counted.args(["--tool=callgrind", "--quiet"]);
        counted.arg(format!("--callgrind-out-file={}", run_folder.join("counts").display()));
        for kind in self.kinds() {
            counted.arg(format!("--toggle-collect={}", kind.function));
            counted.arg(format!("--dump-after={}", kind.step));
        }
        counted.arg(&program).arg("0").arg(&run_folder).arg(CALLS.to_string());
        let mut peer = without_settings(&program);
        // Under callgrind, the counted rank is fifty times slower. Let the peer spin during this
        // time, so that it does not sleep.
        peer.env("DIST_SPIN_US", "1000000");
        peer.arg("1").arg(&run_folder).arg(CALLS.to_string());
        run::run_all(vec![counted, peer], RUN_LIMIT)?;
        read_samples(&run_folder, samples)
    }

    /// Returns the result of each kind of call.
    fn figures(&self, samples: &CallSamples) -> Result<InstructionCounts, String> {
        let figures = self.kinds().map(|kind| {
            let counts = samples.get(kind.step).map_or(&[][..], Vec::as_slice);
            let figure = smallest_frequent(counts)
                .map_err(|problem| format!("{}: {problem}", kind.title))?;
            Ok((kind.title, figure))
        });
        figures.collect()
    }
}

/// Returns a command whose environment has no `DIST_` variables, so that the user's settings do not
/// change the result.
fn without_settings(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = run::command(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DIST_") {
            command.env_remove(name);
        }
    }
    command
}

/// Instructions per call, by the title of the kind of call.
type InstructionCounts = BTreeMap<&'static str, u64>;

/// For each function of the program that makes a call, the instructions of each of its calls.
type CallSamples = BTreeMap<String, Vec<u64>>;

/// Adds the counts in all files of a run.
fn read_samples(run_folder: &Path, samples: &mut CallSamples) -> Result<(), String> {
    let failed = |cause: std::io::Error| format!("cannot read {}: {cause}", run_folder.display());
    for entry in fs::read_dir(run_folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_counts = path.file_stem().is_some_and(|stem| stem == "counts");
        // The file without a number contains the instructions after the last call.
        if is_counts && path.extension().is_some() {
            let text = fs::read(&path).map_err(failed)?;
            if let Some((step, count)) = parse_sample(&String::from_utf8_lossy(&text)) {
                samples.entry(step).or_default().push(count);
            }
        }
    }
    Ok(())
}

/// Returns the function that ended a callgrind file, and the number of instructions in the file.
fn parse_sample(text: &str) -> Option<(String, u64)> {
    let value = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
    let step = value("desc: Trigger: --dump-after=")?.trim().to_owned();
    let count = value("totals:")?.trim().parse().ok()?;
    Some((step, count))
}

/// Returns the smallest frequent count of the calls. A call takes one of several paths, depending
/// on how fast the peer is. On different machines, a different path is the most frequent one, but
/// the shortest path is the same. So this function does not return the most frequent count. Returns
/// an error if fewer than half of the calls have a frequent count.
fn smallest_frequent(counts: &[u64]) -> Result<u64, String> {
    let mut times: BTreeMap<u64, usize> = BTreeMap::new();
    for &count in counts.iter().filter(|&&count| count > 0) {
        *times.entry(count).or_default() += 1;
    }
    #[allow(clippy::cast_precision_loss, reason = "the number of calls is small")]
    let share = |calls: usize| calls as f64 / counts.len() as f64;
    times.retain(|_, &mut calls| share(calls) >= FREQUENT_SHARE);
    let covered = share(times.values().sum());
    match times.first_key_value() {
        None if counts.iter().all(|&count| count == 0) => Err("callgrind counted no call".into()),
        Some((&count, _)) if covered >= MIN_FREQUENT_SHARE => Ok(count),
        _ => Err(format!(
            "only {:.0} % of the calls have a frequent count; \
             other processes use the cores; repeat the command on idle cores",
            covered * 100.0
        )),
    }
}

/// Returns the relative growth from `before` to `after`. For example, growth by 2 % is 0.02.
#[allow(clippy::cast_precision_loss, reason = "the instructions of one call are few")]
fn growth(before: u64, after: u64) -> f64 {
    after as f64 / before.max(1) as f64 - 1.0
}

/// The table, and the calls whose count grew too much.
#[derive(Debug)]
struct CostReport {
    text: String,
    exceeded: Vec<&'static str>,
}

impl CostReport {
    fn of(this: &InstructionCounts, other: Option<&InstructionCounts>) -> Self {
        let mut report = Self { text: String::new(), exceeded: Vec::new() };
        let columns = if other.is_some() { " other tree   growth" } else { "" };
        report.text = format!("instructions of a 4-byte call\n{:<22}this tree{columns}\n", "");
        for kind in KINDS {
            let Some(&count) = this.get(kind.title) else { continue };
            match other.and_then(|other| other.get(kind.title)) {
                Some(&before) => report.row(kind.title, count, before, Some(MAX_GROWTH)),
                None => report.text.push_str(&format!("{:<22}{count:>9}\n", kind.title)),
            }
        }
        if let (Some(&count), Some(&plain)) = (this.get(LABELLED.title), this.get(ALL_REDUCE.title))
        {
            report.text.push_str(&format!("\n{:<22}this tree  unlabelled   growth\n", ""));
            report.row(LABELLED.title, count, plain, None);
        }
        report.text.push('\n');
        report.text.push_str(&match report.exceeded.is_empty() {
            true if other.is_some() => "No count grew above its limit.\n".to_owned(),
            true => String::new(),
            false => format!("Too many instructions: {}.\n", report.exceeded.join("; ")),
        });
        report
    }

    /// Adds a row. If there is a limit and the growth exceeds it, marks the row as exceeded.
    fn row(&mut self, title: &'static str, count: u64, before: u64, allowed: Option<f64>) {
        let grown = growth(before, count);
        let mut note = String::new();
        // The tolerance absorbs rounding: 1020 / 1000 - 1 is slightly more than 0.02.
        if let Some(allowed) = allowed.filter(|allowed| grown > allowed + 1e-9) {
            self.exceeded.push(title);
            note = format!("  more than {:.0} %", allowed * 100.0);
        }
        self.text.push_str(&format!(
            "{title:<22}{count:>9} {before:>10} {:>+7.2} %{note}\n",
            grown * 100.0
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(all_reduce: u64, send: u64) -> InstructionCounts {
        InstructionCounts::from([("all_reduce", all_reduce), ("send", send)])
    }

    #[test]
    fn a_callgrind_file_has_its_function_and_count() {
        let text = "desc: Timerange: Basic block 1 - 2\n\
                    desc: Trigger: --dump-after=send_to_one\nevents: Ir\nfn=(1)\n1 7\n\ntotals: 1384\n";
        assert_eq!(parse_sample(text), Some(("send_to_one".to_owned(), 1384)));
        assert_eq!(parse_sample("desc: Trigger: Program termination\ntotals: 5\n"), None);
        assert_eq!(parse_sample("desc: Trigger: --dump-after=x\ntotals: many\n"), None);
    }

    #[test]
    fn the_smallest_frequent_count_is_the_figure() {
        assert_eq!(smallest_frequent(&[1000, 7, 7, 8, 7]), Ok(7));
        let long_path = [&[1284; 20][..], &[1384; 38], &[1200; 2]].concat();
        assert_eq!(smallest_frequent(&long_path), Ok(1284));
        // A file without instructions contains no call.
        assert!(smallest_frequent(&[0, 0]).unwrap_err().contains("no call"));
        let scattered: Vec<u64> = (0..60).map(|i| if i < 20 { 5 } else { 100 + i }).collect();
        assert!(smallest_frequent(&scattered).unwrap_err().contains("only 33 %"));
    }

    #[test]
    fn growth_above_two_percent_is_reported() {
        let allowed = CostReport::of(&counts(1020, 400), Some(&counts(1000, 500)));
        assert!(allowed.exceeded.is_empty(), "{}", allowed.text);
        assert!(allowed.text.contains("+2.00 %") && allowed.text.contains("-20.00 %"));
        let report = CostReport::of(&counts(1021, 500), Some(&counts(1000, 500)));
        assert_eq!(report.exceeded, ["all_reduce"]);
        assert!(report.text.ends_with("Too many instructions: all_reduce.\n"), "{}", report.text);
        let alone = CostReport::of(&counts(1021, 500), None);
        assert!(alone.exceeded.is_empty() && !alone.text.contains('%'), "{}", alone.text);
    }

    #[test]
    fn a_labelled_call_is_reported_without_a_limit() {
        let mut with_label = counts(1000, 500);
        with_label.insert(LABELLED.title, 1200);
        let report = CostReport::of(&with_label, None);
        assert!(report.exceeded.is_empty() && report.text.contains("+20.00 %"), "{}", report.text);
    }
}
