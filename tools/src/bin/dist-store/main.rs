//! dist-store: shows and changes the contents of a job's store (for example of a job that does not
//! start), hosts a store, or measures the latency of a store.
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
//! The library `dist` implements the stores.

mod bench;
mod cli;
mod client;
mod formatting;
mod keys;
mod serve;
mod stats;
mod watch;

use cli::Command;
use dist::base::error::{Error, ErrorKind};
use dist::base::log::{self, LogLevel};
use dist_tools::{EXIT_FAILURE, EXIT_USAGE};
use std::process::ExitCode;

const EXIT_UNREACHABLE: u8 = 3;
const EXIT_TIMED_OUT: u8 = 4;

/// The reason why a command ends early, and its exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub(crate) status: u8,
    /// The message for the user. An empty message is not printed.
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

impl From<Failure> for dist_tools::Failure {
    fn from(Failure { status, message }: Failure) -> Self {
        Self { status, message }
    }
}

/// The result of a command. `Ok` contains its exit status.
pub(crate) type CommandResult = Result<u8, Failure>;

/// Writes to standard output and flushes it.
pub(crate) fn print(bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
    dist_tools::write_output(bytes).map_err(|failure| Failure::new(failure.status, failure.message))
}

/// Writes a message of dist-store itself to standard error.
pub(crate) fn report_error(message: &str) {
    dist_tools::report_error("dist-store", message);
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

/// Returns the description of the command line. The generator of the manual pages calls this
/// function, too.
pub fn command() -> clap::Command {
    <cli::Options as clap::CommandFactory>::command()
}

/// Runs dist-store. The bundle of the Python package calls this function, too.
pub fn main() -> ExitCode {
    dist_tools::run_program(command(), |options: &cli::Options| run(&options.command))
}
