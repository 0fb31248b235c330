//! A store as callers hold it: the store, and the time-out that calls without one of their own use.

use crate::base::config;
use crate::base::deadline::{Deadline, Timeout};
use crate::base::debug;
use crate::base::error::{Error, Result};
use crate::process::this_process;
use crate::store::Store;
use crate::store::file::FileStore;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

pub use crate::store::file::FileOptions;
pub use crate::store::tcp::{ClientOptions, Secret, ServerOptions, TcpStore};
pub use crate::store::{HashStore, PrefixStore};

/// The default time-out of a store call: five minutes, as in c10d.
pub const DEFAULT_TIMEOUT_MS: u64 = 300_000;

/// Opens a store behind TCP, and hosts it if there are options for a server, as the environment has
/// it.
///
/// A taken port is joined where it ought to be the job's own store that holds it: the launcher says
/// that it hosts the store at this very address.
///
/// The process counts as used from then on: a fork of it would share the connections, and take
/// answers that are not its own. What the environment says of the log and of long waits holds from
/// then on too.
///
/// # Errors
/// Those of [`TcpStore::host`] and [`TcpStore::connect`]; `InvalidArgument` for the environment.
pub fn open_tcp(
    server: Option<ServerOptions>,
    client: ClientOptions,
    deadline: &Deadline,
) -> Result<TcpStore> {
    debug::read_environment()?;
    let tcp_only = match config::read_text(config::STORE_UNIX)?.as_deref() {
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
            let join_if_taken = server.join_if_port_in_use || is_hosted_by_launcher(&client)?;
            TcpStore::host(
                ServerOptions { join_if_port_in_use: join_if_taken, ..server },
                client,
                deadline,
            )?
        }
    };
    // Only now: one that could not be opened leaves nothing behind, and nobody has this one yet.
    this_process::mark_used()?;
    Ok(store)
}

/// Opens a store in a file. The process counts as used from then on: a fork of it would share the
/// locks.
///
/// # Errors
/// Those of [`FileStore::open`].
pub fn open_file(path: &Path, options: &FileOptions, deadline: &Deadline) -> Result<FileStore> {
    let store = FileStore::open(path, options, deadline)?;
    this_process::mark_used()?;
    Ok(store)
}

/// Whether the launcher hosts a store at this address.
fn is_hosted_by_launcher(client: &ClientOptions) -> Result<bool> {
    Ok(config::read_text(config::USE_AGENT_STORE)?.is_some_and(|text| text == "True")
        && config::read_text(config::MASTER_ADDR)?.is_some_and(|host| host == client.host)
        && config::read_number(config::MASTER_PORT)? == Some(client.port))
}

/// The time-out of a store's handle, where the default has its number.
fn resolve_default(timeout: Timeout) -> Timeout {
    if timeout == Timeout::Default { Timeout::Ms(DEFAULT_TIMEOUT_MS) } else { timeout }
}

/// A store and its time-out.
#[derive(Debug)]
pub struct StoreHandle {
    store: Arc<dyn Store>,
    /// The number of a [`Timeout`], never that of the default.
    timeout: AtomicI64,
}

impl StoreHandle {
    /// A handle with the default time-out.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, timeout: AtomicI64::new(resolve_default(Timeout::Default).number()) }
    }

    /// The same handle with another time-out.
    #[must_use]
    pub fn with_timeout(self, timeout: Timeout) -> Self {
        self.set_timeout(timeout);
        self
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The time-out, which is not [`Timeout::Default`].
    pub fn timeout(&self) -> Timeout {
        let number = self.timeout.load(Ordering::Relaxed);
        Timeout::from_number(number).unwrap_or(Timeout::Default)
    }

    /// Sets the time-out.
    pub fn set_timeout(&self, timeout: Timeout) {
        self.timeout.store(resolve_default(timeout).number(), Ordering::Relaxed);
    }

    /// The deadline of a call that begins now and waits for no other process. A round trip takes
    /// time also where the handle's time-out is [`Timeout::NoWait`]: the default bounds it then.
    pub fn deadline(&self) -> Deadline {
        Deadline::after_ms(match self.timeout() {
            Timeout::NoWait => DEFAULT_TIMEOUT_MS,
            given => given.ms_or(DEFAULT_TIMEOUT_MS),
        })
    }

    /// The time-out of a wait for others that names its own, of which [`Timeout::Default`] is the
    /// handle's.
    pub fn wait_timeout(&self, timeout: Timeout) -> Timeout {
        if timeout == Timeout::Default { self.timeout() } else { timeout }
    }

    /// The deadline of a wait for others that begins now; has passed for [`Timeout::NoWait`].
    pub fn wait_deadline(&self, timeout: Timeout) -> Deadline {
        Deadline::after_ms(self.wait_timeout(timeout).ms_or(DEFAULT_TIMEOUT_MS))
    }

    /// A second handle on the same store.
    pub fn duplicate(&self) -> Self {
        Self::new(Arc::clone(&self.store)).with_timeout(self.timeout())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wait_handle_keeps_a_deadline_for_round_trips() {
        let handle = StoreHandle::new(Arc::new(HashStore::new())).with_timeout(Timeout::NoWait);
        assert_eq!(handle.timeout(), Timeout::NoWait);
        assert!(handle.wait_deadline(Timeout::Default).has_passed());
        assert!(!handle.deadline().has_passed());
        assert!(!handle.wait_deadline(Timeout::Ms(60_000)).has_passed());
        assert_eq!(handle.duplicate().timeout(), Timeout::NoWait);
    }

    #[test]
    fn default_timeout_of_a_handle_is_resolved() {
        let handle = StoreHandle::new(Arc::new(HashStore::new())).with_timeout(Timeout::Forever);
        assert_eq!(handle.wait_timeout(Timeout::Default), Timeout::Forever);
        handle.set_timeout(Timeout::Default);
        assert_eq!(handle.timeout(), Timeout::Ms(DEFAULT_TIMEOUT_MS));
    }
}
