//! dist-doctor: reads the flight recorder dumps and traces of all ranks of a job, and diagnoses
//! faults.
//!
//! | file | content |
//! |---|---|
//! | `cli` | the command line |
//! | `input_files` | finding the input files, and reading them with bounds |
//! | `running` | the dumps of running processes |
//! | `recorder_dump` | parsing and checking one dump |
//! | `job` | the dumps of all ranks, combined by group |
//! | `verdict` | the diagnosis from the dumps |
//! | `trace` | merging the traces of all ranks |
//! | `text` | formatting ranks, times and untrusted texts |
//!
//! The input files may be damaged or manipulated. So the program limits how much it reads, and each
//! error names the file.

mod cli;
mod input_files;
mod job;
mod recorder_dump;
mod running;
#[cfg(test)]
mod sample_dumps;
mod text;
mod trace;
mod verdict;

use cli::Command;
use dist_tools::Failure;
use std::process::ExitCode;

/// The result of a command: its exit status.
pub(crate) type CommandResult = Result<u8, Failure>;

/// Writes to standard output and flushes it.
pub(crate) fn write_output(text: &str) -> Result<(), Failure> {
    dist_tools::write_output(text).map_err(|failure| match failure.status {
        0 => failure,
        _ => Failure::usage(failure.message),
    })
}

/// Writes a message of dist-doctor itself to standard error, and ignores a closed stream.
pub(crate) fn report_error(message: &str) {
    dist_tools::report_error("dist-doctor", message);
}

/// Returns the description of the command line. The generator of the manual pages calls this
/// function, too.
pub fn command() -> clap::Command {
    <cli::Options as clap::CommandFactory>::command()
}

/// Runs dist-doctor. The bundle of the Python package calls this function, too.
pub fn main() -> ExitCode {
    dist_tools::run_program(command(), |options: &cli::Options| match &options.command {
        Some(Command::Verdict(options)) => verdict::main(options),
        Some(Command::Trace(options)) => trace::main(options),
        None => verdict::main(&options.verdict),
    })
}
