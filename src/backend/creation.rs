//! The creation of a group's back end by name, and the checks of names. A name is the name of one
//! back end, or of a device map, which combines a back end for host memory with a back end for GPU
//! memory.

use super::context::{BootstrapExchange, GroupContext};
use super::interface::Backend;
use super::{device_map, device_map_creation, host_name, registry};
use crate::base::error::Result;
use std::sync::Arc;

/// Returns the name of the back end for a group whose caller does not name a back end.
pub fn default_name(device: Option<usize>) -> &'static str {
    device.map_or(registry::DEFAULT_HOST_BACKEND, |_| device_map::DEFAULT_NAME)
}

/// Creates the back end with the name `name`, which may be the name of a device map
/// ([`device_map`]). If the caller of the C API passes NULL, `name` is the result of
/// [`default_name`].
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
        Some(devices) => device_map_creation::create(&devices, context, exchange),
        None => host_name::create(name, context, exchange),
    }
}

/// Checks whether [`create`] knows a name. In contrast to [`create`], this check does not wait for
/// other ranks.
///
/// # Errors
/// `NotFound` with the list of the known names. If the back end needs a library that cannot be
/// loaded, the error of the load.
pub fn check_name(name: &str) -> Result<()> {
    match device_map::parse(name)? {
        Some(devices) => devices.check(),
        None => host_name::check(name),
    }
}

/// Returns the canonical form of a name that [`create`] knows. Names with the same meaning have the
/// same form.
pub fn canonical_name(name: &str) -> String {
    match device_map::parse(name) {
        Ok(Some(devices)) => devices.to_string(),
        _ => host_name::canonical(name).unwrap_or(registry::DEFAULT_HOST_BACKEND).to_owned(),
    }
}

/// Returns the names of the single back ends for host memory that `name` consists of. They may be
/// unknown.
pub fn host_backend_names(name: &str) -> Vec<String> {
    match device_map::parse(name) {
        Ok(Some(devices)) => devices.host_backends(),
        _ => host_name::parts(name),
    }
}

/// Returns the name of a group's back end as its creator knows it: with the aliases of the name
/// `requested`. `actual` is the name of the back end.
pub fn requested_name(requested: &str, actual: &str) -> String {
    match device_map::parse(requested) {
        Ok(Some(devices)) => devices.requested_name(actual),
        _ if requested.eq_ignore_ascii_case(registry::NATIVE_ALIAS) => host_name::shown(requested),
        _ => actual.to_owned(),
    }
}

/// Returns true if [`create`] knows the name, in upper or lower case.
pub fn is_available(name: &str) -> bool {
    check_name(name).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alias_is_kept_in_the_requested_name() {
        for (requested, actual, expected) in [
            ("Gloo", "native", "gloo"),
            ("gloo", "cpu:native,cuda:native", "gloo"),
            ("native", "native", "native"),
            ("cpu:GLOO", "native", "cpu:gloo"),
            ("cpu:native", "native", "cpu:native"),
            ("cpu:gloo,cuda:nccl", "cpu:native,cuda:nccl", "cpu:gloo,cuda:nccl"),
            ("cuda:gloo,cpu:native", "cpu:native,cuda:native", "cpu:native,cuda:gloo"),
            ("cpu:gloo,cuda:other", "cpu:native,cuda:other", "cpu:gloo,cuda:other"),
            ("cpu:other,cuda:native", "cpu:other,cuda:other", "cpu:other,cuda:other"),
            ("default", "cpu:native,cuda:nccl", "cpu:native,cuda:nccl"),
            ("nccl", "nccl", "nccl"),
            (
                "inside=gloo,between=native",
                "inside=native,between=native",
                "inside=native,between=native",
            ),
        ] {
            assert_eq!(requested_name(requested, actual), expected, "{requested}");
        }
    }

    #[test]
    fn names_consist_of_these_host_back_ends() {
        assert_eq!(host_backend_names("mpi"), ["mpi"]);
        assert_eq!(host_backend_names("cpu:mpi,cuda:nccl"), ["mpi"]);
        assert_eq!(host_backend_names("cpu:gloo,cuda:mpi"), ["gloo", "mpi"]);
        assert_eq!(host_backend_names("inside=nccl,between=mpi"), ["native", "mpi"]);
        assert_eq!(host_backend_names("inside=native,between=mpi"), ["native", "mpi"]);
    }
}
