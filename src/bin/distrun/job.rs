//! One job on this node: its store, its ranks, its output, and its end.

use crate::cli::{Master, Options};
use crate::lines::Tail;
use crate::pump::{Pump, Source};
use crate::report::{self, Rank};
use crate::secret::JobSecret;
use crate::streams::{self, Route, Stream};
use crate::{Failure, write_error};
use dist::base::config::{self, Variable};
use dist::process::crew::Crew;
use dist::process::ending::{Ending, signal_name};
use dist::process::supervise::{Cause, Notice, Patience, supervise};
use dist::store::tcp::{Server, ServerOptions};
use dist::sys::{host, signal};
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// What a user or a job manager sends to end a job.
const PASSED_ON: [i32; 4] = [1, 2, 3, 15];

/// Tells of the end of a child.
const SIGCHLD: i32 = 17;

/// A job must have ended 2 s after a rank was killed.
const PATIENCE: Patience = Patience {
    settle: Duration::from_millis(100),
    failure: Duration::from_secs(1),
    signal: Duration::from_secs(10),
    kill: Duration::from_secs(5),
};

const OMP_NUM_THREADS: Variable = Variable {
    name: "OMP_NUM_THREADS",
    set_by: "user",
    default: "1 for several ranks on a node",
    meaning: "The number of threads of OpenMP programs.",
};

/// Runs the job to its end, and returns the exit status to end with.
///
/// # Errors
/// Whatever keeps the job from starting.
pub(crate) fn run(options: &Options) -> Result<u8, Failure> {
    // Whoever started us may ignore this signal; children then leave nothing to wait for.
    signal::set_default(SIGCHLD);
    // Before anything that has threads: the guardian is a fork.
    let mut crew = Crew::new(&PASSED_ON)?;
    let secret = JobSecret::of(options, &mut crew)?;
    let (store, master) = host_store(options, &secret)?;
    let shared = Shared { variables: shared_environment(options, &master)?, secret };
    let mut job = Job { ranks: Vec::new(), sources: [Vec::new(), Vec::new()] };
    for local_rank in 0..options.nproc_per_node.0 {
        job.start_rank(options, &shared, &mut crew, local_rank)?;
    }
    let status = job.see_through(crew)?;
    // Only now: ranks may use the store up to their end.
    drop(store);
    Ok(status)
}

/// On node 0, the store, with the port it got.
fn host_store(
    options: &Options,
    secret: &JobSecret,
) -> Result<(Option<Arc<Server>>, Master), Failure> {
    let mut master = options.master();
    if options.node_rank > 0 {
        return Ok((None, master));
    }
    let bind = ServerOptions {
        bind: master.address.clone(),
        port: master.port,
        secret: secret.for_server(),
        ..ServerOptions::default()
    };
    let server = Server::start(bind).map_err(|error| {
        let Master { address, port } = &master;
        Failure::new(format!(
            "cannot host the job's store at {address} port {port}: {error}\n  --master-port names \
             another port, --master-addr an address of this host"
        ))
    })?;
    master.port = server.port();
    Ok((Some(server), master))
}

/// What all ranks of this node are told.
struct Shared {
    variables: Vec<(&'static str, String)>,
    secret: JobSecret,
}

/// The variables that are the same for all ranks of this node.
fn shared_environment(
    options: &Options,
    master: &Master,
) -> Result<Vec<(&'static str, String)>, Failure> {
    let local_size = options.nproc_per_node.0;
    let world_size = (local_size * options.nnodes).to_string();
    let run_id =
        if options.nnodes == 1 { host::random_nonce()?.to_string() } else { "none".to_owned() };
    let mut shared = vec![
        ("WORLD_SIZE", world_size.clone()),
        ("LOCAL_WORLD_SIZE", local_size.to_string()),
        ("GROUP_RANK", options.node_rank.to_string()),
        ("GROUP_WORLD_SIZE", options.nnodes.to_string()),
        ("ROLE_NAME", "default".to_owned()),
        ("ROLE_WORLD_SIZE", world_size),
        ("MASTER_ADDR", master.address.clone()),
        ("MASTER_PORT", master.port.to_string()),
        ("TORCHELASTIC_RESTART_COUNT", "0".to_owned()),
        ("TORCHELASTIC_MAX_RESTARTS", "0".to_owned()),
        ("TORCHELASTIC_RUN_ID", run_id),
        ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()),
    ];
    if local_size > 1 && config::text(OMP_NUM_THREADS)?.is_none() {
        shared.push((OMP_NUM_THREADS.name, "1".to_owned()));
    }
    Ok(shared)
}

/// The ranks of this node, and their streams until somebody reads them.
struct Job {
    ranks: Vec<Rank>,
    sources: [Vec<Source>; 2],
}

impl Job {
    fn start_rank(
        &mut self,
        options: &Options,
        shared: &Shared,
        crew: &mut Crew,
        local_rank: usize,
    ) -> Result<(), Failure> {
        let number = options.node_rank * options.nproc_per_node.0 + local_rank;
        let (program, args) = options.program();
        let mut command = Command::new(program);
        command.args(args).envs(shared.variables.iter().map(|(name, value)| (name, value)));
        shared.secret.tell(&mut command);
        command.env("RANK", number.to_string()).env("ROLE_RANK", number.to_string());
        command.env("LOCAL_RANK", local_rank.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let rank = Rank {
            rank: number,
            local_rank,
            tails: [(Stream::Err, Tail::default()), (Stream::Out, Tail::default())],
            logs: options.log_dir.as_ref().map(|folder| folder.join(number.to_string())),
        };
        // The logs first: a rank whose log cannot be made is not started.
        let mut logs = Vec::new();
        for (stream, _) in &rank.tails {
            logs.push(log(options, &rank, *stream)?);
        }
        let child =
            crew.spawn(&mut command).map_err(|cause| not_started(options, number, &cause))?;
        let pipes: [Option<OwnedFd>; 2] =
            [child.stderr.map(OwnedFd::from), child.stdout.map(OwnedFd::from)];
        for (index, (pipe, log)) in pipes.into_iter().zip(logs).enumerate() {
            let (stream, tail) = &rank.tails[index];
            if let Some(pipe) = pipe {
                let console = route(options, &rank, *stream).console;
                let source = Source::new(number, pipe, console, log, tail.clone());
                self.sources[index].push(source);
            }
        }
        self.ranks.push(rank);
        Ok(())
    }

    /// Watches the ranks to their end, passes on what they write, and reports.
    fn see_through(self, mut crew: Crew) -> Result<u8, Failure> {
        let Self { ranks, sources: [errors, outputs] } = self;
        let out = Pump::start("standard output", outputs, Box::new(std::io::stdout()))?;
        let mut err = Pump::start("standard error", errors, Box::new(std::io::stderr()))?;
        let count = ranks.len();
        let cause = supervise(&mut crew, &PATIENCE, &mut |notice| {
            err.say(&match notice {
                Notice::PassedOn(signal) => format!(
                    "{} received and passed on to {count} ranks; a second one kills them",
                    signal_name(signal)
                ),
                Notice::Hurried(signal) => format!("{} received, killing", signal_name(signal)),
            });
        })?;
        // From here on a signal ends us as it would any program that waits for its reader.
        let began = crew.started();
        let members = crew.disband();
        // Standard error first: the report must not wait for a reader of standard output.
        err.finish();
        let status = match cause {
            Cause::Success => 0,
            Cause::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
            Cause::Failure(first) => {
                write_error(&report::failure(&ranks, &members, first, began));
                members[first].ending().map_or(1, Ending::shell_status)
            }
        };
        write_error(&report::unkillable(&ranks, &members));
        out.finish();
        Ok(status)
    }
}

fn route(options: &Options, rank: &Rank, stream: Stream) -> Route {
    let (tee, redirects) = (options.tee.as_ref(), options.redirects.as_ref());
    streams::route(options.log_dir.is_some(), tee, redirects, rank.local_rank, stream)
}

/// The log of a stream, with its name, if there is to be one.
fn log(options: &Options, rank: &Rank, stream: Stream) -> Result<Option<(File, String)>, Failure> {
    let Some(folder) = &options.log_dir else { return Ok(None) };
    if !route(options, rank, stream).file {
        return Ok(None);
    }
    let file = streams::create_log(folder, rank.rank, stream).map_err(Failure::new)?;
    Ok(Some((file, format!("{} of rank {}", stream.file_name(), rank.rank))))
}

fn not_started(options: &Options, rank: usize, cause: &std::io::Error) -> Failure {
    let program = options.program().0;
    let (status, why) = match cause.kind() {
        ErrorKind::NotFound if Path::new(program).is_file() => {
            (127, "the interpreter that its first line names was not found".to_owned())
        }
        ErrorKind::NotFound => (127, "program not found".to_owned()),
        ErrorKind::PermissionDenied => (126, "it is not executable".to_owned()),
        _ if cause.raw_os_error() == Some(8) => (126, "it is no program".to_owned()),
        _ => (1, cause.to_string()),
    };
    let program = program.to_string_lossy();
    let mut message = format!("cannot start rank {rank}, {program}: {why}");
    if program.ends_with(".py") {
        message.push_str(&format!("\n  for a Python script: distrun ... python3 {program}"));
    }
    Failure { status, message }
}
