//! `cargo xtask gpu`: what cannot be known without a GPU. A release build runs the programs of
//! `ffi-tests/nccl` that the stubs run, over the CUDA driver and the NCCL of this machine, and
//! `dist-bench` on the memory of its devices. No CUDA is needed to build: the programs take its
//! declarations from `ffi-tests/stubs`.

use crate::workspace::{Stage, release, root, scratch};
use crate::{Arguments, Outcome, run, tools};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const COMPILING: Duration = Duration::from_secs(120);
const RUNNING: Duration = Duration::from_secs(600);

/// From which version on NCCL takes several ranks on one GPU, and the variable that has it do so.
const SHARES_GPUS: u32 = 23_000;
const SHARING: (&str, &str) = ("NCCL_MULTI_RANK_GPU_ENABLE", "1");

/// As many ranks as the programs know.
const MOST_RANKS: usize = 4;

/// What the machine has.
#[derive(Debug, Default, PartialEq, Eq)]
struct Machine {
    /// The driver's file.
    driver: Option<String>,
    devices: usize,
    nccl: Option<u32>,
    /// Why something is missing.
    missing: Vec<String>,
}

/// Some runs with the same ranks.
#[derive(Debug, PartialEq, Eq)]
struct Round {
    title: String,
    nccl: bool,
    ranks: usize,
    /// They share a GPU over NCCL.
    shares: bool,
}

/// What a program is run with.
type Words = &'static [&'static str];

/// The programs and their arguments, over NCCL and by way of host memory.
const OVER_NCCL: [(&str, Words); 12] = [
    ("operations", &[]),
    ("behaviour", &[]),
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
const STAGED: [(&str, Words); 3] =
    [("operations", &["staging"]), ("behaviour", &["staging"]), ("death", &["native"])];

/// Those that need two ranks.
fn needs_two(program: &str, words: &[&str]) -> bool {
    program == "death"
        || words.iter().any(|word| word.ends_with("behind") || word.contains("first"))
}

impl Machine {
    /// Reads what `machine.c` says.
    fn read(text: &str) -> Self {
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

    /// What can be run here, and why the rest cannot.
    fn rounds(&self) -> (Vec<Round>, Vec<String>) {
        let (mut rounds, mut left_out) = (Vec::new(), Vec::new());
        let mut add = |title: String, nccl, ranks, shares| {
            rounds.push(Round { title, nccl, ranks, shares });
        };
        let several = self.devices.min(MOST_RANKS);
        match self.nccl {
            None => left_out.push("NCCL: there is none".to_owned()),
            Some(version) => {
                add("NCCL, 1 rank".to_owned(), true, 1, false);
                if several > 1 {
                    add(format!("NCCL, {several} ranks on as many GPUs"), true, several, false);
                } else {
                    left_out.push("NCCL between GPUs: there is one".to_owned());
                }
                if version >= SHARES_GPUS {
                    add("NCCL, 2 ranks on one GPU".to_owned(), true, 2, true);
                } else {
                    left_out.push(format!("2 ranks on one GPU: NCCL {version} is older than 2.30"));
                }
            }
        }
        add("by way of host memory, 2 ranks".to_owned(), false, 2, false);
        (rounds, left_out)
    }
}

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> Outcome {
    let mut arguments = Arguments::new(rest);
    let (look, quick) = (arguments.flag("--look"), arguments.flag("--quick"));
    arguments.finish()?;
    let (machine, said) = look_around(None)?;
    print!("{said}");
    let Some(driver) = machine.driver.clone().filter(|_| machine.devices > 0) else {
        let why = machine.missing.join("; ");
        return Err(format!(
            "there is no GPU that can be used here, which this command is for: {}",
            if why.is_empty() { "the driver has no device".to_owned() } else { why }
        ));
    };
    let (rounds, left_out) = machine.rounds();
    if look {
        rounds.iter().for_each(|round| println!("to run: {}", round.title));
        left_out.iter().for_each(|why| println!("left out: {why}"));
        return Ok(true);
    }
    let suite = Suite { stage: &release()?, driver: Path::new(&driver), quick, libraries: None };
    let failed = suite.carry_out_all(&rounds)?;
    println!();
    left_out.iter().for_each(|why| println!("left out: {why}"));
    println!("{failed} failed");
    Ok(failed == 0)
}

/// The same with the stubs in the place of CUDA and NCCL, for `cargo xtask test`: what is wrong
/// with it, if anything is.
pub(crate) fn over_stubs(stage: &Stage) -> Result<(), String> {
    let folder = scratch("gpu")?.join("stubs");
    let mut build = run::command("sh");
    build.arg(root().join("ffi-tests/stubs/build.sh")).arg(&folder);
    run::must(build.env("CC", tools::c_compiler()?), COMPILING)?;
    let (machine, said) = look_around(Some(&folder))?;
    let (rounds, left_out) = machine.rounds();
    let driver = machine.driver.filter(|_| left_out.is_empty() && rounds.len() == 4);
    let driver = driver.ok_or_else(|| format!("the stubs are not what they should be:\n{said}"))?;
    let driver = Path::new(&driver);
    let suite = Suite { stage, driver, quick: true, libraries: Some(&folder) };
    match suite.carry_out_all(&rounds)? {
        0 => Ok(()),
        failed => Err(format!("{failed} of the programs for GPUs failed over the stubs")),
    }
}

/// What the machine has, and the words that say so.
fn look_around(libraries: Option<&Path>) -> Result<(Machine, String), String> {
    let program = compile("machine", &["machine.c"], &["-ldl"], None)?;
    let mut look = run::command(&program);
    if let Some(folder) = libraries {
        look.env("LD_LIBRARY_PATH", folder).env_remove("DIST_NCCL_LIB");
    }
    let said = run::quiet(&mut look, COMPILING)?.text;
    Ok((Machine::read(&said), said))
}

/// Compiles a program of `ffi-tests/nccl`.
fn compile(
    name: &str,
    files: &[&str],
    more: &[&str],
    stage: Option<&Stage>,
) -> Result<PathBuf, String> {
    let folder = scratch("gpu")?;
    std::fs::create_dir_all(&folder).map_err(|cause| format!("{}: {cause}", folder.display()))?;
    let (program, tests) = (folder.join(name), root().join("ffi-tests/nccl"));
    let compiler = tools::c_compiler()?;
    let mut words = compiler.split_whitespace();
    let mut cc = run::command(words.next().unwrap_or("cc"));
    // A weak function's address is compared with NULL.
    cc.args(words).args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-address"]);
    cc.args(files.iter().map(|file| tests.join(file))).arg("-o").arg(&program);
    if let Some(stage) = stage {
        cc.arg("-I").arg(&stage.include).arg("-L").arg(&stage.lib).arg("-ldist");
        cc.arg(format!("-Wl,-rpath,{}", stage.lib.display()));
    }
    run::must(cc.args(more).args(["-lm", "-lpthread"]), COMPILING)?;
    Ok(program)
}

/// What all runs have in common.
struct Suite<'a> {
    stage: &'a Stage,
    driver: &'a Path,
    quick: bool,
    /// Where to look for CUDA and NCCL first.
    libraries: Option<&'a Path>,
}

impl Suite<'_> {
    /// How many runs have failed.
    fn carry_out_all(&self, rounds: &[Round]) -> Result<usize, String> {
        let mut failed = 0;
        for round in rounds {
            println!("\n{}", round.title);
            failed += self.carry_out(round)?;
        }
        Ok(failed)
    }

    /// How many runs of a round have failed.
    fn carry_out(&self, round: &Round) -> Result<usize, String> {
        let programs: &[(&str, Words)] = if round.nccl { &OVER_NCCL } else { &STAGED };
        let mut failed = 0;
        for &(name, words) in programs {
            if round.ranks < 2 && needs_two(name, words) {
                continue;
            }
            let program = self.compile(name, &[&format!("{name}.c"), "ranks.c"])?;
            let mut command = match name {
                "death" => self.of_processes(&program, words),
                _ => run::command(&program),
            };
            if name != "death" {
                command.args(words);
            }
            command.env("DIST_TEST_MOST_RANKS", round.ranks.to_string());
            failed += self.tell(&format!("{name} {}", words.join(" ")), round, &mut command)?;
        }
        if round.nccl {
            let program = self.compile("cost", &["cost.c", "ranks.c"])?;
            let mut cost = run::command(program);
            cost.args([round.ranks.to_string().as_str(), if self.quick { "1" } else { "11" }]);
            failed += self.tell("cost", round, &mut cost)?;
        }
        if round.nccl && !round.shares {
            let program = self.compile("several_gpus", &["../../c-examples/several_gpus.c"])?;
            let mut example = run::command(program);
            example.arg(round.ranks.to_string());
            failed += self.tell("example several_gpus", round, &mut example)?;
        }
        if round.ranks > 1 {
            let mut bench = run::command(self.stage.lib.join("dist-bench"));
            bench.args(["--device", if round.nccl { "nccl" } else { "native" }]);
            bench.args(["--ranks", &round.ranks.to_string(), "--ops", "all"]);
            // Processes that share a GPU have it in turns of milliseconds: of an operation over
            // NCCL each takes some.
            let is_quick = self.quick || round.shares;
            bench.args(if is_quick { ["--quick"].as_slice() } else { &[] });
            failed += self.tell("dist-bench", round, &mut bench)?;
        }
        Ok(failed)
    }

    /// Compiles one against the driver, with our declarations of its functions.
    fn compile(&self, name: &str, files: &[&str]) -> Result<PathBuf, String> {
        let header = format!("-I{}", root().join("ffi-tests/stubs/include").display());
        let driver = self.driver.display().to_string();
        compile(name, files, &[&header, &driver], Some(self.stage))
    }

    /// Two processes; the program wants its rank and their number. That one of them ends without a
    /// word is what it is about, and no reason to end the others.
    fn of_processes(&self, program: &Path, words: Words) -> Command {
        let script = "port=$1; shift; pids=; for rank in 0 1; do RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \
             MASTER_PORT=$port \"$1\" $rank 2 $2 & pids=\"$pids $!\"; done; worst=0; \
             for pid in $pids; do wait $pid || worst=1; done; exit $worst";
        let mut shell = run::command("sh");
        shell.args(["-c", script, "sh", &free_port()]).arg(program).args(words);
        shell
    }

    /// Runs one, and says how it went: 1 where it has failed.
    fn tell(&self, what: &str, round: &Round, command: &mut Command) -> Result<usize, String> {
        if round.shares {
            let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
            let first = visible.split(',').next().filter(|first| !first.is_empty());
            command.env(SHARING.0, SHARING.1).env("CUDA_VISIBLE_DEVICES", first.unwrap_or("0"));
        }
        if let Some(folder) = self.libraries {
            command.env("LD_LIBRARY_PATH", folder).env_remove("DIST_NCCL_LIB");
        }
        let is_shown = what == "dist-bench" || what == "cost";
        let finished = match is_shown {
            true => run::shown(command, RUNNING)?,
            false => run::quiet(command, RUNNING)?,
        };
        let passed = finished.success();
        let said = if passed || is_shown { String::new() } else { finished.tail() };
        println!("  {}: {what}{said}", if passed { "passed" } else { "FAILED" });
        Ok(usize::from(!passed))
    }
}

/// A port that nobody has now.
fn free_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0");
    let port = listener.and_then(|listener| listener.local_addr()).map_or(0, |it| it.port());
    port.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn titles(machine: &Machine) -> Vec<String> {
        machine.rounds().0.into_iter().map(|round| round.title).collect()
    }

    #[test]
    fn what_a_machine_has_decides_what_is_run() {
        let one = "driver /usr/lib/libcuda.so.1 12080\ndevice 0 NVIDIA H200\nnccl /x/libnccl.so.2 22707\n";
        let machine = Machine::read(one);
        assert_eq!(machine.driver.as_deref(), Some("/usr/lib/libcuda.so.1"));
        assert_eq!((machine.devices, machine.nccl), (1, Some(22_707)));
        assert_eq!(titles(&machine), ["NCCL, 1 rank", "by way of host memory, 2 ranks"]);
        assert_eq!(machine.rounds().1.len(), 2);
        let newer = Machine { nccl: Some(23_203), devices: 8, ..machine };
        assert_eq!(
            titles(&newer)[1..3],
            ["NCCL, 4 ranks on as many GPUs".to_owned(), "NCCL, 2 ranks on one GPU".to_owned()]
        );
        assert!(newer.rounds().1.is_empty());
        let none =
            Machine::read("no driver libcuda.so.1: cannot open\nno nccl libnccl.so: cannot open\n");
        assert_eq!((none.driver, none.missing.len()), (None, 2));
    }

    #[test]
    fn one_rank_has_no_company() {
        assert!(needs_two("death", &["nccl"]) && needs_two("together", &["late_behind"]));
        assert!(!needs_two("together", &["one_thread"]) && !needs_two("operations", &[]));
    }
}
