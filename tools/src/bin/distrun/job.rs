//! One job on this node. It runs attempts until an attempt succeeds or no restart is left. Each
//! attempt has its own store.
//!
//! The store of an attempt starts empty, so that no rank reads an entry of an earlier attempt. It
//! listens on the given port, or on any free port. The next store starts only when all ranks of the
//! attempt have exited.

use crate::attempt::{AttemptOutcome, JobAttempt, JobPlan, PendingOutput};
use crate::cli::{MasterAddress, Options};
use crate::error_files::ErrorFiles;
use crate::secret::JobSecret;
use dist::process::child_group::ChildProcessGroup;
use dist::process::process_exit::ProcessExit;
use dist::process::supervise::SupervisionOutcome;
use dist::store::tcp::{Server, ServerOptions};
use dist::sys::{host, limits, signal};
use dist_tools::{Failure, write_error};
use std::sync::Arc;

/// The signals with which a user or a job manager ends a job: SIGHUP, SIGINT, SIGQUIT, SIGTERM.
const FORWARDED_SIGNALS: [i32; 4] = [1, 2, 3, 15];

/// The signal that reports the exit of a child.
const SIGCHLD: i32 = 17;

/// Runs the job until it ends, and returns the exit status for distrun.
///
/// # Errors
/// The reason why the job cannot start.
pub(crate) fn run(options: &Options) -> Result<u8, Failure> {
    // Set the default action of SIGCHLD. distrun inherits the action of its parent process, and if
    // the action is to ignore the signal, distrun cannot wait for its children.
    signal::set_default(SIGCHLD);
    // Fork the guard process before any thread exists.
    let mut process_group = ChildProcessGroup::new(&FORWARDED_SIGNALS)?;
    raise_descriptor_limit(options)?;
    let secret = JobSecret::load(options, &mut process_group)?;
    let (run_id, errors) = (choose_run_id(options)?, ErrorFiles::new(options)?);
    let plan = JobPlan { options, secret, run_id, errors };
    let mut pending_output = PendingOutput::default();
    for restart_count in 0.. {
        let (store, master) = host_store(options, &plan.secret)?;
        let mut attempt =
            JobAttempt::start(&plan, &mut process_group, &master, restart_count, pending_output)?;
        let outcome = attempt.supervise_ranks(&plan, &mut process_group)?;
        let started_at = process_group.started();
        let finished_members = if may_restart(options, outcome, restart_count) {
            process_group.take_reaped()
        } else {
            None
        };
        let Some(members) = finished_members else {
            // Remove the error files now, while distrun still intercepts signals. Later, a signal
            // could end distrun before the removal.
            let JobPlan { errors, .. } = plan;
            let kept_dumps = match outcome.cause {
                SupervisionOutcome::Success => {
                    drop(errors);
                    None
                }
                _ => errors.into_kept_dumps(),
            };
            let status = finish_last_attempt(attempt, process_group, outcome.cause);
            if let Some(prefix) = kept_dumps {
                write_error(&format!(
                    "  the ranks have written their last operations; explain them with: \
                     dist-doctor {}\n",
                    prefix.display()
                ));
            }
            // Stop the store after everything else, because ranks may use it until they exit.
            drop(store);
            return Ok(status);
        };
        drop(store);
        let (record, mut next_pending_output) = attempt.close(members, started_at);
        let finished_job = record.as_finished_job();
        if let SupervisionOutcome::Failure(first) = outcome.cause {
            let cause = finished_job.root_cause(first);
            let (next, all) = (u64::from(restart_count) + 2, u64::from(options.max_restarts) + 1);
            let summary = finished_job.summary(cause);
            let report = finished_job.report(cause);
            let text = format!("{report}distrun: attempt {next} of {all} begins: {summary}\n");
            // Write the text immediately, unless earlier output is still pending.
            match next_pending_output.err.forwarder {
                None => write_error(&text),
                Some(_) => next_pending_output.err.text = text,
            }
        }
        pending_output = next_pending_output;
    }
    Err(Failure::new("too many attempts".to_owned()))
}

/// The descriptors that distrun holds for each of its ranks: of the process, and of two pipes.
const DESCRIPTORS_PER_RANK: usize = 3;

/// The descriptors that distrun or a rank needs for other purposes.
const OTHER_DESCRIPTORS: usize = 40;

/// The descriptors that programs need in addition to those of the library, at most. The limit of
/// the ranks includes this number.
const PROGRAM_DESCRIPTORS: usize = 512;

/// Raises the soft limit of open files if distrun or its ranks need more. The ranks inherit the
/// limit.
///
/// # Errors
/// The hard limit is lower than the number of descriptors that distrun or a rank needs.
fn raise_descriptor_limit(options: &Options) -> Result<(), Failure> {
    let local_size = options.nproc_per_node.0;
    // Each rank of the job has a connection to the store, which distrun hosts on node 0.
    let store_connections = if options.node_rank() == 0 { local_size * options.nnodes } else { 0 };
    let of_launcher = DESCRIPTORS_PER_RANK * local_size + store_connections + OTHER_DESCRIPTORS;
    // A rank has a connection to each other rank of its host.
    let of_rank = local_size + OTHER_DESCRIPTORS;
    let needed = of_launcher.max(of_rank) as u64;
    let wanted = needed + PROGRAM_DESCRIPTORS as u64;
    let limit = limits::raise_max_open_files_to(wanted)?;
    if needed <= limit {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{local_size} ranks on this node need {needed} open files in distrun, but the limit is \
         {limit} (the hard limit of this process): raise it with \"ulimit -Hn {needed}\" as root, \
         LimitNOFILE= of systemd, or --ulimit nofile={needed} of docker"
    )))
}

/// Returns true if another attempt follows after `restart_count` restarts.
fn may_restart(options: &Options, outcome: AttemptOutcome, restart_count: u32) -> bool {
    let has_failed = matches!(outcome.cause, SupervisionOutcome::Failure(_));
    has_failed && !outcome.has_signal && restart_count < options.max_restarts
}

/// Forwards the rest of the last attempt's output, and prints the report. Returns the exit status.
fn finish_last_attempt(
    attempt: JobAttempt,
    process_group: ChildProcessGroup,
    cause: SupervisionOutcome,
) -> u8 {
    // `into_members` ends the interception of signals. While distrun waits for a slow reader below,
    // a signal ends it.
    let started_at = process_group.started();
    let members = process_group.into_members();
    let (record, out) = attempt.finish(members, started_at);
    let finished_job = record.as_finished_job();
    let status = match cause {
        SupervisionOutcome::Success => {
            write_error(&finished_job.lost_ranks_report());
            0
        }
        SupervisionOutcome::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        SupervisionOutcome::Failure(first) => {
            let cause = finished_job.root_cause(first);
            write_error(&finished_job.report(cause));
            let ending = finished_job.members.get(cause).and_then(|member| member.exit());
            ending.map_or(1, ProcessExit::shell_status)
        }
    };
    write_error(&finished_job.unkillable_ranks_report());
    out.finish();
    status
}

/// Returns the job's id, which is the same for all attempts. For a job of several nodes, the id is
/// "none" unless the user gives an id, because the launchers of the nodes could not agree on a
/// random id.
fn choose_run_id(options: &Options) -> Result<String, Failure> {
    match options.run_id() {
        Some(id) => Ok(id.to_owned()),
        None if options.nnodes == 1 => Ok(host::random_nonce()?.to_string()),
        None => Ok("none".to_owned()),
    }
}

/// Hosts the store if this is node 0. Returns the store, and its address with the actual port.
fn host_store(
    options: &Options,
    secret: &JobSecret,
) -> Result<(Option<Arc<Server>>, MasterAddress), Failure> {
    let mut master = options.master_address();
    if options.node_rank() > 0 {
        return Ok((None, master));
    }
    let bind = ServerOptions {
        bind: master.address.clone(),
        port: master.port,
        secret: secret.for_server(),
        encrypts: secret.encrypts_store()?,
        ..ServerOptions::default()
    };
    let server = Server::start(bind).map_err(|error| {
        let MasterAddress { address, port } = &master;
        Failure::new(format!(
            "cannot host the job's store at {address} port {port}: {error}\n  choose \
             another port with --master-port, or an address of this host with --master-addr"
        ))
    })?;
    master.port = server.port();
    Ok((Some(server), master))
}
