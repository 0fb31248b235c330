//! The creation of device back ends: the interface of their factories, and the checks that several
//! of them make. [`super::registry`] holds the factories, and [`super::device_map`] calls them.

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
use std::fmt::Debug;
use std::sync::Arc;

/// The arguments for the creation of a group's device back end.
pub(super) struct DeviceBackendSetup<'a> {
    pub(super) context: &'a GroupContext<'a>,
    pub(super) exchange: &'a dyn BootstrapExchange,
    /// The back end for host memory.
    pub(super) host: &'a Arc<dyn Backend>,
    pub(super) failure_state: &'a Arc<dyn GroupFailureState>,
    /// The device map, which must be the same on all ranks.
    pub(super) map: &'a str,
    /// True if the group continues without this back end when a rank lacks it.
    pub(super) is_optional: bool,
    /// The reason why the group does not use the back ends that it prefers to this one.
    pub(super) missing_reason: Option<&'a str>,
}

/// The device back end, or the reason why the group works without one.
pub(super) type DeviceBackendOrReason = std::result::Result<Box<dyn DeviceBackend>, String>;

/// Creates the device back end of this rank, with the options that the function holds. All ranks
/// call it together.
pub(super) type DeviceBackendCreator =
    Box<dyn Fn(&DeviceBackendSetup<'_>) -> Result<DeviceBackendOrReason>>;

/// A factory for the device back ends of groups.
pub(super) trait DeviceBackendFactory: Sync + Debug {
    /// Returns the name of the back end in device maps.
    fn name(&self) -> &'static str;

    /// Checks that this process has the driver and the library that the back end needs.
    fn check(&self) -> Result<()>;

    /// Separates the back end's own options from the others.
    fn split_options(&self, options: &str) -> Result<(DeviceBackendCreator, String)>;

    /// Checks whether a group that requests this back end alone supports a call on host memory.
    fn check_host_support(&self, query: &SupportQuery) -> Result<()> {
        let _ = query;
        Ok(())
    }
}

/// Passes each option with a back end's prefix to `parse`, whole and without the prefix. Returns
/// the other options.
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

/// Returns the context of the device that the options name for this rank, or else of the device
/// that is current on the calling thread.
///
/// # Errors
/// `InvalidArgument` if there is no such device; the error of the driver or of the device if one
/// cannot be used.
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

/// The local part of a device back end, and the peer infos of all ranks in rank order.
pub(super) type DeviceAgreement<T, I> = (T, Vec<I>);

/// Exchanges peer infos with all ranks, and checks that all of them have what the back end needs.
/// `own` is the local part of this rank or the reason why it cannot use the back end. If the back
/// end is optional and a rank cannot use it, the function returns the reason instead.
///
/// # Errors
/// `Mismatch` for different device maps; the error of this rank, or `Unsupported` with the first
/// rank that cannot use the back end; the errors of [`exchange_peer_info`].
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
    let read =
        |fields: &PeerInfoFields| Some((fields.text("map")?, fields.text("lacks"), read(fields)?));
    let check_cancelled = || setup.failure_state.failure();
    let infos = exchange_peer_info(setup.exchange, phase, &own_info, &check_cancelled, read)?;
    check_device_maps(infos.iter().map(|(map, ..)| map.as_str()))?;
    let mut missing = infos.iter().enumerate();
    let missing = missing.find_map(|(rank, (_, reason, _))| Some((rank, reason.as_ref()?)));
    if let Some((rank, reason)) = missing {
        let reason = describe_missing(rank, reason);
        if setup.is_optional {
            return Ok(Err(reason));
        }
        // The error of this rank keeps its own kind.
        let kind = own.as_ref().err().map_or(ErrorKind::Unsupported, Error::kind);
        return Err(Error::new(kind, reason).with_culprit(rank));
    }
    Ok(Ok((own?, infos.into_iter().map(|(.., info)| info).collect())))
}

/// Checks that a stream is not capturing a graph, which the back end `name` does not support.
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
