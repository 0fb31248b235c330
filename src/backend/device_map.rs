//! Device maps. A group with a device map has two back ends: one for buffers in host memory and one
//! for buffers in the memory of a GPU. The memory of a call's buffers selects the back end.
//!
//! This file parses the names of device maps and creates their back ends. [`super::registry`]
//! contains the factories and their names. One of the device back ends is the *preferred* device
//! back end, which groups use by default. The names of device maps are:
//!
//! | name | host memory | device memory |
//! |---|---|---|
//! | `cpu:NAME,cuda:DEVICE` | NAME | the device back end DEVICE |
//! | `DEVICE`, `cuda:DEVICE` | default, only for barriers and messages | DEVICE |
//! | `cpu:NAME,cuda:NAME` | NAME | NAME, through pinned memory or directly |
//! | NAME, if the rank has a device | NAME | as `cpu:NAME,cuda:NAME` |
//! | `default`, with a device | default | preferred, if available; otherwise default |
//! | `default`, without a device | default | none |
//!
//! In the table, "default" is the default host back end, and "preferred" is the preferred device
//! back end.
//!
//! If the name contains only a device back end, a collective on host memory is probably a mistake,
//! so the group refuses such a collective.

use super::context::{BootstrapExchange, GroupContext};
use super::device_factory::{
    DeviceBackendCreator, DeviceBackendFactory, DeviceBackendOrReason, DeviceBackendSetup,
    device_context,
};
use super::device_map_backend::{DeviceMapBackend, MappedDevice};
use super::interface::Backend;
use super::registry::{
    self, DEFAULT_HOST_BACKEND, HOST_TRANSFER_FACTORY, PREFERRED_DEVICE_FACTORY,
};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use std::fmt;
use std::sync::{Arc, Mutex};

/// The name of the default map. The C API uses this name if the caller passes NULL.
pub const DEFAULT_NAME: &str = "default";

/// A parsed name of a device map.
#[derive(Clone, Debug)]
pub struct DeviceMap {
    host: String,
    device: DeviceSelection,
}

/// The back end for GPU memory.
#[derive(Clone, Copy, Debug)]
enum DeviceSelection {
    /// The preferred device back end if all ranks can use it, otherwise the host back end.
    PreferredIfAvailable,
    /// The host back end also transfers device memory.
    ThroughHost,
    /// This device back end serves device memory, and the host back end serves host memory.
    WithHost(&'static dyn DeviceBackendFactory),
    /// This device back end serves device memory. The host back end serves only barriers and
    /// messages.
    Only(&'static dyn DeviceBackendFactory),
}

impl fmt::Display for DeviceMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.host_backend();
        match self.device {
            DeviceSelection::PreferredIfAvailable => f.write_str(DEFAULT_NAME),
            DeviceSelection::Only(device) => f.write_str(device.name()),
            DeviceSelection::ThroughHost => write!(f, "cpu:{host},cuda:{host}"),
            DeviceSelection::WithHost(device) => write!(f, "cpu:{host},cuda:{}", device.name()),
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
    if let Some(device) = registry::find_device_factory(name) {
        return of_default_host(DeviceSelection::Only(device));
    }
    if !name.contains([':', ',']) {
        return Ok(None);
    }
    let (mut cpu, mut cuda) = (None, None);
    for part in name.split(',') {
        let (device, backend) = part.split_once(':').ok_or_else(|| invalid_map(name))?;
        let slot = match device.trim().to_ascii_lowercase().as_str() {
            "cpu" => &mut cpu,
            "cuda" => &mut cuda,
            _ => return Err(invalid_map(name)),
        };
        if slot.replace(backend.trim().to_owned()).is_some() {
            return Err(invalid_map(name));
        }
    }
    let cuda = cuda.ok_or_else(|| invalid_map(name))?;
    match (cpu, registry::find_device_factory(&cuda)) {
        (None, Some(device)) => of_default_host(DeviceSelection::Only(device)),
        (Some(host), Some(device)) => {
            Ok(Some(DeviceMap { host, device: DeviceSelection::WithHost(device) }))
        }
        (host, None) => {
            let host = host.unwrap_or_else(|| cuda.clone());
            let canonical = registry::canonical_name(&cuda);
            let is_same = host.eq_ignore_ascii_case(&cuda)
                || canonical.is_some() && canonical == registry::canonical_name(&host);
            if canonical != Some(DEFAULT_HOST_BACKEND) && !is_same {
                return Err(Error::invalid(format!(
                    "\"{name}\": without {} the host back end also transfers device memory, so \
                     both names of the map must be equal: use \"cpu:{host},cuda:{host}\"",
                    PREFERRED_DEVICE_FACTORY.name().to_ascii_uppercase()
                )));
            }
            Ok(Some(DeviceMap { host, device: DeviceSelection::ThroughHost }))
        }
    }
}

fn invalid_map(name: &str) -> Error {
    let device = PREFERRED_DEVICE_FACTORY.name();
    Error::invalid(format!(
        "\"{name}\" is not a map of back ends: use \"cpu:NAME,cuda:{device}\", \"cuda:{device}\" or \
         \"cpu:NAME,cuda:NAME\""
    ))
}

/// Returns the device map for a rank with a device if the caller names only a host back end. In
/// this map, the host back end also transfers device memory.
pub(super) fn map_for_device(name: &str) -> Option<DeviceMap> {
    registry::canonical_name(name)
        .map(|host| DeviceMap { host: host.to_owned(), device: DeviceSelection::ThroughHost })
}

impl DeviceMap {
    /// Returns the name of the back end for host memory.
    pub(super) fn host_backend(&self) -> &str {
        registry::canonical_name(&self.host).unwrap_or(&self.host)
    }

    /// Checks that this process has the back ends, the driver and the library that the map needs.
    pub(super) fn check(&self) -> Result<()> {
        registry::check_host_name(&self.host)?;
        match self.device {
            DeviceSelection::PreferredIfAvailable => Ok(()),
            DeviceSelection::ThroughHost => HOST_TRANSFER_FACTORY.check(),
            DeviceSelection::WithHost(device) | DeviceSelection::Only(device) => device.check(),
        }
    }
}

/// Creates the back ends of a group. All ranks must call this function, because it waits for all
/// ranks.
pub(super) fn create(
    devices: &DeviceMap,
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
) -> Result<Arc<dyn Backend>> {
    let is_optional = matches!(devices.device, DeviceSelection::PreferredIfAvailable);
    if is_optional && context.device.is_none() {
        return registry::create_host_backend(&devices.host, context, exchange);
    }
    // Every group accepts the options of both device back ends, because the map `default` may use
    // either of them.
    let (preferred, rest) = PREFERRED_DEVICE_FACTORY.split_options(context.options)?;
    let (through_host, rest) = HOST_TRANSFER_FACTORY.split_options(&rest)?;
    // Only if the host back end transfers device memory, it gets the device.
    let (creators, device) = match devices.device {
        DeviceSelection::PreferredIfAvailable => (vec![preferred, through_host], None),
        DeviceSelection::ThroughHost => {
            let device = device_context(context).ok().map(|context| context.device());
            (vec![through_host], device)
        }
        DeviceSelection::WithHost(_) | DeviceSelection::Only(_) => (vec![preferred], None),
    };
    let for_host = GroupContext { options: &rest, device, ..*context };
    let host = registry::create_host_backend(&devices.host, &for_host, exchange)?;
    let failure_state = host.failure_state().ok_or_else(|| {
        let message =
            format!("the back end {} cannot be combined with another back end", devices.host);
        Error::new(ErrorKind::Unsupported, message)
    })?;
    let setup = DeviceBackendSetup {
        context,
        exchange,
        host: &host,
        failure_state: &failure_state,
        map: &devices.to_string(),
        is_optional,
        missing_reason: None,
    };
    let device_backend = create_first_available(&setup, creators).inspect_err(|error| {
        exchange.publish_failure(error);
        failure_state.fail(error);
    })?;
    let (name, device) = match (&device_backend, devices.device) {
        // Only the default map can be without a device back end, and in that case its caller named
        // a device.
        (Err(_), _) => (host.name(), context.device.unwrap_or(0)),
        (Ok(backend), DeviceSelection::Only(_)) => (backend.name(), backend.device()),
        (Ok(backend), _) => {
            let name = intern_name(&format!("cpu:{},cuda:{}", host.name(), backend.name()));
            (name, backend.device())
        }
    };
    Ok(Arc::new(DeviceMapBackend {
        device: MappedDevice { backend: device_backend, group_backend: name, device },
        host_restriction: match devices.device {
            DeviceSelection::Only(device) => Some(device),
            _ => None,
        },
        host,
    }))
}

/// Creates the first device back end that all ranks can use.
fn create_first_available(
    setup: &DeviceBackendSetup<'_>,
    creators: Vec<DeviceBackendCreator>,
) -> Result<DeviceBackendOrReason> {
    let (mut missing, name) = (None::<String>, setup.context.name);
    for create in creators {
        // The result is the same on all ranks, so all ranks use this back end or all ranks try the
        // next one.
        match create(&DeviceBackendSetup { missing_reason: missing.as_deref(), ..*setup })? {
            Ok(backend) => {
                if let Some(reason) = missing {
                    crate::log!(
                        LogLevel::Warn,
                        "group {name}: transfers of device memory are staged through host memory: \
                         {reason}"
                    );
                }
                return Ok(Ok(backend));
            }
            Err(reason) => {
                missing = Some(match missing {
                    Some(first) => format!("{first}; and {reason}"),
                    None => reason,
                });
            }
        }
    }
    let reason = missing.unwrap_or_default();
    crate::log!(LogLevel::Warn, "group {name} supports host memory only: {reason}");
    Ok(Err(reason))
}

/// Returns a copy of a name with static lifetime. Equal names share one copy, so the function leaks
/// one string for each distinct map of back ends.
fn intern_name(name: &str) -> &'static str {
    static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut names = lock(&NAMES);
    if let Some(interned) = names.iter().find(|known| **known == name) {
        return interned;
    }
    let name: &'static str = name.to_owned().leak();
    names.push(name);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for wrong in [
            "cpu:native",
            "cpu:native,cuda:other",
            "cpu:other,cuda:another",
            "cpu:a,cpu:b",
            "xpu:nccl,cpu:native",
            "a,b",
            ":",
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(error.message().contains(wrong), "{error}");
        }
        for name in ["cpu:unheard-of,cuda:nccl", "cuda:unheard-of"] {
            let unknown = parse(name).unwrap().unwrap().check().unwrap_err();
            assert_eq!(unknown.kind(), ErrorKind::NotFound);
        }
        assert!(map_for_device("unheard-of").is_none());
        assert_eq!(map_for_device("Gloo").unwrap().to_string(), "cpu:native,cuda:native");
    }
}
