//! Making stores.

use super::args::{Out, bytes, index, key, optional_str, required_key, required_str, timeout};
use super::options;
use super::store::{STORES, give};
use super::types::*;
use crate::api::callbacks::refuse_to_block;
use crate::api::store::{
    ClientOptions, DEFAULT_TIMEOUT_MS, FileOptions, HashStore, PrefixStore, Secret, ServerOptions,
    open_file, open_tcp,
};
use crate::base::deadline::{Deadline, Timeout};
use crate::base::error::{Error, Result};
use std::ffi::{OsStr, c_char};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

dist_export! {
    /// Connects to a TCP store, and hosts it if asked to. It speaks the protocol of PyTorch's TCPStore, so
    /// that either side may be torch.
    ///
    /// `options`: required, borrowed for the call. `out`: out, required; owned by the caller, released with
    /// dist_store_release; NULL on failure. Blocks until connected (a server that is not there yet is
    /// waited for), until timeout_ms at the latest. Any thread.
    ///
    /// From then on the library refuses calls in a process forked from this one without exec, which would share
    /// the connection, and dist_spawn refuses this process.
    ///
    /// Returns DIST_OK; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_TIMEOUT or DIST_ERR_CONNECTION saying what was
    /// tried and how it failed; DIST_ERR_AUTH where only one side has a secret, or each another one;
    /// DIST_ERR_SYSTEM, for instance for a port in use. Since 0.1.
    pub fn dist_store_tcp_create(
        options: *const dist_store_tcp_options_t,
        out: *mut *mut dist_store_t,
    ) -> dist_status_t {
        let out = Out::handle(out, "out")?;
        if options.is_null() {
            return Err(Error::invalid("argument options is NULL"));
        }
        let options = options::read(options)?;
        let host = required_str(options.host, "host")?.to_owned();
        let port = u16::try_from(options.port).map_err(|_| {
            Error::invalid(format!("port {} is not one from 0 to 65535", options.port))
        })?;
        let bind = optional_str(options.bind_address, "bind_address")?.unwrap_or(&host).to_owned();
        let world_size = Some(index(options.world_size, "world_size")?).filter(|&size| size > 0);
        let timeout = time_to_create(options.timeout_ms)?;
        let deadline = deadline_of(timeout);
        refuse_to_block("making a store")?;
        let is_server = options.is_server != 0;
        let wait_for_workers = is_server
            && world_size.is_some()
            && (options.fields & DIST_FIELD_WAIT_FOR_WORKERS == 0 || options.wait_for_workers != 0);
        let secret = secret(&options)?;
        let client = ClientOptions {
            host,
            port,
            world_size,
            wait_for_workers,
            secret: secret.clone(),
            ..ClientOptions::default()
        };
        let server = if is_server {
            Some(ServerOptions {
                bind,
                port,
                listen_fd: listening_socket(&options)?,
                secret,
                multi_tenant: options.multi_tenant != 0,
                ..ServerOptions::default()
            })
        } else {
            None
        };
        let store = open_tcp(server, client, &deadline)?;
        give(&out, Arc::new(store), timeout)
    }
}

/// The time-out of making a store, which is also that of the new handle.
fn time_to_create(timeout_ms: i64) -> Result<Timeout> {
    match timeout(timeout_ms, "timeout_ms")? {
        Timeout::NoWait => {
            let message = "timeout_ms is DIST_NO_WAIT, in which no store can be made: pass milliseconds, 0 for the \
                           default, or DIST_WAIT_FOREVER, and call dist_store_set_timeout afterwards";
            Err(Error::invalid(message))
        }
        given => Ok(given),
    }
}

fn deadline_of(timeout: Timeout) -> Deadline {
    Deadline::after_ms(timeout.ms_or(DEFAULT_TIMEOUT_MS))
}

/// The caller's secret, if there is one.
fn secret(options: &dist_store_tcp_options_t) -> Result<Option<Secret>> {
    let dist_store_tcp_options_t { secret, secret_len_bytes, .. } = *options;
    if secret.is_null() && secret_len_bytes == 0 {
        return Ok(None);
    }
    Secret::from_bytes(bytes(secret, secret_len_bytes, "secret")?).map(Some)
}

/// The caller's socket, which is the store's from here on.
fn listening_socket(options: &dist_store_tcp_options_t) -> Result<Option<OwnedFd>> {
    if options.fields & DIST_FIELD_LISTEN_FD == 0 {
        return Ok(None);
    }
    index(options.listen_fd, "listen_fd")?;
    // SAFETY: the caller hands over a descriptor of its own.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(options.listen_fd) }))
}

dist_export! {
    /// Opens a store in a file, and makes the file where there is none: for processes that share a file system, with
    /// file locks that work across it. The file belongs to this user alone (mode 0600).
    ///
    /// All processes give the same `world_size` (the number of times that the file will be opened; 0 where that is not
    /// known) and the same job. Releasing the last handle leaves the file; the last user removes it, once
    /// `world_size` have come. Whatever an earlier run has left behind is an error at once: a file of another job
    /// or size, one that as many have opened already, one whose users on this host have ended without leaving it.
    ///
    /// `path`: required. `options`: optional. Both borrowed for the call. `out`: out, required; owned by the caller,
    /// released with dist_store_release; NULL on failure. Blocks while others lock the file, until
    /// timeout_ms at the latest. Any thread.
    ///
    /// From then on the library refuses calls in a process forked from this one without exec, which would share the
    /// locks, and dist_spawn refuses this process.
    ///
    /// Returns DIST_OK; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_MISMATCH saying what the file is instead, since when and
    /// by whom; DIST_ERR_TIMEOUT; DIST_ERR_SYSTEM. A full disk is DIST_ERR_SYSTEM of the call that would have
    /// stored something: nothing is then stored, and the store goes on. Since 0.1.
    pub fn dist_store_file_create(
        path: *const c_char,
        world_size: i32,
        options: *const dist_store_file_options_t,
        out: *mut *mut dist_store_t,
    ) -> dist_status_t {
        let out = Out::handle(out, "out")?;
        let path = Path::new(OsStr::from_bytes(required_key(path, "path")?));
        let options = options::read(options)?;
        let timeout = time_to_create(options.timeout_ms)?;
        let file = FileOptions {
            world_size: Some(index(world_size, "world_size")?),
            job_id: optional_str(options.job_id, "job_id")?.unwrap_or_default().to_owned(),
            together: false,
        };
        refuse_to_block("making a store")?;
        let store = open_file(path, &file, &deadline_of(timeout))?;
        give(&out, Arc::new(store), timeout)
    }
}

dist_export! {
    /// Makes a store in the memory of this process, for ranks that are threads.
    ///
    /// `out`: out, required; owned by the caller, released with dist_store_release. Does not block. Any thread.
    ///
    /// Returns DIST_OK or DIST_ERR_INVALID_ARGUMENT. Since 0.1.
    pub fn dist_store_hash_create(out: *mut *mut dist_store_t) -> dist_status_t {
        let out = Out::handle(out, "out")?;
        give(&out, Arc::new(HashStore::new()), Timeout::Default)
    }
}

dist_export! {
    /// Makes a store that puts a prefix and "/" before every key of another store.
    ///
    /// The new handle begins with the time-out of `inner`.
    ///
    /// @param prefix in: the prefix; borrowed for the call; NULL only if `prefix_len_bytes` is 0.
    /// @param prefix_len_bytes in: its length; DIST_TERMINATED for a C string.
    /// @param inner in: the other store, which the new store keeps alive.
    /// @param out out: the new store; owned by the caller, released with dist_store_release; NULL on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_INVALID_HANDLE.
    /// @threads any.
    /// @since 0.1
    pub fn dist_store_prefix_create(
        prefix: *const c_char,
        prefix_len_bytes: usize,
        inner: *const dist_store_t,
        out: *mut *mut dist_store_t,
    ) -> dist_status_t {
        let out = Out::handle(out, "out")?;
        let prefix = key(prefix, prefix_len_bytes, "prefix")?;
        let inner = STORES.get(inner)?;
        let store = PrefixStore::new(prefix, Arc::clone(inner.store()));
        give(&out, Arc::new(store), inner.timeout())
    }
}
