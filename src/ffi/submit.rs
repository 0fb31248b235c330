//! What the functions of operations have in common: their options, and whether they block, give a
//! work, or wait in a batch.

use super::args::{OutPtr, call_label, check_reserved, index, optional_str, waiting_milliseconds};
use super::sized_struct;
use super::types::*;
use super::work;
use crate::api::call::BufferLocation;
use crate::api::issue::PreparedCall;
use crate::api::{Call, CallOptions, Group, batch};
use crate::base::debug::NanCheck;
use crate::base::error::{Error, ErrorKind, Result};
use std::sync::Arc;

/// The parameter `work`: where the handle goes, if one is wanted.
#[derive(Debug)]
pub(super) struct WorkOut(Option<OutPtr<*mut dist_work_t>>);

impl WorkOut {
    /// NULL in the caller's variable until there is a work.
    pub(super) fn new(work: *mut *mut dist_work_t) -> Self {
        Self(OutPtr::optional_handle(work))
    }

    /// Where the handle goes, if one is wanted, for calls that are no part of batches.
    pub(super) fn into_handle(self) -> Option<OutPtr<*mut dist_work_t>> {
        self.0
    }

    /// Whether the call blocks: nobody takes a work, and there is no batch to collect it.
    pub(super) fn blocks(&self) -> bool {
        self.0.is_none() && !batch::is_open()
    }
}

/// Room for the options of a call on the stack of the exported function. A call without options
/// makes and moves nothing: its first nanoseconds would wait for that.
pub(super) type OptionsSlot = Option<CallOptions>;

static DEFAULT_OPTIONS: CallOptions = CallOptions::DEFAULT;

/// The options of a call that is no send.
#[inline]
pub(super) fn call_options(
    options: *const dist_call_options_t,
    slot: &mut OptionsSlot,
) -> Result<&CallOptions> {
    if options.is_null() { Ok(&DEFAULT_OPTIONS) } else { receive_options(options, slot) }
}

/// What to do in place of a call without any time.
const ASYNC_HINT: &str = "pass milliseconds, 0 for the group's time-out, or DIST_WAIT_FOREVER; to issue the call \
                             without waiting for it, pass `work`";

fn receive_options(
    options: *const dist_call_options_t,
    slot: &mut OptionsSlot,
) -> Result<&CallOptions> {
    let given = slot.insert(parse_options(&sized_struct::read(options)?)?);
    if given.synchronous {
        let message = "flags have DIST_CALL_SYNCHRONOUS, which is for sends only";
        return Err(Error::invalid(message));
    }
    Ok(given)
}

/// The options of a call that sends a message.
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

/// The options of a probe, and whether it waits.
pub(super) fn probe_options(options: *const dist_call_options_t) -> Result<(CallOptions, bool)> {
    let mut read = sized_struct::read(options)?;
    let waits = read.timeout_ms != DIST_NO_WAIT;
    if !waits {
        read.timeout_ms = 0;
    }
    let given = parse_options(&read)?;
    if given.synchronous {
        let message = "flags have DIST_CALL_SYNCHRONOUS, which is for sends only";
        return Err(Error::invalid(message));
    }
    Ok((given, waits))
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
        // Never followed: what the driver calls it.
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

/// The flags of a call, all of which must be known.
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

/// Runs a collective, issues it, or adds it to the thread's batch. Inlined, so that the call is not
/// copied on its way.
#[inline]
pub(super) fn submit(
    group: &Arc<Group>,
    call: Call<'static>,
    options: &CallOptions,
    work: WorkOut,
) -> Result<()> {
    if work.blocks() {
        return group.run(call, options);
    }
    issue_with_handle(group.prepare(call, options.clone())?, work)
}

/// Issues what was checked, or adds it to the thread's batch, and gives its work a handle.
pub(super) fn issue_with_handle(call: PreparedCall, work: WorkOut) -> Result<()> {
    let Some(out) = work.0 else { return batch::collect_or_issue(call) };
    // First what can fail without having done anything.
    let handle = work::create_handle(call.work())?;
    if let Err(error) = batch::collect_or_issue(call) {
        drop(work::remove_handle(handle));
        return Err(error);
    }
    out.write(handle);
    Ok(())
}
