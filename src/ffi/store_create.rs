//! Creation of TCP, file, hash and prefix stores. Custom stores are in `store_custom`.

use super::args::{OutPtr, bytes, index, key, optional_str, required_key, required_str, timeout};
use super::sized_struct;
use super::store::{STORES, write_store};
use super::types::*;
use crate::api::store::{
    ClientOptions, DEFAULT_TIMEOUT_MS, FileOptions, HashStore, PrefixStore, Secret, ServerOptions,
    open_file, open_tcp,
};
use crate::api::work::callbacks::reject_blocking_in_callback;
use crate::base::deadline::{Deadline, Timeout};
use crate::base::error::{Error, Result};
use std::ffi::{OsStr, c_char};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

dist_export! {
    /// Connects to a TCP store, and hosts the store if `is_server` is set.
    ///
    /// The store uses the protocol of PyTorch's TCPStore, so the server or the clients may be
    /// PyTorch processes. A client waits until the server runs. If the launcher (torchrun) already
    /// hosts a store at this address, a call with `is_server` connects to that store.
    ///
    /// A process that has made this call must not be forked without exec, because the child would
    /// share the connection. The library refuses all calls in such a child, and dist_spawn refuses
    /// this process.
    ///
    /// @param options in: the options; borrowed for the call.
    /// @param out out: the store; owned by the caller, released with dist_store_release; NULL on
    ///   failure.
    /// @agree the secret, between server and clients.
    /// @blocks Until this process has connected and, if `wait_for_workers` applies, until all
    ///   clients have connected, but at most until `timeout_ms`.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if an argument is wrong or inside a completion
    ///   callback; DIST_ERR_UNSUPPORTED if `options` has a newer field; DIST_ERR_NOT_INITIALIZED in
    ///   a forked child; DIST_ERR_TIMEOUT or DIST_ERR_CONNECTION with a message that lists the
    ///   attempts; DIST_ERR_AUTH if the secrets differ or only one side has a secret;
    ///   DIST_ERR_SYSTEM, for example if the port is in use.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_tcp_create(
        options: *const dist_store_tcp_options_t,
        out: *mut *mut dist_store_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        if options.is_null() {
            return Err(Error::invalid("argument options is NULL"));
        }
        let options = sized_struct::read(options)?;
        let host = required_str(options.host, "host")?.to_owned();
        let port = u16::try_from(options.port).map_err(|_| {
            Error::invalid(format!("port {} is invalid: use 0 to 65535", options.port))
        })?;
        let bind = optional_str(options.bind_address, "bind_address")?.unwrap_or(&host).to_owned();
        let world_size = Some(index(options.world_size, "world_size")?).filter(|&size| size > 0);
        let timeout = creation_timeout(options.timeout_ms)?;
        let deadline = creation_deadline(timeout);
        reject_blocking_in_callback("the creation of a store")?;
        let is_server = options.is_server != 0;
        let wait_for_workers = is_server
            && world_size.is_some()
            && (options.fields & DIST_FIELD_WAIT_FOR_WORKERS == 0 || options.wait_for_workers != 0);
        let secret = optional_secret(&options)?;
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
        write_store(&out, Arc::new(store), timeout)
    }
}

/// Converts the timeout of a store's creation, which also becomes the timeout of the new handle.
fn creation_timeout(timeout_ms: i64) -> Result<Timeout> {
    match timeout(timeout_ms, "timeout_ms")? {
        Timeout::NoWait => {
            let message = "timeout_ms is DIST_NO_WAIT, with which no store can be created: pass \
                           milliseconds, 0 for the default, or DIST_WAIT_FOREVER, and call \
                           dist_store_set_timeout afterwards";
            Err(Error::invalid(message))
        }
        given => Ok(given),
    }
}

fn creation_deadline(timeout: Timeout) -> Deadline {
    Deadline::after_ms(timeout.ms_or(DEFAULT_TIMEOUT_MS))
}

/// Reads the caller's secret; `None` if the caller passes none.
fn optional_secret(options: &dist_store_tcp_options_t) -> Result<Option<Secret>> {
    let dist_store_tcp_options_t { secret, secret_len_bytes, .. } = *options;
    if secret.is_null() && secret_len_bytes == 0 {
        return Ok(None);
    }
    Secret::from_bytes(bytes(secret, secret_len_bytes, "secret")?).map(Some)
}

/// Takes ownership of the caller's listening socket; `None` without DIST_FIELD_LISTEN_FD.
fn listening_socket(options: &dist_store_tcp_options_t) -> Result<Option<OwnedFd>> {
    if options.fields & DIST_FIELD_LISTEN_FD == 0 {
        return Ok(None);
    }
    index(options.listen_fd, "listen_fd")?;
    // SAFETY: the caller passes ownership of its descriptor.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(options.listen_fd) }))
}

dist_export! {
    /// Opens a store in a file, and creates the file if it is missing.
    ///
    /// The processes share a file system whose file locks work between all of them. Only this user
    /// can read and write the file (mode 0600). A process leaves the store when it releases its
    /// last handle. After `world_size` processes have opened the file, the last process that leaves
    /// removes the file.
    ///
    /// The call fails immediately if the file is a leftover of an earlier run. A file is a leftover
    /// in these cases:
    ///
    /// - It belongs to another job or another world size.
    /// - All its processes have already opened it.
    /// - Processes of this host have ended without leaving it.
    ///
    /// If the disk is full, the storing call returns DIST_ERR_SYSTEM and stores nothing; the store
    /// remains usable.
    ///
    /// A process that has made this call must not be forked without exec, because the child would
    /// share the locks. The library refuses all calls in such a child, and dist_spawn refuses this
    /// process.
    ///
    /// @param path in: the path of the file; borrowed for the call.
    /// @param world_size in: how many times the file will be opened; 0 if the number is not known.
    /// @param options in, optional: the options; borrowed for the call; NULL for defaults.
    /// @param out out: the store; owned by the caller, released with dist_store_release; NULL on
    ///   failure.
    /// @agree world_size and the job_id of the options.
    /// @blocks While other processes lock the file, but at most until `timeout_ms`.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if an argument is wrong or inside a completion
    ///   callback; DIST_ERR_UNSUPPORTED if `options` has a newer field; DIST_ERR_NOT_INITIALIZED in
    ///   a forked child; DIST_ERR_MISMATCH if the file is unsuitable, for instance a leftover (the
    ///   message has its kind, age and owner); DIST_ERR_TIMEOUT; DIST_ERR_SYSTEM.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_file_create(
        path: *const c_char,
        world_size: i32,
        options: *const dist_store_file_options_t,
        out: *mut *mut dist_store_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        let path = Path::new(OsStr::from_bytes(required_key(path, "path")?));
        let options = sized_struct::read(options)?;
        let timeout = creation_timeout(options.timeout_ms)?;
        let file = FileOptions {
            world_size: Some(index(world_size, "world_size")?),
            job_id: optional_str(options.job_id, "job_id")?.unwrap_or_default().to_owned(),
            is_rendezvous: false,
        };
        reject_blocking_in_callback("the creation of a store")?;
        let store = open_file(path, &file, &creation_deadline(timeout))?;
        write_store(&out, Arc::new(store), timeout)
    }
}

dist_export! {
    /// Creates a store in the memory of this process, for ranks that are threads.
    ///
    /// @param out out: the store; owned by the caller, released with dist_store_release; NULL on
    ///   failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_NOT_INITIALIZED in a forked child.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_hash_create(out: *mut *mut dist_store_t) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        write_store(&out, Arc::new(HashStore::new()), Timeout::Default)
    }
}

dist_export! {
    /// Creates a store that puts a prefix and "/" before every key of another store.
    ///
    /// For example, with the prefix "a", the key "b" of the new store is the key "a/b" of `inner`.
    /// The new handle starts with the time-out of `inner`.
    ///
    /// @param prefix in: the prefix; borrowed for the call; NULL only if `prefix_len_bytes` is 0.
    /// @param prefix_len_bytes in: the length of the prefix; DIST_TERMINATED for a C string.
    /// @param inner in: the other store, which the new store keeps alive.
    /// @param out out: the store; owned by the caller, released with dist_store_release; NULL on
    ///   failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT; DIST_ERR_INVALID_HANDLE;
    ///   DIST_ERR_NOT_INITIALIZED in a forked child.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_store_prefix_create(
        prefix: *const c_char,
        prefix_len_bytes: usize,
        inner: *const dist_store_t,
        out: *mut *mut dist_store_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        let prefix = key(prefix, prefix_len_bytes, "prefix")?;
        let inner = STORES.get(inner)?;
        let store = PrefixStore::new(prefix, Arc::clone(inner.store()));
        write_store(&out, Arc::new(store), inner.timeout())
    }
}
