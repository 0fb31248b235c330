//! The rendezvous store of the world: `dist_init` finds it by the init method, opens it, and hosts
//! it on rank 0 if no launcher does.

use super::environment::{self, RankAndSize, RendezvousMethod};
use super::init_options::InitOptions;
use super::store::{open_file, open_tcp};
use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::security::{Secret, SecuritySetting};
use crate::store::file::FileOptions;
use crate::store::tcp::{
    ClientOptions, JOB_SECRET_KEY, ServerOptions, StoreSecurity, TcpStore, local_job,
};
use crate::store::{HashStore, Store};
use crate::wait;
use std::sync::Arc;
use std::time::Duration;

/// The number of attempts to reach the Unix socket of the store, and the pause between them.
const UNIX_SOCKET_ATTEMPTS: usize = 6;
const UNIX_SOCKET_PAUSE: Duration = Duration::from_millis(20);

/// The rendezvous store, and the rank and role of this process.
pub(super) struct WorldSetup {
    pub(super) store: Arc<dyn Store>,
    pub(super) hosts_store: bool,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// The job's secret, if the store does not have it.
    pub(super) job_secret: Option<Secret>,
}

/// Opens or hosts the store of the world.
///
/// # Errors
/// `InvalidArgument` for the options and the environment; the errors of the stores.
pub(super) fn set_up_store(options: &InitOptions, deadline: &Deadline) -> Result<WorldSetup> {
    if let Some(store) = &options.store {
        if options.init_method.is_some() {
            return Err(Error::invalid("give either a store or an init_method, not both"));
        }
        let (rank, size) =
            resolve_rank_and_size(options, environment::identity_from_environment()?)?;
        return Ok(WorldSetup {
            store: Arc::clone(store),
            hosts_store: false,
            rank,
            size,
            job_secret: None,
        });
    }
    let url = options.init_method.as_deref().unwrap_or("env://");
    let resolved = environment::resolve(url, options.size)?;
    let (rank, size) = resolve_rank_and_size(options, resolved.identity)?;
    let (store, hosts_store) = match resolved.rendezvous {
        RendezvousMethod::SingleRank => {
            let store = Arc::new(HashStore::new());
            return Ok(WorldSetup { store, hosts_store: false, rank, size, job_secret: None });
        }
        RendezvousMethod::File { path, job } => {
            let options = FileOptions { world_size: Some(size), job_id: job, is_rendezvous: true };
            let store = Arc::new(open_file(&path, &options, deadline)?);
            let job_secret = environment::job_secret()?;
            return Ok(WorldSetup { store, hosts_store: false, rank, size, job_secret });
        }
        RendezvousMethod::Local { job } => {
            let secret = environment::job_secret()?;
            let encrypts = SecuritySetting::encrypts_store(true)?;
            let security = StoreSecurity { secret, encrypts, ..StoreSecurity::default() };
            (local_job::host_or_join(&job, rank, size, security, deadline)?, rank == 0)
        }
        RendezvousMethod::Tcp { host, port: 0, .. } if size > 1 => {
            let message = format!(
                "the address of the store is {host}, port 0, which selects any free port: the \
                 other ranks cannot know that port; specify a port"
            );
            return Err(Error::invalid(message));
        }
        RendezvousMethod::Tcp { host, port, is_agent_hosted, is_single_host } => {
            let hosts = rank == 0 && !is_agent_hosted;
            let client = ClientOptions {
                host,
                port,
                world_size: Some(size),
                secret: environment::job_secret()?,
                ..ClientOptions::default()
            };
            if is_agent_hosted && let Some((store, secret)) = join_open_store(&client, deadline)? {
                let (store, job_secret) = (Arc::new(store), Some(secret));
                return Ok(WorldSetup { store, hosts_store: false, rank, size, job_secret });
            }
            let store = if is_single_host && !is_agent_hosted && shares_secret(&client)? {
                open_shared(client, hosts, deadline)?
            } else {
                let server = if hosts { Some(server_at(&client)?) } else { None };
                open_tcp(server, client, deadline)?
            };
            (store, hosts)
        }
    };
    Ok(WorldSetup { store: Arc::new(store), hosts_store, rank, size, job_secret: None })
}

/// Returns the server for the address to which the clients connect.
fn server_at(client: &ClientOptions) -> Result<ServerOptions> {
    let bind = config::read_text(config::STORE_BIND)?.unwrap_or_else(|| client.host.clone());
    let (port, secret) = (client.port, client.secret.clone());
    Ok(ServerOptions { bind, port, secret, ..ServerOptions::default() })
}

/// Returns whether rank 0 makes a secret for the ranks of a job on one host: the user has given
/// none, and wants one.
fn shares_secret(client: &ClientOptions) -> Result<bool> {
    let uses_unix_sockets = config::read_text(config::STORE_UNIX)?.as_deref() != Some("off");
    let wants_secret = SecuritySetting::requested(true)? != SecuritySetting::None;
    Ok(client.secret.is_none() && uses_unix_sockets && wants_secret)
}

/// Opens the store of a job on one host. Rank 0 hosts it with a new secret. The other ranks read
/// the secret from the store, over its Unix socket, and then connect with the secret. If rank 0
/// gives no secret, they connect without one.
fn open_shared(client: ClientOptions, hosts: bool, deadline: &Deadline) -> Result<TcpStore> {
    if hosts {
        let (secret, text) = Secret::generate_text()?;
        let client = ClientOptions { secret: Some(secret), ..client };
        let server = ServerOptions { shared_text: Some(text), ..server_at(&client)? };
        return open_tcp(Some(server), client, deadline);
    }
    let store = connect_without_secret(&client, deadline)?;
    let secret = match store.check(&[JOB_SECRET_KEY], deadline)? {
        true => Some(Secret::from_bytes(&store.get(JOB_SECRET_KEY, deadline)?)?),
        false => None,
    };
    open_tcp(None, ClientOptions { secret, ..client }, deadline)
}

/// Connects to the store of a job on one host without a secret. The connection does not count as a
/// rank.
///
/// The server opens its TCP socket before its Unix socket, and a client over TCP needs the secret.
/// So a refused client tries again.
fn connect_without_secret(client: &ClientOptions, deadline: &Deadline) -> Result<TcpStore> {
    let client = ClientOptions { world_size: None, ..client.clone() };
    for _ in 1..UNIX_SOCKET_ATTEMPTS {
        match open_tcp(None, client.clone(), deadline) {
            Err(error) if error.kind() == ErrorKind::Auth => {
                wait::pause(UNIX_SOCKET_PAUSE, deadline)
            }
            outcome => return outcome,
        }
    }
    open_tcp(None, client, deadline)
}

/// Joins the store of a launcher that knows no secrets, such as torchrun, although this process has
/// one. Returns the store and the secret, which then protects the connections between ranks.
/// Returns `None` if this process has no secret, or if the store has one.
fn join_open_store(
    client: &ClientOptions,
    deadline: &Deadline,
) -> Result<Option<(TcpStore, Secret)>> {
    let Some(secret) = &client.secret else { return Ok(None) };
    if environment::launcher_has_secret()? {
        return Ok(None);
    }
    // A store that cannot encrypt gets nothing from this process, not even a count.
    let encrypts = SecuritySetting::encrypts_store(true)?;
    let world_size = client.world_size.filter(|_| !encrypts);
    match open_tcp(None, ClientOptions { secret: None, world_size, ..client.clone() }, deadline) {
        Ok(_) if encrypts => {
            let message = format!(
                "{name}=encrypt, but the store of the launcher at {}:{} has no secret and cannot \
                 encrypt, which is the setting {name}=none: use distrun, or let rank 0 host the \
                 store, or set {name}=auth",
                client.host,
                client.port,
                name = config::SECURITY.name
            );
            Err(Error::new(ErrorKind::Auth, message))
        }
        Ok(store) => Ok(Some((store, secret.clone()))),
        Err(error) if error.kind() == ErrorKind::Auth => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns rank and world size: the options if set, else the values found in the URL or
/// environment.
fn resolve_rank_and_size(options: &InitOptions, found: RankAndSize) -> Result<(usize, usize)> {
    let missing = |what: &str, variable: config::EnvVariable| {
        Error::invalid(format!(
            "the {what} of this process is not set: set it in the options, the init_method or \
             environment variable {}, or start the program with distrun, torchrun, mpirun or srun",
            variable.name
        ))
    };
    let rank = options.rank.or(found.rank).ok_or_else(|| missing("rank", config::RANK))?;
    let size =
        options.size.or(found.size).ok_or_else(|| missing("world size", config::WORLD_SIZE))?;
    if rank >= size {
        let message = format!("rank {rank} does not exist in a world of {size} (ranks start at 0)");
        return Err(Error::invalid(message));
    }
    Ok((rank, size))
}
