//! Device maps. A group with a device map has two back ends: one for buffers in host memory and one
//! for buffers in the memory of a GPU. The memory of a call's buffers selects the back end.
//!
//! This file parses the names of device maps, and [`super::device_map_creation`] creates their back
//! ends. [`super::registry`] contains the factories and their names. One of the device back ends is
//! the *preferred* device back end, which groups use by default. The names of device maps are:
//!
//! | name | host memory | device memory |
//! |---|---|---|
//! | `cpu:NAME` | NAME | none, even if the rank has a device |
//! | `cpu:NAME,cuda:DEVICE` | NAME | the device back end DEVICE |
//! | `DEVICE`, `cuda:DEVICE` | default, only for barriers and messages | DEVICE |
//! | `cpu:NAME,cuda:NAME`, `cpu:NAME,cuda:native` | NAME | NAME |
//! | `cpu:NAME,cuda:OTHER` | NAME | OTHER, in a second group |
//! | NAME, if the rank has a device | NAME | as `cpu:NAME,cuda:NAME` |
//! | `default`, with a device | default | preferred, if available; otherwise default |
//! | `default`, without a device | default | none |
//!
//! In the table, "default" is the default host back end, and "preferred" is the preferred device
//! back end. NAME and OTHER transfer device memory through pinned memory, or directly if they can.
//!
//! A NAME or a DEVICE may also be the name of a two-level group ([`super::two_level`]). It contains
//! a comma, which belongs to the name: a part that begins with `between=` continues the part before
//! it.
//!
//! If the name contains only a device back end, a collective on host memory is probably a mistake,
//! so the group refuses such a collective.

use super::device_factory::DeviceBackendFactory;
use super::host_name;
use super::registry::{
    self, DEFAULT_HOST_BACKEND, HOST_TRANSFER_FACTORY, PREFERRED_DEVICE_FACTORY,
};
use super::support_query::SupportQuery;
use super::two_level::{TwoLevelSpec, split_slots};
use crate::base::error::{Error, Result};
use std::fmt;

/// The name of the default map. The C API uses this name if the caller passes NULL.
pub const DEFAULT_NAME: &str = "default";

/// A parsed name of a device map.
#[derive(Clone, Debug)]
pub struct DeviceMap {
    pub(super) host: String,
    pub(super) device: DeviceSelection,
}

/// The back end for GPU memory.
#[derive(Clone, Debug)]
pub(super) enum DeviceSelection {
    /// None.
    HostOnly,
    /// The preferred device back end if all ranks can use it, otherwise the host back end.
    PreferredIfAvailable,
    /// The host back end also transfers device memory. The map names it as the device back end too,
    /// possibly by an alias.
    ThroughHost(String),
    /// Another host back end transfers device memory, in a group of its own.
    ThroughSecond(String),
    /// This device back end serves device memory, and the host back end serves host memory.
    WithHost(DeviceBackendChoice),
    /// This device back end serves device memory. The host back end serves only barriers and
    /// messages.
    Only(DeviceBackendChoice),
}

/// A back end that only serves device memory.
#[derive(Clone, Debug)]
pub(super) enum DeviceBackendChoice {
    Single(&'static dyn DeviceBackendFactory),
    TwoLevel(TwoLevelSpec),
}

impl fmt::Display for DeviceBackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(factory) => f.write_str(factory.name()),
            Self::TwoLevel(spec) => f.write_str(&spec.canonical()),
        }
    }
}

impl DeviceBackendChoice {
    /// Returns the device back end with this name. Returns `None` if it is the name of a host back
    /// end, or unknown.
    fn find(name: &str) -> Result<Option<Self>> {
        if let Some(factory) = registry::find_device_factory(name) {
            return Ok(Some(Self::Single(factory)));
        }
        Ok(TwoLevelSpec::parse(name)?.filter(TwoLevelSpec::is_for_devices).map(Self::TwoLevel))
    }

    fn check(&self) -> Result<()> {
        match self {
            Self::Single(factory) => factory.check(),
            Self::TwoLevel(spec) => spec.check(),
        }
    }

    /// Checks whether a group supports a call on host memory if its caller requested only this
    /// device back end.
    pub(super) fn check_host_support(&self, query: &SupportQuery) -> Result<()> {
        match self {
            Self::Single(factory) => factory.check_host_support(query),
            Self::TwoLevel(spec) => spec.check_host_support(query),
        }
    }
}

impl fmt::Display for DeviceMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.host_backend();
        match &self.device {
            DeviceSelection::HostOnly => write!(f, "cpu:{host}"),
            DeviceSelection::PreferredIfAvailable => f.write_str(DEFAULT_NAME),
            DeviceSelection::Only(device) => device.fmt(f),
            DeviceSelection::ThroughHost(_) => write!(f, "cpu:{host},cuda:{host}"),
            DeviceSelection::ThroughSecond(second) => {
                let second = host_name::canonical(second).unwrap_or(second);
                write!(f, "cpu:{host},cuda:{second}")
            }
            DeviceSelection::WithHost(device) => write!(f, "cpu:{host},cuda:{device}"),
        }
    }
}

/// Parses the name of a device map. Returns `None` for the name of a single back end.
///
/// # Errors
/// `InvalidArgument` for a malformed map.
pub fn parse(name: &str) -> Result<Option<DeviceMap>> {
    let of_default_host =
        |device| Ok(Some(DeviceMap { host: DEFAULT_HOST_BACKEND.to_owned(), device }));
    if name.eq_ignore_ascii_case(DEFAULT_NAME) {
        return of_default_host(DeviceSelection::PreferredIfAvailable);
    }
    if let Some(device) = DeviceBackendChoice::find(name)? {
        return of_default_host(DeviceSelection::Only(device));
    }
    if !name.contains([':', ',']) || TwoLevelSpec::parse(name)?.is_some() {
        return Ok(None);
    }
    match parse_slots(name)? {
        (None, None) => Err(invalid_map(name)),
        (Some(host), None) => Ok(Some(DeviceMap { host, device: DeviceSelection::HostOnly })),
        (host, Some(cuda)) => match (host, DeviceBackendChoice::find(&cuda)?) {
            (None, Some(device)) => of_default_host(DeviceSelection::Only(device)),
            (Some(host), Some(device)) => {
                Ok(Some(DeviceMap { host, device: DeviceSelection::WithHost(device) }))
            }
            (host, None) => Ok(Some(map_through_host(host.unwrap_or_else(|| cuda.clone()), cuda))),
        },
    }
}

/// Returns the back ends of the slots `cpu` and `cuda` of a map.
fn parse_slots(name: &str) -> Result<(Option<String>, Option<String>)> {
    let (mut cpu, mut cuda) = (None, None);
    for slot in split_slots(name) {
        let (device, backend) = slot.split_once(':').ok_or_else(|| invalid_map(name))?;
        let taken = match device.trim().to_ascii_lowercase().as_str() {
            "cpu" => &mut cpu,
            "cuda" => &mut cuda,
            _ => return Err(invalid_map(name)),
        };
        let backend = backend.trim();
        if backend.is_empty() || taken.replace(backend.to_owned()).is_some() {
            return Err(invalid_map(name));
        }
    }
    Ok((cpu, cuda))
}

/// Returns the map of two host back ends. The name `native` for device memory means the host
/// back end of the map, because device memory always passes through host memory.
fn map_through_host(host: String, cuda: String) -> DeviceMap {
    let canonical = host_name::canonical(&cuda);
    let is_same = host.eq_ignore_ascii_case(&cuda)
        || canonical.is_some() && canonical == host_name::canonical(&host);
    let device = match canonical == Some(DEFAULT_HOST_BACKEND) || is_same {
        true => DeviceSelection::ThroughHost(cuda),
        false => DeviceSelection::ThroughSecond(cuda),
    };
    DeviceMap { host, device }
}

fn invalid_map(name: &str) -> Error {
    let device = PREFERRED_DEVICE_FACTORY.name();
    Error::invalid(format!(
        "\"{name}\" is not a map of back ends: use \"cpu:NAME,cuda:{device}\", \"cuda:{device}\", \
         \"cpu:NAME\" or \"cpu:NAME,cuda:NAME\""
    ))
}

/// Returns the device map for a rank with a device if the caller names only a host back end. In
/// this map, the host back end also transfers device memory.
pub(super) fn map_for_device(name: &str) -> Option<DeviceMap> {
    let host = host_name::canonical(name)?.to_owned();
    let device = DeviceSelection::ThroughHost(host.clone());
    Some(DeviceMap { host, device })
}

impl DeviceMap {
    /// Returns the name of the back end for host memory.
    pub(super) fn host_backend(&self) -> &str {
        host_name::canonical(&self.host).unwrap_or(&self.host)
    }

    /// Returns the map as its user wrote it, with aliases. `actual` is the name of the group's back
    /// end.
    pub(super) fn requested_name(&self, actual: &str) -> String {
        let host = host_name::shown(&self.host);
        match &self.device {
            DeviceSelection::HostOnly => format!("cpu:{host}"),
            DeviceSelection::PreferredIfAvailable | DeviceSelection::Only(_) => actual.to_owned(),
            DeviceSelection::ThroughHost(device) | DeviceSelection::ThroughSecond(device) => {
                // The name `native` for device memory means the host back end.
                let device = match host_name::canonical(device) {
                    Some(DEFAULT_HOST_BACKEND) if self.host_backend() != DEFAULT_HOST_BACKEND => {
                        host.clone()
                    }
                    _ => host_name::shown(device),
                };
                format!("cpu:{host},cuda:{device}")
            }
            DeviceSelection::WithHost(device) => format!("cpu:{host},cuda:{device}"),
        }
    }

    /// Returns the names of the host back ends of the map, which may be unknown.
    pub(super) fn host_backends(&self) -> Vec<String> {
        let second = match &self.device {
            DeviceSelection::ThroughSecond(second) => host_name::parts(second),
            DeviceSelection::WithHost(DeviceBackendChoice::TwoLevel(spec))
            | DeviceSelection::Only(DeviceBackendChoice::TwoLevel(spec)) => spec.host_backends(),
            _ => Vec::new(),
        };
        host_name::parts(&self.host).into_iter().chain(second).collect()
    }

    /// Checks that this process has the back ends, the driver and the library that the map needs.
    pub(super) fn check(&self) -> Result<()> {
        host_name::check(&self.host)?;
        match &self.device {
            DeviceSelection::HostOnly | DeviceSelection::PreferredIfAvailable => Ok(()),
            DeviceSelection::ThroughHost(_) => HOST_TRANSFER_FACTORY.check(),
            DeviceSelection::ThroughSecond(second) => {
                host_name::check(second)?;
                HOST_TRANSFER_FACTORY.check()
            }
            DeviceSelection::WithHost(device) | DeviceSelection::Only(device) => device.check(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;

    #[test]
    fn device_map_names_parse_and_print() {
        let of = |name: &str| parse(name).unwrap().map(|devices| devices.to_string());
        assert_eq!(of("native"), None);
        assert_eq!(of("NCCL").as_deref(), Some("nccl"));
        assert_eq!(of("cuda:nccl").as_deref(), Some("nccl"));
        assert_eq!(of("CUDA:NCCL, cpu:Gloo").as_deref(), Some("cpu:native,cuda:nccl"));
        assert_eq!(of("Default").as_deref(), Some("default"));
        for name in ["cuda:native", "cuda:Gloo,cpu:NATIVE"] {
            assert_eq!(of(name).as_deref(), Some("cpu:native,cuda:native"));
        }
        for name in ["cpu:other,cuda:native", "cuda:other", "cpu:other, cuda:OTHER"] {
            assert_eq!(of(name).as_deref(), Some("cpu:other,cuda:other"));
        }
        for name in ["cpu:native", "CPU: Gloo"] {
            assert_eq!(of(name).as_deref(), Some("cpu:native"));
        }
        assert_eq!(of("cpu:gloo,cuda:other").as_deref(), Some("cpu:native,cuda:other"));
        assert_eq!(of("cpu:other,cuda:another").as_deref(), Some("cpu:other,cuda:another"));
        assert!(map_for_device("unheard-of").is_none());
        assert_eq!(map_for_device("Gloo").unwrap().to_string(), "cpu:native,cuda:native");
    }

    #[test]
    fn two_level_groups_are_parts_of_maps() {
        let of = |name: &str| parse(name).unwrap().map(|devices| devices.to_string());
        let [host, device] = ["inside=native,between=native", "inside=nccl,between=native"];
        assert_eq!(of("Inside=gloo, between=native"), None);
        assert_eq!(of("inside=NCCL,between=gloo").as_deref(), Some(device));
        assert_eq!(of(&format!("cuda:{device}")).as_deref(), Some(device));
        for map in [
            format!("cpu:native,cuda:{device}"),
            format!("cpu:{host},cuda:{device}"),
            format!("cpu:{host},cuda:nccl"),
            format!("cpu:{host},cuda:{host}"),
            format!("cpu:native,cuda:{host}"),
            format!("cpu:{host}"),
        ] {
            assert_eq!(of(&map), Some(map));
        }
        assert_eq!(of(&format!("cuda:{host}")), Some(format!("cpu:{host},cuda:{host}")));
        assert_eq!(map_for_device(host).unwrap().to_string(), format!("cpu:{host},cuda:{host}"));
        let names = parse("cpu:x,cuda:inside=a,between=mpi").unwrap().unwrap().host_backends();
        assert_eq!(names, ["x", "a", "mpi"]);
    }

    #[test]
    fn wrong_names_are_refused() {
        for wrong in ["cpu:a,cpu:b", "xpu:nccl,cpu:native", "a,b", ":", "cpu:", "cpu:a,cuda:"] {
            let error = parse(wrong).unwrap_err();
            assert!(error.message().contains(wrong), "{error}");
        }
        assert!(parse("cuda:inside=nccl").unwrap_err().message().contains("between=NAME"));
        for name in [
            "cpu:unheard-of,cuda:nccl",
            "cuda:unheard-of",
            "cpu:unheard-of",
            "cpu:native,cuda:unheard-of",
            "cpu:inside=native,between=unheard-of",
        ] {
            let unknown = parse(name).unwrap().unwrap().check().unwrap_err();
            assert_eq!(unknown.kind(), ErrorKind::NotFound, "{name}");
        }
        for name in ["cpu:inside=nccl,between=native", "cpu:inside=native,between=nccl"] {
            let refused = parse(name).unwrap().unwrap().check().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported, "{name}");
        }
    }
}
