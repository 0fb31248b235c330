//! One job on this node: attempts, each with a store of its own, until one ends well or there may
//! be no more.
//!
//! The store of an attempt begins empty, at the port that was given or any free one: what an
//! earlier attempt has left is not there to be believed. All ranks of an attempt have ended before
//! the next one's store is there.

use crate::attempt::{Attempt, Outcome, Plan, Unwritten};
use crate::cli::{Master, Options};
use crate::errors::ErrorFiles;
use crate::secret::JobSecret;
use crate::{Failure, write_error};
use dist::process::crew::Crew;
use dist::process::ending::Ending;
use dist::process::supervise::Cause;
use dist::store::tcp::{Server, ServerOptions};
use dist::sys::{host, signal};
use std::sync::Arc;

/// What a user or a job manager sends to end a job.
const PASSED_ON: [i32; 4] = [1, 2, 3, 15];

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
    let mut crew = Crew::new(&PASSED_ON)?;
    let secret = JobSecret::of(options, &mut crew)?;
    let (run_id, errors) = (run_id(options)?, ErrorFiles::new(options)?);
    let plan = Plan { options, secret, run_id, errors };
    let mut before = Unwritten::default();
    for count in 0.. {
        let (store, master) = host_store(options, &plan.secret)?;
        let mut attempt = Attempt::start(&plan, &mut crew, &master, count, before)?;
        let outcome = attempt.see_through(&plan, &mut crew)?;
        let began = crew.started();
        let renewed = if may_follow(options, outcome, count) { crew.renew() } else { None };
        let Some(members) = renewed else {
            // While no signal can end us before it is gone.
            drop(plan);
            let status = finish(attempt, crew, outcome.cause);
            // Only now: ranks may use the store up to their end.
            drop(store);
            return Ok(status);
        };
        drop(store);
        let (remains, mut unwritten) = attempt.retire(members, began);
        let ended = remains.ended();
        if let Cause::Failure(first) = outcome.cause {
            let cause = ended.root_cause(first);
            let (next, all) = (u64::from(count) + 2, u64::from(options.max_restarts) + 1);
            let why = ended.in_short(cause);
            let report = ended.report(cause);
            let text = format!("{report}distrun: attempt {next} of {all} begins: {why}\n");
            // At once, unless something stands before it that nobody has read yet.
            match unwritten.err.pump {
                None => write_error(&text),
                Some(_) => unwritten.err.text = text,
            }
        }
        before = unwritten;
    }
    Err(Failure::new("the attempts have run out of numbers".to_owned()))
}

/// Whether there is another attempt after `count` restarts.
fn may_follow(options: &Options, outcome: Outcome, count: u32) -> bool {
    let has_failed = matches!(outcome.cause, Cause::Failure(_));
    has_failed && !outcome.is_unwanted && count < options.max_restarts
}

/// Passes on the rest of the last attempt, and reports; the exit status.
fn finish(attempt: Attempt, crew: Crew, cause: Cause) -> u8 {
    // From here on a signal ends us as it would any program that waits for its reader.
    let began = crew.started();
    let members = crew.disband();
    let (remains, out) = attempt.finish(members, began);
    let ended = remains.ended();
    let status = match cause {
        Cause::Success => {
            write_error(&ended.lost());
            0
        }
        Cause::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        Cause::Failure(first) => {
            let cause = ended.root_cause(first);
            write_error(&ended.report(cause));
            let ending = ended.members.get(cause).and_then(|member| member.ending());
            ending.map_or(1, Ending::shell_status)
        }
    };
    write_error(&ended.unkillable());
    out.finish();
    status
}

/// The job's id, which stays the same for all attempts. Launchers of several nodes can only have
/// one in common that all were given.
fn run_id(options: &Options) -> Result<String, Failure> {
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
) -> Result<(Option<Arc<Server>>, Master), Failure> {
    let mut master = options.master();
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
        let Master { address, port } = &master;
        Failure::new(format!(
            "cannot host the job's store at {address} port {port}: {error}\n  --master-port names \
             another port, --master-addr an address of this host"
        ))
    })?;
    master.port = server.port();
    Ok((Some(server), master))
}
