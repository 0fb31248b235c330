//! distrun: starts the ranks of a job on this host, hosts the job's store, forwards the ranks'
//! output, and reports which rank failed first.
//!
//! | file | content |
//! |---|---|
//! | `cli` | the command line |
//! | `help`, `torchrun` | the help text after the options; torchrun's flags with little effect |
//! | `job` | one job: its attempts, each with a store of its own |
//! | `attempt` | one attempt: the ranks of this node from their start to their exit |
//! | `secret` | the secret of the job's store |
//! | `streams` | the routes of output streams, and the log files |
//! | `line_splitter`, `output_forwarder` | splitting output into lines, and forwarding it |
//! | `error_files` | the files into which ranks write their errors |
//! | `report`, `clock` | the report of a failure, with times of day |
//!
//! The library's `process` layer starts, supervises and ends processes.

mod attempt;
mod cli;
mod clock;
mod error_files;
mod help;
mod job;
mod line_splitter;
mod output_forwarder;
mod report;
mod secret;
mod streams;
mod torchrun;

use clap::Parser as _;
use std::io::Write as _;
use std::process::ExitCode;

/// A failure of distrun itself, with its exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub(crate) status: u8,
    /// The reason.
    pub(crate) message: String,
}

impl Failure {
    /// Creates a failure with exit status 1.
    pub(crate) fn new(message: String) -> Self {
        Self { status: 1, message }
    }
}

impl From<dist::base::Error> for Failure {
    fn from(error: dist::base::Error) -> Self {
        Self::new(error.to_string())
    }
}

/// Writes to standard error, and ignores a closed stream.
pub(crate) fn write_error(text: &str) {
    drop(std::io::stderr().lock().write_all(text.as_bytes()));
}

/// Writes a message of distrun itself to standard error.
pub(crate) fn report_error(message: &str) {
    write_error(&format!("distrun: {message}\n"));
}

fn main() -> ExitCode {
    let options = match cli::Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            // clap prints help to standard output and errors to standard error.
            drop(error.print());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    if let Err(message) = options.check() {
        report_error(&message);
        return ExitCode::from(2);
    }
    match job::run(&options) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            report_error(&failure.message);
            ExitCode::from(failure.status)
        }
    }
}
