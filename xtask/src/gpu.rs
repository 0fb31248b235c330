//! `cargo xtask gpu`: runs the checks that need a GPU. The command makes a release build. Then it
//! runs the programs of `ffi-tests/nccl` with the CUDA driver and the NCCL of this machine (`cargo
//! xtask test` runs the same programs with stubs), and `dist-bench` on device memory. The build
//! does not need CUDA: the programs take the declarations of its functions from `ffi-tests/stubs`.

use crate::workspace::{StagedBuild, repository_root, scratch_folder, stage_release_build};
use crate::{Arguments, CommandResult, run, tools};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const COMPILE_TIMEOUT: Duration = Duration::from_secs(120);
const RUN_TIMEOUT: Duration = Duration::from_secs(600);

/// The first NCCL version that allows several ranks on one GPU.
const MIN_NCCL_FOR_SHARED_GPU: u32 = 23_000;
/// The environment variable, and its value, that makes NCCL allow several ranks on one GPU.
const SHARED_GPU_VARIABLE: (&str, &str) = ("NCCL_MULTI_RANK_GPU_ENABLE", "1");

/// The maximum number of ranks that the programs support.
const MAX_RANKS: usize = 4;

/// The GPU software and devices of the machine.
#[derive(Debug, Default, PartialEq, Eq)]
struct GpuMachine {
    /// The path of the driver's library.
    driver: Option<String>,
    devices: usize,
    nccl: Option<u32>,
    /// The reasons why a part of the software or a device is missing.
    missing: Vec<String>,
}

/// A set of runs with the same back end and number of ranks.
#[derive(Debug, PartialEq, Eq)]
struct GpuRound {
    title: String,
    is_over_nccl: bool,
    ranks: usize,
    /// True if the ranks use NCCL and share one GPU.
    is_gpu_shared: bool,
}

/// The arguments of a program.
type ProgramArguments = &'static [&'static str];

/// The programs of a round over NCCL, with their arguments.
const NCCL_PROGRAMS: [(&str, ProgramArguments); 15] = [
    ("operations", &[]),
    ("behaviour", &[]),
    ("lists", &[]),
    ("mismatch", &[]),
    ("mismatch", &["detail"]),
    ("together", &["one_thread"]),
    ("together", &["many_groups"]),
    ("together", &["behind"]),
    ("together", &["aborted_behind"]),
    ("together", &["late_behind"]),
    ("together", &["messages_behind"]),
    ("together", &["first_ones"]),
    ("together", &["left_behind"]),
    ("together", &["alone_first"]),
    ("death", &["nccl"]),
];
/// The programs of a round whose data goes through host memory, with their arguments.
const STAGED_PROGRAMS: [(&str, ProgramArguments); 4] = [
    ("operations", &["staging"]),
    ("behaviour", &["staging"]),
    ("lists", &["staging"]),
    ("death", &["native"]),
];

/// Returns true if a program needs exactly two ranks.
fn needs_two_ranks(program: &str, words: &[&str]) -> bool {
    program == "death"
        || words.iter().any(|word| word.ends_with("behind") || word.contains("first"))
}

impl GpuMachine {
    /// Parses the output of `machine.c`.
    fn parse_probe(text: &str) -> Self {
        let mut machine = Self::default();
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("driver", rest)) => {
                    machine.driver = rest.rsplit_once(' ').map(|(file, _)| file.to_owned());
                }
                Some(("device", _)) => machine.devices += 1,
                Some(("nccl", rest)) => {
                    machine.nccl = rest.rsplit_once(' ').and_then(|(_, v)| v.parse().ok());
                }
                Some(("no", rest)) => machine.missing.push(rest.to_owned()),
                _ => {}
            }
        }
        machine
    }

    /// Returns the rounds that can run on this machine, and for each other round the reason why it
    /// cannot.
    fn possible_rounds(&self) -> (Vec<GpuRound>, Vec<String>) {
        let (mut rounds, mut left_out) = (Vec::new(), Vec::new());
        let mut add = |title: String, nccl, ranks, shares| {
            rounds.push(GpuRound { title, is_over_nccl: nccl, ranks, is_gpu_shared: shares });
        };
        let several = self.devices.min(MAX_RANKS);
        match self.nccl {
            None => left_out.push("NCCL: no library found".to_owned()),
            Some(version) => {
                add("NCCL, 1 rank".to_owned(), true, 1, false);
                if several > 1 {
                    add(format!("NCCL, {several} ranks on {several} GPUs"), true, several, false);
                } else {
                    left_out.push("NCCL between GPUs: the machine has only one GPU".to_owned());
                }
                if version >= MIN_NCCL_FOR_SHARED_GPU {
                    add("NCCL, 2 ranks on one GPU".to_owned(), true, 2, true);
                } else {
                    left_out.push(format!("2 ranks on one GPU: NCCL {version} is older than 2.30"));
                }
            }
        }
        add("through host memory, 2 ranks".to_owned(), false, 2, false);
        (rounds, left_out)
    }
}

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let (is_probe_only, quick) = (arguments.flag("--look"), arguments.flag("--quick"));
    arguments.finish()?;
    let (machine, probe_output) = probe_machine(None)?;
    print!("{probe_output}");
    let Some(driver) = machine.driver.clone().filter(|_| machine.devices > 0) else {
        let reasons = machine.missing.join("; ");
        return Err(format!(
            "no usable GPU, which this command needs: {}",
            if reasons.is_empty() { "the driver has no device".to_owned() } else { reasons }
        ));
    };
    let (rounds, left_out) = machine.possible_rounds();
    if is_probe_only {
        rounds.iter().for_each(|round| println!("to run: {}", round.title));
        left_out.iter().for_each(|reason| println!("skipped: {reason}"));
        return Ok(true);
    }
    let suite = GpuSuite {
        stage: &stage_release_build()?,
        driver: Path::new(&driver),
        is_quick: quick,
        stub_folder: None,
    };
    let failed = suite.run_rounds(&rounds)?;
    println!();
    left_out.iter().for_each(|reason| println!("skipped: {reason}"));
    println!("{failed} failed");
    Ok(failed == 0)
}

/// Runs the same programs with stubs of CUDA and NCCL instead of a GPU, for `cargo xtask test`.
/// Returns an error if a run fails.
pub(crate) fn run_over_stubs(stage: &StagedBuild) -> Result<(), String> {
    let folder = scratch_folder("gpu")?.join("stubs");
    let mut build = run::command("sh");
    build.arg(repository_root().join("ffi-tests/stubs/build.sh")).arg(&folder);
    run::run_checked(build.env("CC", tools::c_compiler()?), COMPILE_TIMEOUT)?;
    let (machine, probe_output) = probe_machine(Some(&folder))?;
    let (rounds, left_out) = machine.possible_rounds();
    let driver = machine.driver.filter(|_| left_out.is_empty() && rounds.len() == 4);
    let driver = driver.ok_or_else(|| {
        format!("the probe does not support all rounds with the stubs:\n{probe_output}")
    })?;
    let driver = Path::new(&driver);
    let suite = GpuSuite { stage, driver, is_quick: true, stub_folder: Some(&folder) };
    match suite.run_rounds(&rounds)? {
        0 => Ok(()),
        failed => Err(format!("{failed} GPU programs failed with the stubs")),
    }
}

/// Probes the machine for GPU software and devices. Returns the result, and the output of the
/// probe.
fn probe_machine(libraries: Option<&Path>) -> Result<(GpuMachine, String), String> {
    let program = compile("machine", &["machine.c"], &["-ldl"], None)?;
    let mut probe = run::command(&program);
    if let Some(folder) = libraries {
        probe.env("LD_LIBRARY_PATH", folder).env_remove("DIST_NCCL_LIB");
    }
    let probe_output = run::run_quietly(&mut probe, COMPILE_TIMEOUT)?.text;
    Ok((GpuMachine::parse_probe(&probe_output), probe_output))
}

/// Compiles a program of `ffi-tests/nccl`.
fn compile(
    name: &str,
    files: &[&str],
    linker_arguments: &[&str],
    stage: Option<&StagedBuild>,
) -> Result<PathBuf, String> {
    let folder = scratch_folder("gpu")?;
    std::fs::create_dir_all(&folder).map_err(|cause| format!("{}: {cause}", folder.display()))?;
    let (program, tests) = (folder.join(name), repository_root().join("ffi-tests/nccl"));
    let compiler = tools::c_compiler()?;
    let mut words = compiler.split_whitespace();
    let mut cc = run::command(words.next().unwrap_or("cc"));
    // Disable one warning: the programs compare the address of a weak function with NULL.
    cc.args(words).args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-address"]);
    cc.args(files.iter().map(|file| tests.join(file))).arg("-o").arg(&program);
    if let Some(stage) = stage {
        cc.arg("-I").arg(&stage.include).arg("-L").arg(&stage.lib).arg("-ldist");
        cc.arg(format!("-Wl,-rpath,{}", stage.lib.display()));
    }
    run::run_checked(cc.args(linker_arguments).args(["-lm", "-lpthread"]), COMPILE_TIMEOUT)?;
    Ok(program)
}

/// The common settings of all runs.
struct GpuSuite<'a> {
    stage: &'a StagedBuild,
    driver: &'a Path,
    is_quick: bool,
    /// The folder with the stubs of CUDA and NCCL. The programs search it before other folders.
    /// `None` to use the real libraries.
    stub_folder: Option<&'a Path>,
}

impl GpuSuite<'_> {
    /// Runs the rounds. Returns the number of failed runs.
    fn run_rounds(&self, rounds: &[GpuRound]) -> Result<usize, String> {
        let mut failed = 0;
        for round in rounds {
            println!("\n{}", round.title);
            failed += self.run_round(round)?;
        }
        Ok(failed)
    }

    /// Runs a round. Returns the number of failed runs.
    fn run_round(&self, round: &GpuRound) -> Result<usize, String> {
        let programs: &[(&str, ProgramArguments)] =
            if round.is_over_nccl { &NCCL_PROGRAMS } else { &STAGED_PROGRAMS };
        let mut failed = 0;
        for &(name, words) in programs {
            if round.ranks < 2 && needs_two_ranks(name, words) {
                continue;
            }
            let program = self.compile(name, &[&format!("{name}.c"), "ranks.c"])?;
            let mut command = match name {
                "death" => self.two_process_command(&program, words),
                _ => run::command(&program),
            };
            if name != "death" {
                command.args(words);
            }
            command.env("DIST_TEST_MOST_RANKS", round.ranks.to_string());
            failed +=
                self.run_and_report(&format!("{name} {}", words.join(" ")), round, &mut command)?;
        }
        if round.is_over_nccl {
            let program = self.compile("cost", &["cost.c", "ranks.c"])?;
            let mut cost = run::command(program);
            cost.args([round.ranks.to_string().as_str(), if self.is_quick { "1" } else { "11" }]);
            failed += self.run_and_report("cost", round, &mut cost)?;
        }
        if round.is_over_nccl && !round.is_gpu_shared {
            let program = self.compile("several_gpus", &["../../c-examples/several_gpus.c"])?;
            let mut example = run::command(program);
            example.arg(round.ranks.to_string());
            failed += self.run_and_report("example several_gpus", round, &mut example)?;
        }
        if round.ranks > 1 {
            let mut bench = run::command(self.stage.lib.join("dist-bench"));
            bench.args(["--device", if round.is_over_nccl { "nccl" } else { "native" }]);
            bench.args(["--ranks", &round.ranks.to_string(), "--ops", "all"]);
            // Use `--quick` also if the ranks share a GPU: the processes then alternate in time
            // slices of milliseconds, and each NCCL operation takes several slices.
            let is_quick = self.is_quick || round.is_gpu_shared;
            bench.args(if is_quick { ["--quick"].as_slice() } else { &[] });
            failed += self.run_and_report("dist-bench", round, &mut bench)?;
        }
        Ok(failed)
    }

    /// Compiles a program that calls the driver. The declarations of the driver's functions come
    /// from the stubs.
    fn compile(&self, name: &str, files: &[&str]) -> Result<PathBuf, String> {
        let header = format!("-I{}", repository_root().join("ffi-tests/stubs/include").display());
        let driver = self.driver.display().to_string();
        compile(name, files, &[&header, &driver], Some(self.stage))
    }

    /// Returns a shell command that starts two processes and gives each its rank and the number of
    /// ranks. It does not use distrun: as a part of the test, one process exits without a message,
    /// and distrun would then end the other process.
    fn two_process_command(&self, program: &Path, words: ProgramArguments) -> Command {
        let script = "port=$1; shift; pids=; for rank in 0 1; do RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \
             MASTER_PORT=$port \"$1\" $rank 2 $2 & pids=\"$pids $!\"; done; worst=0; \
             for pid in $pids; do wait $pid || worst=1; done; exit $worst";
        let mut shell = run::command("sh");
        shell.args(["-c", script, "sh", &free_port()]).arg(program).args(words);
        shell
    }

    /// Runs a command and prints its outcome. Returns 1 if it failed, otherwise 0.
    fn run_and_report(
        &self,
        what: &str,
        round: &GpuRound,
        command: &mut Command,
    ) -> Result<usize, String> {
        if round.is_gpu_shared {
            let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
            let first = visible.split(',').next().filter(|first| !first.is_empty());
            command
                .env(SHARED_GPU_VARIABLE.0, SHARED_GPU_VARIABLE.1)
                .env("CUDA_VISIBLE_DEVICES", first.unwrap_or("0"));
        }
        if let Some(folder) = self.stub_folder {
            command.env("LD_LIBRARY_PATH", folder).env_remove("DIST_NCCL_LIB");
        }
        let is_shown = what == "dist-bench" || what == "cost";
        let finished = match is_shown {
            true => run::run_visibly(command, RUN_TIMEOUT)?,
            false => run::run_quietly(command, RUN_TIMEOUT)?,
        };
        let passed = finished.success();
        let output_tail = if passed || is_shown { String::new() } else { finished.output_tail() };
        println!("  {}: {what}{output_tail}", if passed { "passed" } else { "FAILED" });
        Ok(usize::from(!passed))
    }
}

/// Returns a port that is currently free.
fn free_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0");
    let port = listener.and_then(|listener| listener.local_addr()).map_or(0, |it| it.port());
    port.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn titles(machine: &GpuMachine) -> Vec<String> {
        machine.possible_rounds().0.into_iter().map(|round| round.title).collect()
    }

    #[test]
    fn rounds_depend_on_devices_and_nccl() {
        let one = "driver /usr/lib/libcuda.so.1 12080\ndevice 0 NVIDIA H200\nnccl /x/libnccl.so.2 22707\n";
        let machine = GpuMachine::parse_probe(one);
        assert_eq!(machine.driver.as_deref(), Some("/usr/lib/libcuda.so.1"));
        assert_eq!((machine.devices, machine.nccl), (1, Some(22_707)));
        assert_eq!(titles(&machine), ["NCCL, 1 rank", "through host memory, 2 ranks"]);
        assert_eq!(machine.possible_rounds().1.len(), 2);
        let newer = GpuMachine { nccl: Some(23_203), devices: 8, ..machine };
        assert_eq!(
            titles(&newer)[1..3],
            ["NCCL, 4 ranks on 4 GPUs".to_owned(), "NCCL, 2 ranks on one GPU".to_owned()]
        );
        assert!(newer.possible_rounds().1.is_empty());
        let none = GpuMachine::parse_probe(
            "no driver libcuda.so.1: cannot open\nno nccl libnccl.so: cannot open\n",
        );
        assert_eq!((none.driver, none.missing.len()), (None, 2));
    }

    #[test]
    fn two_rank_programs_are_skipped_for_one_rank() {
        assert!(
            needs_two_ranks("death", &["nccl"]) && needs_two_ranks("together", &["late_behind"])
        );
        assert!(
            !needs_two_ranks("together", &["one_thread"]) && !needs_two_ranks("operations", &[])
        );
    }
}
