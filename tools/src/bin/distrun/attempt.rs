//! One attempt of a job on this node: starts its ranks and supervises them until they exit.

use crate::cli::{MasterAddress, OnFailure, Options};
use crate::error_files::{self, ErrorFiles, RankError};
use crate::line_splitter::OutputTail;
use crate::output_forwarder::{OutputForwarder, QueuedOutput, RankOutput};
use crate::report::{FinishedJob, RankInfo};
use crate::secret::JobSecret;
use crate::streams::{self, OutputStream, StreamRoute};
use dist::base::config::{self, EnvVariable};
use dist::process::child_group::{ChildProcess, ChildProcessGroup};
use dist::process::process_exit::signal_name;
use dist::process::supervise::{
    RequiredMembers, SupervisionNotice, SupervisionOutcome, SupervisionTimeouts, supervise,
};
use dist_tools::{Failure, count_text};
use std::fs::File;
use std::io::{ErrorKind, IsTerminal as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The timeouts of the phases in which a job ends. With these defaults, a job ends within 2 s after
/// a rank was killed.
const DEFAULT_SHUTDOWN_TIMEOUTS: SupervisionTimeouts = SupervisionTimeouts {
    settle: Duration::from_millis(100),
    failure: Duration::from_secs(1),
    signal: Duration::from_secs(10),
    kill: Duration::from_secs(5),
};

/// Before the next attempt starts, distrun waits up to this time until the readers of its output
/// have taken the output of the last attempt. Output that is still left is written later, but
/// before the output of the next attempt.
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

const OMP_NUM_THREADS: EnvVariable = EnvVariable {
    name: "OMP_NUM_THREADS",
    set_by: "user",
    default: "1 for several ranks on a node",
    meaning: "The number of threads of OpenMP programs.",
};

/// The plan that all attempts of a job share.
#[derive(Debug)]
pub(crate) struct JobPlan<'a> {
    /// The command line.
    pub(crate) options: &'a Options,
    /// The store's secret.
    pub(crate) secret: JobSecret,
    /// The job's id.
    pub(crate) run_id: String,
    /// The ranks' error files.
    pub(crate) errors: ErrorFiles,
}

/// The output that the forwarder threads have not written yet.
#[derive(Debug, Default)]
pub(crate) struct PendingOutput {
    /// The pending output to standard output.
    pub(crate) out: QueuedOutput,
    /// The pending output to standard error.
    pub(crate) err: QueuedOutput,
}

/// The running ranks of this node.
#[derive(Debug)]
pub(crate) struct JobAttempt {
    ranks: Vec<RankInfo>,
    /// The contents of the ranks' error files, once the ranks have exited.
    rank_errors: Vec<Option<RankError>>,
    out: OutputForwarder,
    err: OutputForwarder,
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttemptOutcome {
    /// The cause of the end of the attempt.
    pub(crate) cause: SupervisionOutcome,
    /// True if distrun has received a signal, with which the user or the job manager ends the job.
    pub(crate) has_signal: bool,
}

/// The record of a finished attempt, for the report.
#[derive(Debug)]
pub(crate) struct AttemptRecord {
    ranks: Vec<RankInfo>,
    members: Vec<ChildProcess>,
    rank_errors: Vec<Option<RankError>>,
    started_at: Instant,
}

impl JobPlan<'_> {
    /// Returns the environment variables that are equal for all ranks of this node.
    fn environment(
        &self,
        master: &MasterAddress,
        restart_count: u32,
    ) -> Result<Vec<(&'static str, String)>, Failure> {
        let options = self.options;
        let local_size = options.nproc_per_node.0;
        let world_size = (local_size * options.nnodes).to_string();
        let mut variables = vec![
            ("WORLD_SIZE", world_size.clone()),
            ("LOCAL_WORLD_SIZE", local_size.to_string()),
            ("GROUP_RANK", options.node_rank().to_string()),
            ("GROUP_WORLD_SIZE", options.nnodes.to_string()),
            ("ROLE_NAME", options.role.clone()),
            ("ROLE_WORLD_SIZE", world_size),
            ("MASTER_ADDR", master.address.clone()),
            ("MASTER_PORT", master.port.to_string()),
            ("TORCHELASTIC_RESTART_COUNT", restart_count.to_string()),
            ("TORCHELASTIC_MAX_RESTARTS", options.max_restarts.to_string()),
            ("TORCHELASTIC_RUN_ID", self.run_id.clone()),
            ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()),
        ];
        if local_size > 1 && is_unset(&[OMP_NUM_THREADS])? {
            variables.push((OMP_NUM_THREADS.name, "1".to_owned()));
        }
        // By default, a job explains a hang and a failure.
        let log_variables =
            [config::LOG_LEVEL, config::TORCH_LOG_LEVEL, config::DEBUG_LEVEL, config::TORCH_DEBUG];
        if is_unset(&log_variables)? {
            variables.push((config::LOG_LEVEL.name, "WARN".to_owned()));
        }
        let dump_variables = [
            config::RECORDER_FILE,
            config::TORCH_RECORDER_FILE,
            config::TORCH_NCCL_RECORDER_FILE,
            config::RECORDER_TRIGGER,
        ];
        if is_unset(&dump_variables)?
            && let Some(prefix) = self.errors.dump_prefix().to_str()
        {
            variables.push((config::RECORDER_FILE.name, prefix.to_owned()));
        }
        Ok(variables)
    }

    /// Returns the folder of a rank's logs, if the job has logs. If several attempts are possible,
    /// each attempt has its own folder.
    fn log_folder(&self, rank: usize, restart_count: u32) -> Option<PathBuf> {
        let mut folder = self.options.log_dir.clone()?;
        if self.options.max_restarts > 0 {
            folder.push(format!("attempt_{restart_count}"));
        }
        Some(folder.join(rank.to_string()))
    }

    /// Returns the command of one rank.
    fn rank_command(&self, local_rank: usize) -> Command {
        let (program, args) = self.options.program();
        let mut command = Command::new(program);
        command.args(args);
        if !self.options.use_env {
            // Add the flag as the last argument: if the program is an interpreter, its first
            // argument must be the script.
            command.arg(format!("--local-rank={local_rank}"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Returns how many ranks of this node the job needs.
    fn required_ranks(&self) -> RequiredMembers {
        match self.options.on_failure {
            OnFailure::End => RequiredMembers::All,
            OnFailure::Continue => RequiredMembers::AtLeast(self.options.min_ranks.unwrap_or(1)),
        }
    }

    fn shutdown_timeouts(&self) -> SupervisionTimeouts {
        match self.options.shutdown_timeout {
            None => DEFAULT_SHUTDOWN_TIMEOUTS,
            Some(seconds) => {
                let limit = Duration::from_secs(seconds.into());
                SupervisionTimeouts { failure: limit, signal: limit, ..DEFAULT_SHUTDOWN_TIMEOUTS }
            }
        }
    }
}

/// Returns true if the user has set none of these variables.
fn is_unset(variables: &[EnvVariable]) -> Result<bool, Failure> {
    for &variable in variables {
        if config::read_text(variable)?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

impl JobAttempt {
    /// Starts the ranks. There were `restart_count` attempts before. The output of the ranks is
    /// written after `pending_output`, the output of earlier attempts that is not written yet.
    ///
    /// # Errors
    /// The reason why a rank cannot be started.
    pub(crate) fn start(
        plan: &JobPlan<'_>,
        process_group: &mut ChildProcessGroup,
        master: &MasterAddress,
        restart_count: u32,
        pending_output: PendingOutput,
    ) -> Result<Self, Failure> {
        let variables = plan.environment(master, restart_count)?;
        let mut ranks = Vec::new();
        let (mut errors, mut outputs) = (Vec::new(), Vec::new());
        for local_rank in 0..plan.options.nproc_per_node.0 {
            let mut command = plan.rank_command(local_rank);
            command.envs(variables.iter().map(|(name, value)| (name, value)));
            let (rank, [error, output]) =
                start_rank(plan, process_group, command, local_rank, restart_count)?;
            ranks.push(rank);
            errors.extend(error);
            outputs.extend(output);
        }
        let PendingOutput { out, err } = pending_output;
        let out =
            OutputForwarder::start("standard output", out, outputs, Box::new(std::io::stdout()))?;
        let err =
            OutputForwarder::start("standard error", err, errors, Box::new(std::io::stderr()))?;
        Ok(Self { ranks, rank_errors: Vec::new(), out, err })
    }

    /// Supervises the ranks until they exit, and reads their errors.
    ///
    /// # Errors
    /// `System` if a system call fails.
    pub(crate) fn supervise_ranks(
        &mut self,
        plan: &JobPlan<'_>,
        process_group: &mut ChildProcessGroup,
    ) -> Result<AttemptOutcome, Failure> {
        let (count, mut has_signal) = (self.ranks.len(), false);
        let is_watched = std::io::stderr().is_terminal();
        let cause = supervise(
            process_group,
            plan.required_ranks(),
            &plan.shutdown_timeouts(),
            &mut |notice| {
                has_signal |= matches!(
                    notice,
                    SupervisionNotice::SignalForwarded(_) | SupervisionNotice::KilledEarly(_)
                );
                if matches!(notice, SupervisionNotice::StillRunning { .. }) && !is_watched {
                    return;
                }
                self.err.write_message(&match notice {
                    SupervisionNotice::SignalForwarded(signal) => format!(
                        "{} received and forwarded to {count} ranks; a second signal kills them",
                        signal_name(signal)
                    ),
                    SupervisionNotice::KilledEarly(signal) => {
                        format!("{} received, killing the ranks", signal_name(signal))
                    }
                    SupervisionNotice::MemberFailed { index, remaining } => {
                        let lost = self.ranks[index].rank;
                        format!("rank {lost} failed; the job continues with {remaining} of {count} ranks")
                    }
                    SupervisionNotice::StillRunning { members, left } => {
                        let running = match members {
                            0 => "processes of ended ranks still run".to_owned(),
                            _ => format!("{} still running", count_text(members, "rank")),
                        };
                        format!("{running}; SIGKILL follows in {:.0} s", left.as_secs_f64())
                    }
                });
            },
        )?;
        self.rank_errors =
            self.ranks.iter().map(|rank| error_files::read_error_file(&rank.error_file)).collect();
        Ok(AttemptOutcome { cause, has_signal })
    }

    /// Closes an attempt before a restart. Returns its record and the pending output.
    pub(crate) fn close(
        self,
        members: Vec<ChildProcess>,
        started_at: Instant,
    ) -> (AttemptRecord, PendingOutput) {
        let Self { ranks, rank_errors, out, err } = self;
        let [out, err] = [out, err].map(|forwarder| QueuedOutput {
            forwarder: forwarder.close(OUTPUT_DRAIN_TIMEOUT),
            text: String::new(),
        });
        (AttemptRecord { ranks, members, rank_errors, started_at }, PendingOutput { out, err })
    }

    /// Finishes the last attempt. Waits until the standard error output of the ranks is written,
    /// but not for their standard output: its reader may be slow, and the report must not wait for
    /// this reader. Returns the record of the attempt, and the forwarder that still writes standard
    /// output.
    pub(crate) fn finish(
        self,
        members: Vec<ChildProcess>,
        started_at: Instant,
    ) -> (AttemptRecord, OutputForwarder) {
        let Self { ranks, rank_errors, out, err } = self;
        err.finish();
        (AttemptRecord { ranks, members, rank_errors, started_at }, out)
    }
}

impl AttemptRecord {
    /// Returns a view of the record for the report.
    pub(crate) fn as_finished_job(&self) -> FinishedJob<'_> {
        let Self { ranks, members, rank_errors, started_at } = self;
        FinishedJob { ranks, members, rank_errors, started_at: *started_at }
    }
}

/// Starts one rank. Returns its information and the read ends of its two streams.
fn start_rank(
    plan: &JobPlan<'_>,
    process_group: &mut ChildProcessGroup,
    mut command: Command,
    local_rank: usize,
    restart_count: u32,
) -> Result<(RankInfo, [Option<RankOutput>; 2]), Failure> {
    let options = plan.options;
    let number = options.node_rank() * options.nproc_per_node.0 + local_rank;
    let log_folder = plan.log_folder(number, restart_count);
    let rank = RankInfo {
        rank: number,
        local_rank,
        tails: [
            (OutputStream::Err, OutputTail::default()),
            (OutputStream::Out, OutputTail::default()),
        ],
        error_file: plan.errors.prepare(number, log_folder.as_deref())?,
        log_folder,
    };
    // Open the logs before the rank starts, so that a rank without a log is never started.
    let files =
        [open_log(options, &rank, rank.tails[0].0)?, open_log(options, &rank, rank.tails[1].0)?];
    plan.secret.set_environment(&mut command);
    command.env("RANK", number.to_string()).env("ROLE_RANK", number.to_string());
    command.env("LOCAL_RANK", local_rank.to_string());
    command.env(config::ERROR_FILE.name, &rank.error_file);
    let child =
        process_group.spawn(&mut command).map_err(|cause| start_error(options, number, &cause))?;
    let pipes: [Option<OwnedFd>; 2] =
        [child.stderr.map(OwnedFd::from), child.stdout.map(OwnedFd::from)];
    let mut sources = [None, None];
    for (index, (pipe, file)) in pipes.into_iter().zip(files).enumerate() {
        let (stream, tail) = &rank.tails[index];
        let console = stream_route(options, &rank, *stream).console;
        sources[index] =
            pipe.map(|pipe| RankOutput::new(number, pipe, console, file, tail.clone()));
    }
    Ok((rank, sources))
}

fn stream_route(options: &Options, rank: &RankInfo, stream: OutputStream) -> StreamRoute {
    let (tee, redirects) = (options.tee.as_ref(), options.redirects.as_ref());
    let route =
        streams::route_stream(options.log_dir.is_some(), tee, redirects, rank.local_rank, stream);
    let is_shown =
        options.local_ranks_filter.as_ref().is_none_or(|shown| shown.contains(rank.local_rank));
    StreamRoute { console: route.console && is_shown, ..route }
}

/// Opens the log file of a stream. Returns the file and its name, or `None` if the stream is not
/// logged.
fn open_log(
    options: &Options,
    rank: &RankInfo,
    stream: OutputStream,
) -> Result<Option<(File, String)>, Failure> {
    let Some(folder) = &rank.log_folder else { return Ok(None) };
    if !stream_route(options, rank, stream).file {
        return Ok(None);
    }
    let file = streams::create_log(folder, stream).map_err(Failure::new)?;
    Ok(Some((file, format!("{} of rank {}", stream.file_name(), rank.rank))))
}

fn start_error(options: &Options, rank: usize, cause: &std::io::Error) -> Failure {
    let program = options.program().0;
    let (status, reason) = match cause.kind() {
        ErrorKind::NotFound if Path::new(program).is_file() => {
            (127, "the interpreter in its first line was not found".to_owned())
        }
        ErrorKind::NotFound => (127, "program not found".to_owned()),
        ErrorKind::PermissionDenied => (126, "it is not executable".to_owned()),
        _ if cause.raw_os_error() == Some(8) => (126, "it is not a program".to_owned()),
        _ => (1, cause.to_string()),
    };
    let program = program.to_string_lossy();
    let mut message = format!("cannot start rank {rank}, {program}: {reason}");
    if program.ends_with(".py") {
        message.push_str(&format!("\n  run a Python script with: distrun ... python3 {program}"));
    }
    Failure { status, message }
}
