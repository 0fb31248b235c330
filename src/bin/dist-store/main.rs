//! dist-store: looks into the store of a job that does not come up, changes it, hosts one, measures
//! one.
//!
//! | file | what it is |
//! |---|---|
//! | `cli` | the command line |
//! | `client` | reaching the store, and what several commands ask of it |
//! | `keys` | get, set, add, wait, list |
//! | `watch` | telling what changes |
//! | `stats` | what is in the store, and who has come |
//! | `bench` | what a call costs |
//! | `serve` | hosting a store |
//! | `formatting` | bytes, keys, ranks and times as people read them |
//!
//! The stores are the library's.

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

/// The answer is no, or dist-store itself failed.
const EXIT_FAILURE: u8 = 1;
const EXIT_USAGE: u8 = 2;
const EXIT_UNREACHABLE: u8 = 3;
const EXIT_TIMED_OUT: u8 = 4;

/// Why a command ends, and the exit status that tells so.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub(crate) status: u8,
    /// The reason; empty where nobody is to be told.
    pub(crate) message: String,
}

impl Failure {
    /// A failure with this status.
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

/// What a command returns: its exit status.
pub(crate) type CommandResult = Result<u8, Failure>;

/// Writes to standard output, and has it on its way when it returns.
pub(crate) fn print(bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes.as_ref()).and_then(|()| out.flush()).map_err(|cause| match cause.kind() {
        // The reader has seen enough, as in `dist-store list | head`.
        io::ErrorKind::BrokenPipe => Failure::new(0, ""),
        _ => Failure::new(EXIT_FAILURE, format!("cannot write to standard output: {cause}")),
    })
}

/// Writes to standard error. If that is closed, there is nobody to tell.
pub(crate) fn write_error(text: &str) {
    drop(io::stderr().lock().write_all(text.as_bytes()));
}

/// Writes a message of dist-store's own to standard error.
pub(crate) fn report_error(message: &str) {
    write_error(&format!("dist-store: {message}\n"));
}

fn run(command: &Command) -> CommandResult {
    dist::base::debug::log_level_from_environment()?;
    if !log::is_level_set() {
        // What the library only warns of is what users of this program want to know.
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
            // Help goes to standard output, a complaint to standard error.
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
