//! The creation of a group's back end by name, and the checks of names. A name means one back end,
//! or a device map with two.

use super::context::{BootstrapExchange, GroupContext};
use super::interface::Backend;
use super::{device_map, registry};
use crate::base::error::Result;
use std::sync::Arc;

/// Returns the name of the back end of a group whose caller names none.
pub fn default_name(device: Option<usize>) -> &'static str {
    device.map_or(registry::DEFAULT_HOST_BACKEND, |_| device_map::DEFAULT_NAME)
}

/// Creates the back end called `name`, which may be the name of a device map ([`device_map`]). The
/// C API replaces NULL by [`default_name`].
///
/// # Errors
/// `NotFound` for an unknown name (the message lists the known names); the errors of the bootstrap.
pub fn create(
    name: &str,
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
) -> Result<Arc<dyn Backend>> {
    check_name(name)?;
    let devices = match (device_map::parse(name)?, context.device) {
        (None, Some(_)) => device_map::map_for_device(name),
        (devices, _) => devices,
    };
    match devices {
        Some(devices) => device_map::create(&devices, context, exchange),
        None => registry::create_host_backend(name, context, exchange),
    }
}

/// Checks whether [`create`] knows a name, for callers that must not wait for other ranks to find
/// out.
///
/// # Errors
/// `NotFound` with the list of the known names. If the name needs a library, the error that
/// prevents loading it.
pub fn check_name(name: &str) -> Result<()> {
    match device_map::parse(name)? {
        Some(devices) => devices.check(),
        None => registry::check_host_name(name),
    }
}

/// Returns the canonical form of a name that [`create`] knows. Names with the same meaning have the
/// same form.
pub fn canonical_name(name: &str) -> String {
    match device_map::parse(name) {
        Ok(Some(devices)) => devices.to_string(),
        _ => registry::canonical_name(name).unwrap_or(registry::DEFAULT_HOST_BACKEND).to_owned(),
    }
}

/// Returns the name of the back end for host memory that `name` selects: `name` itself, or the one
/// in the map. It does not check that this back end exists.
pub fn host_backend_name(name: &str) -> String {
    match device_map::parse(name) {
        Ok(Some(devices)) => devices.host_backend().to_owned(),
        _ => name.to_owned(),
    }
}

/// Returns true if [`create`] knows the name, in upper or lower case.
pub fn is_available(name: &str) -> bool {
    check_name(name).is_ok()
}
