//! The store of a job whose launcher gives no address: all ranks are on this host, and know only
//! the job's name.
//!
//! Rank 0 hosts the store on a free port of the loopback interface. Each other rank gets the port
//! number and the job's secret from rank 0 over an abstract Unix socket (a socket name without a
//! file) that is named after the job. So the user need not choose a port or make a secret, and no
//! file remains.
//!
//! Other users of the host can guess the name. Both sides of a connection check the user of the
//! other side first, and a name that another user has taken does not stop the job
//! ([`local_job_search`](super::local_job_search)). Rank 0 answers all connections concurrently
//! ([`local_job_service`]).
//!
//! If rank 0 has a secret from the user, the other ranks must have it, too. Otherwise rank 0 makes
//! a secret and sends its descriptor.

use super::local_job_search::{JobListener, JobSearch};
use super::local_job_service::{self, JobStoreRequest, StoreOffer};
use super::{ClientOptions, Secret, ServerOptions, StoreSecurity, TcpStore};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::wait;
use std::time::Duration;

const LOOPBACK: &str = "127.0.0.1";

/// The interval of attempts to connect to rank 0.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Hosts the job's store on rank 0, and joins this store on the other ranks. Either all ranks pass
/// the same secret, or none passes a secret; rank 0 then makes one for all.
///
/// # Errors
/// `Timeout` on rank 0 if other ranks did not join; the error names these ranks. `Timeout` on
/// another rank if it did not find rank 0. `System` if another job of the same name is starting.
pub fn host_or_join(
    job: &str,
    rank: usize,
    size: usize,
    security: StoreSecurity,
    deadline: &Deadline,
) -> Result<TcpStore> {
    let StoreSecurity { secret, encrypts, .. } = security;
    let client = ClientOptions {
        host: LOOPBACK.into(),
        world_size: Some(size),
        secret,
        encrypts,
        ..ClientOptions::default()
    };
    if rank == 0 {
        return host_store(job, size, client, deadline);
    }
    let offer = find_store(job, rank, deadline)?;
    // If the secrets differ, the store reports it.
    let secret = client.secret.or(offer.read_secret()?);
    TcpStore::connect(ClientOptions { port: offer.port, secret, ..client }, deadline)
}

fn host_store(
    job: &str,
    size: usize,
    client: ClientOptions,
    deadline: &Deadline,
) -> Result<TcpStore> {
    let listener = JobListener::open(job)?;
    let (secret, secret_fd) = match client.secret {
        Some(secret) => (secret, None),
        None => {
            let (secret, fd) = Secret::generate()?;
            (secret, Some(fd))
        }
    };
    let client = ClientOptions { secret: Some(secret.clone()), ..client };
    let server = ServerOptions {
        bind: LOOPBACK.into(),
        secret: Some(secret),
        encrypts: client.encrypts,
        ..ServerOptions::default()
    };
    let store = TcpStore::host(server, client, deadline)?;
    let port = store.server().map_or(0, |server| server.port());
    let offer = StoreOffer { port, secret_fd };
    local_job_service::serve(listener.socket(), &offer, size, deadline)?;
    Ok(store)
}

/// Waits for rank 0 and requests the store from it.
fn find_store(job: &str, rank: usize, deadline: &Deadline) -> Result<StoreOffer> {
    let mut search = JobSearch::new(job);
    let request = JobStoreRequest { rank };
    loop {
        let failure = match search.connect().and_then(|stream| request.send(&stream, deadline)) {
            Ok(offer) => return Ok(offer),
            Err(error) if matches!(error.kind(), ErrorKind::Auth | ErrorKind::System) => {
                return Err(error).context(|| "cannot get the store from rank 0 on this host");
            }
            // For example, rank 0 has not started, or closed the connection because too many
            // processes connected.
            Err(error) => error,
        };
        if deadline.has_passed() {
            let message = format!(
                "rank {rank} did not find rank 0 on this host within {} ms ({failure}); check that rank 0 has started",
                deadline.elapsed().as_millis()
            );
            return Err(Error::new(ErrorKind::Timeout, message).with_culprit(0));
        }
        wait::pause(RETRY_INTERVAL, deadline);
    }
}
