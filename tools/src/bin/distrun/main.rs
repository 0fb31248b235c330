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
//! | `report` | the report of a failure, with times of day |
//!
//! The layer `process` of the library starts, supervises and ends processes.

mod attempt;
mod cli;
mod error_files;
mod help;
mod job;
mod line_splitter;
mod output_forwarder;
mod report;
mod secret;
mod streams;
mod torchrun;

use dist_tools::Failure;
use std::process::ExitCode;

/// Writes a message of distrun itself to standard error.
pub(crate) fn report_error(message: &str) {
    dist_tools::report_error("distrun", message);
}

/// Returns the description of the command line. The generator of the manual pages calls this
/// function, too.
pub fn command() -> clap::Command {
    <cli::Options as clap::CommandFactory>::command()
}

/// Runs distrun. The bundle of the Python package calls this function, too.
pub fn main() -> ExitCode {
    dist_tools::run_program(command(), |options: &cli::Options| {
        options.check().map_err(Failure::usage)?;
        job::run(options)
    })
}
