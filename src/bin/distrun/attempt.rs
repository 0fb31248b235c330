//! One attempt of a job on this node: its ranks, started and seen through to their end.

use crate::Failure;
use crate::cli::{Master, OnFailure, Options};
use crate::errors::{self, ErrorFiles, Said};
use crate::lines::Tail;
use crate::pump::{Before, Pump, Source};
use crate::report::{Ended, Rank};
use crate::secret::JobSecret;
use crate::streams::{self, Route, Stream};
use dist::base::config::{self, Variable};
use dist::process::crew::{Crew, Member};
use dist::process::ending::signal_name;
use dist::process::supervise::{Cause, Needed, Notice, Patience, supervise};
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A job must have ended 2 s after a rank was killed.
const PATIENCE: Patience = Patience {
    settle: Duration::from_millis(100),
    failure: Duration::from_secs(1),
    signal: Duration::from_secs(10),
    kill: Duration::from_secs(5),
};

/// How long the readers of our output may take for the rest of an attempt before the next one
/// begins. What they have not read then is still written, before anything of the next one.
const REST: Duration = Duration::from_secs(2);

const OMP_NUM_THREADS: Variable = Variable {
    name: "OMP_NUM_THREADS",
    set_by: "user",
    default: "1 for several ranks on a node",
    meaning: "The number of threads of OpenMP programs.",
};

/// What is the same for all attempts of a job.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// The command line.
    pub(crate) options: &'a Options,
    /// The store's secret.
    pub(crate) secret: JobSecret,
    /// The job's id.
    pub(crate) run_id: String,
    /// Where ranks write why they fail.
    pub(crate) errors: ErrorFiles,
}

/// What the threads that pass on output have not written yet.
#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    /// To standard output.
    pub(crate) out: Before,
    /// To standard error.
    pub(crate) err: Before,
}

/// The ranks of this node, running.
#[derive(Debug)]
pub(crate) struct Attempt {
    ranks: Vec<Rank>,
    /// Once they have ended: what their error files say.
    said: Vec<Option<Said>>,
    out: Pump,
    err: Pump,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// Why.
    pub(crate) cause: Cause,
    /// A signal has come meanwhile: somebody wants no more of this job.
    pub(crate) is_unwanted: bool,
}

/// What an attempt leaves for a report.
#[derive(Debug)]
pub(crate) struct Remains {
    ranks: Vec<Rank>,
    members: Vec<Member>,
    said: Vec<Option<Said>>,
    began: Instant,
}

impl Plan<'_> {
    /// The variables that are the same for all ranks of this node.
    fn environment(
        &self,
        master: &Master,
        count: u32,
    ) -> Result<Vec<(&'static str, String)>, Failure> {
        let options = self.options;
        let local_size = options.nproc_per_node.0;
        let world_size = (local_size * options.nnodes).to_string();
        let mut shared = vec![
            ("WORLD_SIZE", world_size.clone()),
            ("LOCAL_WORLD_SIZE", local_size.to_string()),
            ("GROUP_RANK", options.node_rank().to_string()),
            ("GROUP_WORLD_SIZE", options.nnodes.to_string()),
            ("ROLE_NAME", options.role.clone()),
            ("ROLE_WORLD_SIZE", world_size),
            ("MASTER_ADDR", master.address.clone()),
            ("MASTER_PORT", master.port.to_string()),
            ("TORCHELASTIC_RESTART_COUNT", count.to_string()),
            ("TORCHELASTIC_MAX_RESTARTS", options.max_restarts.to_string()),
            ("TORCHELASTIC_RUN_ID", self.run_id.clone()),
            ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()),
        ];
        if local_size > 1 && config::text(OMP_NUM_THREADS)?.is_none() {
            shared.push((OMP_NUM_THREADS.name, "1".to_owned()));
        }
        Ok(shared)
    }

    /// The folder of a rank's logs, if there are any. Where there may be several attempts, each has
    /// its own.
    fn logs(&self, rank: usize, count: u32) -> Option<PathBuf> {
        let mut folder = self.options.log_dir.clone()?;
        if self.options.max_restarts > 0 {
            folder.push(format!("attempt_{count}"));
        }
        Some(folder.join(rank.to_string()))
    }

    /// The program as one rank gets it.
    fn command(&self, local_rank: usize) -> Command {
        let (program, args) = self.options.program();
        let mut command = Command::new(program);
        command.args(args);
        if !self.options.use_env {
            // Last, since the program may be an interpreter, whose first argument is the script.
            command.arg(format!("--local-rank={local_rank}"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// How many ranks of this node the job needs.
    fn needed(&self) -> Needed {
        match self.options.on_failure {
            OnFailure::End => Needed::All,
            OnFailure::Continue => Needed::AtLeast(self.options.min_ranks.unwrap_or(1)),
        }
    }

    fn patience(&self) -> Patience {
        match self.options.shutdown_timeout {
            None => PATIENCE,
            Some(seconds) => {
                let limit = Duration::from_secs(seconds.into());
                Patience { failure: limit, signal: limit, ..PATIENCE }
            }
        }
    }
}

impl Attempt {
    /// Starts the ranks, after `count` attempts before, and passes on what they write behind what
    /// is still unwritten.
    ///
    /// # Errors
    /// Whatever keeps a rank from being started.
    pub(crate) fn start(
        plan: &Plan<'_>,
        crew: &mut Crew,
        master: &Master,
        count: u32,
        before: Unwritten,
    ) -> Result<Self, Failure> {
        let shared = plan.environment(master, count)?;
        let mut ranks = Vec::new();
        let (mut errors, mut outputs) = (Vec::new(), Vec::new());
        for local_rank in 0..plan.options.nproc_per_node.0 {
            let mut command = plan.command(local_rank);
            command.envs(shared.iter().map(|(name, value)| (name, value)));
            let (rank, [error, output]) = start_rank(plan, crew, command, local_rank, count)?;
            ranks.push(rank);
            errors.extend(error);
            outputs.extend(output);
        }
        let Unwritten { out, err } = before;
        let out = Pump::start("standard output", out, outputs, Box::new(std::io::stdout()))?;
        let err = Pump::start("standard error", err, errors, Box::new(std::io::stderr()))?;
        Ok(Self { ranks, said: Vec::new(), out, err })
    }

    /// Watches the ranks to their end, and reads why they failed.
    ///
    /// # Errors
    /// `System`.
    pub(crate) fn see_through(
        &mut self,
        plan: &Plan<'_>,
        crew: &mut Crew,
    ) -> Result<Outcome, Failure> {
        let (count, mut is_unwanted) = (self.ranks.len(), false);
        let cause = supervise(crew, plan.needed(), &plan.patience(), &mut |notice| {
            is_unwanted |= !matches!(notice, Notice::Lost { .. });
            self.err.say(&match notice {
                Notice::PassedOn(signal) => format!(
                    "{} received and passed on to {count} ranks; a second one kills them",
                    signal_name(signal)
                ),
                Notice::Hurried(signal) => format!("{} received, killing", signal_name(signal)),
                Notice::Lost { index, left } => {
                    let lost = self.ranks[index].rank;
                    format!("rank {lost} failed; the job goes on with {left} of {count} ranks")
                }
            });
        })?;
        self.said = self.ranks.iter().map(|rank| errors::read(&rank.error_file)).collect();
        Ok(Outcome { cause, is_unwanted })
    }

    /// For another attempt: what it leaves, and what is still to be written.
    pub(crate) fn retire(self, members: Vec<Member>, began: Instant) -> (Remains, Unwritten) {
        let Self { ranks, said, out, err } = self;
        let [out, err] =
            [out, err].map(|pump| Before { pump: pump.close(REST), text: String::new() });
        (Remains { ranks, members, said, began }, Unwritten { out, err })
    }

    /// For the last one: what it leaves, once all that ranks have written to standard error is
    /// passed on; and what passes on the rest, which waits for the reader of standard output, as
    /// the report must not.
    pub(crate) fn finish(self, members: Vec<Member>, began: Instant) -> (Remains, Pump) {
        let Self { ranks, said, out, err } = self;
        err.finish();
        (Remains { ranks, members, said, began }, out)
    }
}

impl Remains {
    /// The same for a report.
    pub(crate) fn ended(&self) -> Ended<'_> {
        let Self { ranks, members, said, began } = self;
        Ended { ranks, members, said, began: *began }
    }
}

/// One rank, with its two streams until somebody reads them.
fn start_rank(
    plan: &Plan<'_>,
    crew: &mut Crew,
    mut command: Command,
    local_rank: usize,
    count: u32,
) -> Result<(Rank, [Option<Source>; 2]), Failure> {
    let options = plan.options;
    let number = options.node_rank() * options.nproc_per_node.0 + local_rank;
    let logs = plan.logs(number, count);
    let rank = Rank {
        rank: number,
        local_rank,
        tails: [(Stream::Err, Tail::default()), (Stream::Out, Tail::default())],
        error_file: plan.errors.place(number, logs.as_deref())?,
        logs,
    };
    // The logs first: a rank whose log cannot be made is not started.
    let files = [log(options, &rank, rank.tails[0].0)?, log(options, &rank, rank.tails[1].0)?];
    plan.secret.tell(&mut command);
    command.env("RANK", number.to_string()).env("ROLE_RANK", number.to_string());
    command.env("LOCAL_RANK", local_rank.to_string());
    command.env(config::ERROR_FILE.name, &rank.error_file);
    let child = crew.spawn(&mut command).map_err(|cause| not_started(options, number, &cause))?;
    let pipes: [Option<OwnedFd>; 2] =
        [child.stderr.map(OwnedFd::from), child.stdout.map(OwnedFd::from)];
    let mut sources = [None, None];
    for (index, (pipe, file)) in pipes.into_iter().zip(files).enumerate() {
        let (stream, tail) = &rank.tails[index];
        let console = route(options, &rank, *stream).console;
        sources[index] = pipe.map(|pipe| Source::new(number, pipe, console, file, tail.clone()));
    }
    Ok((rank, sources))
}

fn route(options: &Options, rank: &Rank, stream: Stream) -> Route {
    let (tee, redirects) = (options.tee.as_ref(), options.redirects.as_ref());
    let route = streams::route(options.log_dir.is_some(), tee, redirects, rank.local_rank, stream);
    let is_shown =
        options.local_ranks_filter.as_ref().is_none_or(|shown| shown.has(rank.local_rank));
    Route { console: route.console && is_shown, ..route }
}

/// The log of a stream, with its name, if there is to be one.
fn log(options: &Options, rank: &Rank, stream: Stream) -> Result<Option<(File, String)>, Failure> {
    let Some(folder) = &rank.logs else { return Ok(None) };
    if !route(options, rank, stream).file {
        return Ok(None);
    }
    let file = streams::create_log(folder, stream).map_err(Failure::new)?;
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
