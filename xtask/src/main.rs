//! The commands of the project for developers and for the integration server.
//!
//! `cargo xtask help` lists the commands. Each command is a module. The commands share the code in
//! [`workspace`] (paths, builds), [`run`] (child processes with deadlines), [`tools`] (programs of
//! the machine), [`torch`] (a Python environment with torch) and [`examples`] (the C programs).
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints its results"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "the rules for environment variables and threads apply to the library only"
)]

mod audit;
mod bench_store;
mod chaos;
mod conformance;
mod cost;
mod cross;
mod demo;
mod docs;
mod examples;
mod fuzz;
mod generated_files;
mod gpu;
mod integrations;
mod interop;
mod licences;
mod loom;
mod miri;
mod mpi;
mod package;
mod random;
mod run;
mod test;
mod tools;
mod torch;
mod torch_suite;
mod tsan;
mod ucc;
mod wheel;
mod workspace;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask <command>

demo [--ranks N]    build libdist, and train a digit classifier in C on N processes (4)
test [--no-install] [--only packages|mpi|python]
                    run every check that this machine supports, or only the checks of the
                    installed package, of MPI, or of the Python package; install missing tools
                    through apt if this needs no confirmation, except with --no-install
fuzz [TARGET...] [--seconds N] [--merge]
                    run the fuzz targets in fuzz/ on mutated inputs, N seconds each (60); needs a
                    C++ compiler; --merge adds inputs that reach new code to fuzz/corpus
loom                check the models of the protocols between threads in all interleavings
miri                run the tests of kernels and memory views under Miri; needs a nightly compiler
                    with Miri
random [--seeds N] [--first N]
                    run N random programs (1000) of collectives and messages against their
                    oracle, over every transport, N random trainings, and N random programs in
                    which no deadlock may be found; a failure prints its seed
chaos [--seeds N] [--first N] [--seed N] [--minutes N] [--only NAME] [--jobs N]
                    inject failures at random moments into N random jobs (2000), or into the job
                    of one seed; NAME is one of kill, kill-two, stop, pause, close, delay,
                    partition, disk, memory, frames, store; partitions and small disks need
                    namespaces
chaos --latency [--times N] [--limit-ms N] [--only NAME]
                    measure the time until survivors detect N (200) failures of each kind:
                    local-kill, remote-kill, stop and partition; stop and partition use this
                    heartbeat limit (500)
chaos --links [--seeds N] [--first N] [--seed N] [--jobs N]
                    break connections between two hosts at random moments in N random jobs (2000);
                    needs namespaces and TUN devices
chaos --rounds [--times N]
                    run N (1000) rounds of kill -9, and check that nothing is leaked
conformance [--minutes N] [--part I/N] [--transport NAME] [--kind NAME] [--only CASE]
                    run the whole matrix of the conformance suite, in at most N minutes (60), or
                    part I of N, or one transport (inproc, shm, tcp, mixed), one operation
                    (all_reduce, ...), or one case as printed by a failure
conformance --backend NAME [--plugin PATH] [--options TEXT] [--ranks LIST] [--calls N] [--kind NAME]
                    run the suite over another back end, loaded from PATH: all calls that the
                    back end declares as supported, on each number of ranks in LIST (1,2,3,4);
                    with --calls a covering selection of at most N calls on each
conformance --backend NAME --launcher MPI [--plugin PATH] [--options TEXT] [--ranks LIST] [--calls N] [--kind NAME]
                    the same with one rank per process, started by the launcher of openmpi or
                    mpich
mpi [--only NAME] [--into FOLDER]
                    build the plug-ins for openmpi and mpich, or for one of them, if its compiler
                    and libclang are installed; put them into the folder of
                    target/release/libdist.so, or into FOLDER
ucc [--prefix FOLDER] [--calls N] [--overhead]
                    test the back end ucc with the UCC in FOLDER: its headers, the conformance
                    suite on 1 to 4 ranks with at most N calls (600) on each, on one host and in
                    two network namespaces, and ranks that die, stop, abort or come late;
                    --overhead measures what libdist adds to UCC's all_reduce
gpu [--look] [--quick]
                    on a machine with GPUs: run the device tests over CUDA and NCCL (1 rank, 2
                    ranks on one GPU, several GPUs, and without NCCL) and dist-bench on GPU memory,
                    short with --quick; --look only prints the hardware and the planned runs
tsan [--seeds N]    run N random programs (100) under ThreadSanitizer; needs the sources of the
                    standard library (rustup component add rust-src)
header              write the headers in include/ from the source
python              write the interface for Python's ctypes in python/src/libdist/ from the source
reference           write the reference pages in docs/reference/ from the headers, the table of
                    algorithms and the command lines of the programs
plots               draw the plots of the summary in BENCHMARKS.md from the tables of the page
docs                build the book from docs/ with mdBook, with a page for each function, and check
                    its links; build mdBook first if it is not installed
support-table       write the table of operations that back ends support into docs/backends.md
interop [--venv DIR] [--nccl FILE] [--only WORDS] [--no-install]
                    run torch's store clients on libdist's server, libdist's clients on torch's
                    server, both on one server, and libdist programs under torchrun, Open MPI and
                    MPICH; check the functions of NCCL in FILE; download torch (large) into
                    .interop, or use the environment in DIR; WORDS is a part of a case's name
torch [--venv DIR] [--all] [--subclass python|cxx] [--only WORDS] [--exits N]
                    install the Python package, and run PyTorch's own tests of back ends on 3, 4
                    and 8 ranks and the tests in python/tests/torch_*.py, with both subclasses;
                    WORDS is a part of the name of a part, such as suite, training, failures, exits
                    or speed; N is the number of runs in the part exits (100);
                    --all measures the speed, too, and makes 200 runs in the part exits
integrations [--only WORDS] [--subclass python|cxx]
                    test the Python package inside LightGBM, Ray, torchft and Accelerate, and the
                    blocks of docs/integrations.md; download them and torch (large); WORDS is a
                    part of the name of a part: lightgbm, ray, torchft, accelerate, documents, or
                    speed (on request only: LightGBM against its own sockets)
cost [--against TREE]
                    count the instructions of a 4-byte all_reduce, send and recv under callgrind;
                    compare them with another source tree, whose release library must be built;
                    fail if a count grew by more than 2 %; needs valgrind
cross [--only emulator|unit|programs|conformance] [--write]
                    build for aarch64, and run the unit tests, the C programs and the conformance suite
                    under qemu-user; prove the limits of the emulator; fail if a test fails that is not
                    in the list of exceptions, or if a listed test passes or does not exist; --write
                    writes the results into docs/aarch64.md; needs a cross compiler, qemu-user and
                    rustc's standard library for aarch64
audit [--offline | --if-reachable] [--no-install]
                    check the packages of all workspaces: licences and sources (deny.toml) with
                    cargo-deny, and published weaknesses with cargo-deny and cargo-audit; install
                    both first; --offline omits the weaknesses, whose database is on github.com
bench-store [--venv DIR] [--pairs N] [--tcp] [--quick] [--write]
                    compare libdist's store with torch's in alternating runs (10 pairs); --tcp
                    connects libdist's clients through TCP instead of its Unix socket, --quick
                    runs a functional check, --write writes the table into BENCHMARKS.md
package [--only NAME] [--into FOLDER]
                    make the packages in FOLDER (target/package), and install and use each of them in
                    an empty folder: tarball, debian (needs debhelper and lintian), wheel, and sbom,
                    the bills of materials; check the recipe conan; NAME is one of them
wheel [--into FOLDER]
                    build the wheel of the Python package for manylinux_2_28 with cargo-zigbuild into
                    FOLDER (python/dist), and check it with auditwheel; download the tools
help                print this text
";

/// The result of a command. `Ok` contains true if all checks passed. `Err` contains the reason why
/// the command could not run.
type CommandResult = Result<bool, String>;

/// The number of descriptors that a process of the tests may open. The usual soft limit, 1,024, is
/// too low.
const OPEN_FILES: u64 = 65_536;

fn main() -> ExitCode {
    // The children of this process inherit the limit. If the hard limit is lower, this call raises
    // the soft limit to the hard limit.
    if let Err(cause) = rlimit::increase_nofile_limit(OPEN_FILES) {
        eprintln!("xtask: cannot raise the limit of open files: {cause}");
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
        "audit" => audit::main(rest),
        "demo" => demo::main(rest),
        "docs" => docs::main(rest),
        "test" => test::main(rest),
        "chaos" => chaos::main(rest),
        "fuzz" => fuzz::main(rest),
        "gpu" => gpu::main(rest),
        "conformance" => conformance::main(rest),
        "cost" => cost::main(rest),
        "cross" => cross::main(rest),
        "loom" => loom::main(rest),
        "miri" => miri::main(rest),
        "mpi" => mpi::main(rest),
        "package" => package::main(rest),
        "random" => random::main(rest),
        "tsan" => tsan::main(rest),
        "ucc" => ucc::main(rest),
        "wheel" => wheel::main(rest),
        "header" => generated_files::update_headers(rest),
        "python" => generated_files::update_python(rest),
        "reference" => generated_files::update_reference(rest),
        "plots" => generated_files::update_plots(rest),
        "support-table" => generated_files::update_support_table(rest),
        "integrations" => integrations::main(rest),
        "interop" => interop::main(rest),
        "torch" => torch_suite::main(rest),
        "bench-store" => bench_store::main(rest),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(true)
        }
        other => Err(format!("unknown command \"{other}\"; `cargo xtask help` lists the commands")),
    }
}

/// The parser for the arguments of a command. It takes `--name value` pairs and flags. If arguments
/// remain, it returns an error.
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
