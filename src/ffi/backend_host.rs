//! What the library does for a plug-in: the group's keys, the log, the group's failure, and the
//! ends of operations.

use super::args::{self, Out};
use super::backend_call::{Called, deadline, error_of, received, wait_deadline, words};
use super::backend_types::*;
use super::constants::*;
use super::guard;
use super::options;
use super::types::dist_store_sink_fn;
use crate::backend::plugin::{Received, State};
use crate::backend::{Exchange, Fate as _, Keys};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::{self, Level};
use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How soon a wait for a key notices that the group has failed.
const LOOK_AROUND: Duration = Duration::from_millis(100);

/// What becomes of operations that the plug-in ends by itself.
type Landings = HashMap<u64, Option<Result<Received>>>;

/// The services for one part of a group, or for a plug-in as it is loaded.
#[derive(Debug)]
pub(super) struct Services {
    plugin: &'static str,
    size: usize,
    keys: Option<Arc<dyn Keys>>,
    state: Arc<State>,
    landings: Mutex<Landings>,
    /// What the plug-in sees; made once these have their place.
    table: OnceLock<Table>,
}

struct Table(dist_backend_host_t);

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the host's functions")
    }
}

// SAFETY: functions, numbers and a pointer to services that any thread may use.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Services {
    pub(super) fn new(
        (plugin, size): (&'static str, usize),
        keys: Option<Arc<dyn Keys>>,
        state: Arc<State>,
    ) -> Arc<Self> {
        let (landings, table) = (Mutex::default(), OnceLock::new());
        Arc::new(Self { plugin, size, keys, state, landings, table })
    }

    /// What the plug-in gets; valid for as long as these services are.
    pub(super) fn table(self: &Arc<Self>) -> *const dist_backend_host_t {
        let table = self.table.get_or_init(|| {
            Table(dist_backend_host_t {
                struct_size: size_of::<dist_backend_host_t>(),
                version: DIST_BACKEND_VERSION,
                library_version: super::runtime::VERSION,
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

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    fn keys(&self) -> Result<&dyn Keys> {
        self.keys.as_deref().ok_or_else(|| {
            let message = format!(
                "the back end {} wants the group's store, and nobody has it any more: keep the store until the \
                 group is released",
                self.plugin
            );
            Error::new(ErrorKind::Unsupported, message)
        })
    }

    fn landings(&self) -> MutexGuard<'_, Landings> {
        self.landings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operation may end from now on.
    pub(super) fn expect(&self, ticket: u64) {
        self.landings().insert(ticket, None);
    }

    /// What has become of it, once; `None` where it goes on.
    pub(super) fn landed(&self, ticket: u64) -> Option<Result<Received>> {
        let mut landings = self.landings();
        landings.get(&ticket)?.as_ref()?;
        landings.remove(&ticket).flatten()
    }

    /// It will not be waited for.
    pub(super) fn forget(&self, ticket: u64) {
        self.landings().remove(&ticket);
    }
}

/// The services behind a context.
fn services<'a>(context: *mut c_void) -> Result<&'a Services> {
    if context.is_null() {
        return Err(Error::invalid("argument context is NULL"));
    }
    // SAFETY: the plug-in passes on what it was given, and does so only until its part is
    // destroyed.
    Ok(unsafe { &*context.cast::<Services>() })
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
        services(context)?.keys()?.set(key, value, &deadline(timeout_ms)?)
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
        let value = services(context)?.await_key(key, &wait_deadline(timeout_ms)?)?;
        // SAFETY: the plug-in's function, with its own argument and bytes that outlive the call.
        unsafe { sink(sink_arg, value.as_ptr().cast(), value.len()) };
        Ok(())
    })
}

impl Services {
    /// A value, unless the group fails before.
    fn await_key(&self, key: &str, limit: &Deadline) -> Result<Vec<u8>> {
        let keys = self.keys()?;
        loop {
            match keys.get(key, &limit.capped(LOOK_AROUND)) {
                Err(error) if error.kind() == ErrorKind::Timeout && !limit.has_passed() => {}
                outcome => return outcome,
            }
            if let Some(reason) = self.state.known_failure() {
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
        let (key, out) = (args::required_str(key, "key")?, Out::required(result, "result")?);
        out.write(services(context)?.keys()?.add(key, amount, &deadline(timeout_ms)?)?);
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
        let (key, out) = (args::required_str(key, "key")?, Out::required(present, "present")?);
        out.write(i32::from(services(context)?.keys()?.has(key, &deadline(timeout_ms)?)?));
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
        services(context)?.keys()?.delete(key, &deadline(timeout_ms)?).map(drop)
    })
}

unsafe extern "C" fn write_log(context: *mut c_void, level: i32, text: *const c_char) {
    guard::value("log", (), || {
        let plugin = services(context)?.plugin;
        let level = u8::try_from(level).map_or(Level::Debug, Level::from_number);
        if level != Level::Off && log::enabled(level) {
            log::write(
                level,
                format_args!("back end {plugin}: {}", args::required_str(text, "text")?),
            );
        }
        Ok(())
    });
}

unsafe extern "C" fn is_aborted(context: *mut c_void) -> i32 {
    services(context).map_or(0, |services| i32::from(services.state.known_failure().is_some()))
}

unsafe extern "C" fn complete(
    context: *mut c_void,
    ticket: u64,
    status: dist_status_t,
    outcome: *const dist_backend_outcome_t,
) -> dist_status_t {
    guard::status("complete", || {
        let services = services(context)?;
        let outcome = if outcome.is_null() { None } else { Some(options::read(outcome)?) };
        let said = outcome.as_ref().map_or_else(Received::default, received);
        // SAFETY: the plug-in's own terminated text, or NULL.
        let text = outcome.map_or_else(String::new, |outcome| unsafe { words(outcome.text) });
        let ended = match status {
            DIST_OK => Ok(said),
            _ => {
                let Services { plugin, size, .. } = *services;
                let called = Called { plugin, function: "complete", size };
                let error = error_of(called, status, &text);
                let culprit = outcome.and_then(|outcome| called.culprit(outcome.culprit));
                Err(culprit.map_or(error.clone(), |culprit| error.with_culprit(culprit)))
            }
        };
        let mut landings = services.landings();
        match landings.get_mut(&ticket) {
            Some(place) if place.is_none() => *place = Some(ended),
            _ => {
                let message = format!("no operation under way has the ticket {ticket}");
                return Err(Error::invalid(message));
            }
        }
        drop(landings);
        services.state.bell().ring();
        Ok(())
    })
}

/// What the ranks exchange while a group is made.
pub(super) struct Meeting<'a> {
    pub(super) exchange: &'a dyn Exchange,
    pub(super) state: &'a State,
}

/// The function that a plug-in gets with a [`Meeting`].
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
        // SAFETY: the plug-in passes on what it was given, inside create, which the meeting
        // outlives.
        let meeting = unsafe { &*exchange_arg.cast::<Meeting<'_>>() };
        let sink = sink.ok_or_else(|| Error::invalid("argument sink is NULL"))?;
        let phase = format!("plugin-{}", args::required_str(phase, "phase")?);
        let mine = args::bytes(bytes, len_bytes, "bytes")?;
        let all = meeting.exchange.all(&phase, mine, &|| meeting.state.failure())?;
        for value in &all {
            // SAFETY: the plug-in's function, with its own argument and bytes that outlive the
            // call.
            unsafe { sink(sink_arg, value.as_ptr().cast(), value.len()) };
        }
        Ok(())
    })
}

/// Collects what a plug-in hands over.
pub(super) unsafe extern "C" fn collect(arg: *mut c_void, bytes: *const c_void, len_bytes: usize) {
    if arg.is_null() || bytes.is_null() || len_bytes == 0 {
        return;
    }
    // SAFETY: the argument is the one that was passed with this function, a vector that outlives
    // the call.
    let all = unsafe { &mut *arg.cast::<Vec<u8>>() };
    // SAFETY: the plug-in hands over that many readable bytes for the length of this call.
    all.extend_from_slice(unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len_bytes) });
}

/// The argument of [`collect`].
pub(super) fn collector(into: &mut Vec<u8>) -> *mut c_void {
    ptr::from_mut(into).cast()
}
