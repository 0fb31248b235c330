//! dist-doctor: reads the flight recorder dumps and traces of all ranks of a job, and diagnoses
//! faults.
//!
//! | file | content |
//! |---|---|
//! | `cli` | the command line |
//! | `input_files` | finding the input files, and reading them with bounds |
//! | `recorder_dump` | parsing and checking one dump |
//! | `job` | the dumps of all ranks, combined by group |
//! | `verdict` | the diagnosis from the dumps |
//! | `trace` | merging the traces of all ranks |
//! | `text` | formatting ranks, times and untrusted texts |
//!
//! It trusts no file: it reads every file with bounds, and names the file in each error.

mod cli;
mod input_files;
mod job;
mod recorder_dump;
#[cfg(test)]
mod sample_dumps;
mod text;
mod trace;
mod verdict;

use clap::Parser as _;
use cli::Command;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// The exit status for wrong usage or missing input.
const EXIT_UNUSABLE: u8 = 2;

/// The reason why a command ends without a result, and its exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub(crate) status: u8,
    /// The message for the user; empty if there is nothing to print.
    pub(crate) message: String,
}

impl Failure {
    /// Creates a failure for unusable input.
    pub(crate) fn unusable(message: impl Into<String>) -> Self {
        Self { status: EXIT_UNUSABLE, message: message.into() }
    }
}

/// The result of a command: its exit status.
pub(crate) type CommandResult = Result<u8, Failure>;

/// Writes to standard output and flushes it.
pub(crate) fn write_output(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|cause| match cause.kind() {
        // The reader has closed the pipe, as in `dist-doctor ... | head`.
        io::ErrorKind::BrokenPipe => Failure { status: 0, message: String::new() },
        _ => Failure::unusable(format!("cannot write to standard output: {cause}")),
    })
}

/// Writes a message of dist-doctor itself to standard error, and ignores a closed stream.
pub(crate) fn report_error(message: &str) {
    drop(io::stderr().lock().write_all(format!("dist-doctor: {message}\n").as_bytes()));
}

fn main() -> ExitCode {
    let options = match cli::Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            // clap prints help to standard output and errors to standard error.
            drop(error.print());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(EXIT_UNUSABLE));
        }
    };
    let outcome = match &options.command {
        Some(Command::Verdict(options)) => verdict::main(options),
        Some(Command::Trace(options)) => trace::main(options),
        None => verdict::main(&options.verdict),
    };
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            if !failure.message.is_empty() {
                report_error(&failure.message);
            }
            ExitCode::from(failure.status)
        }
    }
}
