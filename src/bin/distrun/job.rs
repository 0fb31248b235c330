//! One job on this node: attempts, each with a store of its own, until one ends well or there may
//! be no more.
//!
//! The store of an attempt begins empty, at the port that was given or any free one: what an
//! earlier attempt has left is not there to be believed. All ranks of an attempt have ended before
//! the next one's store is there.

use crate::attempt::{AttemptOutcome, JobAttempt, JobPlan, PendingOutput};
use crate::cli::{MasterAddress, Options};
use crate::error_files::ErrorFiles;
use crate::secret::JobSecret;
use crate::{Failure, write_error};
use dist::process::child_group::ChildProcessGroup;
use dist::process::process_exit::ProcessExit;
use dist::process::supervise::SupervisionOutcome;
use dist::store::tcp::{Server, ServerOptions};
use dist::sys::{host, signal};
use std::sync::Arc;

/// What a user or a job manager sends to end a job.
const FORWARDED_SIGNALS: [i32; 4] = [1, 2, 3, 15];

/// Tells of the end of a child.
const SIGCHLD: i32 = 17;

/// Runs the job to its end, and returns the exit status to end with.
///
/// # Errors
/// Whatever keeps the job from starting.
pub(crate) fn run(options: &Options) -> Result<u8, Failure> {
    // Whoever started us may ignore this signal; children then leave nothing to wait for.
    signal::set_default(SIGCHLD);
    // Before anything that has threads: the guardian is a fork.
    let mut process_group = ChildProcessGroup::new(&FORWARDED_SIGNALS)?;
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
            // While no signal can end us before it is gone.
            drop(plan);
            let status = finish_last_attempt(attempt, process_group, outcome.cause);
            // Only now: ranks may use the store up to their end.
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
            // At once, unless something stands before it that nobody has read yet.
            match next_pending_output.err.forwarder {
                None => write_error(&text),
                Some(_) => next_pending_output.err.text = text,
            }
        }
        pending_output = next_pending_output;
    }
    Err(Failure::new("the attempts have run out of numbers".to_owned()))
}

/// Whether there is another attempt after `restart_count` restarts.
fn may_restart(options: &Options, outcome: AttemptOutcome, restart_count: u32) -> bool {
    let has_failed = matches!(outcome.cause, SupervisionOutcome::Failure(_));
    has_failed && !outcome.has_signal && restart_count < options.max_restarts
}

/// Passes on the rest of the last attempt, and reports; the exit status.
fn finish_last_attempt(
    attempt: JobAttempt,
    process_group: ChildProcessGroup,
    cause: SupervisionOutcome,
) -> u8 {
    // From here on a signal ends us as it would any program that waits for its reader.
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

/// The job's id, which stays the same for all attempts. Launchers of several nodes can only have
/// one in common that all were given.
fn choose_run_id(options: &Options) -> Result<String, Failure> {
    match options.run_id() {
        Some(id) => Ok(id.to_owned()),
        None if options.nnodes == 1 => Ok(host::random_nonce()?.to_string()),
        None => Ok("none".to_owned()),
    }
}

/// On node 0, the store, with the port it got.
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
        ..ServerOptions::default()
    };
    let server = Server::start(bind).map_err(|error| {
        let MasterAddress { address, port } = &master;
        Failure::new(format!(
            "cannot host the job's store at {address} port {port}: {error}\n  --master-port names \
             another port, --master-addr an address of this host"
        ))
    })?;
    master.port = server.port();
    Ok((Some(server), master))
}
