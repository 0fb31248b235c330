//! The host services: the functions that the library provides to a plug-in. They give access to the
//! keys of the group, the log and the failure state of the group, and report completed operations.

use super::args::{self, OutPtr};
use super::backend_call::{
    PluginCallSite, call_deadline, copy_c_text, message_status, status_error, wait_deadline,
};
use super::backend_types::*;
use super::constants::*;
use super::guard;
use super::sized_struct;
use super::store_types::dist_store_sink_fn;
use crate::backend::plugin::{PluginFailureState, PluginMessageStatus};
use crate::backend::{BootstrapExchange, GroupFailureState as _, GroupKeyStore};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::{self, LogLevel};
use crate::base::sync::lock;
use crate::wait::blocked_thread;
use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// The interval at which a wait for a key checks whether the group has failed.
const FAILURE_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The operations in flight of a plug-in that reports their end with `complete`, by ticket (the
/// number of an operation). A value is `None` until the plug-in has reported the outcome.
type CompletionTable = HashMap<u64, Option<Result<PluginMessageStatus>>>;

/// The services for one plug-in in one group, or for a plug-in that is being loaded and has no
/// group yet.
#[derive(Debug)]
pub(super) struct HostServices {
    plugin: &'static str,
    /// The number of ranks in the group; 0 without a group.
    size: usize,
    group_keys: Option<Arc<dyn GroupKeyStore>>,
    failure_state: Arc<PluginFailureState>,
    completions: Mutex<CompletionTable>,
    /// The function table for the plug-in. The table contains the address of the services, so it is
    /// created on first use, when this address is final.
    table: OnceLock<HostFunctionTable>,
}

struct HostFunctionTable(dist_backend_host_t);

impl std::fmt::Debug for HostFunctionTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("host function table")
    }
}

// SAFETY: the table has functions, numbers, and a pointer to services that any thread may use.
unsafe impl Send for HostFunctionTable {}
// SAFETY: as above.
unsafe impl Sync for HostFunctionTable {}

impl HostServices {
    pub(super) fn new(
        plugin: &'static str,
        size: usize,
        keys: Option<Arc<dyn GroupKeyStore>>,
        state: Arc<PluginFailureState>,
    ) -> Arc<Self> {
        let (completions, table) = (Mutex::default(), OnceLock::new());
        Arc::new(Self { plugin, size, group_keys: keys, failure_state: state, completions, table })
    }

    /// Returns the function table for the plug-in. The table is valid while these services exist.
    pub(super) fn table(self: &Arc<Self>) -> *const dist_backend_host_t {
        let table = self.table.get_or_init(|| {
            HostFunctionTable(dist_backend_host_t {
                struct_size: size_of::<dist_backend_host_t>(),
                version: DIST_BACKEND_VERSION,
                library_version: super::names::VERSION,
                context: Arc::as_ptr(self).cast_mut().cast(),
                store_set: Some(store_set),
                store_get: Some(store_get),
                store_add: Some(store_add),
                store_check: Some(store_check),
                store_delete: Some(store_delete),
                log: Some(write_log),
                is_aborted: Some(is_aborted),
                complete: Some(complete),
            })
        });
        &raw const table.0
    }

    pub(super) fn failure_state(&self) -> &PluginFailureState {
        &self.failure_state
    }

    fn group_keys(&self) -> Result<&dyn GroupKeyStore> {
        self.group_keys.as_deref().ok_or_else(|| {
            let message = format!(
                "the back end {} needs the group's store, which no longer exists: keep the store \
                 until the group is released",
                self.plugin
            );
            Error::new(ErrorKind::Unsupported, message)
        })
    }

    fn lock_completions(&self) -> MutexGuard<'_, CompletionTable> {
        lock(&self.completions)
    }

    /// Adds the ticket of an operation in flight, so that `complete` accepts it.
    pub(super) fn expect_completion(&self, ticket: u64) {
        self.lock_completions().insert(ticket, None);
    }

    /// Takes the outcome of a complete operation, and removes its ticket. Returns `None` if the
    /// operation is not complete.
    pub(super) fn take_completion(&self, ticket: u64) -> Option<Result<PluginMessageStatus>> {
        let mut completions = self.lock_completions();
        completions.get(&ticket)?.as_ref()?;
        completions.remove(&ticket).flatten()
    }

    /// Removes the ticket of an operation for which the library does not wait any more.
    pub(super) fn forget_completion(&self, ticket: u64) {
        self.lock_completions().remove(&ticket);
    }
}

/// Returns the services to which the `context` of a function points.
fn services_from<'a>(context: *mut c_void) -> Result<&'a HostServices> {
    if context.is_null() {
        return Err(Error::invalid("argument context is NULL"));
    }
    // SAFETY: the plug-in passes the context of its table, and only until its part is destroyed.
    Ok(unsafe { &*context.cast::<HostServices>() })
}

unsafe extern "C" fn store_set(
    context: *mut c_void,
    key: *const c_char,
    value: *const c_void,
    len_bytes: usize,
    timeout_ms: i64,
) -> dist_status_t {
    guard::status("store_set", || {
        let key = args::required_str(key, "key")?;
        let value = args::bytes(value, len_bytes, "value")?;
        services_from(context)?.group_keys()?.set(key, value, &call_deadline(timeout_ms)?)
    })
}

unsafe extern "C" fn store_get(
    context: *mut c_void,
    key: *const c_char,
    sink: dist_store_sink_fn,
    sink_arg: *mut c_void,
    timeout_ms: i64,
) -> dist_status_t {
    guard::status("store_get", || {
        let key = args::required_str(key, "key")?;
        let sink = sink.ok_or_else(|| Error::invalid("argument sink is NULL"))?;
        let value = services_from(context)?.await_key(key, &wait_deadline(timeout_ms)?)?;
        // SAFETY: the plug-in's function, with its own argument and bytes that outlive the call.
        unsafe { sink(sink_arg, value.as_ptr().cast(), value.len()) };
        Ok(())
    })
}

impl HostServices {
    /// Waits until a key exists, and returns its value. The wait ends early if the group fails.
    fn await_key(&self, key: &str, limit: &Deadline) -> Result<Vec<u8>> {
        let keys = self.group_keys()?;
        loop {
            match keys.get(key, &limit.capped(FAILURE_POLL_INTERVAL)) {
                Err(error) if error.kind() == ErrorKind::Timeout && !limit.has_passed() => {}
                outcome => return outcome,
            }
            if let Some(reason) = self.failure_state.known_failure() {
                let message = format!("the group has failed: {reason}");
                return Err(Error::new(ErrorKind::Aborted, message));
            }
        }
    }
}

unsafe extern "C" fn store_add(
    context: *mut c_void,
    key: *const c_char,
    amount: i64,
    result: *mut i64,
    timeout_ms: i64,
) -> dist_status_t {
    guard::status("store_add", || {
        let (key, out) = (args::required_str(key, "key")?, OutPtr::required(result, "result")?);
        out.write(services_from(context)?.group_keys()?.add(
            key,
            amount,
            &call_deadline(timeout_ms)?,
        )?);
        Ok(())
    })
}

unsafe extern "C" fn store_check(
    context: *mut c_void,
    key: *const c_char,
    present: *mut i32,
    timeout_ms: i64,
) -> dist_status_t {
    guard::status("store_check", || {
        let (key, out) = (args::required_str(key, "key")?, OutPtr::required(present, "present")?);
        out.write(i32::from(
            services_from(context)?.group_keys()?.contains_key(key, &call_deadline(timeout_ms)?)?,
        ));
        Ok(())
    })
}

unsafe extern "C" fn store_delete(
    context: *mut c_void,
    key: *const c_char,
    timeout_ms: i64,
) -> dist_status_t {
    guard::status("store_delete", || {
        let key = args::required_str(key, "key")?;
        services_from(context)?.group_keys()?.delete(key, &call_deadline(timeout_ms)?).map(drop)
    })
}

unsafe extern "C" fn write_log(context: *mut c_void, level: i32, text: *const c_char) {
    guard::value("log", (), || {
        let plugin = services_from(context)?.plugin;
        let level = u8::try_from(level).map_or(LogLevel::Trace, LogLevel::from_number);
        if level != LogLevel::Off && log::enabled(level) {
            log::write(
                level,
                format_args!("back end {plugin}: {}", args::required_str(text, "text")?),
            );
        }
        Ok(())
    });
}

unsafe extern "C" fn is_aborted(context: *mut c_void) -> i32 {
    // A plug-in calls this again and again while a thread waits.
    blocked_thread::record_poll();
    services_from(context)
        .map_or(0, |services| i32::from(services.failure_state.known_failure().is_some()))
}

unsafe extern "C" fn complete(
    context: *mut c_void,
    ticket: u64,
    status: dist_status_t,
    outcome: *const dist_backend_outcome_t,
) -> dist_status_t {
    guard::status("complete", || {
        let services = services_from(context)?;
        let outcome = if outcome.is_null() { None } else { Some(sized_struct::read(outcome)?) };
        let reported = outcome.as_ref().map_or_else(PluginMessageStatus::default, message_status);
        // SAFETY: the text is the plug-in's own terminated text, or NULL.
        let text = outcome.map_or_else(String::new, |outcome| unsafe { copy_c_text(outcome.text) });
        let ended = match status {
            DIST_OK => Ok(reported),
            _ => {
                let HostServices { plugin, size, .. } = *services;
                let call_site = PluginCallSite { plugin, function: "complete", size };
                let error = status_error(call_site, status, &text);
                let culprit = outcome.and_then(|outcome| call_site.culprit(outcome.culprit));
                Err(culprit.map_or(error.clone(), |culprit| error.with_culprit(culprit)))
            }
        };
        let mut completions = services.lock_completions();
        match completions.get_mut(&ticket) {
            Some(slot) if slot.is_none() => *slot = Some(ended),
            _ => {
                let message = format!("no operation in flight has the ticket {ticket}");
                return Err(Error::invalid(message));
            }
        }
        drop(completions);
        services.failure_state.doorbell().notify();
        Ok(())
    })
}

/// The argument of [`exchange`], which exists during the plug-in's `create`.
pub(super) struct ExchangeContext<'a> {
    pub(super) exchange: &'a dyn BootstrapExchange,
    pub(super) failure_state: &'a PluginFailureState,
}

/// The function `exchange` of a plug-in's setup: an all-gather of bytes between the ranks that
/// create a group. `exchange_arg` is an [`ExchangeContext`].
pub(super) unsafe extern "C" fn exchange(
    exchange_arg: *mut c_void,
    phase: *const c_char,
    bytes: *const c_void,
    len_bytes: usize,
    sink: dist_store_sink_fn,
    sink_arg: *mut c_void,
) -> dist_status_t {
    guard::status("exchange", || {
        if exchange_arg.is_null() {
            return Err(Error::invalid("argument exchange_arg is NULL"));
        }
        // SAFETY: the plug-in passes the argument from the setup, during create, and the exchange
        // outlives create.
        let context = unsafe { &*exchange_arg.cast::<ExchangeContext<'_>>() };
        let sink = sink.ok_or_else(|| Error::invalid("argument sink is NULL"))?;
        let phase = format!("plugin-{}", args::required_str(phase, "phase")?);
        let contribution = args::bytes(bytes, len_bytes, "bytes")?;
        let all = context
            .exchange
            .all_gather(&phase, contribution, &|| context.failure_state.failure())?;
        for value in &all {
            // SAFETY: the plug-in's function, with its own argument and bytes that outlive the
            // call.
            unsafe { sink(sink_arg, value.as_ptr().cast(), value.len()) };
        }
        Ok(())
    })
}

/// A sink that appends the plug-in's bytes to a vector.
pub(super) unsafe extern "C" fn append_bytes(
    arg: *mut c_void,
    bytes: *const c_void,
    len_bytes: usize,
) {
    if arg.is_null() || bytes.is_null() || len_bytes == 0 {
        return;
    }
    // SAFETY: the argument was passed with this function: a vector that outlives the call.
    let all = unsafe { &mut *arg.cast::<Vec<u8>>() };
    // SAFETY: the plug-in passes that many readable bytes for the length of this call.
    all.extend_from_slice(unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len_bytes) });
}

/// Returns the argument of [`append_bytes`].
pub(super) fn as_sink_arg(into: &mut Vec<u8>) -> *mut c_void {
    ptr::from_mut(into).cast()
}
