//! Parts that all operations share: their options, and the decision whether a call blocks, returns
//! a work, or joins the thread's batch.
//!
//! ```text
//! `work` of the caller   batch of the thread   the call
//! NULL                   none                  blocks
//! a variable             none                  is issued, and returns a work
//! NULL                   open                  joins the batch
//! a variable             open                  joins the batch, and returns a work
//! ```

use super::args::{OutPtr, call_label, check_reserved, index, optional_str, waiting_milliseconds};
use super::sized_struct;
use super::types::*;
use super::work;
use crate::api::collective::batch;
use crate::api::collective::call::BufferLocation;
use crate::api::collective::prepared_call::PreparedCall;
use crate::api::{Call, CallOptions, Group};
use crate::base::debug::NanCheck;
use crate::base::error::{Error, ErrorKind, Result};
use std::sync::Arc;

/// The parameter `work`: the output for the handle of a work. It is `None` if the caller passes
/// NULL.
#[derive(Debug)]
pub(super) struct WorkOut(Option<OutPtr<*mut dist_work_t>>);

impl WorkOut {
    /// Sets the caller's variable to NULL, so the variable has a handle only if the call succeeds.
    pub(super) fn new(work: *mut *mut dist_work_t) -> Self {
        Self(OutPtr::optional_handle(work))
    }

    /// Returns the output for the handle, for calls that are not allowed in batches.
    pub(super) fn into_handle(self) -> Option<OutPtr<*mut dist_work_t>> {
        self.0
    }

    /// Returns whether the call blocks: the caller takes no work, and no batch is open.
    pub(super) fn blocks(&self) -> bool {
        self.0.is_none() && !batch::is_open()
    }
}

/// Storage for the options of a call on the stack of the exported function.
///
/// A call without options leaves the slot empty, which saves a few nanoseconds.
pub(super) type OptionsSlot = Option<CallOptions>;

static DEFAULT_OPTIONS: CallOptions = CallOptions::DEFAULT;

/// Reads the options of a call that is not a send.
#[inline]
pub(super) fn call_options(
    options: *const dist_call_options_t,
    slot: &mut OptionsSlot,
) -> Result<&CallOptions> {
    if options.is_null() { Ok(&DEFAULT_OPTIONS) } else { receive_options(options, slot) }
}

/// The advice in the error text for a call whose time-out is DIST_NO_WAIT.
const ASYNC_HINT: &str = "pass milliseconds, 0 for the group's timeout, or DIST_WAIT_FOREVER; to \
                          issue the call without waiting for it, pass `work`";

fn receive_options(
    options: *const dist_call_options_t,
    slot: &mut OptionsSlot,
) -> Result<&CallOptions> {
    let parsed = slot.insert(parse_options(&sized_struct::read(options)?)?);
    if parsed.synchronous {
        let message = "flags have DIST_CALL_SYNCHRONOUS, which is for sends only";
        return Err(Error::invalid(message));
    }
    Ok(parsed)
}

/// Reads the options of a call that sends a message.
#[inline]
pub(super) fn send_options(
    options: *const dist_call_options_t,
    slot: &mut OptionsSlot,
) -> Result<&CallOptions> {
    if options.is_null() {
        return Ok(&DEFAULT_OPTIONS);
    }
    Ok(slot.insert(parse_options(&sized_struct::read(options)?)?))
}

/// Reads the options of a probe. Returns them with false if the probe does not wait (DIST_NO_WAIT).
pub(super) fn probe_options(options: *const dist_call_options_t) -> Result<(CallOptions, bool)> {
    let mut c_options = sized_struct::read(options)?;
    let waits = c_options.timeout_ms != DIST_NO_WAIT;
    if !waits {
        c_options.timeout_ms = 0;
    }
    let parsed = parse_options(&c_options)?;
    if parsed.synchronous {
        let message = "flags have DIST_CALL_SYNCHRONOUS, which is for sends only";
        return Err(Error::invalid(message));
    }
    Ok((parsed, waits))
}

fn parse_options(options: &dist_call_options_t) -> Result<CallOptions> {
    let flags = check_flags(options.flags)?;
    check_reserved(options.reserved)?;
    Ok(CallOptions {
        location: match options.device {
            _ if flags & DIST_CALL_DEVICE == 0 => BufferLocation::Unspecified,
            DIST_DEVICE_HOST => BufferLocation::Host,
            device => BufferLocation::Device(index(device, "device")?),
        },
        // The library never dereferences the stream; it is the driver's handle.
        stream: Some(options.stream.addr()).filter(|&stream| stream != 0),
        timeout_ms: waiting_milliseconds(options.timeout_ms, "timeout_ms", ASYNC_HINT)?,
        premul_scale: options.premul_scale,
        synchronous: flags & DIST_CALL_SYNCHRONOUS != 0,
        canonical: flags & DIST_CALL_CANONICAL != 0,
        algorithm: optional_str(options.algorithm, "algorithm")?.map(str::to_owned),
        nan_check: if flags & DIST_CALL_CHECK_INF != 0 {
            NanCheck::RejectNonFinite
        } else if flags & DIST_CALL_CHECK_NAN != 0 {
            NanCheck::RejectNan
        } else {
            NanCheck::Off
        },
        label: call_label(options.label)?,
    })
}

/// Refuses unknown flags of a call.
fn check_flags(flags: u64) -> Result<u64> {
    let unknown = flags
        & !(DIST_CALL_CANONICAL
            | DIST_CALL_CHECK_NAN
            | DIST_CALL_CHECK_INF
            | DIST_CALL_DEVICE
            | DIST_CALL_SYNCHRONOUS);
    if unknown == 0 {
        return Ok(flags);
    }
    let message = format!("flags have {unknown:#x}, which this version does not know");
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// Runs a collective, issues it, or adds it to the thread's batch.
#[inline]
pub(super) fn submit(
    group: &Arc<Group>,
    mut call: Call<'static>,
    options: &CallOptions,
    work: WorkOut,
) -> Result<()> {
    if work.blocks() {
        return group.run_by_reference(&mut call, options);
    }
    issue_with_handle(group.prepare(call, options.clone())?, work)
}

/// Issues a checked call, or adds it to the thread's batch. Creates the handle of its work if the
/// caller takes a work.
pub(super) fn issue_with_handle(call: PreparedCall, work: WorkOut) -> Result<()> {
    let Some(out) = work.0 else { return batch::collect_or_issue(call) };
    // The creation of the handle comes first, because it can fail and is easy to undo.
    let handle = work::create_handle(call.work())?;
    if let Err(error) = batch::collect_or_issue(call) {
        drop(work::remove_handle(handle));
        return Err(error);
    }
    out.write(handle);
    Ok(())
}
