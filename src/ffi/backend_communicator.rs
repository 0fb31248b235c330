//! Adapters between the C functions of a plug-in and the library. The functions become a `Plugin`,
//! and the plug-in's part of a group (its state for one group on this rank) a `Communicator`.

use super::backend_call::{
    BlockLists, PluginCallSite, add_blocks, c_operation, call_plugin, call_plugin_for,
    call_plugin_release, call_plugin_to_end, remaining_ms, to_timeout_ms,
};
use super::backend_host::{ExchangeContext, HostServices, append_bytes, as_sink_arg, exchange};
use super::backend_types::*;
use super::constants::*;
use super::status::status_of;
use crate::backend::plugin::{
    Communicator, CreatedCommunicator, OperationKinds, Plugin, PluginFailureState,
    PluginMessageStatus, PluginRequest, PluginTask, ReleaseReport, RunOutcome, SubmitOutcome,
};
use crate::backend::{BackendMemory, BootstrapExchange, GroupContext, SupportQuery};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::lock;
use crate::wait::{WaitInterrupt, WaitPolicy, wait_until};
use serde_json::Value;
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// For a plug-in without the function `wait`: how long a waiting thread polls before it sleeps.
const SPIN_TIME: Duration = Duration::from_millis(1);
/// The duration of the first sleep between two polls. Each further sleep is twice as long.
const MIN_SLEEP: Duration = Duration::from_micros(20);
/// The maximum duration of a sleep between two polls.
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// A registered plug-in: its functions, and the pointer `user` that its function `create` gets.
pub(super) struct CPluginFunctions {
    pub(super) name: &'static str,
    pub(super) table: dist_backend_vtable_t,
    pub(super) user: *mut c_void,
}

// SAFETY: the plug-in promises that its functions may be called from any thread with that pointer.
unsafe impl Send for CPluginFunctions {}
// SAFETY: as above.
unsafe impl Sync for CPluginFunctions {}

impl std::fmt::Debug for CPluginFunctions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "back end {}", self.name)
    }
}

/// A plug-in's part of a group. Dropping the last reference calls the plug-in's `destroy`.
struct CPluginInstance {
    functions: Arc<CPluginFunctions>,
    /// The pointer that the plug-in's `create` returned.
    c_part: *mut c_void,
    services: Arc<HostServices>,
    rank: usize,
    size: usize,
    serves_device: bool,
    /// The ticket of the next operation: the number with which the plug-in completes the operation.
    next_ticket: AtomicU64,
    /// Memory for the blocks of a call. A call takes the lists, and puts them back afterwards.
    lists: Mutex<BlockLists>,
}

// SAFETY: the plug-in promises that its functions may be called from any thread with that pointer.
unsafe impl Send for CPluginInstance {}
// SAFETY: as above.
unsafe impl Sync for CPluginInstance {}

impl std::fmt::Debug for CPluginInstance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of a group over {:?}", self.rank, self.functions)
    }
}

impl Drop for CPluginInstance {
    fn drop(&mut self) {
        if let Some(destroy) = self.functions.table.destroy {
            // SAFETY: this is the plug-in's function, with the result of its `create`. It is called
            // once, after all other functions of the part.
            unsafe { destroy(self.c_part) };
        }
    }
}

impl Plugin for CPluginFunctions {
    fn create(
        &self,
        context: &GroupContext<'_>,
        exchange: &dyn BootstrapExchange,
        state: &Arc<PluginFailureState>,
    ) -> Result<CreatedCommunicator> {
        let services = HostServices::new(
            self.name,
            context.size,
            context.group_keys.cloned(),
            Arc::clone(state),
        );
        let created = self.create_c_part(context, exchange, &services)?;
        let functions = Self { name: self.name, table: self.table, user: self.user };
        // From here on, dropping `instance` destroys the plug-in's part, even if a check below
        // fails.
        let instance = CPluginInstance {
            functions: Arc::new(functions),
            c_part: created.part,
            services,
            rank: context.rank,
            size: context.size,
            serves_device: created.serves_device != 0,
            next_ticket: AtomicU64::new(1),
            lists: Mutex::default(),
        };
        let kinds = OperationKinds::from_bits(created.kinds)
            .map_err(|error| Error::new(ErrorKind::Backend, error.message()))?;
        let serves_device = instance.serves_device;
        Ok(CreatedCommunicator {
            communicator: Arc::new(CPluginCommunicator(Arc::new(instance))),
            kinds,
            serves_device,
        })
    }
}

/// Converts a text to a C string, which ends at the first zero byte of the text.
fn to_c_string(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

impl CPluginFunctions {
    /// Calls the plug-in's `create`.
    fn create_c_part(
        &self,
        context: &GroupContext<'_>,
        bootstrap: &dyn BootstrapExchange,
        services: &Arc<HostServices>,
    ) -> Result<dist_backend_created_t> {
        let create = self.table.create.ok_or_else(|| missing_function("create"))?;
        let (id, name) = (to_c_string(&context.group.to_string()), to_c_string(context.name));
        let options = to_c_string(context.options);
        let exchange_context =
            ExchangeContext { exchange: bootstrap, failure_state: services.failure_state() };
        let setup = dist_backend_setup_t {
            struct_size: size_of::<dist_backend_setup_t>(),
            rank: super::args::to_i32(context.rank)?,
            size: super::args::to_i32(context.size)?,
            epoch: context.epoch,
            device: context.device.map_or(Ok(DIST_DEVICE_HOST), super::args::to_i32)?,
            group_id: id.as_ptr(),
            group_name: name.as_ptr(),
            options: options.as_ptr(),
            timeout_ms: to_timeout_ms(Duration::from_millis(context.timeout_ms)),
            create_timeout_ms: remaining_ms(context.deadline),
            host: services.table(),
            exchange: Some(exchange),
            exchange_arg: (&raw const exchange_context).cast_mut().cast(),
        };
        let mut created = dist_backend_created_t {
            struct_size: size_of::<dist_backend_created_t>(),
            part: ptr::null_mut(),
            kinds: 0,
            serves_device: 0,
            reserved: 0,
        };
        call_plugin_to_end(
            PluginCallSite { plugin: self.name, function: "create", size: context.size },
            |outcome| {
                // SAFETY: the plug-in's function, with structs that outlive the call.
                unsafe { create(self.user, &raw const setup, &raw mut created, outcome) }
            },
        )?;
        Ok(created)
    }
}

pub(super) fn missing_function(function: &str) -> Error {
    Error::invalid(format!("a back end needs the function {function}"))
}

/// The communicator of a group. [`PluginMemory`] also refers to the instance, so that the part
/// exists until all its memory has been freed.
#[derive(Debug)]
struct CPluginCommunicator(Arc<CPluginInstance>);

impl CPluginInstance {
    fn name(&self) -> &'static str {
        self.functions.name
    }

    fn call_site<'a>(&'a self, function: &'a str) -> PluginCallSite<'a> {
        PluginCallSite { plugin: self.name(), function, size: self.size }
    }

    /// Returns true if the plug-in has neither `test` nor `wait`. It then calls the host's function
    /// `complete` at the end of each operation.
    fn has_completion_callback(&self) -> bool {
        let table = &self.functions.table;
        table.test.is_none() && table.wait.is_none()
    }

    fn call_wait(
        &self,
        request: PluginRequest,
        timeout_ms: i64,
    ) -> Result<Option<PluginMessageStatus>> {
        let wait = self.functions.table.wait.ok_or_else(|| missing_function("wait"))?;
        let handle = ptr::with_exposed_provenance_mut(request.handle);
        call_plugin(self.call_site("wait"), |outcome| {
            // SAFETY: the plug-in's function with the plug-in's part and request.
            unsafe { wait(self.c_part, handle, timeout_ms, outcome) }
        })
    }

    /// Polls a request until it is complete, the limit has passed, or the group has failed. Returns
    /// `None` in the last two cases. After [`SPIN_TIME`] the thread sleeps between polls, each time
    /// longer.
    fn poll_until(
        &self,
        request: PluginRequest,
        limit: &Deadline,
    ) -> Result<Option<PluginMessageStatus>> {
        let state = self.services.failure_state();
        let poll = || self.poll_once(request).transpose();
        let check_failure = || state.known_failure().cloned();
        match wait_until(
            state.doorbell(),
            WaitPolicy::SLEEP_SOON,
            &limit.capped(SPIN_TIME),
            check_failure,
            poll,
        ) {
            Ok(outcome) => return outcome.map(Some),
            Err(WaitInterrupt::Aborted(_)) => return Ok(None),
            Err(WaitInterrupt::Deadline) => {}
        }
        let mut sleep_time = MIN_SLEEP;
        while !limit.has_passed() && state.known_failure().is_none() {
            let found = state.doorbell().sleep_unless_ready(
                sleep_time.min(limit.remaining()),
                || true,
                poll,
            );
            if let Some(outcome) = found {
                return outcome.map(Some);
            }
            sleep_time = (sleep_time * 2).min(MAX_SLEEP);
        }
        Ok(None)
    }

    fn poll_once(&self, request: PluginRequest) -> Result<Option<PluginMessageStatus>> {
        if self.has_completion_callback() {
            return self.services.take_completion(request.ticket).transpose();
        }
        let Some(test) = self.functions.table.test else {
            return self.call_wait(request, DIST_NO_WAIT);
        };
        let handle = ptr::with_exposed_provenance_mut(request.handle);
        call_plugin(self.call_site("test"), |outcome| {
            // SAFETY: the plug-in's function with the plug-in's part and request.
            unsafe { test(self.c_part, handle, outcome) }
        })
    }

    /// Passes the C form of an operation to `call`.
    #[inline]
    fn with_operation<T>(
        &self,
        task: &PluginTask<'_>,
        ticket: u64,
        call: impl FnOnce(&dist_backend_operation_t) -> T,
    ) -> T {
        let mut operation = c_operation(task, self.rank, ticket);
        if !task.has_blocks() {
            return call(&operation);
        }
        // The call takes the lists. A concurrent call finds empty lists, and fills those.
        let lock_lists = || lock(&self.lists);
        let mut lists = std::mem::take(&mut *lock_lists());
        add_blocks(&mut operation, task, &mut lists);
        let outcome = call(&operation);
        *lock_lists() = lists;
        outcome
    }

    /// Calls the plug-in's `submit` for an operation.
    fn submit_operation(&self, task: &PluginTask<'_>, ticket: u64) -> Result<SubmitOutcome> {
        let submit = self.functions.table.submit.ok_or_else(|| missing_function("submit"))?;
        let mut handle: *mut c_void = ptr::null_mut();
        let outcome = self.with_operation(task, ticket, |operation| {
            call_plugin(self.call_site("submit"), |outcome| {
                // SAFETY: the plug-in's function, with structs that outlive the call.
                unsafe { submit(self.c_part, operation, &raw mut handle, outcome) }
            })
        })?;
        match outcome {
            Some(received) => Ok(SubmitOutcome::Done(received)),
            None => {
                self.pending_request("submit", task, handle, ticket).map(SubmitOutcome::Pending)
            }
        }
    }

    /// Returns the request of an operation for which the plug-in returned DIST_IN_PROGRESS.
    fn pending_request(
        &self,
        function: &str,
        task: &PluginTask<'_>,
        handle: *mut c_void,
        ticket: u64,
    ) -> Result<PluginRequest> {
        if handle.is_null() && !self.has_completion_callback() {
            let message = format!(
                "{function} of the back end {} reports that {} is in progress, and returned no \
                 request: a defect of that back end",
                self.name(),
                task.kind.name()
            );
            return Err(Error::new(ErrorKind::Backend, message));
        }
        Ok(PluginRequest { handle: handle.expose_provenance(), ticket })
    }
}

impl Communicator for CPluginCommunicator {
    fn submit(&self, task: &PluginTask<'_>) -> Result<SubmitOutcome> {
        let instance = &self.0;
        let ticket = match instance.has_completion_callback() {
            true => instance.next_ticket.fetch_add(1, Ordering::Relaxed),
            false => 0,
        };
        if ticket > 0 {
            instance.services.expect_completion(ticket);
        }
        let submitted = instance.submit_operation(task, ticket);
        if ticket > 0 && !matches!(submitted, Ok(SubmitOutcome::Pending(_))) {
            instance.services.forget_completion(ticket);
        }
        submitted
    }

    fn has_fast_path(&self) -> bool {
        self.0.functions.table.run.is_some()
    }

    fn run(&self, task: &PluginTask<'_>, limit: Duration) -> Option<Result<RunOutcome>> {
        let run = self.0.functions.table.run?;
        let instance = &*self.0;
        let mut handle: *mut c_void = ptr::null_mut();
        let limit_ms = to_timeout_ms(limit);
        let ran = instance.with_operation(task, 0, |operation| {
            let call = |outcome| {
                // SAFETY: the plug-in's function, with structs that outlive the call.
                unsafe { run(instance.c_part, operation, limit_ms, &raw mut handle, outcome) }
            };
            call_plugin_for(instance.call_site("run"), call, |outcome| {
                outcome.flags & DIST_BACKEND_SHORT != 0
            })
        });
        Some(match ran {
            Ok(Some(true)) => Ok(RunOutcome::DoneQuickly),
            Ok(Some(false)) => Ok(RunOutcome::Done),
            Ok(None) => instance.pending_request("run", task, handle, 0).map(RunOutcome::Pending),
            Err(error) => Err(error),
        })
    }

    fn test(&self, request: PluginRequest) -> Result<Option<PluginMessageStatus>> {
        self.0.poll_once(request)
    }

    fn wait(&self, request: PluginRequest, limit: Duration) -> Result<Option<PluginMessageStatus>> {
        match self.0.functions.table.wait {
            Some(_) => self.0.call_wait(request, to_timeout_ms(limit)),
            None => self.0.poll_until(request, &Deadline::after(limit)),
        }
    }

    fn release(&self, request: PluginRequest) -> Result<ReleaseReport> {
        let instance = &self.0;
        if instance.has_completion_callback() {
            instance.services.forget_completion(request.ticket);
        }
        let release = instance.functions.table.release.filter(|_| request.handle != 0);
        let Some(release) = release else {
            let message = format!(
                "the back end {} returned no request that can be released",
                instance.name()
            );
            return Err(Error::new(ErrorKind::Backend, message));
        };
        let handle = ptr::with_exposed_provenance_mut(request.handle);
        call_plugin_release(instance.call_site("release"), |outcome| {
            // SAFETY: the plug-in's function with the plug-in's part and request.
            unsafe { release(instance.c_part, handle, outcome) }
        })
    }

    fn abort(&self, reason: &Error) {
        let Some(abort) = self.0.functions.table.abort else { return };
        let text = to_c_string(reason.message());
        let culprit = reason.culprit().and_then(|rank| i32::try_from(rank).ok()).unwrap_or(-1);
        // SAFETY: the plug-in's function, with a text that outlives the call.
        unsafe { abort(self.0.c_part, status_of(reason.kind()), text.as_ptr(), culprit) };
    }

    fn failure(&self) -> Option<Error> {
        let failure = self.0.functions.table.failure?;
        // SAFETY: the plug-in's function with the result of its create.
        let query = |outcome| unsafe { failure(self.0.c_part, outcome) };
        call_plugin_to_end(self.0.call_site("failure"), query).err()
    }

    fn supports(&self, query: &SupportQuery) -> Result<()> {
        let instance = &self.0;
        if query.gpu.is_some() && !instance.serves_device {
            let message =
                format!("{query}: the back end {} supports host memory only", instance.name());
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let Some(supports) = instance.functions.table.supports else { return Ok(()) };
        let kind = match query.kind {
            Some(kind) => kind as i32,
            None if query.name == "send" => DIST_KIND_SEND,
            None => DIST_KIND_RECV,
        };
        let device = query.gpu.and_then(|gpu| i32::try_from(gpu).ok()).unwrap_or(DIST_DEVICE_HOST);
        let c_query = dist_backend_query_t {
            struct_size: size_of::<dist_backend_query_t>(),
            kind,
            dtype: query.dtype.map_or(-1, |dtype| dtype.number()),
            op: query.op.map_or(-1, |op| op.number()),
            device,
        };
        // SAFETY: the plug-in's function, with a struct that outlives the call.
        let ask = |outcome| unsafe { supports(instance.c_part, &raw const c_query, outcome) };
        call_plugin_to_end(instance.call_site("supports"), ask).map_err(|it| it.context(query))
    }

    fn allocate(&self, bytes: usize) -> Result<Option<Box<dyn BackendMemory>>> {
        let table = &self.0.functions.table;
        let (Some(allocate), Some(free)) = (table.allocate, table.free_memory) else {
            return Ok(None);
        };
        let mut memory: *mut c_void = ptr::null_mut();
        call_plugin_to_end(self.0.call_site("allocate"), |outcome| {
            // SAFETY: the plug-in's function, with space for its result.
            unsafe { allocate(self.0.c_part, bytes, DIST_DEVICE_HOST, &raw mut memory, outcome) }
        })?;
        if memory.is_null() {
            let message = format!("allocate of the back end {} returned no memory", self.0.name());
            return Err(Error::new(ErrorKind::Backend, message));
        }
        Ok(Some(Box::new(PluginMemory { instance: Arc::clone(&self.0), memory, bytes, free })))
    }

    fn describe(&self) -> Value {
        let Some(describe) = self.0.functions.table.describe else { return Value::Null };
        let mut text = Vec::new();
        // SAFETY: the plug-in's function, with a sink whose argument outlives the call.
        let status = unsafe { describe(self.0.c_part, Some(append_bytes), as_sink_arg(&mut text)) };
        if status != DIST_OK {
            return Value::Null;
        }
        let as_text = || Value::from(String::from_utf8_lossy(&text).into_owned());
        serde_json::from_slice(&text).unwrap_or_else(|_| as_text())
    }
}

/// Memory that a plug-in's `allocate` returned.
#[derive(Debug)]
struct PluginMemory {
    instance: Arc<CPluginInstance>,
    memory: *mut c_void,
    bytes: usize,
    free: unsafe extern "C" fn(part: *mut c_void, memory: *mut c_void, bytes: usize),
}

// SAFETY: the memory is an address that any thread may free, once.
unsafe impl Send for PluginMemory {}

impl BackendMemory for PluginMemory {
    fn as_mut_ptr(&self) -> *mut u8 {
        self.memory.cast()
    }

    fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for PluginMemory {
    fn drop(&mut self) {
        // SAFETY: the plug-in's function with the memory from its allocate, called once.
        unsafe { (self.free)(self.instance.c_part, self.memory, self.bytes) };
    }
}
