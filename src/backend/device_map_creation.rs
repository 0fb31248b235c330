//! The creation of the back ends of a device map ([`super::device_map`]).

use super::context::{BootstrapExchange, GroupContext};
use super::device_factory::{
    DeviceBackendCreator, DeviceBackendOrReason, DeviceBackendSetup, device_context,
    split_prefixed_options,
};
use super::device_map::{self, DeviceBackendChoice, DeviceMap, DeviceSelection};
use super::device_map_backend::{DeviceMapBackend, MappedDevice};
use super::host_name;
use super::interface::{Backend, GroupFailureState};
use super::linked_failures::{LinkedFailures, LinkedGroup, uncombinable_error};
use super::registry::{self, HOST_TRANSFER_FACTORY, PREFERRED_DEVICE_FACTORY};
use super::two_level::{TwoLevelOptions, create_device};
use crate::base::error::{Error, Result};
use crate::base::ids::Nonce;
use crate::base::log::LogLevel;
use std::sync::Arc;

/// The prefix of the phases of the second group of a map.
const SECOND_PHASE_PREFIX: &str = "cuda-";

/// The prefix of the options of the second group of a map.
const SECOND_OPTION_PREFIX: &str = "cuda.";

/// Creates the back ends of a group. All ranks must call this function, because it waits for all
/// ranks.
pub(super) fn create(
    devices: &DeviceMap,
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
) -> Result<Arc<dyn Backend>> {
    let is_optional = matches!(devices.device, DeviceSelection::PreferredIfAvailable);
    let is_host_only = matches!(devices.device, DeviceSelection::HostOnly);
    if is_host_only || is_optional && context.device.is_none() {
        let for_host = GroupContext { device: None, ..*context };
        return host_name::create(&devices.host, &for_host, exchange);
    }
    let DividedOptions { creators, for_host, for_second } =
        DividedOptions::split(devices, context.options)?;
    // Only if the host back end transfers device memory, it gets the device.
    let own_device = || device_context(context).ok().map(|context| context.device());
    let device = match devices.device {
        DeviceSelection::ThroughHost(_) => own_device(),
        _ => None,
    };
    let for_host = GroupContext { options: &for_host, device, ..*context };
    let host = host_name::create(&devices.host, &for_host, exchange)?;
    let failure_state = host.failure_state().ok_or_else(|| uncombinable_error(host.name()))?;
    let created = create_second(devices, &for_second, own_device(), context, exchange)
        .and_then(|second| {
            let link = |second: &Arc<dyn Backend>| {
                let ranks = (0..context.size).collect();
                let inner = vec![LinkedGroup::new(second.as_ref(), ranks)?];
                LinkedFailures::link(Arc::clone(&failure_state), inner)
            };
            let linked = second.as_ref().map(link).transpose()?;
            let linked_state = linked.clone().map(|linked| linked as Arc<dyn GroupFailureState>);
            let setup = DeviceBackendSetup {
                context,
                exchange,
                host: second.as_ref().unwrap_or(&host),
                failure_state: linked_state.as_ref().unwrap_or(&failure_state),
                map: &devices.to_string(),
                is_optional,
                missing_reason: None,
            };
            let device_backend = create_first_available(&setup, creators)?;
            Ok((device_backend, linked))
        })
        .inspect_err(|error| {
            exchange.publish_failure(error);
            failure_state.fail(error);
        });
    let (device_backend, second_failures) = created?;
    let (name, device) = match (&device_backend, &devices.device) {
        // Only the default map can be without a device back end, and in that case its caller named
        // a device.
        (Err(_), _) => (host.name(), context.device.unwrap_or(0)),
        (Ok(backend), DeviceSelection::Only(_)) => (backend.name(), backend.device()),
        (Ok(backend), _) => {
            let name = format!("cpu:{},cuda:{}", host.name(), backend.name());
            (registry::intern_name(&name), backend.device())
        }
    };
    Ok(Arc::new(DeviceMapBackend {
        device: MappedDevice { backend: device_backend, group_backend: name, device },
        host_restriction: match &devices.device {
            DeviceSelection::Only(device) => Some(device.clone()),
            _ => None,
        },
        second_failures,
        host,
    }))
}

/// Creates the back end of an inner group of a two-level group, from the name of a device map.
fn create_map(
    name: &str,
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
) -> Result<Arc<dyn Backend>> {
    let devices = device_map::parse(name)?;
    let devices = devices.ok_or_else(|| Error::internal(format!("{name} is not a map")))?;
    create(&devices, context, exchange)
}

/// The options of a group with a device map, divided by their receivers.
struct DividedOptions {
    /// The creators of the device back ends that the group may use, in order of preference.
    creators: Vec<DeviceBackendCreator>,
    for_host: String,
    for_second: String,
}

impl DividedOptions {
    fn split(devices: &DeviceMap, options: &str) -> Result<Self> {
        // Every group accepts the options of both device back ends, because the map `default` may
        // use either of them.
        let (preferred, rest) = PREFERRED_DEVICE_FACTORY.split_options(options)?;
        let (through_host, rest) = HOST_TRANSFER_FACTORY.split_options(&rest)?;
        let (mut for_host, mut for_second) = (rest, String::new());
        let creators = match &devices.device {
            DeviceSelection::PreferredIfAvailable => vec![preferred, through_host],
            DeviceSelection::HostOnly => Vec::new(),
            DeviceSelection::ThroughHost(_) => vec![through_host],
            DeviceSelection::ThroughSecond(_) => {
                let mut own = Vec::new();
                for_host = split_prefixed_options(&for_host, SECOND_OPTION_PREFIX, |_, option| {
                    own.push(option.to_owned());
                    Ok(())
                })?;
                for_second = own.join(";");
                vec![through_host]
            }
            DeviceSelection::WithHost(choice) | DeviceSelection::Only(choice) => match choice {
                DeviceBackendChoice::Single(_) => vec![preferred],
                DeviceBackendChoice::TwoLevel(spec) => {
                    // The inner groups may use either device back end, so they get all options.
                    let all = TwoLevelOptions::split(options)?;
                    // A two-level host back end has its own options with these prefixes.
                    if registry::is_native(&devices.host) {
                        for_host = TwoLevelOptions::split(&for_host)?.general;
                    }
                    let spec = spec.clone();
                    let create: DeviceBackendCreator =
                        Box::new(move |setup| create_device(&spec, &all, setup, &create_map));
                    vec![create]
                }
            },
        };
        Ok(Self { creators, for_host, for_second })
    }
}

/// Creates the second group of a map, whose back end only serves device memory.
fn create_second(
    devices: &DeviceMap,
    options: &str,
    device: Option<usize>,
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
) -> Result<Option<Arc<dyn Backend>>> {
    let DeviceSelection::ThroughSecond(name) = &devices.device else { return Ok(None) };
    // The groups must have different ids. All ranks compute the same id.
    let group = Nonce(context.group.0.map(|byte| !byte));
    let context = GroupContext { group, options, device, ..*context };
    host_name::create(name, &context, &SecondGroupExchange(exchange)).map(Some)
}

/// The bootstrap exchange of the second group of a map. Its phases have other names than those of
/// the first group.
struct SecondGroupExchange<'a>(&'a dyn BootstrapExchange);

impl BootstrapExchange for SecondGroupExchange<'_> {
    fn all_gather(
        &self,
        phase: &str,
        contribution: &[u8],
        check_cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        let phase = format!("{SECOND_PHASE_PREFIX}{phase}");
        self.0.all_gather(&phase, contribution, check_cancelled)
    }

    fn publish_failure(&self, reason: &Error) {
        self.0.publish_failure(reason);
    }

    fn peer_failure(&self) -> Option<Error> {
        self.0.peer_failure()
    }
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
