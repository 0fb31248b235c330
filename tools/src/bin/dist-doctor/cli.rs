//! The command line. The default command is `verdict`, which names the rank that stopped a job.

use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

const HELP: &str = "\
Dumps:
  If DIST_FLIGHT_RECORDER_FILE=PREFIX is set, a process writes its last 2000 operations into a file
  when one of its groups fails (rank 3 writes PREFIX3.json). If DIST_FLIGHT_RECORDER_TRIGGER=PATH is
  set too, it also writes them when the file PATH appears: \"touch PATH\" makes every rank of a
  hanging job write its dump. A program can also write the text from dist_flight_recorder_dump.
  --pid asks running processes, which need none of these variables. Each process that is in a group
  answers programs of the same user and of root, in the same network namespace (container).

Exit statuses:
  0    no fault found
  1    a fault found
  2    wrong usage, or no readable dump

Examples:
  Read the dumps of all ranks, by prefix, by folder, or one by one:
    dist-doctor /tmp/fr_
    dist-doctor /tmp/dumps/
    dist-doctor fr_0.json fr_1.json fr_2.json
  Diagnose a hanging job of this host, by the launcher or by the ranks:
    dist-doctor --pid $(pidof distrun)
    dist-doctor --pid 4711 4712 4713
  Print the verdict as JSON:
    dist-doctor --json /tmp/fr_
  Write a page with the operations of all ranks over time:
    dist-doctor --html hang.html /tmp/fr_
  Diagnose a hanging job that was started with both variables:
    touch /tmp/dump_now; sleep 2; dist-doctor /tmp/fr_
  Merge the traces that ranks wrote with DIST_TRACE_FILE=/tmp/tr_:
    dist-doctor trace -o merged.json /tmp/tr_";

/// Reads the flight recorder dumps of all ranks of a job, and names the culprits.
#[derive(Debug, Parser)]
#[command(name = "dist-doctor", version, after_long_help = HELP, max_term_width = 100)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    #[command(flatten)]
    pub(crate) verdict: VerdictOptions,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Name ranks that are behind, called another operation, died or were slow, and show the
    /// current activity of each rank
    Verdict(VerdictOptions),
    /// Merge the traces of all ranks into one on a common clock, for Perfetto
    Trace(crate::trace::TraceOptions),
}

/// `dist-doctor verdict`.
#[derive(Debug, Args)]
pub(crate) struct VerdictOptions {
    /// Dumps, folders with dumps, or the common prefix of the names of all dumps
    #[arg(value_name = "FILE|FOLDER|PREFIX")]
    pub(crate) inputs: Vec<OsString>,

    /// Running processes of this user, in place of dumps: the ranks of this host, or their
    /// launcher. They need no variable
    #[arg(long = "pid", value_name = "PID", num_args = 1.., conflicts_with = "inputs")]
    pub(crate) pids: Vec<u32>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Also write a page for a browser: the verdict, which rank waits for which rank, and the
    /// operations of each rank over time. The page needs no other file and no network
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn parse(line: &str) -> Result<VerdictOptions, clap::Error> {
        let options = Options::try_parse_from(line.split(' '))?;
        Ok(match options.command {
            Some(Command::Verdict(verdict)) => verdict,
            Some(Command::Trace(_)) => panic!("the command is not `verdict`"),
            None => options.verdict,
        })
    }

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn verdict_is_the_default_command() {
        for line in ["dist-doctor a b --json", "dist-doctor verdict --json a b"] {
            let verdict = parse(line).unwrap();
            assert_eq!(verdict.inputs, ["a", "b"]);
            assert!(verdict.json);
        }
        assert_eq!(parse("dist-doctor --pid 17 18 --json").unwrap().pids, [17, 18]);
        assert_eq!(parse("dist-doctor --pid 17 --pid 18").unwrap().pids, [17, 18]);
        assert_eq!(parse("dist-doctor a --jso").unwrap_err().exit_code(), 2);
    }
}
