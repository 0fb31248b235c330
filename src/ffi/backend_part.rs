//! A plug-in's functions as a `Plugin`, and its part in a group as a `Communicator`.

use super::backend_call::{
    Called, Lists, add_blocks, ask, ask_for, ask_once, ask_why, left_ms, operation, whole_ms,
};
use super::backend_host::{Meeting, Services, collect, collector, exchange};
use super::backend_types::*;
use super::constants::*;
use super::status::status_of;
use crate::backend::plugin::{
    Awaited, Communicator, Kinds, Made, Plugin, Ran, Received, Request, State, Submitted, Task,
};
use crate::backend::{Context, Exchange, Memory, Query};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::wait::{Interrupt, Pace, until};
use serde_json::Value;
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// For how long a plug-in that cannot wait is asked again and again, before the asking thread
/// sleeps in between.
const EAGER: Duration = Duration::from_millis(1);

/// How long those sleeps are, at first and at most.
const FIRST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// What was registered.
pub(super) struct Functions {
    pub(super) name: &'static str,
    pub(super) table: dist_backend_vtable_t,
    pub(super) user: *mut c_void,
}

// SAFETY: the plug-in promises that its functions may be called from any thread with that pointer.
unsafe impl Send for Functions {}
// SAFETY: as above.
unsafe impl Sync for Functions {}

impl std::fmt::Debug for Functions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "back end {}", self.name)
    }
}

/// A part of a group; the last who has it destroys it.
struct Part {
    functions: Arc<Functions>,
    part: *mut c_void,
    services: Arc<Services>,
    rank: usize,
    size: usize,
    serves_device: bool,
    next_ticket: AtomicU64,
    lists: Mutex<Lists>,
}

// SAFETY: the plug-in promises that its functions may be called from any thread with that pointer.
unsafe impl Send for Part {}
// SAFETY: as above.
unsafe impl Sync for Part {}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of a group over {:?}", self.rank, self.functions)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(destroy) = self.functions.table.destroy {
            // SAFETY: the plug-in's function with what it made, called once and last.
            unsafe { destroy(self.part) };
        }
    }
}

impl Plugin for Functions {
    fn create(
        &self,
        context: &Context<'_>,
        exchange: &dyn Exchange,
        state: &Arc<State>,
    ) -> Result<Made> {
        let services =
            Services::new((self.name, context.size), context.keys.cloned(), Arc::clone(state));
        let created = self.make(context, exchange, &services)?;
        let functions = Self { name: self.name, table: self.table, user: self.user };
        // From here on it is destroyed, whatever is wrong with it.
        let part = Part {
            functions: Arc::new(functions),
            part: created.part,
            services,
            rank: context.rank,
            size: context.size,
            serves_device: created.serves_device != 0,
            next_ticket: AtomicU64::new(1),
            lists: Mutex::default(),
        };
        let kinds = Kinds::from_bits(created.kinds)
            .map_err(|error| Error::new(ErrorKind::Backend, error.message()))?;
        let serves_device = part.serves_device;
        Ok(Made { communicator: Arc::new(Shared(Arc::new(part))), kinds, serves_device })
    }
}

/// A text for C; whatever follows a zero byte is cut off.
fn c_text(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

impl Functions {
    fn make(
        &self,
        context: &Context<'_>,
        between: &dyn Exchange,
        services: &Arc<Services>,
    ) -> Result<dist_backend_created_t> {
        let create = self.table.create.ok_or_else(|| missing("create"))?;
        let (id, name) = (c_text(&context.group.to_string()), c_text(context.name));
        let options = c_text(context.options);
        let meeting = Meeting { exchange: between, state: services.state() };
        let setup = dist_backend_setup_t {
            struct_size: size_of::<dist_backend_setup_t>(),
            rank: super::args::number(context.rank)?,
            size: super::args::number(context.size)?,
            epoch: context.epoch,
            device: context.device.map_or(Ok(DIST_DEVICE_HOST), super::args::number)?,
            group_id: id.as_ptr(),
            group_name: name.as_ptr(),
            options: options.as_ptr(),
            timeout_ms: whole_ms(Duration::from_millis(context.timeout_ms)),
            create_timeout_ms: left_ms(context.deadline),
            host: services.table(),
            exchange: Some(exchange),
            exchange_arg: (&raw const meeting).cast_mut().cast(),
        };
        let mut created = dist_backend_created_t {
            struct_size: size_of::<dist_backend_created_t>(),
            part: ptr::null_mut(),
            kinds: 0,
            serves_device: 0,
            reserved: 0,
        };
        ask_once(
            Called { plugin: self.name, function: "create", size: context.size },
            |outcome| {
                // SAFETY: the plug-in's function, with structs that outlive the call.
                unsafe { create(self.user, &raw const setup, &raw mut created, outcome) }
            },
        )?;
        Ok(created)
    }
}

pub(super) fn missing(function: &str) -> Error {
    Error::invalid(format!("a back end needs the function {function}"))
}

/// The part as the library holds it, and as memory of it does.
#[derive(Debug)]
struct Shared(Arc<Part>);

impl Part {
    fn name(&self) -> &'static str {
        self.functions.name
    }

    fn called<'a>(&'a self, function: &'a str) -> Called<'a> {
        Called { plugin: self.name(), function, size: self.size }
    }

    /// Operations end by the host's `complete`.
    fn completes(&self) -> bool {
        let table = &self.functions.table;
        table.test.is_none() && table.wait.is_none()
    }

    fn call_wait(&self, request: Request, timeout_ms: i64) -> Result<Option<Received>> {
        let wait = self.functions.table.wait.ok_or_else(|| missing("wait"))?;
        let handle = ptr::with_exposed_provenance_mut(request.handle);
        ask(self.called("wait"), |outcome| {
            // SAFETY: the plug-in's function, with its own words for part and request.
            unsafe { wait(self.part, handle, timeout_ms, outcome) }
        })
    }

    /// Asks again and again, less often after a while.
    fn poll(&self, request: Request, limit: &Deadline) -> Result<Option<Received>> {
        let state = self.services.state();
        let look = || self.look(request).transpose();
        let halted = || state.known_failure().cloned();
        match until(state.bell(), Pace::PATIENT, &limit.capped(EAGER), halted, look) {
            Ok(outcome) => return outcome.map(Some),
            Err(Interrupt::Halted(_)) => return Ok(None),
            Err(Interrupt::Deadline) => {}
        }
        let mut nap = FIRST_NAP;
        while !limit.has_passed() && state.known_failure().is_none() {
            let found = state.bell().doze(nap.min(limit.left()), || true, look);
            if let Some(outcome) = found {
                return outcome.map(Some);
            }
            nap = (nap * 2).min(LONGEST_NAP);
        }
        Ok(None)
    }

    fn look(&self, request: Request) -> Result<Option<Received>> {
        if self.completes() {
            return self.services.landed(request.ticket).transpose();
        }
        let Some(test) = self.functions.table.test else {
            return self.call_wait(request, DIST_NO_WAIT);
        };
        let handle = ptr::with_exposed_provenance_mut(request.handle);
        ask(self.called("test"), |outcome| {
            // SAFETY: the plug-in's function, with its own words for part and request.
            unsafe { test(self.part, handle, outcome) }
        })
    }

    /// Hands out an operation as C sees it.
    #[inline]
    fn with_operation<T>(
        &self,
        task: &Task<'_>,
        ticket: u64,
        call: impl FnOnce(&dist_backend_operation_t) -> T,
    ) -> T {
        let mut operation = operation(task, self.rank, ticket);
        if !task.has_blocks() {
            return call(&operation);
        }
        // Out of the way of any other.
        let kept = || self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lists = std::mem::take(&mut *kept());
        add_blocks(&mut operation, task, &mut lists);
        let outcome = call(&operation);
        *kept() = lists;
        outcome
    }

    /// Submits an operation.
    fn begin(&self, task: &Task<'_>, ticket: u64) -> Result<Submitted> {
        let submit = self.functions.table.submit.ok_or_else(|| missing("submit"))?;
        let mut handle: *mut c_void = ptr::null_mut();
        let outcome = self.with_operation(task, ticket, |operation| {
            ask(self.called("submit"), |outcome| {
                // SAFETY: the plug-in's function, with structs that outlive the call.
                unsafe { submit(self.part, operation, &raw mut handle, outcome) }
            })
        })?;
        match outcome {
            Some(received) => Ok(Submitted::Done(received)),
            None => self.pending(("submit", task), handle, ticket).map(Submitted::Pending),
        }
    }

    /// What a function has begun that says that it goes on.
    fn pending(
        &self,
        (function, task): (&str, &Task<'_>),
        handle: *mut c_void,
        ticket: u64,
    ) -> Result<Request> {
        if handle.is_null() && !self.completes() {
            let message = format!(
                "{function} of the back end {} says that {} goes on, and gives no request for it: a defect of that back end",
                self.name(),
                task.what.name()
            );
            return Err(Error::new(ErrorKind::Backend, message));
        }
        Ok(Request { handle: handle.expose_provenance(), ticket })
    }
}

impl Communicator for Shared {
    fn submit(&self, task: &Task<'_>) -> Result<Submitted> {
        let part = &self.0;
        let ticket = match part.completes() {
            true => part.next_ticket.fetch_add(1, Ordering::Relaxed),
            false => 0,
        };
        if ticket > 0 {
            part.services.expect(ticket);
        }
        let submitted = part.begin(task, ticket);
        if ticket > 0 && !matches!(submitted, Ok(Submitted::Pending(_))) {
            part.services.forget(ticket);
        }
        submitted
    }

    fn is_prompt(&self) -> bool {
        self.0.functions.table.run.is_some()
    }

    fn run(&self, task: &Task<'_>, limit: Duration) -> Option<Result<Ran>> {
        let run = self.0.functions.table.run?;
        let part = &*self.0;
        let mut handle: *mut c_void = ptr::null_mut();
        let limit_ms = whole_ms(limit);
        let ran = part.with_operation(task, 0, |operation| {
            let call = |outcome| {
                // SAFETY: the plug-in's function, with structs that outlive the call.
                unsafe { run(part.part, operation, limit_ms, &raw mut handle, outcome) }
            };
            ask_for(part.called("run"), call, |outcome| outcome.flags & DIST_BACKEND_SHORT != 0)
        });
        Some(match ran {
            Ok(Some(true)) => Ok(Ran::Shortly),
            Ok(Some(false)) => Ok(Ran::Done),
            Ok(None) => part.pending(("run", task), handle, 0).map(Ran::Pending),
            Err(error) => Err(error),
        })
    }

    fn test(&self, request: Request) -> Result<Option<Received>> {
        self.0.look(request)
    }

    fn wait(&self, request: Request, limit: Duration) -> Result<Option<Received>> {
        match self.0.functions.table.wait {
            Some(_) => self.0.call_wait(request, whole_ms(limit)),
            None => self.0.poll(request, &Deadline::after(limit)),
        }
    }

    fn release(&self, request: Request) -> Result<Awaited> {
        let part = &self.0;
        if part.completes() {
            part.services.forget(request.ticket);
        }
        let release = part.functions.table.release.filter(|_| request.handle != 0);
        let Some(release) = release else {
            let message = format!("the back end {} has given no request to take back", part.name());
            return Err(Error::new(ErrorKind::Backend, message));
        };
        let handle = ptr::with_exposed_provenance_mut(request.handle);
        ask_why(part.called("release"), |outcome| {
            // SAFETY: the plug-in's function, with its own words for part and request.
            unsafe { release(part.part, handle, outcome) }
        })
    }

    fn abort(&self, reason: &Error) {
        let Some(abort) = self.0.functions.table.abort else { return };
        let text = c_text(reason.message());
        let culprit = reason.culprit().and_then(|rank| i32::try_from(rank).ok()).unwrap_or(-1);
        // SAFETY: the plug-in's function, with a text that outlives the call.
        unsafe { abort(self.0.part, status_of(reason.kind()), text.as_ptr(), culprit) };
    }

    fn failure(&self) -> Option<Error> {
        let failure = self.0.functions.table.failure?;
        let asked = ask_once(self.0.called("failure"), |outcome| {
            // SAFETY: the plug-in's function with what it made.
            unsafe { failure(self.0.part, outcome) }
        });
        asked.err()
    }

    fn supports(&self, query: &Query) -> Result<()> {
        let part = &self.0;
        if query.gpu.is_some() && !part.serves_device {
            let message = format!("{query}: the back end {} is for host memory", part.name());
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let Some(supports) = part.functions.table.supports else { return Ok(()) };
        let kind = match query.kind {
            Some(kind) => kind as i32,
            None if query.name == "send" => DIST_KIND_SEND,
            None => DIST_KIND_RECV,
        };
        let device = query.gpu.and_then(|gpu| i32::try_from(gpu).ok()).unwrap_or(DIST_DEVICE_HOST);
        let asked = dist_backend_query_t {
            struct_size: size_of::<dist_backend_query_t>(),
            kind,
            dtype: query.dtype.map_or(-1, |dtype| dtype.number()),
            op: query.op.map_or(-1, |op| op.number()),
            device,
        };
        let answer = ask_once(part.called("supports"), |outcome| {
            // SAFETY: the plug-in's function, with a struct that outlives the call.
            unsafe { supports(part.part, &raw const asked, outcome) }
        });
        answer.map_err(|error| error.context(query))
    }

    fn allocate(&self, bytes: usize) -> Result<Option<Box<dyn Memory>>> {
        let table = &self.0.functions.table;
        let (Some(allocate), Some(free)) = (table.allocate, table.free_memory) else {
            return Ok(None);
        };
        let mut memory: *mut c_void = ptr::null_mut();
        ask_once(self.0.called("allocate"), |outcome| {
            // SAFETY: the plug-in's function, with room for its result.
            unsafe { allocate(self.0.part, bytes, DIST_DEVICE_HOST, &raw mut memory, outcome) }
        })?;
        if memory.is_null() {
            let message = format!("allocate of the back end {} gave no memory", self.0.name());
            return Err(Error::new(ErrorKind::Backend, message));
        }
        Ok(Some(Box::new(PluginMemory { part: Arc::clone(&self.0), memory, bytes, free })))
    }

    fn describe(&self) -> Value {
        let Some(describe) = self.0.functions.table.describe else { return Value::Null };
        let mut text = Vec::new();
        // SAFETY: the plug-in's function, with a sink whose argument outlives the call.
        let status = unsafe { describe(self.0.part, Some(collect), collector(&mut text)) };
        if status != DIST_OK {
            return Value::Null;
        }
        let as_text = || Value::from(String::from_utf8_lossy(&text).into_owned());
        serde_json::from_slice(&text).unwrap_or_else(|_| as_text())
    }
}

/// Memory that a plug-in has allocated.
#[derive(Debug)]
struct PluginMemory {
    part: Arc<Part>,
    memory: *mut c_void,
    bytes: usize,
    free: unsafe extern "C" fn(part: *mut c_void, memory: *mut c_void, bytes: usize),
}

// SAFETY: an address, which is freed once, from any thread.
unsafe impl Send for PluginMemory {}

impl Memory for PluginMemory {
    fn as_mut_ptr(&self) -> *mut u8 {
        self.memory.cast()
    }

    fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for PluginMemory {
    fn drop(&mut self) {
        // SAFETY: the plug-in's function, with what its allocate gave, called once.
        unsafe { (self.free)(self.part.part, self.memory, self.bytes) };
    }
}
