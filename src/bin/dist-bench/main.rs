//! dist-bench: what the operations cost on this machine, and beside them what they cost in other
//! libraries.
//!
//! | file | what it is |
//! |---|---|
//! | `cli`, `help` | the command line |
//! | `ops`, `values` | the operations, and values by which results are checked |
//! | `request` | what ranks are told, and what they answer |
//! | `engine_index` | rank processes that stay alive and obey; what makes them |
//! | `libdist_engine`, `rank` | libdist's engine, and its ranks |
//! | `peer_library` | the libraries that ours is compared with |
//! | `mpi`, `mpi_engines/mpi.c` | engines that speak MPI |
//! | `gloo`, `mpi_engines/gloo.py`, `mpi_engines/gloo.cc` | engines of Gloo |
//! | `peer_programs`, `mpi_engines/rank.h` | how their programs are made, and what those in C and C++ have in common |
//! | `run_context` | the processes and the folder of a run |
//! | `cell`, `measure` | what is measured, and how: in turns, repeated until it is certain |
//! | `against` | the ranks of another tree's dist-bench in turns with ours, and whether this tree is slower |
//! | `training` | the reducer and other libraries in a training step |
//! | `tune_ranks` | the algorithms of ours in turns, and the tuning file that is made of it |
//! | `machine_limits`, `machine` | what the machine itself allows, and which one it is |
//! | `stats` | medians, percentiles, ratios and their intervals |
//! | `bound_label`, `bound_share` | what an all_reduce takes that is made by hand, and how ours compares with it |
//! | `table`, `result_files`, `progress` | what is printed and written |
//! | `results_reader`, `report` | files that were written, and the report that is made of them |
//! | `shares_text` | sizes and times as people read them |
//!
//! The driver computes every figure of every engine from the same raw stamps by the same code.

mod against;
mod bound;
mod bound_share;
mod cell;
mod cli;
mod engine;
mod gloo;
mod help;
mod libdist_engine;
mod machine;
mod machine_limits;
mod measure;
mod memory_fragments;
mod mpi;
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
mod values;

use clap::Parser as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// A result was wrong, or dist-bench itself failed.
const EXIT_FAILURE: u8 = 1;
const EXIT_USAGE: u8 = 2;

/// Why dist-bench ends, and the exit status that tells so.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub(crate) status: u8,
    /// The reason; empty where nobody is to be told.
    pub(crate) message: String,
}

impl Failure {
    /// A failure with exit status 1.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { status: EXIT_FAILURE, message: message.into() }
    }

    /// A command line that means nothing.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { status: EXIT_USAGE, message: message.into() }
    }

    /// True where somebody wants this process to end.
    pub(crate) fn is_signal(&self) -> bool {
        self.status > 128
    }
}

impl From<dist::base::Error> for Failure {
    fn from(error: dist::base::Error) -> Self {
        Self::new(error.to_string())
    }
}

/// A signal has come.
pub(crate) fn signal_failure(signal: i32) -> Failure {
    let status = u8::try_from(128 + signal).unwrap_or(u8::MAX);
    let message = format!("{} received", dist::process::process_exit::signal_name(signal));
    Failure { status, message }
}

/// Writes to standard output, and has it on its way when it returns.
pub(crate) fn write_output(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|cause| match cause.kind() {
        // The reader has seen enough, as in `dist-bench | table_header`.
        io::ErrorKind::BrokenPipe => Failure { status: 0, message: String::new() },
        _ => Failure::new(format!("cannot write to standard output: {cause}")),
    })
}

/// Writes to standard error. If that is closed, there is nobody to tell.
pub(crate) fn write_error(text: &str) {
    drop(io::stderr().lock().write_all(text.as_bytes()));
}

/// Writes a message of dist-bench's own to standard error.
pub(crate) fn report_error(message: &str) {
    write_error(&format!("dist-bench: {message}\n"));
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match words.split_first() {
        Some((first, rest)) if first == libdist_engine::AS_RANK => Some(rank::run_rank(rest)),
        Some((first, rest)) if first == bound::AS_BOUND => Some(bound::run_rank(rest)),
        Some((first, rest)) if first == training::AS_TRAINER => Some(training::run_trainer(rest)),
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
    let options = match cli::Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            // Help goes to standard output, a complaint to standard error.
            drop(error.print());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(EXIT_USAGE));
        }
    };
    match run_command(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                report_error(&failure.message);
            }
            ExitCode::from(failure.status)
        }
    }
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
