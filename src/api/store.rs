//! A store as callers hold it: the store, and the time-out that calls without one of their own use.

use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::debug;
use crate::base::error::{Error, Result};
use crate::process::this;
use crate::store::Store;
use crate::store::file::FileStore;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use crate::store::file::FileOptions;
pub use crate::store::tcp::{ClientOptions, Secret, ServerOptions, TcpStore};
pub use crate::store::{HashStore, PrefixStore};

/// The default time-out of a store call: five minutes, as in c10d.
pub const DEFAULT_TIMEOUT_MS: u64 = 300_000;

/// Opens a store behind TCP, and hosts it if there are options for a server, as the environment has it.
///
/// A taken port is joined where it ought to be the job's own store that holds it: the launcher says that it
/// hosts the store at this very address.
///
/// The process counts as used from then on: a fork of it would share the connections, and take answers that are not its own.
/// What the environment says of the log and of long waits holds from then on too.
///
/// # Errors
/// Those of [`TcpStore::host`] and [`TcpStore::connect`]; `InvalidArgument` for the environment.
pub fn open_tcp(
    server: Option<ServerOptions>,
    client: ClientOptions,
    deadline: &Deadline,
) -> Result<TcpStore> {
    debug::read_environment()?;
    let tcp_only = match config::text(config::STORE_UNIX)?.as_deref() {
        None | Some("on") => client.tcp_only,
        Some("off") => true,
        Some(other) => {
            let name = config::STORE_UNIX.name;
            return Err(Error::invalid(format!("{name}=\"{other}\" is neither on nor off")));
        }
    };
    let client = ClientOptions { tcp_only, ..client };
    let store = match server {
        None => TcpStore::connect(client, deadline)?,
        Some(server) => {
            let join_if_taken = server.join_if_taken || is_the_launchers(&client)?;
            TcpStore::host(ServerOptions { join_if_taken, ..server }, client, deadline)?
        }
    };
    // Only now: one that could not be opened leaves nothing behind, and nobody has this one yet.
    this::mark_used()?;
    Ok(store)
}

/// Opens a store in a file. The process counts as used from then on: a fork of it would share the locks.
///
/// # Errors
/// Those of [`FileStore::open`].
pub fn open_file(path: &Path, options: &FileOptions, deadline: &Deadline) -> Result<FileStore> {
    let store = FileStore::open(path, options, deadline)?;
    this::mark_used()?;
    Ok(store)
}

/// Whether the launcher hosts a store at this address.
fn is_the_launchers(client: &ClientOptions) -> Result<bool> {
    Ok(config::text(config::USE_AGENT_STORE)?.is_some_and(|text| text == "True")
        && config::text(config::MASTER_ADDR)?.is_some_and(|host| host == client.host)
        && config::number(config::MASTER_PORT)? == Some(client.port))
}

/// A store and its time-out.
#[derive(Debug)]
pub struct StoreHandle {
    store: Arc<dyn Store>,
    timeout_ms: AtomicU64,
}

impl StoreHandle {
    /// A handle with the default time-out.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, timeout_ms: AtomicU64::new(DEFAULT_TIMEOUT_MS) }
    }

    /// The same handle with another time-out; 0 means the default.
    #[must_use]
    pub fn with_timeout(self, timeout_ms: u64) -> Self {
        self.set_timeout_ms(timeout_ms);
        self
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The time-out in milliseconds.
    pub fn timeout_ms(&self) -> u64 {
        self.timeout_ms.load(Ordering::Relaxed)
    }

    /// Sets the time-out; 0 means the default.
    pub fn set_timeout_ms(&self, timeout_ms: u64) {
        let ms = if timeout_ms == 0 { DEFAULT_TIMEOUT_MS } else { timeout_ms };
        self.timeout_ms.store(ms, Ordering::Relaxed);
    }

    /// The deadline of a call that begins now.
    pub fn deadline(&self) -> Deadline {
        Deadline::after_ms(self.timeout_ms())
    }

    /// The deadline of a call that begins now and names its own time-out; 0 means the handle's.
    pub fn deadline_of(&self, timeout_ms: u64) -> Deadline {
        Deadline::after_ms(if timeout_ms == 0 { self.timeout_ms() } else { timeout_ms })
    }

    /// A second handle on the same store.
    pub fn duplicate(&self) -> Self {
        Self::new(Arc::clone(&self.store)).with_timeout(self.timeout_ms())
    }
}
