//! `cargo xtask bench-store`: compares the speed of libdist's store (server and client) with
//! torch's store.
//!
//! There is one program for each store (`ffi-tests/perf/store_bench*`). Both make the same
//! measurement. A pair is one run of each program, one after the other. The order alternates from
//! pair to pair, so that other load on the machine affects both programs equally.

mod comparison_rows;

use crate::torch::TorchEnvironment;
use crate::workspace::{self, StagedBuild, repository_root, scratch_folder};
use crate::{Arguments, CommandResult, examples, run, tools};
use comparison_rows::{ComparisonRow, PairedSamples};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const COMPILE_LIMIT: Duration = Duration::from_secs(600);
const RUN_LIMIT: Duration = Duration::from_secs(300);
const PAIRS: usize = 10;
const QUICK_PAIRS: usize = 2;
/// The modes in which server and clients are pinned to cores: "same" puts all on one core, "apart"
/// puts the server and the clients on different cores, and "free" pins nothing. See
/// `store_bench.h`.
const PINNING_MODES: [&str; 3] = ["same", "apart", "free"];
const REPORT_FILE: &str = "BENCHMARKS.md";
const REPORT_MARKERS: (&str, &str) = ("<!-- store:begin -->\n", "<!-- store:end -->");

/// The two programs and their run options.
struct StorePrograms {
    ours: PathBuf,
    torch: PathBuf,
    /// The source from which torch resolves host names.
    name_resolution: NameResolution,
    is_quick: bool,
    /// True if libdist's clients use TCP, and not the Unix socket that a libdist server offers to
    /// clients on its host.
    is_tcp_only: bool,
}

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let venv = arguments.value("--venv")?.map(PathBuf::from);
    let quick = arguments.flag("--quick");
    let tcp = arguments.flag("--tcp");
    let write = arguments.flag("--write");
    let pairs = match arguments.value("--pairs")? {
        None if quick => QUICK_PAIRS,
        None => PAIRS,
        Some(text) => text
            .parse()
            .ok()
            .filter(|pairs| (1..=1000).contains(pairs))
            .ok_or_else(|| format!("--pairs takes a number from 1 to 1000, not \"{text}\""))?,
    };
    arguments.finish()?;
    if quick && write {
        return Err("--write needs a full measurement: remove --quick".into());
    }

    let torch = TorchEnvironment::find_torch(venv.as_deref())?;
    let stage = workspace::stage_release_build()?;
    println!("Compiling ffi-tests/perf/store_bench.c and store_bench_torch.cpp");
    let programs = StorePrograms {
        ours: examples::compile(&stage, "store_bench", &[source_file("store_bench.c")])?,
        torch: compile_against_torch(&stage, &torch)?,
        name_resolution: NameResolution::files_only()?,
        is_quick: quick,
        is_tcp_only: tcp,
    };
    let samples = measure(&programs, pairs)?;
    let report = report_text(&samples, &torch, &programs, pairs)?;
    print!("\n{report}");
    if write {
        write_report(&report)?;
        println!("wrote the table into {REPORT_FILE}");
    }
    Ok(true)
}

fn source_file(name: &str) -> PathBuf {
    repository_root().join("ffi-tests/perf").join(name)
}

fn compile_against_torch(stage: &StagedBuild, torch: &TorchEnvironment) -> Result<PathBuf, String> {
    let program = stage.lib.join("store_bench_torch");
    let libraries = torch.package.join("lib");
    let compiler = tools::cxx_compiler()?;
    let mut words = compiler.split_whitespace();
    let mut cxx = run::command(words.next().unwrap_or("c++"));
    cxx.args(words)
        .args(["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-D_GLIBCXX_USE_CXX11_ABI=1"])
        .arg("-isystem")
        .arg(torch.package.join("include"))
        .arg(source_file("store_bench_torch.cpp"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&libraries)
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .args(["-ltorch_cpu", "-lc10"]);
    run::run_checked(&mut cxx, COMPILE_LIMIT)?;
    Ok(program)
}

/// The source of host names. torch looks up the name of every peer. This takes long if a name
/// server does not answer, so the programs should use only files.
enum NameResolution {
    /// Names come from files only. The words are a command that creates a mount namespace with the
    /// necessary configuration, and runs a program in it.
    FilesOnly(Vec<String>),
    /// This machine does not permit a mount namespace.
    SystemDefault,
}

impl NameResolution {
    fn files_only() -> Result<Self, String> {
        let folder = scratch_folder("names")?;
        tools::recreate_folder(&folder)?;
        let file = folder.join("nsswitch.conf");
        fs::write(&file, "hosts: files\n")
            .map_err(|cause| format!("cannot write {}: {cause}", file.display()))?;
        let script = "mount --bind \"$0\" /etc/nsswitch.conf && exec \"$@\"";
        let mut reason = String::new();
        // Try to create the mount namespace as root. If this fails, try it in a user namespace in
        // which this user is root.
        for unshare in [&["unshare", "-m"][..], &["unshare", "-r", "-m"][..]] {
            let mut words: Vec<String> = unshare.iter().map(ToString::to_string).collect();
            words.extend(["sh", "-c", script].map(String::from));
            words.push(file.display().to_string());
            let mut probe = command(&words);
            probe.args(["grep", "-qx", "hosts: files", "/etc/nsswitch.conf"]);
            match run::run_checked(&mut probe, Duration::from_secs(30)) {
                Ok(_) => return Ok(Self::FilesOnly(words)),
                Err(problem) => reason = problem,
            }
        }
        println!(
            "host names are resolved with this machine's settings, because name resolution from files failed: {reason}"
        );
        Ok(Self::SystemDefault)
    }

    /// Returns a command that runs a program with this name resolution.
    fn command(&self, program: &Path) -> Command {
        match self {
            Self::FilesOnly(words) => {
                let mut command = command(words);
                command.arg(program);
                command
            }
            Self::SystemDefault => run::command(program),
        }
    }
}

fn command(words: &[String]) -> Command {
    let mut command = run::command(&words[0]);
    command.args(&words[1..]);
    command
}

/// Runs the pairs and prints the progress.
fn measure(programs: &StorePrograms, pairs: usize) -> Result<PairedSamples, String> {
    let mut samples = PairedSamples::default();
    for pair in 0..pairs {
        for mode in PINNING_MODES {
            println!("pair {} of {pairs}, {mode}", pair + 1);
            let (ours, torch) = if pair % 2 == 0 {
                let ours = programs.run(&programs.ours, mode)?;
                (ours, programs.run(&programs.torch, mode)?)
            } else {
                let torch = programs.run(&programs.torch, mode)?;
                (programs.run(&programs.ours, mode)?, torch)
            };
            samples.add(mode, &ours, &torch)?;
        }
    }
    Ok(samples)
}

impl StorePrograms {
    fn run(&self, program: &Path, mode: &str) -> Result<String, String> {
        let mut command = self.name_resolution.command(program);
        command.arg(mode).args(self.is_quick.then_some("--quick"));
        command.envs(self.is_tcp_only.then_some(("DIST_STORE_UNIX", "off")));
        Ok(run::run_checked(&mut command, RUN_LIMIT)?.text)
    }
}

fn report_text(
    samples: &PairedSamples,
    torch: &TorchEnvironment,
    programs: &StorePrograms,
    pairs: usize,
) -> Result<String, String> {
    let rows = ComparisonRow::all();
    let results = rows.iter().map(|row| samples.result(row)).collect::<Result<Vec<_>, _>>()?;
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let names = match programs.name_resolution {
        NameResolution::FilesOnly(_) => "names from files only",
        NameResolution::SystemDefault => "names as this machine resolves them",
    };
    let path = if programs.is_tcp_only { "clients over TCP" } else { "clients as by default" };
    let version = &torch.version;
    let mut text = format!(
        "libdist {} against torch {version}, {pairs} pairs, {cores} cores, {names}, {path}.\n\n",
        env!("CARGO_PKG_VERSION")
    );
    text.push_str(&comparison_rows::markdown_table(&rows, &results));
    let requirement_count = rows.iter().filter(|row| row.required_ratio.is_some()).count();
    let met_count =
        rows.iter().zip(&results).filter(|(row, result)| result.meets_requirement(row)).count();
    text.push_str(&format!("\n{met_count} of {requirement_count} requirements are met.\n"));
    Ok(text)
}

/// Writes the report between its markers in [`REPORT_FILE`].
fn write_report(report: &str) -> Result<(), String> {
    let path = repository_root().join(REPORT_FILE);
    let text =
        fs::read_to_string(&path).map_err(|cause| format!("cannot read {REPORT_FILE}: {cause}"))?;
    let missing = || {
        format!(
            "{REPORT_FILE} lacks the lines {} and {}",
            REPORT_MARKERS.0.trim(),
            REPORT_MARKERS.1
        )
    };
    let (head, rest) = text.split_once(REPORT_MARKERS.0).ok_or_else(missing)?;
    let (_, tail) = rest.split_once(REPORT_MARKERS.1).ok_or_else(missing)?;
    let text = format!("{head}{}{report}{}{tail}", REPORT_MARKERS.0, REPORT_MARKERS.1);
    fs::write(&path, text).map_err(|cause| format!("cannot write {REPORT_FILE}: {cause}"))
}
