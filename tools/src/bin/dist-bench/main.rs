//! dist-bench: measures the time of libdist's operations on this machine, and compares it with
//! other libraries.
//!
//! | file | content |
//! |---|---|
//! | `cli`, `help` | the command line |
//! | `ops`, `values` | the operations, and the values that verify results |
//! | `offsets` | the offsets of buffers in their pages |
//! | `request` | the requests to ranks, and their responses |
//! | `engine` | rank processes that stay alive and execute requests |
//! | `libdist` | the functions of the library |
//! | `libdist_engine`, `rank` | libdist's engine, and its ranks |
//! | `peer_library` | the libraries that libdist is compared with |
//! | `mpi`, `peers/mpi.c` | engines that use MPI |
//! | `gloo`, `peers/gloo.py`, `peers/gloo.cc` | engines of Gloo |
//! | `peer_programs`, `peers/rank.h` | compiling peer programs; the common part in C and C++ |
//! | `run_context` | the processes and the folder of a run |
//! | `cell`, `measure` | the cells, and their measurement in alternating runs until conclusive |
//! | `against` | the comparison of this tree with another tree's dist-bench |
//! | `training` | the reducer and other libraries in a training step |
//! | `tune` | the comparison of libdist's algorithms, and the resulting tuning file |
//! | `machine_limits`, `machine` | the limits of the machine, and its description |
//! | `stats` | medians, percentiles, ratios and their intervals |
//! | `bound`, `bound_share` | a handwritten all_reduce as a lower bound, and the distance to it |
//! | `table`, `result_files`, `progress` | printed tables, written files, progress |
//! | `results_reader`, `report` | reading written files, and building the report |
//! | `text` | formatting and parsing sizes and times |
//!
//! The *driver* is the process that the user starts. It starts rank processes. An *engine* is a
//! library and a way to start its ranks, for example libdist or an MPI library. The ranks of every
//! engine record the start and the end of each call as raw time stamps. The driver computes all
//! results from these stamps, with the same code for all engines.

mod against;
mod bound;
mod bound_share;
mod cell;
mod cli;
mod engine;
mod gloo;
mod help;
mod libdist;
mod libdist_engine;
mod machine;
mod machine_limits;
mod measure;
mod memory_fragments;
mod mpi;
mod offsets;
mod ops;
mod peer_library;
mod peer_programs;
mod progress;
mod rank;
mod report;
mod request;
mod result_files;
mod results_reader;
mod run_context;
mod stats;
mod table;
mod text;
mod training;
mod tune;
mod ucc;
mod values;

use dist_tools::{EXIT_FAILURE, Failure};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Creates a failure for a received signal.
pub(crate) fn signal_failure(signal: i32) -> Failure {
    let status = u8::try_from(128 + signal).unwrap_or(u8::MAX);
    let message = format!("{} received", dist::process::process_exit::signal_name(signal));
    Failure { status, message }
}

/// Writes a message of dist-bench itself to standard error.
pub(crate) fn report_error(message: &str) {
    dist_tools::report_error("dist-bench", message);
}

/// Returns the command that starts this program, or the program of another tree, again. The name in
/// `argv[0]` selects dist-bench in a file that contains several programs.
pub(crate) fn own_command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg0("dist-bench");
    command
}

/// Returns the description of the command line. The generator of the manual pages calls this
/// function, too.
pub fn command() -> clap::Command {
    <cli::Options as clap::CommandFactory>::command()
}

/// Runs dist-bench. The bundle of the Python package calls this function, too.
pub fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let run = |rank: fn(&[String]) -> Result<(), String>, rest: &[String]| {
        libdist::load().map_err(|what| format!("libdist cannot be loaded: {what}"))?;
        rank(rest)
    };
    let outcome = match words.split_first() {
        Some((first, rest)) if first == libdist_engine::AS_RANK => Some(run(rank::run_rank, rest)),
        Some((first, rest)) if first == bound::AS_BOUND => Some(bound::run_rank(rest)),
        Some((first, rest)) if first == training::AS_TRAINER => {
            Some(run(training::run_trainer, rest))
        }
        _ => None,
    };
    match outcome {
        Some(Ok(())) => return ExitCode::SUCCESS,
        Some(Err(message)) => {
            report_error(&message);
            return ExitCode::from(EXIT_FAILURE);
        }
        None => {}
    }
    dist_tools::run_program(command(), |options: &cli::Options| run_command(options).map(|()| 0))
}

fn run_command(options: &cli::Options) -> Result<(), Failure> {
    options.check_combination().map_err(Failure::usage)?;
    if options.training.training {
        return training::run(options);
    }
    if let Some(path) = &options.tune {
        return tune::run(options, path);
    }
    if let Some(tree) = &options.against {
        return against::run(options, tree);
    }
    match &options.report {
        Some(path) if !options.report_from.is_empty() => {
            report::write_report_from_files(path, &options.report_from)
        }
        _ => measure::run(options),
    }
}
