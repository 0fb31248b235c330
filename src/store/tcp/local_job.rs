//! The store of a job whose launcher gives no address: all ranks are on this host, and know only
//! the job's name.
//!
//! Rank 0 hosts the store on a free port of the loopback interface. Each other rank gets the port
//! number from rank 0 over an abstract Unix socket (a socket name without a file) that is named
//! after the job. So the user need not choose a port, and no file remains.

use super::{ClientOptions, Secret, ServerOptions, TcpStore};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::log::LogLevel;
use crate::sys::{host, unix};
use crate::wait::{self, io};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const LOOPBACK: &str = "127.0.0.1";
/// The first bytes that a rank sends to rank 0. Its rank follows as a u32.
const GREETING: [u8; 4] = *b"ldj1";

/// The time limit for rank 0 to read the greeting of one rank and send the port to it.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval of attempts to connect to rank 0.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// While rank 0 waits for other ranks, it writes one log line per interval.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Hosts the job's store on rank 0, and joins this store on the other ranks. Either all ranks pass
/// the same secret, or none passes a secret.
///
/// # Errors
/// `Timeout` on rank 0 if other ranks did not join; the error names these ranks. `Timeout` on
/// another rank if it did not find rank 0. `System` if another job of the same name is starting.
pub fn host_or_join(
    job: &str,
    rank: usize,
    size: usize,
    secret: Option<Secret>,
    deadline: &Deadline,
) -> Result<TcpStore> {
    let name = format!("libdist-job-{:016x}", hash_job_name(job));
    let client = ClientOptions {
        host: LOOPBACK.into(),
        world_size: Some(size),
        secret,
        ..ClientOptions::default()
    };
    if rank == 0 {
        return host_store(&name, size, client, deadline);
    }
    let port = request_port(&name, rank, deadline)?;
    TcpStore::connect(ClientOptions { port, ..client }, deadline)
}

fn host_store(
    name: &str,
    size: usize,
    client: ClientOptions,
    deadline: &Deadline,
) -> Result<TcpStore> {
    let listener = unix::listen(name)?;
    let server = ServerOptions {
        bind: LOOPBACK.into(),
        secret: client.secret.clone(),
        ..ServerOptions::default()
    };
    let store = TcpStore::host(server, client, deadline)?;
    let port = store.server().map_or(0, |server| server.port());
    let mut served = vec![false; size];
    served[0] = true;
    let mut last_log = Duration::ZERO;
    while served.contains(&false) {
        let missing: Vec<String> =
            (0..size).filter(|&rank| !served[rank]).map(|rank| rank.to_string()).collect();
        match io::accept(&listener, &deadline.capped(LOG_INTERVAL)) {
            Ok(stream) => match send_port(&stream, port, size) {
                Ok(rank) => served[rank] = true,
                Err(error) => {
                    crate::log!(LogLevel::Warn, "rank 0 dropped an unexpected connection: {error}")
                }
            },
            Err(error) if error.kind() == ErrorKind::Timeout && !deadline.has_passed() => {
                if deadline.elapsed() - last_log >= LOG_INTERVAL {
                    last_log = deadline.elapsed();
                    crate::log!(
                        LogLevel::Warn,
                        "rank 0 still waits on this host for ranks {}",
                        missing.join(", ")
                    );
                }
            }
            Err(error) => {
                let context =
                    format!("rank 0 waited on this host for ranks {}", missing.join(", "));
                return Err(error.context(context));
            }
        }
    }
    Ok(store)
}

/// Reads the greeting and the rank that a peer sends, checks them, and sends the port to the peer.
/// Returns the rank.
fn send_port(stream: &UnixStream, port: u16, size: usize) -> Result<usize> {
    let (_, uid) = unix::peer_credentials(stream)?;
    let deadline = Deadline::after(PEER_TIMEOUT);
    let mut bytes = [0; 8];
    io::read_exact(stream, &mut bytes, &deadline)?;
    let rank = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    let rank = usize::try_from(rank).unwrap_or(usize::MAX);
    if uid != host::uid() || bytes[..4] != GREETING || rank == 0 || rank >= size {
        return Err(Error::new(ErrorKind::Auth, "the peer is not a rank of this job"));
    }
    io::write_all(stream, &port.to_le_bytes(), None, &deadline)?;
    Ok(rank)
}

/// Waits for rank 0 and requests the port from it.
fn request_port(name: &str, rank: usize, deadline: &Deadline) -> Result<u16> {
    let stream = loop {
        let cause = match unix::connect(name) {
            Ok(stream) => break stream,
            Err(cause) => cause,
        };
        if deadline.has_passed() {
            let message = format!(
                "rank {rank} did not find rank 0 on this host within {} ms ({cause}); check that rank 0 has started",
                deadline.elapsed().as_millis()
            );
            return Err(Error::new(ErrorKind::Timeout, message).with_culprit(0));
        }
        wait::pause(RETRY_INTERVAL, deadline);
    };
    let exchange = || {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&GREETING);
        bytes[4..].copy_from_slice(&u32::try_from(rank).unwrap_or(u32::MAX).to_le_bytes());
        io::write_all(&stream, &bytes, None, deadline)?;
        let mut port = [0; 2];
        io::read_exact(&stream, &mut port, deadline)?;
        Ok(u16::from_le_bytes(port))
    };
    exchange().context(|| "cannot get the port of the store from rank 0 on this host")
}

/// Hashes a job name with FNV-1a. The socket name contains the hash, because the length of a socket
/// name is limited and the length of a job name is not.
fn hash_job_name(job: &str) -> u64 {
    job.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    #[test]
    fn ranks_of_a_job_find_one_store() {
        let job = host::random_nonce().unwrap().to_string();
        let deadline = Deadline::after_ms(20_000);
        let secret = Secret::from_bytes(b"of the three").unwrap();
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..3)
                .map(|rank| {
                    scope.spawn({
                        let (job, deadline, secret) = (&job, &deadline, Some(secret.clone()));
                        move || host_or_join(job, rank, 3, secret, deadline).unwrap()
                    })
                })
                .collect();
            let stores: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
            stores[2].set(b"key", b"value", &deadline).unwrap();
            assert_eq!(stores[1].get(b"key", &deadline).unwrap(), b"value");
        });
    }

    #[test]
    fn timeout_names_the_missing_ranks() {
        let job = host::random_nonce().unwrap().to_string();
        let error = host_or_join(&job, 0, 3, None, &Deadline::after_ms(30)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.message().contains("ranks 1, 2"), "{error}");
        let error = host_or_join(&job, 1, 3, None, &Deadline::after_ms(30)).unwrap_err();
        assert_eq!((error.kind(), error.culprit()), (ErrorKind::Timeout, Some(0)));
    }
}
