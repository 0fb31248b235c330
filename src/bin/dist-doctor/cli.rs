//! The command line. Without a command, the verdict runs.

use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;

const HELP: &str = "\
Dumps:
  A process writes the last 2000 operations that it has carried out to a file when one of its groups fails,
  where DIST_FLIGHT_RECORDER_FILE=PREFIX is set (rank 3 writes PREFIX3.json), and when a file appears, where
  DIST_FLIGHT_RECORDER_TRIGGER=PATH is set too: \"touch PATH\" makes every rank of a job that hangs write its
  dump. A program may also write what dist_flight_recorder_dump gives it.

Exit statuses:
  0    nothing wrong was found
  1    a culprit was found
  2    wrong usage, or no dump that can be read

Examples:
  The dumps of all ranks, by their prefix, by their folder, or one by one:
    dist-doctor /tmp/fr_
    dist-doctor /tmp/dumps/
    dist-doctor fr_0.json fr_1.json fr_2.json
  The same for a program:
    dist-doctor --json /tmp/fr_
  A job that hangs and was started with both variables:
    touch /tmp/dump_now; sleep 2; dist-doctor /tmp/fr_
  One trace of those that ranks wrote with DIST_TRACE_FILE=/tmp/tr_:
    dist-doctor trace -o merged.json /tmp/tr_";

/// Reads the flight recorder's dumps of all ranks of a job, and says who is to blame.
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
    /// Say who is behind, who called something else, who died, who was slow, and where each rank is
    Verdict(VerdictOptions),
    /// Merge the traces of all ranks into one on a common clock, for Perfetto
    Trace(crate::trace::TraceOptions),
}

/// `dist-doctor verdict`.
#[derive(Debug, Args)]
pub(crate) struct VerdictOptions {
    /// Dumps, folders of dumps, or what the names of all dumps begin with
    #[arg(value_name = "FILE|FOLDER|PREFIX")]
    pub(crate) places: Vec<OsString>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn parse(line: &str) -> Result<VerdictOptions, clap::Error> {
        let options = Options::try_parse_from(line.split(' '))?;
        Ok(match options.command {
            Some(Command::Verdict(verdict)) => verdict,
            Some(Command::Trace(_)) => panic!("no verdict was asked for"),
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
            assert_eq!(verdict.places, ["a", "b"]);
            assert!(verdict.json);
        }
        assert_eq!(parse("dist-doctor a --jso").unwrap_err().exit_code(), 2);
    }
}
