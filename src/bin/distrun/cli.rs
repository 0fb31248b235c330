//! The command line: torchrun's flags, so that a job's start line needs no change but its first word.
//!
//! It only parses and checks; it starts nothing.

use crate::streams::Spec;
use clap::Parser;
use dist::process::guardian::MAX_GROUPS;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::str::FromStr;

/// The port of the store where the ranks have to be told one and none was given; torchrun's.
const DEFAULT_PORT: u16 = 29500;

const USAGE: &str = "distrun [OPTIONS] PROGRAM [ARGS]...";

const HELP: &str = "\
Rank numbers:
  Node R starts ranks R*N to R*N+N-1, where N is --nproc-per-node, the same on every node.

Environment of each rank (all else is inherited):
  RANK, WORLD_SIZE              number of this rank, and of all ranks
  LOCAL_RANK, LOCAL_WORLD_SIZE  the same within this node
  GROUP_RANK, GROUP_WORLD_SIZE  number of this node, and of all nodes
  ROLE_NAME, ROLE_RANK, ROLE_WORLD_SIZE
                                \"default\", RANK, WORLD_SIZE
  MASTER_ADDR, MASTER_PORT      where the job's store listens
  TORCHELASTIC_USE_AGENT_STORE  True: the launcher of node 0 hosts the store, rank 0 joins it
                                like any other rank, and any rank may die without taking it along
  TORCHELASTIC_RUN_ID           the job's id (\"none\" for more than one node)
  TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_MAX_RESTARTS
                                0: a failed job is not restarted
  DIST_STORE_SECRET_FD, DIST_STORE_SECRET_FILE
                                where the job's secret is, if there is one: an inherited descriptor,
                                or --secret-file
  OMP_NUM_THREADS               1, if there are several ranks on this node and it was not set

Secret:
  Who cannot prove to know the job's secret is turned away by its store; libdist's programs find the
  secret by themselves. A job of one node gets a new one. A job of several has none, unless each
  node names a file with the same content: --secret-file PATH, or DIST_STORE_SECRET_FILE=PATH.
  PyTorch's own client knows nothing of secrets: ranks that use it need --no-secret.

Output:
  Each line of a rank is passed on with its rank before it: \"[3] loss 0.25\". Lines are never torn;
  one of more than 64 KiB is passed on in pieces. What ranks write to standard output and standard
  error goes to the same of distrun. If either is closed, what is written to it is dropped and the
  job goes on. The ranks' standard input is /dev/null.
  Ranks write to a pipe, not to a terminal; many programs then keep their output back for a while,
  and lose it when killed. For Python, PYTHONUNBUFFERED=1 prevents that.
  --log-dir DIR writes DIR/RANK/stdout.log and DIR/RANK/stderr.log, without the prefix. What
  goes there is told by SPEC: 0 none, 1 standard output, 2 standard error, 3 both; or one such
  number per local rank, \"0:1,1:3\" (none for those not named). --tee writes both to the file and
  on; --redirects to the file only. With neither, everything is both written and passed on.

Failure:
  The first rank to end with a status other than 0, or by a signal, ends the job: the others get
  SIGTERM, and SIGKILL a second later. A report on standard error names that rank, how it ended and
  what it wrote last; distrun's exit status is that of the rank, or 128 and the signal's number.
  SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to all ranks; what is left after 10 seconds, or
  when a second one comes, is killed. The exit status then is 128 and the signal's number.
  If distrun itself is killed, all ranks and what they have started are killed too.
  Other exit statuses: 2 wrong usage, 126 program cannot be executed, 127 program not found, 1 any
  other failure of distrun itself, for instance that the store's port is in use.

Examples:
  Four ranks on this host:
    distrun --nproc-per-node 4 ./train --epochs 10
  One rank for each core, with a log for each:
    distrun --nproc-per-node cpu --log-dir logs --redirects 3 ./train
  Two hosts with eight ranks each (on the second: --node-rank 1):
    distrun --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --nproc-per-node 8 ./train
  The same with a secret (on one host, then copied to the other by a safe way):
    (umask 077; head -c 32 /dev/urandom | base64 >job.secret)
    distrun --secret-file job.secret --nnodes 2 --node-rank 0 ...
  A Python program:
    distrun --nproc-per-node 2 python3 train.py";

/// Starts the ranks of a job on this host, passes on their output, and says which one failed first.
#[derive(Debug, Parser)]
#[command(name = "distrun", version, after_long_help = HELP, override_usage = USAGE, max_term_width = 100)]
pub(crate) struct Options {
    /// Ranks on this node: a number, `cpu` (one for each core that may be used), `gpu` (one for each
    /// NVIDIA GPU), or `auto` (gpu if there is one, else cpu)
    #[arg(long, alias = "nproc_per_node", value_name = "N", default_value = "1")]
    pub(crate) nproc_per_node: Nproc,

    /// Nodes of the job
    #[arg(long, value_name = "N", default_value = "1", value_parser = nnodes)]
    pub(crate) nnodes: usize,

    /// Number of this node, from 0; node 0 hosts the store
    #[arg(long, alias = "node_rank", value_name = "R", default_value = "0")]
    pub(crate) node_rank: usize,

    /// Address of node 0, on which its store listens [default: 127.0.0.1]
    #[arg(long, alias = "master_addr", value_name = "ADDRESS")]
    pub(crate) master_addr: Option<String>,

    /// Port of the store [default: 29500, or any free one for a job of one node without an address]
    #[arg(long, alias = "master_port", value_name = "PORT")]
    pub(crate) master_port: Option<u16>,

    /// A job of this node alone, with a store on a free port of 127.0.0.1; the default if no nodes,
    /// address or port are given
    #[arg(long, conflicts_with_all = ["master_addr", "master_port"])]
    pub(crate) standalone: bool,

    /// File with the secret of the job's store, the same on every node, to which only its owner has
    /// access (mode 0600) [default: a new secret for a job of one node, none for several]
    #[arg(long, alias = "secret_file", value_name = "PATH")]
    pub(crate) secret_file: Option<PathBuf>,

    /// A store without a secret, for ranks that use torch's own client
    #[arg(long, alias = "no_secret", conflicts_with = "secret_file")]
    pub(crate) no_secret: bool,

    /// Folder for the ranks' logs; made if it is not there
    #[arg(long, alias = "log_dir", value_name = "DIR")]
    pub(crate) log_dir: Option<PathBuf>,

    /// What is both written to the logs and passed on
    #[arg(short, long, value_name = "SPEC", requires = "log_dir")]
    pub(crate) tee: Option<Spec>,

    /// What is written to the logs only
    #[arg(short, long, value_name = "SPEC", requires = "log_dir")]
    pub(crate) redirects: Option<Spec>,

    /// For torchrun's habit: the program never is a Python script
    #[arg(long, alias = "no_python", hide = true)]
    pub(crate) no_python: bool,

    /// The program, looked up in PATH, and its arguments
    // One list, since clap leaves alone what comes after the first value of a trailing list, but not
    // what comes between two arguments of its own.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// The number of ranks on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nproc(pub(crate) usize);

impl FromStr for Nproc {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = match text {
            "cpu" => dist::sys::host::cores(),
            "gpu" => match gpus() {
                0 => return Err("there is no GPU on this host".to_owned()),
                count => count,
            },
            "auto" => match gpus() {
                0 => dist::sys::host::cores(),
                count => count,
            },
            number => number.parse().map_err(|_| "it is no number, cpu, gpu or auto".to_owned())?,
        };
        if (1..=MAX_GROUPS).contains(&count) {
            return Ok(Self(count));
        }
        Err(format!("there must be 1 to {MAX_GROUPS} ranks on a node"))
    }
}

fn nnodes(text: &str) -> Result<usize, String> {
    if text.contains(':') {
        return Err("a range of nodes (an elastic job) is not supported".to_owned());
    }
    match text.parse() {
        Ok(0) => Err("a job has at least one node".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("it is no number".to_owned()),
    }
}

/// The NVIDIA GPUs of this host, by their device files.
fn gpus() -> usize {
    std::fs::read_dir("/dev").map_or(0, |entries| {
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let numbers = names.filter_map(|name| name.strip_prefix("nvidia")?.parse::<u32>().ok());
        numbers.count()
    })
}

/// Where the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Master {
    /// The host's name or address.
    pub(crate) address: String,
    /// The port; 0 for any free one.
    pub(crate) port: u16,
}

impl Options {
    /// The program and its arguments.
    pub(crate) fn program(&self) -> (&OsStr, &[OsString]) {
        self.command.split_first().map_or((OsStr::new(""), &[]), |(program, args)| (program, args))
    }

    /// True where no other node, and no address of ours, is involved.
    pub(crate) fn is_standalone(&self) -> bool {
        self.nnodes == 1 && self.master_addr.is_none() && self.master_port.is_none()
    }

    /// Where the store is to be.
    pub(crate) fn master(&self) -> Master {
        let port = if self.is_standalone() { 0 } else { DEFAULT_PORT };
        Master {
            address: self.master_addr.clone().unwrap_or_else(|| "127.0.0.1".to_owned()),
            port: self.master_port.unwrap_or(port),
        }
    }

    /// What does not fit together, in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { nnodes, node_rank, .. } = *self;
        if self.standalone && nnodes > 1 {
            return Err(format!("--standalone is for one node, but --nnodes is {nnodes}"));
        }
        if node_rank >= nnodes {
            return Err(format!(
                "--node-rank {node_rank} is not below --nnodes {nnodes}: nodes count from 0"
            ));
        }
        if nnodes > 1 && self.master_port == Some(0) {
            return Err("--master-port 0 (any free one) cannot be known to the other nodes".into());
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
        assert_eq!(options.nproc_per_node, Nproc(3));
        let (program, args) = options.program();
        assert_eq!(program, "prog");
        assert_eq!(args, ["--nproc-per-node", "9", "-x", "--", "y"]);
        assert!(options.is_standalone());
        assert_eq!(parse("distrun --nproc-per-node 2 p").unwrap().nproc_per_node, Nproc(2));
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
            "distrun",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
        for line in [
            "distrun --nnodes 2 --node-rank 2 prog",
            "distrun --standalone --nnodes 2 prog",
            "distrun --nnodes 2 --master-port 0 prog",
        ] {
            assert!(parse(line).unwrap().check().is_err(), "{line}");
        }
    }

    #[test]
    fn the_store_is_where_torchrun_would_have_it() {
        let master = |line| {
            let Master { address, port } = parse(line).unwrap().master();
            (address, port)
        };
        assert_eq!(master("distrun p"), ("127.0.0.1".to_owned(), 0));
        assert_eq!(master("distrun --standalone p"), ("127.0.0.1".to_owned(), 0));
        assert_eq!(master("distrun --nnodes 2 p"), ("127.0.0.1".to_owned(), 29500));
        assert_eq!(master("distrun --master-addr h p"), ("h".to_owned(), 29500));
        assert_eq!(master("distrun --master-port 7 p"), ("127.0.0.1".to_owned(), 7));
    }
}
