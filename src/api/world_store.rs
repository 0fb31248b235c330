//! The rendezvous store of the world: `dist_init` finds it by the init method, opens it, and hosts
//! it on rank 0 if no launcher does.

use super::environment::{self, RankAndSize, RendezvousMethod};
use super::runtime::InitOptions;
use super::store::{open_file, open_tcp};
use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::security::{Secret, SecuritySetting};
use crate::store::file::FileOptions;
use crate::store::tcp::{ClientOptions, ServerOptions, StoreSecurity, TcpStore, local_job};
use crate::store::{HashStore, Store};
use std::sync::Arc;

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
            let security = StoreSecurity { secret, encrypts };
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
            let client = ClientOptions {
                host,
                port,
                world_size: Some(size),
                secret: environment::job_secret()?,
                ..ClientOptions::default()
            };
            let identity = (rank, size);
            let shares = is_single_host && size > 1 && client.secret.is_none();
            let shares = shares && SecuritySetting::requested(true)? != SecuritySetting::None;
            if is_agent_hosted {
                return join_launcher(client, identity, shares, deadline);
            }
            (open_at_address(client, identity, shares, deadline)?, rank == 0)
        }
    };
    Ok(WorldSetup { store: Arc::new(store), hosts_store, rank, size, job_secret: None })
}

/// Hosts the store at an address on rank 0, and joins it on the other ranks. If `shares` is true,
/// rank 0 makes a secret for all ranks.
fn open_at_address(
    client: ClientOptions,
    (rank, size): (usize, usize),
    shares: bool,
    deadline: &Deadline,
) -> Result<TcpStore> {
    let bind = config::read_text(config::STORE_BIND)?.unwrap_or_else(|| client.host.clone());
    let host_with = |secret: Option<Secret>| {
        let server =
            ServerOptions { bind, port: client.port, secret: secret.clone(), ..Default::default() };
        open_tcp(Some(server), ClientOptions { secret, ..client.clone() }, deadline)
    };
    let job = job_at(&client);
    match (rank, shares) {
        (0, false) => host_with(client.secret.clone()),
        (0, true) => {
            // First, so that a rank that finds the store also finds the secret.
            let (secret, offer) = local_job::offer_secret(&job)?;
            let store = host_with(Some(secret))?;
            offer.serve(client.port, size, deadline)?;
            Ok(store)
        }
        (_, false) => open_tcp(None, client, deadline),
        (_, true) => {
            let address = (client.host.as_str(), client.port);
            let secret = local_job::find_secret(&job, rank, Some(address), deadline)?;
            open_tcp(None, ClientOptions { secret, ..client }, deadline)
        }
    }
}

/// Returns the name of the job on this host whose store has this address.
fn job_at(client: &ClientOptions) -> String {
    let host = if client.host == "localhost" { "127.0.0.1" } else { &client.host };
    format!("address-{host}-{}", client.port)
}

/// Joins the store that the launcher hosts. If `shares` is true, rank 0 makes a secret, which
/// protects the connections between ranks.
fn join_launcher(
    client: ClientOptions,
    (rank, size): (usize, usize),
    shares: bool,
    deadline: &Deadline,
) -> Result<WorldSetup> {
    let secret = match (rank, shares) {
        (_, false) => client.secret.clone(),
        (0, true) => {
            let (secret, offer) = local_job::offer_secret(&job_at(&client))?;
            offer.serve(client.port, size, deadline)?;
            Some(secret)
        }
        (_, true) => local_job::find_secret(&job_at(&client), rank, None, deadline)?,
    };
    let client = ClientOptions { secret, ..client };
    let (store, job_secret) = match join_open_store(&client, deadline)? {
        Some((store, secret)) => (store, Some(secret)),
        None => (open_tcp(None, client, deadline)?, None),
    };
    Ok(WorldSetup { store: Arc::new(store), hosts_store: false, rank, size, job_secret })
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
