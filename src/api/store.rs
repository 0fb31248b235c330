//! Opens stores for the C interface. Defines the store handle: a store together with the default
//! timeout of its calls.

use crate::base::config;
use crate::base::deadline::{Deadline, Timeout};
use crate::base::debug;
use crate::base::error::{Error, Result};
use crate::process::this_process;
use crate::security::SecuritySetting;
use crate::store::Store;
use crate::store::file::FileStore;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

pub use crate::store::file::FileOptions;
pub use crate::store::tcp::{ClientOptions, Secret, ServerOptions, TcpStore};
pub use crate::store::{HashStore, PrefixStore};

/// The default timeout of a store call: 5 minutes, as in c10d.
pub const DEFAULT_TIMEOUT_MS: u64 = 300_000;

/// Opens a TCP store with the settings of the environment. Hosts the store if `server` is set, and
/// joins an existing store otherwise.
///
/// If the port is taken, the call joins the store at this port in two cases: `server` permits it
/// (`join_if_port_in_use`), or the environment says that the launcher hosts a store at this
/// address.
///
/// After a successful open, the process counts as used and cannot be forked into ranks: a fork
/// would share the connections and receive answers that belong to the parent. The call also reads
/// the environment's settings for the log and for long waits.
///
/// # Errors
/// The errors of [`TcpStore::host`] and [`TcpStore::connect`]; `InvalidArgument` for the
/// environment.
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
    let encrypts = SecuritySetting::encrypts_store(client.secret.is_some())?;
    let client = ClientOptions { tcp_only, encrypts, ..client };
    let store = match server {
        None => TcpStore::connect(client, deadline)?,
        Some(server) => {
            let join_if_taken = server.join_if_port_in_use || is_hosted_by_launcher(&client)?;
            TcpStore::host(
                ServerOptions { join_if_port_in_use: join_if_taken, encrypts, ..server },
                client,
                deadline,
            )?
        }
    };
    // The process is marked last, so that it stays unused if the open fails. No caller can use the
    // store before this point.
    this_process::mark_used()?;
    Ok(store)
}

/// Opens a file store. After a successful open, the process counts as used and cannot be forked
/// into ranks, because a fork would share the file's locks.
///
/// # Errors
/// The errors of [`FileStore::open`].
pub fn open_file(path: &Path, options: &FileOptions, deadline: &Deadline) -> Result<FileStore> {
    let store = FileStore::open(path, options, deadline)?;
    this_process::mark_used()?;
    Ok(store)
}

/// Returns whether the launcher hosts a store at this address.
fn is_hosted_by_launcher(client: &ClientOptions) -> Result<bool> {
    Ok(config::read_text(config::USE_AGENT_STORE)?.is_some_and(|text| text == "True")
        && config::read_text(config::MASTER_ADDR)?.is_some_and(|host| host == client.host)
        && config::read_number(config::MASTER_PORT)? == Some(client.port))
}

/// Replaces [`Timeout::Default`] by the default in milliseconds.
fn resolve_default(timeout: Timeout) -> Timeout {
    if timeout == Timeout::Default { Timeout::Ms(DEFAULT_TIMEOUT_MS) } else { timeout }
}

/// A store and its timeout.
#[derive(Debug)]
pub struct StoreHandle {
    store: Arc<dyn Store>,
    /// The encoded timeout, which is never [`Timeout::Default`].
    timeout: AtomicI64,
}

impl StoreHandle {
    /// Creates a handle with the default timeout.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, timeout: AtomicI64::new(resolve_default(Timeout::Default).number()) }
    }

    /// Returns the handle with another timeout.
    #[must_use]
    pub fn with_timeout(self, timeout: Timeout) -> Self {
        self.set_timeout(timeout);
        self
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the timeout, which is never [`Timeout::Default`].
    pub fn timeout(&self) -> Timeout {
        let number = self.timeout.load(Ordering::Relaxed);
        Timeout::from_number(number).unwrap_or(Timeout::Default)
    }

    /// Sets the timeout.
    pub fn set_timeout(&self, timeout: Timeout) {
        self.timeout.store(resolve_default(timeout).number(), Ordering::Relaxed);
    }

    /// Returns the deadline of a call that starts now and waits for no other process. If the
    /// handle's timeout is [`Timeout::NoWait`], the default timeout applies, because even such a
    /// call needs the time of a round trip.
    pub fn deadline(&self) -> Deadline {
        Deadline::after_ms(match self.timeout() {
            Timeout::NoWait => DEFAULT_TIMEOUT_MS,
            given => given.ms_or(DEFAULT_TIMEOUT_MS),
        })
    }

    /// Returns the timeout of a wait for other processes. [`Timeout::Default`] selects the handle's
    /// timeout.
    pub fn wait_timeout(&self, timeout: Timeout) -> Timeout {
        if timeout == Timeout::Default { self.timeout() } else { timeout }
    }

    /// Returns the deadline of a wait for other processes that starts now. For [`Timeout::NoWait`],
    /// this deadline has already passed.
    pub fn wait_deadline(&self, timeout: Timeout) -> Deadline {
        Deadline::after_ms(self.wait_timeout(timeout).ms_or(DEFAULT_TIMEOUT_MS))
    }

    /// Returns a second handle to the same store. If a wait of the store blocks other calls, the
    /// second handle has a client of its own.
    ///
    /// # Errors
    /// The errors of a store that cannot make a second client.
    pub fn duplicate(&self) -> Result<Self> {
        let second = self.store.second_client(&self.deadline())?;
        let store = second.unwrap_or_else(|| Arc::clone(&self.store));
        Ok(Self::new(store).with_timeout(self.timeout()))
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
        assert_eq!(handle.duplicate().unwrap().timeout(), Timeout::NoWait);
    }

    #[test]
    fn default_timeout_of_a_handle_is_resolved() {
        let handle = StoreHandle::new(Arc::new(HashStore::new())).with_timeout(Timeout::Forever);
        assert_eq!(handle.wait_timeout(Timeout::Default), Timeout::Forever);
        handle.set_timeout(Timeout::Default);
        assert_eq!(handle.timeout(), Timeout::Ms(DEFAULT_TIMEOUT_MS));
    }
}
