//! The creation of device back ends, which serve the memory of a GPU. This file contains the
//! interface of their factories, and checks that several factories share. [`super::registry`]
//! contains the factories, and [`super::device_map`] calls them.

use super::context::{BootstrapExchange, GroupContext};
use super::device_backend::DeviceBackend;
use super::interface::{Backend, GroupFailureState};
use super::peer_info::{PeerInfoFields, check_device_maps, exchange_peer_info};
use super::support_query::SupportQuery;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::GpuTarget;
use crate::base::ids::Rank;
use crate::device::stream::is_capturing;
use crate::device::{CudaContext, driver};
use serde_json::{Value, json};
use std::sync::Arc;

/// The arguments for the creation of a group's device back end.
pub(super) struct DeviceBackendSetup<'a> {
    pub(super) context: &'a GroupContext<'a>,
    pub(super) exchange: &'a dyn BootstrapExchange,
    /// The group's back end for host memory.
    pub(super) host: &'a Arc<dyn Backend>,
    pub(super) failure_state: &'a Arc<dyn GroupFailureState>,
    /// The device map, which must be the same on all ranks.
    pub(super) map: &'a str,
    /// True if the group continues without the device back end when a rank cannot use it.
    pub(super) is_optional: bool,
    /// If the group prefers another device back end: the reason why it does not use that back end.
    pub(super) missing_reason: Option<&'a str>,
}

/// The device back end, or the reason why the group works without a device back end.
pub(super) type DeviceBackendOrReason = std::result::Result<Box<dyn DeviceBackend>, String>;

/// A function that creates the device back end of this rank. It contains the options of the back
/// end. All ranks must call it at the same point of the creation, because it waits for all ranks.
pub(super) type DeviceBackendCreator =
    Box<dyn Fn(&DeviceBackendSetup<'_>) -> Result<DeviceBackendOrReason>>;

/// A factory for the device back ends of groups.
pub(super) trait DeviceBackendFactory: Sync {
    /// Returns the name of the back end in device maps.
    fn name(&self) -> &'static str;

    /// Checks that this process has the driver and the library that the back end needs.
    fn check(&self) -> Result<()>;

    /// Separates the options of the back end from the other options. Returns a creator with the
    /// former, and the text of the latter.
    fn split_options(&self, options: &str) -> Result<(DeviceBackendCreator, String)>;

    /// Checks whether a group supports a call on host memory if its caller requested only this
    /// device back end.
    fn check_host_support(&self, query: &SupportQuery) -> Result<()> {
        let _ = query;
        Ok(())
    }
}

crate::base::trait_object_debug::impl_debug_of_objects!(DeviceBackendFactory);

/// Calls `parse` for each option that starts with `prefix`. The arguments of `parse` are the whole
/// option, and the option without the prefix. Returns the other options.
pub(super) fn split_prefixed_options(
    options: &str,
    prefix: &str,
    mut parse: impl FnMut(&str, &str) -> Result<()>,
) -> Result<String> {
    let mut rest = Vec::new();
    for option in options.split(';').map(str::trim).filter(|option| !option.is_empty()) {
        match option.strip_prefix(prefix) {
            Some(own) => parse(option, own)?,
            None => rest.push(option),
        }
    }
    Ok(rest.join(";"))
}

/// Returns the CUDA context of this rank's device. This is the device that the options name, or
/// otherwise the device that is current on the calling thread.
///
/// # Errors
/// `InvalidArgument` if no device is set; the error of the driver or of the device if it does not
/// exist or cannot be used.
pub(super) fn device_context(context: &GroupContext<'_>) -> Result<Arc<CudaContext>> {
    let driver = driver::get_or_load()?;
    let Some(device) = context.device.or_else(|| driver.current_device()) else {
        let message = "no device is set for this rank: set `device` in the options \
                       (DIST_FIELD_DEVICE), or make a device current on the thread that creates \
                       the group (cudaSetDevice and a first call, or cuCtxSetCurrent)";
        return Err(Error::invalid(message));
    };
    CudaContext::primary(device)
}

/// The objects that this rank needs for a device back end (`T`), and the peer infos of all ranks in
/// rank order.
pub(super) type DeviceAgreement<T, I> = (T, Vec<I>);

/// Exchanges peer infos with all ranks, and checks that every rank can use the back end. `own`
/// contains the objects that this rank needs for the back end, or the reason why this rank cannot
/// use it. If the back end is optional and a rank cannot use it, the function returns the reason of
/// that rank.
///
/// # Errors
/// `Mismatch` for different device maps; on all ranks, the error of the first rank that cannot use
/// the back end; the errors of [`exchange_peer_info`].
pub(super) fn agree_on_device<T, I>(
    setup: &DeviceBackendSetup<'_>,
    phase: &str,
    own: Result<T>,
    mut own_info: Value,
    read: impl Fn(&PeerInfoFields) -> Option<I>,
    describe_missing: impl Fn(Rank, &str) -> String,
) -> Result<std::result::Result<DeviceAgreement<T, I>, String>> {
    own_info["map"] = setup.map.into();
    own_info["lacks"] = json!(own.as_ref().err().map(Error::message));
    own_info["lacks_kind"] = json!(own.as_ref().err().map(|error| error.kind().code()));
    let read = |fields: &PeerInfoFields| {
        let kind =
            fields.integer("lacks_kind").map_or(ErrorKind::Unsupported, ErrorKind::from_code);
        let lacks = fields.text("lacks").map(|reason| (kind, reason));
        Some((fields.text("map")?, lacks, read(fields)?))
    };
    let check_cancelled = || setup.failure_state.failure();
    let infos = exchange_peer_info(setup.exchange, phase, &own_info, &check_cancelled, read)?;
    check_device_maps(infos.iter().map(|(map, ..)| map.as_str()))?;
    let mut missing = infos.iter().enumerate();
    let missing = missing.find_map(|(rank, (_, reason, _))| Some((rank, reason.as_ref()?)));
    if let Some((rank, (kind, reason))) = missing {
        let reason = describe_missing(rank, reason);
        if setup.is_optional {
            return Ok(Err(reason));
        }
        return Err(Error::new(*kind, reason).with_culprit(rank));
    }
    Ok(Ok((own?, infos.into_iter().map(|(.., info)| info).collect())))
}

/// Returns an error if the caller's stream is capturing a CUDA graph. The back end `name` does not
/// support graph capture.
pub(super) fn check_not_capturing(context: &CudaContext, gpu: GpuTarget, name: &str) -> Result<()> {
    let Some(stream) = gpu.stream else { return Ok(()) };
    let _current = context.make_current()?;
    if !is_capturing(context, stream)? {
        return Ok(());
    }
    let message = format!(
        "the stream is being captured into a graph: the back end {name} does not support graph \
         capture yet"
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}
