//! The project's commands for developers and for the integration server.
//!
//! `cargo xtask help` lists the commands. Each command is a module. Shared code is in [`workspace`]
//! (paths, builds), [`run`] (child processes with deadlines), [`tools`] (the machine's programs),
//! [`torch`] (the path of torch) and [`examples`] (the C programs).
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line talks to its user")]
#![allow(
    clippy::disallowed_methods,
    reason = "the rules on environment and threads are the library's"
)]

mod bench_store;
mod chaos;
mod conformance;
mod cost;
mod demo;
mod examples;
mod fuzz;
mod gpu;
mod header;
mod interop;
mod loom;
mod miri;
mod mpi;
mod random;
mod run;
mod support_table;
mod test;
mod tools;
mod torch;
mod tsan;
mod workspace;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask <command>

  demo [--ranks N]    build, then train a digit classifier, written in C, on N processes (4)
  test [--no-install] [--only packages|mpi]
                      run every check this machine allows, or those of the installed package or of MPI; installs
                      missing tools through apt where it may, unless told not to
  fuzz [TARGET...] [--seconds N] [--merge]
                      feed the fuzz targets in fuzz/ with mutated inputs, N seconds each (60);
                      needs a C++ compiler; --merge keeps what reached new code in fuzz/corpus
  loom                run the models of the protocols between threads through all interleavings
  miri                run the tests of kernels and views of memory under Miri; needs a nightly compiler
                      with it
  random [--seeds N] [--first N]
                      run N random programs (1000) of collectives and messages against their
                      oracle, over every transport; a failure prints its seed
  chaos [--seeds N] [--first N] [--seed N] [--minutes N] [--only NAME] [--jobs N]
                      injects failures at random moments into N random jobs (2000), or one of them; NAME
                      is one of kill, kill-two, stop, pause, close, delay, partition, disk, memory,
                      frames, store; partitions and small disks need name spaces
  chaos --latency [--times N] [--limit-ms N] [--only NAME]
                      measure how soon survivors know of N (200) local-kill, remote-kill, stop and
                      partition each, the latter two with this heartbeat limit (500)
  chaos --rounds [--times N]
                      N (1000) rounds of kill -9, after which nothing may be left
  conformance [--minutes N] [--part I/N] [--transport NAME] [--kind NAME] [--only CASE]
                      run the whole matrix of the conformance suite, in at most N minutes (60):
                      all of it, or the Ith of N parts, what goes over one transport (inproc, shm,
                      tcp, mixed), one operation (all_reduce, ...), one case as a failure printed it
  conformance --backend NAME [--plugin PATH] [--options TEXT] [--ranks LIST] [--calls N] [--kind NAME]
                      the same for another back end, loaded from PATH: what it says that it does, on each
                      number of ranks in LIST (1,2,3,4); a covering part of at most N calls on each
  conformance --backend NAME --launcher MPI [--plugin PATH] [--options TEXT] [--ranks LIST] [--calls N] [--kind NAME]
                      the same with one rank in each process, started by the launcher of openmpi or mpich
  mpi [--only NAME] [--into FOLDER]
                      build the plug-ins for MPI, for openmpi and mpich or the one of them that is named, where its
                      compiler and libclang are installed, and put them beside target/release/libdist.so or into a folder
  gpu [--look] [--quick]
                      on a machine with GPUs: the tests of devices over its CUDA and NCCL (1 rank, 2 on one GPU,
                      several GPUs, and without NCCL), and dist-bench on their memory, short with --quick;
                      --look only says what there is and what would be run
  tsan [--seeds N]    run N random programs (100) under ThreadSanitizer; needs the sources of the
                      standard library (rustup component add rust-src)
  header              write the headers in include/ from the source
  support-table       write the table of what back ends support into docs/backends.md
  interop [--venv DIR] [--only WORDS] [--no-install]
                      torch's store clients on our server and ours on torch's, both on one, and our
                      programs under torchrun, Open MPI and MPICH; downloads torch (large) into
                      .interop, or uses the environment in DIR; --only takes part of a case's name
  cost [--against TREE]
                      count the instructions of a 4-byte all_reduce, send and recv under callgrind, and compare
                      them with another source tree, whose release library must be built; fails if one grew by
                      more than 2 %; needs valgrind
  bench-store [--venv DIR] [--pairs N] [--tcp] [--quick] [--write]
                      measure our store and torch's in turns (10 pairs) and compare; --tcp leaves
                      our Unix socket out, --quick only tries the command out, --write puts the
                      table into BENCHMARKS.md
  help                this text
";

/// The result of a command: whether all checks passed, or why the command could not run.
type CommandResult = Result<bool, String>;

/// Descriptors for the tests' processes. Many users start with a soft limit of 1,024.
const OPEN_FILES: u64 = 65_536;

fn main() -> ExitCode {
    // The children of this process inherit the limit. If the hard limit is lower, that one applies.
    if let Err(cause) = rlimit::increase_nofile_limit(OPEN_FILES) {
        eprintln!("xtask: the limit of open files stays as it is: {cause}");
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("xtask: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[String]) -> CommandResult {
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", arguments),
    };
    match command {
        "demo" => demo::main(rest),
        "test" => test::main(rest),
        "chaos" => chaos::main(rest),
        "fuzz" => fuzz::main(rest),
        "gpu" => gpu::main(rest),
        "conformance" => conformance::main(rest),
        "cost" => cost::main(rest),
        "loom" => loom::main(rest),
        "miri" => miri::main(rest),
        "mpi" => mpi::main(rest),
        "random" => random::main(rest),
        "tsan" => tsan::main(rest),
        "header" => header::main(rest),
        "support-table" => support_table::main(rest),
        "interop" => interop::main(rest),
        "bench-store" => bench_store::main(rest),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(true)
        }
        other => Err(format!("unknown command \"{other}\"; `cargo xtask help` lists them")),
    }
}

/// Parses `--name value` pairs and flags of a command; remaining arguments are an error.
#[derive(Debug)]
struct Arguments {
    rest: Vec<String>,
}

impl Arguments {
    fn new(rest: &[String]) -> Self {
        Self { rest: rest.to_vec() }
    }

    fn flag(&mut self, name: &str) -> bool {
        let at = self.rest.iter().position(|word| word == name);
        at.map(|i| self.rest.remove(i)).is_some()
    }

    fn value(&mut self, name: &str) -> Result<Option<String>, String> {
        let Some(at) = self.rest.iter().position(|word| word == name) else { return Ok(None) };
        if at + 1 == self.rest.len() {
            return Err(format!("{name} needs a value"));
        }
        self.rest.remove(at);
        Ok(Some(self.rest.remove(at)))
    }

    fn finish(self) -> Result<(), String> {
        match self.rest.first() {
            None => Ok(()),
            Some(word) => Err(format!("unexpected argument \"{word}\"; see `cargo xtask help`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_taken_by_name_and_the_rest_is_refused() {
        let words: Vec<String> = ["--ranks", "3", "--no-install", "x"].map(String::from).to_vec();
        let mut arguments = Arguments::new(&words);
        assert_eq!(arguments.value("--ranks").unwrap().as_deref(), Some("3"));
        assert_eq!(arguments.value("--venv").unwrap(), None);
        assert!(arguments.flag("--no-install"));
        assert!(!arguments.flag("--no-install"));
        assert!(arguments.finish().unwrap_err().contains("\"x\""));
    }
}
