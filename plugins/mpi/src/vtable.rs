//! The functions that libdist calls. Each converts its C arguments to Rust and the result to a
//! status, and catches panics.

use crate::abilities::KINDS;
use crate::collective::supports_device_memory;
use crate::failure::{Failure, Result};
use crate::group::MpiGroup;
use crate::host;
use crate::interface::*;
use crate::process;
use crate::request::Request;
use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

static FUNCTIONS: dist_backend_vtable_t = dist_backend_vtable_t {
    struct_size: size_of::<dist_backend_vtable_t>(),
    create: Some(create),
    destroy: Some(destroy),
    submit: Some(submit),
    release: Some(release),
    test: Some(test),
    wait: Some(wait),
    abort: Some(abort),
    failure: Some(failure),
    supports: Some(supports),
    allocate: None,
    free_memory: None,
    describe: Some(describe),
    run: Some(run),
};

/// Runs a body, and reports its failure to the library.
fn guarded(
    outcome: *mut dist_backend_outcome_t,
    body: impl FnOnce() -> Result<dist_status_t>,
) -> dist_status_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        Ok(Err(failure)) => failure.write_to(outcome),
        Err(_) => {
            Failure::internal("the MPI plug-in panicked: a defect of the plug-in").write_to(outcome)
        }
    }
}

/// The entry point that libdist looks up in this shared object.
///
/// # Safety
/// The caller follows the contract in dist.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dist_backend_plugin_v2(
    host: *const dist_backend_host_t,
    plugin: *mut dist_backend_plugin_t,
    outcome: *mut dist_backend_outcome_t,
) -> dist_status_t {
    guarded(outcome, || {
        // SAFETY: the library's struct, valid during the call.
        let host = unsafe { host.as_ref() };
        // SAFETY: the library's struct, valid during the call.
        let plugin = unsafe { plugin.as_mut() };
        let (Some(host), Some(plugin)) = (host, plugin) else {
            return Err(Failure::internal("the library passed no struct to fill in"));
        };
        let version = DIST_BACKEND_VERSION.cast_unsigned();
        if host.version < version {
            let text = "this libdist is older than the MPI plug-in: build both from one version";
            return Err(Failure::new(DIST_ERR_UNSUPPORTED, text));
        }
        process::check_family()?;
        plugin.version = version;
        plugin.name = c"mpi".as_ptr();
        plugin.functions = &raw const FUNCTIONS;
        Ok(DIST_OK)
    })
}

unsafe extern "C" fn create(
    _: *mut c_void,
    setup: *const dist_backend_setup_t,
    created: *mut dist_backend_created_t,
    outcome: *mut dist_backend_outcome_t,
) -> dist_status_t {
    guarded(outcome, || {
        // SAFETY: the library's struct, valid during the call.
        let setup = unsafe { setup.as_ref() };
        // SAFETY: the library's struct, valid during the call.
        let created = unsafe { created.as_mut() };
        let (Some(setup), Some(created)) = (setup, created) else {
            return Err(Failure::internal("create was called without a setup"));
        };
        let group = MpiGroup::create(setup)?;
        created.serves_device = i32::from(group.serves_device);
        created.part = Box::into_raw(Box::new(group)).cast();
        created.kinds = KINDS;
        Ok(DIST_OK)
    })
}

unsafe extern "C" fn destroy(part: *mut c_void) {
    catch_unwind(|| {
        // SAFETY: the part from create, passed here once, as the last call.
        drop(unsafe { Box::from_raw(part.cast::<MpiGroup>()) });
    })
    .ok();
}

/// Returns the group that create allocated.
///
/// # Safety
/// `part` is from create, and destroy was not called.
unsafe fn group_of<'a>(part: *mut c_void) -> &'a MpiGroup {
    // SAFETY: as the caller promises.
    unsafe { &*part.cast::<MpiGroup>() }
}

unsafe extern "C" fn submit(
    part: *mut c_void,
    operation: *const dist_backend_operation_t,
    request: *mut *mut c_void,
    outcome: *mut dist_backend_outcome_t,
) -> dist_status_t {
    guarded(outcome, || {
        // SAFETY: the library's arguments, valid during the call.
        let group = unsafe { group_of(part) };
        // SAFETY: the library's arguments, valid during the call.
        let operation = unsafe { &*operation };
        let started = group.submit(operation, outcome)?;
        // SAFETY: the library's variable for the request.
        Ok(unsafe { write_request(started, request) })
    })
}

/// Passes a request to the library.
///
/// # Safety
/// `out` is a variable for a request.
unsafe fn write_request(started: Option<Request>, out: *mut *mut c_void) -> dist_status_t {
    let Some(started) = started else { return DIST_OK };
    // SAFETY: as the caller promises.
    unsafe { out.write(Box::into_raw(Box::new(started)).cast()) };
    DIST_IN_PROGRESS
}

unsafe extern "C" fn run(
    part: *mut c_void,
    operation: *const dist_backend_operation_t,
    timeout_ms: i64,
    request: *mut *mut c_void,
    outcome: *mut dist_backend_outcome_t,
) -> dist_status_t {
    guarded(outcome, || {
        // SAFETY: as in submit.
        let group = unsafe { group_of(part) };
        // SAFETY: as in submit.
        let operation = unsafe { &*operation };
        let pending = group.run(operation, limit(timeout_ms), outcome)?;
        // SAFETY: the library's variable for the request.
        Ok(unsafe { write_request(pending, request) })
    })
}

fn limit(timeout_ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0))
}

/// Frees a request that has ended. After an error it releases the request, because MPI may still
/// use its memory.
fn free_if_ended(
    group: &MpiGroup,
    request: *mut c_void,
    ended: Result<dist_status_t>,
) -> Result<dist_status_t> {
    if matches!(ended, Ok(DIST_IN_PROGRESS)) {
        return ended;
    }
    // SAFETY: the request from submit, which has ended and is not used again.
    let request = unsafe { Box::from_raw(request.cast::<Request>()) };
    if ended.is_err() {
        request.release(group).ok();
    }
    ended
}

unsafe extern "C" fn test(
    part: *mut c_void,
    request: *mut c_void,
    outcome: *mut dist_backend_outcome_t,
) -> dist_status_t {
    guarded(outcome, || {
        // SAFETY: the part that the library passes.
        let group = unsafe { group_of(part) };
        // SAFETY: the request from submit; one thread at a time uses a request.
        let started = unsafe { &mut *request.cast::<Request>() };
        let polled = started.poll(group, outcome);
        free_if_ended(
            group,
            request,
            polled.map(|is_complete| if is_complete { DIST_OK } else { DIST_IN_PROGRESS }),
        )
    })
}

unsafe extern "C" fn wait(
    part: *mut c_void,
    request: *mut c_void,
    timeout_ms: i64,
    outcome: *mut dist_backend_outcome_t,
) -> dist_status_t {
    guarded(outcome, || {
        // SAFETY: as in test.
        let group = unsafe { group_of(part) };
        // SAFETY: as in test.
        let started = unsafe { &mut *request.cast::<Request>() };
        let waited = started.wait(group, limit(timeout_ms), outcome);
        free_if_ended(group, request, waited)
    })
}

unsafe extern "C" fn release(
    part: *mut c_void,
    request: *mut c_void,
    outcome: *mut dist_backend_outcome_t,
) -> dist_status_t {
    guarded(outcome, || {
        // SAFETY: the request from submit, which is not used again.
        let request = unsafe { Box::from_raw(request.cast::<Request>()) };
        // SAFETY: the part that the library passes.
        request.release(unsafe { group_of(part) }).map(|()| DIST_OK)
    })
}

unsafe extern "C" fn abort(
    part: *mut c_void,
    status: dist_status_t,
    reason: *const c_char,
    culprit: i32,
) {
    catch_unwind(|| {
        // SAFETY: the part that the library passes.
        let group = unsafe { group_of(part) };
        // SAFETY: a terminated text.
        let reason = unsafe { host::text(reason) };
        group.abort(status, &reason, culprit);
    })
    .ok();
}

unsafe extern "C" fn failure(
    part: *mut c_void,
    outcome: *mut dist_backend_outcome_t,
) -> dist_status_t {
    guarded(outcome, || {
        // SAFETY: the part that the library passes.
        unsafe { group_of(part) }.failure().map_or(Ok(DIST_OK), Err)
    })
}

unsafe extern "C" fn supports(
    part: *mut c_void,
    query: *const dist_backend_query_t,
    outcome: *mut dist_backend_outcome_t,
) -> dist_status_t {
    guarded(outcome, || {
        // SAFETY: the library's arguments, valid during the call.
        let group = unsafe { group_of(part) };
        // SAFETY: the library's arguments, valid during the call.
        let query = unsafe { &*query };
        // In host memory the plug-in supports all types and operators.
        match query.device {
            DIST_DEVICE_HOST => Ok(DIST_OK),
            _ if group.serves_device && supports_device_memory(query.kind) => Ok(DIST_OK),
            _ => Err(Failure::new(
                DIST_ERR_UNSUPPORTED,
                "the MPI back end does not pass device memory to MPI for this operation",
            )),
        }
    })
}

unsafe extern "C" fn describe(
    part: *mut c_void,
    sink: dist_store_sink_fn,
    sink_arg: *mut c_void,
) -> dist_status_t {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: the part that the library passes.
        let text = unsafe { group_of(part) }.describe();
        if let Some(sink) = sink {
            // SAFETY: the library's function, with bytes that outlive the call.
            unsafe { sink(sink_arg, text.as_ptr().cast(), text.len()) };
        }
        Ok(DIST_OK)
    })
}
