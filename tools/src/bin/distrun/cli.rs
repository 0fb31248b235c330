//! The command line. It has torchrun's flags, so that a user of torchrun only replaces the name of
//! the program.
//!
//! This module only parses and checks options.

use crate::help::{HELP, USAGE};
use crate::streams::{LocalRankList, StreamSpec};
use crate::torchrun::{self, RendezvousEndpoint, TorchrunOptions};
use clap::Parser;
use dist::process::guardian::MAX_GROUPS;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::str::FromStr;

/// The default port of the store, which is also torchrun's default. It is used if the nodes of a
/// job must agree on a port before the start.
const DEFAULT_PORT: u16 = 29500;

/// Starts the ranks of a job on this host, forwards their output, and reports the rank that failed
/// first.
#[derive(Debug, Parser)]
#[command(name = "distrun", version, after_long_help = HELP, override_usage = USAGE, max_term_width = 100)]
pub(crate) struct Options {
    /// Ranks on this node: a number, `cpu` (one for each core that may be used), `gpu` (one for
    /// each NVIDIA GPU), or `auto` (gpu if the host has one, else cpu)
    #[arg(long, alias = "nproc_per_node", value_name = "N", default_value = "1")]
    pub(crate) nproc_per_node: LocalRankCount,

    /// Nodes of the job
    #[arg(long, value_name = "N", default_value = "1", value_parser = nnodes)]
    pub(crate) nnodes: usize,

    /// Number of this node, from 0; node 0 hosts the store [default: 0]
    #[arg(long, alias = "node_rank", value_name = "R")]
    node_rank: Option<usize>,

    /// Address of node 0, on which its store listens [default: 127.0.0.1]
    #[arg(long, alias = "master_addr", value_name = "ADDRESS")]
    pub(crate) master_addr: Option<String>,

    /// Port of the store [default: 29500, or any free one for a job of one node without an address]
    #[arg(long, alias = "master_port", value_name = "PORT")]
    pub(crate) master_port: Option<u16>,

    /// A job of this node alone, with a store on a free port of 127.0.0.1; the default if no nodes,
    /// address or port are given
    #[arg(long, conflicts_with_all = ["master_addr", "master_port", "rdzv_endpoint"])]
    pub(crate) standalone: bool,

    /// Maximum number of restarts of all ranks after a rank has failed; for jobs of one node
    #[arg(long, alias = "max_restarts", value_name = "N", default_value = "0")]
    pub(crate) max_restarts: u32,

    /// Action when a rank fails: `end` ends the other ranks, `continue` lets the job continue while
    /// at least --min-ranks ranks of this node have not failed
    #[arg(long, alias = "on_failure", value_name = "ACTION", default_value = "end")]
    pub(crate) on_failure: OnFailure,

    /// Number of ranks of this node that the job needs, with --on-failure=continue [default: 1]
    #[arg(long, alias = "min_ranks", value_name = "N")]
    pub(crate) min_ranks: Option<usize>,

    /// If true, ranks get their number on this node from LOCAL_RANK; if false, also from
    /// --local-rank=N as their last argument, as from torch.distributed.launch [default: true]
    #[arg(hide_short_help = true)]
    #[arg(long, alias = "use_env", value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "true", default_missing_value = "true", hide_default_value = true)]
    #[arg(value_parser = torchrun::truth, action = clap::ArgAction::Set)]
    pub(crate) use_env: bool,

    /// Value of ROLE_NAME
    #[arg(long, value_name = "NAME", default_value = "default", hide_short_help = true)]
    pub(crate) role: String,

    /// Time between the signal that ends the ranks and SIGKILL [default: 1 after a failure, 10
    /// after a signal]
    #[arg(long, alias = "shutdown_timeout", value_name = "SECONDS", hide_short_help = true)]
    pub(crate) shutdown_timeout: Option<u16>,

    /// File with the secret of the job's store, the same on every node, to which only its owner has
    /// access (mode 0600); required for several nodes [default: a new secret for a job of one node]
    #[arg(long, alias = "secret_file", value_name = "PATH")]
    pub(crate) secret_file: Option<PathBuf>,

    /// A job without a secret: each process that reaches its ports can join it. For ranks that use
    /// torch's own client
    #[arg(long, alias = "no_secret", conflicts_with = "secret_file")]
    pub(crate) no_secret: bool,

    /// Folder for the ranks' logs; created if it is missing
    #[arg(long, alias = "log_dir", value_name = "DIR")]
    pub(crate) log_dir: Option<PathBuf>,

    /// Streams that are both written to the logs and forwarded
    #[arg(short, long, value_name = "SPEC", requires = "log_dir")]
    pub(crate) tee: Option<StreamSpec>,

    /// Streams that are only written to the logs
    #[arg(short, long, value_name = "SPEC", requires = "log_dir")]
    pub(crate) redirects: Option<StreamSpec>,

    /// Local ranks whose output is forwarded, for example 0,1 [default: all]
    #[arg(long, alias = "local_ranks_filter", value_name = "RANKS", hide_short_help = true)]
    pub(crate) local_ranks_filter: Option<LocalRankList>,

    #[command(flatten)]
    torchrun: TorchrunOptions,

    /// The program, looked up in PATH, and its arguments
    // The program and its arguments are one list. Clap does not interpret the words after the first
    // value of a trailing list, so they can be flags of the program. With separate lists, clap
    // would interpret a word between the program and the second list.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// What happens when a rank fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OnFailure {
    /// The job ends.
    End,
    /// The job continues without the rank.
    Continue,
}

/// The number of ranks on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalRankCount(pub(crate) usize);

impl FromStr for LocalRankCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = match text {
            "cpu" => dist::sys::host::cores(),
            "gpu" => match count_gpus() {
                0 => return Err("there is no GPU on this host".to_owned()),
                count => count,
            },
            "auto" => match count_gpus() {
                0 => dist::sys::host::cores(),
                count => count,
            },
            number => {
                number.parse().map_err(|_| "expected a number, cpu, gpu or auto".to_owned())?
            }
        };
        if (1..=MAX_GROUPS).contains(&count) {
            return Ok(Self(count));
        }
        Err(format!("a node must have 1 to {MAX_GROUPS} ranks"))
    }
}

fn nnodes(text: &str) -> Result<usize, String> {
    if text.contains(':') {
        return Err("a range of nodes (an elastic job) is not supported".to_owned());
    }
    match text.parse() {
        Ok(0) => Err("a job has at least one node".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("expected a number".to_owned()),
    }
}

/// Counts the NVIDIA GPUs of this host: one for each device file `/dev/nvidiaN`.
fn count_gpus() -> usize {
    std::fs::read_dir("/dev").map_or(0, |entries| {
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let numbers = names.filter_map(|name| name.strip_prefix("nvidia")?.parse::<u32>().ok());
        numbers.count()
    })
}

/// The address of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MasterAddress {
    /// The host's name or address.
    pub(crate) address: String,
    /// The port. 0 means any free port.
    pub(crate) port: u16,
}

impl Options {
    /// Returns the program and its arguments.
    pub(crate) fn program(&self) -> (&OsStr, &[OsString]) {
        self.command.split_first().map_or((OsStr::new(""), &[]), |(program, args)| (program, args))
    }

    /// Returns the number of this node.
    pub(crate) fn node_rank(&self) -> usize {
        self.node_rank.unwrap_or(0)
    }

    /// Returns the job's id, if given.
    pub(crate) fn run_id(&self) -> Option<&str> {
        self.torchrun.rdzv_id.as_deref()
    }

    /// Returns true if the job has one node and the options give no address or port of the store.
    pub(crate) fn is_standalone(&self) -> bool {
        let is_named = self.master_addr.is_some() || self.master_port.is_some();
        self.nnodes == 1 && !is_named && self.torchrun.rdzv_endpoint.is_none()
    }

    /// Returns the address of the store.
    pub(crate) fn master_address(&self) -> MasterAddress {
        if let Some(RendezvousEndpoint { address, port }) = &self.torchrun.rdzv_endpoint {
            return MasterAddress { address: address.clone(), port: port.unwrap_or(DEFAULT_PORT) };
        }
        let port = if self.is_standalone() { 0 } else { DEFAULT_PORT };
        MasterAddress {
            address: self.master_addr.clone().unwrap_or_else(|| "127.0.0.1".to_owned()),
            port: self.master_port.unwrap_or(port),
        }
    }

    /// Checks that the options are consistent. The error is a message for the user.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (nnodes, node_rank) = (self.nnodes, self.node_rank());
        self.torchrun.check(nnodes, self.node_rank.is_some())?;
        if self.standalone && nnodes > 1 {
            return Err(format!("--standalone is for one node, but --nnodes is {nnodes}"));
        }
        if node_rank >= nnodes {
            return Err(format!(
                "--node-rank {node_rank} is not below --nnodes {nnodes}: nodes count from 0"
            ));
        }
        if nnodes > 1 && self.master_address().port == 0 {
            return Err(
                "port 0 (any free port) is for jobs of one node: the other nodes cannot know \
                        the port"
                    .into(),
            );
        }
        if nnodes > 1 && self.max_restarts > 0 {
            return Err(format!(
                "--max-restarts {} with --nnodes {nnodes}: the launchers of several nodes do not agree on \
                 restarts, so only jobs of one node are restarted; omit the option, and restart the \
                 launchers of all nodes by other means",
                self.max_restarts
            ));
        }
        if let Some(min_ranks) = self.min_ranks {
            let LocalRankCount(ranks) = self.nproc_per_node;
            if self.on_failure == OnFailure::End {
                return Err(
                    "--min-ranks is for jobs that continue after a rank has failed: add --on-failure=continue".into(),
                );
            }
            if min_ranks == 0 || min_ranks > ranks {
                return Err(format!(
                    "--min-ranks {min_ranks}: the value must be from 1 to {ranks}, the number of ranks of this node"
                ));
            }
        }
        if nnodes.saturating_mul(self.nproc_per_node.0) > dist::base::ids::MAX_WORLD_SIZE {
            return Err(format!("a job has at most {} ranks", dist::base::ids::MAX_WORLD_SIZE));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn parse(line: &str) -> Result<Options, clap::Error> {
        Options::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn both_spellings_and_a_programs_own_flags_are_understood() {
        let line = "distrun --nproc_per_node=3 --no-python prog --nproc-per-node 9 -x -- y";
        let options = parse(line).unwrap();
        assert_eq!(options.nproc_per_node, LocalRankCount(3));
        let (program, args) = options.program();
        assert_eq!(program, "prog");
        assert_eq!(args, ["--nproc-per-node", "9", "-x", "--", "y"]);
        assert!(options.is_standalone());
        assert_eq!(
            parse("distrun --nproc-per-node 2 p").unwrap().nproc_per_node,
            LocalRankCount(2)
        );
    }

    #[test]
    fn wrong_flags_are_refused_and_not_taken_for_the_program() {
        for line in [
            "distrun --nprocs 4 prog",
            "distrun --nproc-per-node 0 prog",
            "distrun --nproc-per-node -1 prog",
            "distrun --nproc-per-node many prog",
            "distrun --nnodes 1:4 prog",
            "distrun --nnodes 0 prog",
            "distrun --tee 3 prog",
            "distrun --log-dir d --tee 4 prog",
            "distrun --standalone --master-port 1 prog",
            "distrun --no-secret --secret-file s prog",
            "distrun --max-restarts -1 prog",
            "distrun --on-failure ignore prog",
            "distrun --use-env=maybe prog",
            "distrun --rdzv-endpoint h:1 --master-addr h prog",
            "distrun --rdzv-backend etcd prog",
            "distrun --local-ranks-filter 0;1 prog",
            "distrun",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
        for line in [
            "distrun --nnodes 2 --node-rank 2 prog",
            "distrun --standalone --nnodes 2 prog",
            "distrun --nnodes 2 --master-port 0 prog",
            "distrun --nnodes 2 --rdzv-endpoint h:0 prog",
            "distrun --nnodes 2 --max-restarts 1 prog",
            "distrun --nproc-per-node 4 --min-ranks 2 prog",
            "distrun --nproc-per-node 4 --on-failure continue --min-ranks 5 prog",
            "distrun --nproc-per-node 4 --on-failure continue --min-ranks 0 prog",
            "distrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint h prog",
            "distrun -m package",
            "distrun --run-path script.py",
            "distrun --numa-binding node prog",
            "distrun --rdzv-conf join_timeout=3 prog",
        ] {
            assert!(parse(line).unwrap().check().is_err(), "{line}");
        }
    }

    #[test]
    fn torchrun_flags_without_effect_are_accepted() {
        let line = "distrun --monitor-interval 0.5 --start_method spawn --no-python --rdzv-id 7 \
                    --rdzv-backend=c10d --rdzv_endpoint=localhost:0 --max_restarts=3 --role=trainer p";
        let options = parse(line).unwrap();
        options.check().unwrap();
        assert_eq!((options.run_id(), options.max_restarts), (Some("7"), 3));
        assert_eq!(options.role, "trainer");
        let line = "distrun --nnodes 2 --node-rank 1 --rdzv-backend c10d --rdzv-endpoint h:7 p";
        parse(line).unwrap().check().unwrap();
    }

    #[test]
    fn local_rank_is_passed_as_argument_on_request() {
        let use_env = |line| parse(line).unwrap().use_env;
        assert!(use_env("distrun p") && use_env("distrun --use-env p"));
        assert!(use_env("distrun --use_env=True p") && !use_env("distrun --use-env=false p"));
        assert_eq!(parse("distrun --use-env p q").unwrap().program().1, ["q"]);
    }

    #[test]
    fn store_address_follows_torchrun() {
        let master = |line| {
            let MasterAddress { address, port } = parse(line).unwrap().master_address();
            (address, port)
        };
        assert_eq!(master("distrun p"), ("127.0.0.1".to_owned(), 0));
        assert_eq!(master("distrun --standalone p"), ("127.0.0.1".to_owned(), 0));
        assert_eq!(master("distrun --nnodes 2 p"), ("127.0.0.1".to_owned(), 29500));
        assert_eq!(master("distrun --master-addr h p"), ("h".to_owned(), 29500));
        assert_eq!(master("distrun --master-port 7 p"), ("127.0.0.1".to_owned(), 7));
        assert_eq!(master("distrun --rdzv-endpoint h p"), ("h".to_owned(), 29500));
        assert_eq!(master("distrun --rdzv-endpoint [::1]:7 p"), ("::1".to_owned(), 7));
    }
}
