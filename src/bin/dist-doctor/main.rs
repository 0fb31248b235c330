//! dist-doctor: reads what the flight recorders of all ranks of a job have written, and says what
//! happened.
//!
//! | file | what it is |
//! |---|---|
//! | `cli` | the command line |
//! | `input_files` | which files are meant, and reading them within bounds |
//! | `recorder_dump` | one dump, taken apart and checked |
//! | `job` | the dumps of all ranks, brought together by group |
//! | `verdict` | who is to blame, from the dumps |
//! | `trace` | one trace of those of all ranks |
//! | `text` | ranks, times and foreign texts as people read them |
//!
//! It trusts no file: whatever is in one, it is read within bounds and refused with its name.

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

/// Wrong usage, or nothing to read.
const EXIT_UNUSABLE: u8 = 2;

/// Why a command ends without an answer, and the exit status that tells so.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub(crate) status: u8,
    /// The reason; empty where nobody is to be told.
    pub(crate) message: String,
}

impl Failure {
    /// What was given cannot be used.
    pub(crate) fn unusable(message: impl Into<String>) -> Self {
        Self { status: EXIT_UNUSABLE, message: message.into() }
    }
}

/// What a command returns: its exit status.
pub(crate) type CommandResult = Result<u8, Failure>;

/// Writes to standard output, and has it on its way when it returns.
pub(crate) fn write_output(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|cause| match cause.kind() {
        // The reader has seen enough, as in `dist-doctor ... | head`.
        io::ErrorKind::BrokenPipe => Failure { status: 0, message: String::new() },
        _ => Failure::unusable(format!("cannot write to standard output: {cause}")),
    })
}

/// Writes a message of dist-doctor's own to standard error. If that is closed, there is nobody to
/// tell.
pub(crate) fn report_error(message: &str) {
    drop(io::stderr().lock().write_all(format!("dist-doctor: {message}\n").as_bytes()));
}

fn main() -> ExitCode {
    let options = match cli::Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            // Help goes to standard output, a complaint to standard error.
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
