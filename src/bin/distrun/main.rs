//! distrun: starts the ranks of a job on this host, hosts the job's store, passes on what the ranks
//! write, and says which of them failed first.
//!
//! | file | what it is |
//! |---|---|
//! | `cli` | the command line |
//! | `help`, `torchrun` | the text behind the options, and flags of torchrun that mean little here |
//! | `job` | one job from its start to its end: attempts, each with a store of its own |
//! | `attempt` | the ranks of this node, once from their start to their end |
//! | `secret` | the secret of the job's store |
//! | `streams` | which stream goes where: specs and log files |
//! | `line_splitter`, `output_forwarder` | cutting output into lines, and passing it on |
//! | `error_files` | the files in which ranks say why they fail |
//! | `report`, `clock` | what is said about a failure, and when it was |
//!
//! Starting, watching and ending processes is the library's `process` layer.

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

/// Why distrun itself fails, and the exit status that tells so.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub(crate) status: u8,
    /// The reason.
    pub(crate) message: String,
}

impl Failure {
    /// A failure with exit status 1.
    pub(crate) fn new(message: String) -> Self {
        Self { status: 1, message }
    }
}

impl From<dist::base::Error> for Failure {
    fn from(error: dist::base::Error) -> Self {
        Self::new(error.to_string())
    }
}

/// Writes to standard error. If that is closed, there is nobody to tell.
pub(crate) fn write_error(text: &str) {
    drop(std::io::stderr().lock().write_all(text.as_bytes()));
}

/// Writes a message of distrun's own to standard error.
pub(crate) fn report_error(message: &str) {
    write_error(&format!("distrun: {message}\n"));
}

fn main() -> ExitCode {
    let options = match cli::Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            // Help goes to standard output, a complaint to standard error.
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
