//! The socket by which the ranks of a local job find rank 0 ([`JobListener`], [`JobSearch`]).
//!
//! The first name of the socket is derived from the job's name, which any user of the host can
//! guess. If another user has taken the first name, rank 0 listens on a second name, which ends
//! with a random number. The other ranks find second names in the kernel's list of Unix sockets.
//! They use the first listener that belongs to their user or to root. Another user can take any
//! number of names: each costs a rank some microseconds.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::LogLevel;
use crate::sys::{host, unix};
use std::io::ErrorKind as Io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// The interval at which a rank searches for second names.
const SEARCH_INTERVAL: Duration = Duration::from_millis(200);

/// The listening socket of rank 0.
#[derive(Debug)]
pub(super) struct JobListener(UnixListener);

impl JobListener {
    /// Opens the socket of a job.
    ///
    /// # Errors
    /// `System`, for example if rank 0 of another job of this user listens for the same name.
    pub(super) fn open(job: &str) -> Result<Self> {
        listen_on_free_name(&first_name(job)).map(Self)
    }

    /// Returns the socket.
    pub(super) fn socket(&self) -> &UnixListener {
        &self.0
    }
}

/// The search of a rank for rank 0.
#[derive(Debug)]
pub(super) struct JobSearch {
    first: String,
    /// The time of the next search for second names.
    next_search: Instant,
}

impl JobSearch {
    /// Begins the search for rank 0 of a job.
    pub(super) fn new(job: &str) -> Self {
        Self { first: first_name(job), next_search: Instant::now() }
    }

    /// Connects to rank 0. Does not wait.
    ///
    /// # Errors
    /// `Connection` if rank 0 does not listen, or if its queue is full.
    pub(super) fn connect(&mut self) -> Result<UnixStream> {
        let error = match connect_to(&self.first) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        if Instant::now() >= self.next_search {
            self.next_search = Instant::now() + SEARCH_INTERVAL;
            return connect_to_second_name(&self.first).ok_or(error);
        }
        Err(error)
    }
}

/// Listens on a name. If another user has taken it, listens on a second name.
///
/// # Errors
/// `System`, for example if another process of this user listens on the name.
pub(super) fn listen_on_free_name(first: &str) -> Result<UnixListener> {
    match unix::listen(first) {
        Err(error) if is_taken(&error) && connect_to(first).is_err() => {
            crate::log!(
                LogLevel::Warn,
                "another user has taken the name @{first}; this process listens on another name"
            );
            unix::listen(&format!("{first}-{}", host::random_nonce()?))
        }
        outcome => outcome,
    }
}

/// Connects to a listener of this user or of root on a second name.
pub(super) fn connect_to_second_name(first: &str) -> Option<UnixStream> {
    let names = unix::listening_names(&format!("{first}-")).unwrap_or_default();
    names.iter().find_map(|name| connect_to(name).ok())
}

/// Connects to a listener of this user or of root.
///
/// # Errors
/// `Connection`, also if the listener belongs to another user.
fn connect_to(name: &str) -> Result<UnixStream> {
    let stream = unix::connect(name)
        .map_err(|cause| Error::connection(format_args!("the socket @{name}"), cause))?;
    unix::check_peer_user(&stream)
        .map_err(|error| Error::new(ErrorKind::Connection, error.message()))?;
    Ok(stream)
}

fn is_taken(error: &Error) -> bool {
    error.io_cause().is_some_and(|cause| cause.kind() == Io::AddrInUse)
}

/// Returns the first name of the socket of a job.
pub(super) fn first_name(job: &str) -> String {
    format!("libdist-job-{:016x}", hash_job_name(job))
}

/// Hashes a job name with FNV-1a. The socket name contains the hash, because the length of a socket
/// name is limited and the length of a job name is not.
fn hash_job_name(job: &str) -> u64 {
    job.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
