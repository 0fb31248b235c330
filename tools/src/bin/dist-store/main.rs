//! dist-store: inspects the store of a job that does not start, changes it, hosts a store, or
//! measures one.
//!
//! | file | content |
//! |---|---|
//! | `cli` | the command line |
//! | `client` | the connection to the store, and queries that several commands use |
//! | `keys` | get, set, add, wait, list |
//! | `watch` | printing changes |
//! | `stats` | the contents of the store, and the ranks that have joined |
//! | `bench` | the latency of calls |
//! | `serve` | hosting a store |
//! | `formatting` | formatting bytes, keys, ranks and times for users |
//!
//! The library implements the stores.

mod bench;
mod cli;
mod client;
mod formatting;
mod keys;
mod serve;
mod stats;
mod watch;

use clap::Parser as _;
use cli::Command;
use dist::base::error::{Error, ErrorKind};
use dist::base::log::{self, LogLevel};
use std::io::{self, Write as _};
use std::process::ExitCode;

/// The condition is false, or dist-store itself failed.
const EXIT_FAILURE: u8 = 1;
const EXIT_USAGE: u8 = 2;
const EXIT_UNREACHABLE: u8 = 3;
const EXIT_TIMED_OUT: u8 = 4;

/// The reason why a command ends early, and its exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub(crate) status: u8,
    /// The message for the user; empty if there is nothing to print.
    pub(crate) message: String,
}

impl Failure {
    /// Creates a failure with this status.
    pub(crate) fn new(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::Timeout => EXIT_TIMED_OUT,
            ErrorKind::Connection | ErrorKind::Auth => EXIT_UNREACHABLE,
            ErrorKind::InvalidArgument => EXIT_USAGE,
            _ => EXIT_FAILURE,
        };
        Self::new(status, error.to_string())
    }
}

/// The result of a command: its exit status.
pub(crate) type CommandResult = Result<u8, Failure>;

/// Writes to standard output and flushes it.
pub(crate) fn print(bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes.as_ref()).and_then(|()| out.flush()).map_err(|cause| match cause.kind() {
        // The reader has closed the pipe, as in `dist-store list | head`.
        io::ErrorKind::BrokenPipe => Failure::new(0, ""),
        _ => Failure::new(EXIT_FAILURE, format!("cannot write to standard output: {cause}")),
    })
}

/// Writes to standard error, and ignores a closed stream.
pub(crate) fn write_error(text: &str) {
    drop(io::stderr().lock().write_all(text.as_bytes()));
}

/// Writes a message of dist-store itself to standard error.
pub(crate) fn report_error(message: &str) {
    write_error(&format!("dist-store: {message}\n"));
}

fn run(command: &Command) -> CommandResult {
    dist::base::debug::log_level_from_environment()?;
    if !log::is_level_set() {
        // Show the library's warnings, which users of this program need.
        log::set_level(LogLevel::Warn);
    }
    match command {
        Command::Serve(options) => serve::run(options),
        Command::Get(options) => keys::get(options),
        Command::Set(options) => keys::set(options),
        Command::Add(options) => keys::add(options),
        Command::Wait(options) => keys::wait(options),
        Command::List(options) => keys::list(options),
        Command::Watch(options) => watch::run(options),
        Command::Stats(options) => stats::run(options),
        Command::Bench(options) => bench::run(options),
    }
}

fn main() -> ExitCode {
    let options = match cli::Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            // clap prints help to standard output and errors to standard error.
            drop(error.print());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(EXIT_USAGE));
        }
    };
    match run(&options.command) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            if !failure.message.is_empty() {
                report_error(&failure.message);
            }
            ExitCode::from(failure.status)
        }
    }
}
