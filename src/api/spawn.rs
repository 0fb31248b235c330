//! Forks this process once for each rank of a world, hosts the ranks' store, and reports how the
//! ranks end.
//!
//! The order of the steps:
//! 1. The store's socket listens before the first fork. Then every fork knows the port, and no rank
//!    connects too early.
//! 2. The forks start. Until then this process has a single thread, because a fork copies only the
//!    calling thread.
//! 3. The store's server, which has a thread, starts after the last fork. It ends after the last
//!    rank, so no rank hosts the store.

use crate::api::work::callbacks;
use crate::base::config::{self, EnvVariable};
use crate::base::deadline::{Deadline, Timeout};
use crate::base::error::{Error, ErrorKind, Result};
use crate::process::descriptor::above_standard_streams;
use crate::process::forked_children::{ForkOutcome, ForkTimeouts, ForkedChildren, MAX_FORKS};
use crate::process::this_process;
use crate::security::SecuritySetting;
use crate::store::tcp::{Secret, Server, ServerOptions};
use crate::wait;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

/// The time between the first rank's failure and the signal that ends the other ranks.
const SETTLE_TIME: Duration = Duration::from_millis(100);

/// The default of [`SpawnOptions::grace`] in milliseconds.
const DEFAULT_GRACE_MS: u64 = 2000;

/// The maximum time that the kernel may take to end a killed process.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// The number of descriptors that the store needs for each rank: one for its calls and one for its
/// waits.
const DESCRIPTORS_PER_RANK: usize = 2;

/// The number of descriptors for the store itself, with a reserve.
const BASE_DESCRIPTORS: usize = 64;

/// The time to wait for threads that have already been joined. The kernel may count such a thread
/// for a short time after the join.
const THREAD_EXIT_TIMEOUT: Duration = Duration::from_millis(200);

/// The interval at which the threads of the process are counted during this wait.
const THREAD_RECOUNT_INTERVAL: Duration = Duration::from_millis(1);

/// The options of `dist_spawn`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpawnOptions {
    /// The time limit for the ranks; 0 for no limit.
    pub join_timeout_ms: u64,
    /// The time for which ranks may continue after SIGTERM, before they are killed.
    pub grace: Timeout,
}

/// Runs `body` in `count` forks of this process, which are the ranks of a world, and waits for
/// them.
///
/// # Errors
/// * `PeerFailed` for the first rank that failed.
/// * `Timeout`, which names the ranks that were still running.
/// * `InvalidArgument` if this process cannot be forked.
/// * `OutOfMemory` or `System`. `System` includes the case that the process has too few
///   descriptors.
pub fn spawn(
    count: usize,
    options: &SpawnOptions,
    body: &mut dyn FnMut(usize) -> i32,
) -> Result<()> {
    callbacks::reject_blocking_in_callback("dist_spawn")?;
    check_can_fork(count)?;
    let encrypts = SecuritySetting::encrypts_store(true)?;
    let started = Deadline::never();
    let listener = above_standard_streams(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let bound = listener.and_then(|listener| Ok((listener.local_addr()?.port(), listener)));
    let (port, listener) =
        bound.map_err(|cause| Error::system("a port for the ranks' store", cause))?;
    let (secret, secret_fd) = Secret::generate()?;
    let fd = secret_fd.as_raw_fd();
    let mut listener = Some(listener);
    let mut run_in_fork = |rank| {
        // This runs in the fork. It closes the fork's copy of the parent's listener.
        listener = None;
        body(rank)
    };
    let variables = |rank| rank_environment(rank, count, port, fd);
    let mut forks =
        ForkedChildren::start(count, descriptors_needed(count), &variables, &mut run_in_fork)?;
    drop(secret_fd);
    let server = Server::start(ServerOptions {
        listen_fd: listener.take().map(OwnedFd::from),
        secret: Some(secret),
        encrypts,
        ..ServerOptions::default()
    })?;
    let total = match options.join_timeout_ms {
        0 => Deadline::never(),
        ms => Deadline::after_ms(ms),
    };
    let grace = Duration::from_millis(options.grace.ms_or(DEFAULT_GRACE_MS));
    let cause = forks.wait_and_end(&ForkTimeouts {
        total,
        settle: SETTLE_TIME,
        grace,
        kill: KILL_TIMEOUT,
    })?;
    // The server ends last, because ranks may use the store until they end.
    drop(server);
    check_exit(&forks, &cause, &started)
}

/// Checks that this process can be forked into ranks.
fn check_can_fork(count: usize) -> Result<()> {
    if !(1..=MAX_FORKS).contains(&count) {
        return Err(Error::invalid(format!("nprocs is {count}: pass 1 to {MAX_FORKS}")));
    }
    if this_process::is_used() {
        let message = "this process has already used groups or stores of libdist, whose threads, \
                       memory and connections cannot be forked: call dist_spawn before dist_init, \
                       dist_group_create, dist_store_tcp_create and dist_store_file_create, or in \
                       another process";
        return Err(Error::invalid(message));
    }
    let thread_limit = Deadline::after(THREAD_EXIT_TIMEOUT);
    while this_process::thread_count()? > 1 && !thread_limit.has_passed() {
        wait::pause(THREAD_RECOUNT_INTERVAL, &thread_limit);
    }
    let (needed, free) = (descriptors_needed(count), this_process::free_descriptors()?);
    if free < needed {
        let message = format!(
            "the store of {count} ranks needs up to {needed} descriptors, but this process may \
             open only {free} more: raise the limit of open files (ulimit -n) by at least {}, or \
             start fewer ranks",
            needed - free
        );
        return Err(Error::new(ErrorKind::System, message));
    }
    Ok(())
}

/// Returns the number of descriptors that this process needs for the store of `count` ranks.
fn descriptors_needed(count: usize) -> usize {
    count * DESCRIPTORS_PER_RANK + BASE_DESCRIPTORS
}

/// Returns the environment that a launcher would set for a rank. A value of `None` removes a
/// variable that a launcher has set for this process.
fn rank_environment(
    rank: usize,
    count: usize,
    port: u16,
    secret: i32,
) -> Vec<(&'static str, Option<String>)> {
    let set =
        |variable: EnvVariable, value: &dyn ToString| (variable.name, Some(value.to_string()));
    let unset = |variable: EnvVariable| (variable.name, None);
    vec![
        set(config::RANK, &rank),
        set(config::WORLD_SIZE, &count),
        ("LOCAL_RANK", Some(rank.to_string())),
        ("LOCAL_WORLD_SIZE", Some(count.to_string())),
        set(config::MASTER_ADDR, &Ipv4Addr::LOCALHOST),
        set(config::MASTER_PORT, &port),
        set(config::USE_AGENT_STORE, &"True"),
        set(config::SECRET_FD, &secret),
        unset(config::SECRET_FILE),
        unset(config::RUN_ID),
    ]
}

/// Returns an error that describes how the ranks ended, unless all ranks succeeded.
fn check_exit(forks: &ForkedChildren, cause: &ForkOutcome, started: &Deadline) -> Result<()> {
    let error = match cause {
        ForkOutcome::Success => return Ok(()),
        ForkOutcome::Failure(rank) => {
            Error::new(ErrorKind::PeerFailed, describe_exit(forks, *rank)).with_culprit(*rank)
        }
        ForkOutcome::Deadline(running) => {
            let mut message = format!(
                "{} of {} still ran after {} ms (join_timeout_ms) and were terminated",
                format_ranks(running),
                forks.members().len(),
                started.elapsed().as_millis()
            );
            let errors = running.iter().map(|&rank| (rank, forks.child_result(rank).message));
            if let Some((rank, text)) = errors.into_iter().find(|(_, text)| !text.is_empty()) {
                message.push_str(&format!("; last error in libdist of rank {rank}: {text}"));
            }
            Error::new(ErrorKind::Timeout, message)
        }
    };
    let stuck: Vec<usize> =
        (0..forks.members().len()).filter(|&i| forks.members()[i].exit().is_none()).collect();
    if stuck.is_empty() {
        return Err(error);
    }
    let message = format!("{error}; {} cannot be killed", format_ranks(&stuck));
    Err(Error::new(error.kind(), message).with_source(error))
}

/// Describes the end of a rank: `rank 2 of 4 (pid 77) returned 7; its last error in libdist: …`.
fn describe_exit(forks: &ForkedChildren, rank: usize) -> String {
    let (members, child_report) = (forks.members(), forks.child_result(rank));
    let member = &members[rank];
    let exit = match (member.exit(), child_report.returned) {
        (Some(ending), _) if ending.signal().is_some() => format!("was ended by {ending}"),
        // Exit handlers, a sanitizer for instance, can change the status after the return.
        (Some(ending), Some(0)) if !ending.is_success() => {
            format!("returned 0, and ended with {ending}")
        }
        (_, Some(result)) => format!("returned {result}"),
        (Some(ending), None) => format!("ended with {ending}"),
        (None, None) => "did not end".to_owned(),
    };
    let mut message = format!("rank {rank} of {} (pid {}) {exit}", members.len(), member.pid());
    if !child_report.message.is_empty() {
        message.push_str(&format!("; its last error in libdist: {}", child_report.message));
    }
    let killed: Vec<usize> = (0..members.len()).filter(|&i| members[i].was_killed()).collect();
    if !killed.is_empty() {
        message.push_str(&format!(
            "; {} did not end after SIGTERM and had to be killed",
            format_ranks(&killed)
        ));
    }
    message
}

/// The maximum number of ranks that a message lists.
const MAX_NAMED_RANKS: usize = 16;

/// Formats a list of ranks: `rank 3`, `ranks 1, 2`, `ranks 0, 1, … and 20 more`.
fn format_ranks(ranks: &[usize]) -> String {
    let named: Vec<String> = ranks.iter().take(MAX_NAMED_RANKS).map(ToString::to_string).collect();
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    let more = match ranks.len().saturating_sub(MAX_NAMED_RANKS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{noun} {}{more}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_environment_equals_that_of_a_launcher() {
        let variables = rank_environment(1, 4, 29_500, 7);
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.unwrap_or_else(|| panic!("{name}")).1.as_deref()
        };
        assert_eq!((value("RANK"), value("LOCAL_RANK")), (Some("1"), Some("1")));
        assert_eq!((value("WORLD_SIZE"), value("LOCAL_WORLD_SIZE")), (Some("4"), Some("4")));
        assert_eq!(
            (value("MASTER_ADDR"), value("MASTER_PORT")),
            (Some("127.0.0.1"), Some("29500"))
        );
        assert_eq!(
            (value("DIST_STORE_SECRET_FD"), value("DIST_STORE_SECRET_FILE")),
            (Some("7"), None)
        );
    }

    #[test]
    fn long_rank_lists_are_abbreviated() {
        assert_eq!(format_ranks(&[3]), "rank 3");
        assert_eq!(format_ranks(&[0, 2]), "ranks 0, 2");
        assert!(format_ranks(&(0..20).collect::<Vec<_>>()).ends_with("14, 15 and 4 more"));
    }

    #[test]
    fn a_process_with_threads_is_not_forked() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let thread =
            std::thread::Builder::new().spawn(move || assert!(held.recv().is_err())).unwrap();
        let mut body = |_| -> i32 { unreachable!("no process was forked") };
        let error = spawn(2, &SpawnOptions::default(), &mut body).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        drop(release);
        thread.join().unwrap();
        for count in [0, MAX_FORKS + 1] {
            let error = spawn(count, &SpawnOptions::default(), &mut body).unwrap_err();
            assert!(error.message().contains(&format!("nprocs is {count}")), "{error}");
        }
    }
}
