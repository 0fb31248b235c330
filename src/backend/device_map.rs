//! Device maps: a group that serves host memory and the memory of a GPU with one back end for each.
//! The memory of a call's buffers selects the back end.
//!
//! The host back end is an ordinary [`Backend`]. It owns what the whole group shares: the rank
//! locations, the point-to-point messages in host memory, the barriers, the calls on byte strings,
//! and the failure state. The device back end publishes its failures in this failure state. So the
//! death of a rank also ends the waits of other ranks on their devices.
//!
//! The names of device maps:
//!
//! | name | host memory | device memory |
//! |---|---|---|
//! | `cpu:NAME,cuda:nccl` | NAME | NCCL |
//! | `nccl`, `cuda:nccl` | native, but only barriers and messages | NCCL |
//! | `cpu:NAME,cuda:NAME` | NAME | NAME, through pinned memory or directly ([`super::staging`]) |
//! | NAME, if the rank has a device | NAME | as `cpu:NAME,cuda:NAME` |
//! | `default`, with a device | native | NCCL if all ranks have it, else native |
//! | `default`, without a device | native | none |
//!
//! With `nccl` alone, a collective on host memory is probably a mistake, so the group refuses it.

use super::device_backend::{DeviceBackend, DevicePointToPoint, device_context};
use super::nccl::{self, NcclBackend, NcclEnqueuer, check_host_support, library};
use super::staging::{self, StagingBackend};
use super::{
    AlgorithmRequest, Backend, BackendMemory, BootstrapExchange, GroupContext, GroupFailureState,
    OpKind, Operation, PointToPoint, RankLocation, SupportQuery, check_single_name,
    create_single_backend, registry,
};
use crate::algo::rules::AlgorithmRule;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::{GpuTarget, StreamMarker};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::device;
use crate::transport::survivor_rendezvous::SurvivorEndpoint;
use serde_json::{Value, json};
use std::fmt;
use std::sync::{Arc, Mutex};

/// The name of the default map. The C API uses it for a NULL name.
pub const DEFAULT_NAME: &str = "default";

const NCCL_NAME: &str = "nccl";
const NATIVE_NAME: &str = "native";

/// A parsed name of a device map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMap {
    cpu: String,
    cuda_backend: CudaBackend,
}

/// The back end for GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CudaBackend {
    /// Use NCCL if all ranks have it, else the host back end.
    NcclIfAvailable,
    /// Use the host back end, with staging.
    ThroughHost,
    /// Use NCCL; the host back end serves host memory.
    NcclAndHost,
    /// Use NCCL; the host back end only serves calls that the group needs itself.
    NcclOnly,
}

impl fmt::Display for DeviceMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cuda_backend {
            CudaBackend::NcclIfAvailable => f.write_str(DEFAULT_NAME),
            CudaBackend::NcclOnly => f.write_str(NCCL_NAME),
            CudaBackend::ThroughHost => write!(f, "cpu:{0},cuda:{0}", self.host_backend()),
            CudaBackend::NcclAndHost => write!(f, "cpu:{},cuda:{NCCL_NAME}", self.host_backend()),
        }
    }
}

/// Parses the name of a device map. Returns `None` for the name of a single back end.
///
/// # Errors
/// `InvalidArgument` for a malformed map.
pub fn parse(name: &str) -> Result<Option<DeviceMap>> {
    let native = || NATIVE_NAME.to_owned();
    if name.eq_ignore_ascii_case(DEFAULT_NAME) {
        return Ok(Some(DeviceMap { cpu: native(), cuda_backend: CudaBackend::NcclIfAvailable }));
    }
    if name.eq_ignore_ascii_case(NCCL_NAME) {
        return Ok(Some(DeviceMap { cpu: native(), cuda_backend: CudaBackend::NcclOnly }));
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
    match (cpu, cuda) {
        (cpu, Some(cuda)) if cuda.eq_ignore_ascii_case(NCCL_NAME) => {
            let cuda_backend =
                if cpu.is_some() { CudaBackend::NcclAndHost } else { CudaBackend::NcclOnly };
            Ok(Some(DeviceMap { cpu: cpu.unwrap_or_else(native), cuda_backend }))
        }
        (cpu, Some(cuda)) => {
            let cpu = cpu.unwrap_or_else(|| cuda.clone());
            if !is_native(&cuda) && !is_same_backend(&cpu, &cuda) {
                return Err(Error::invalid(format!(
                    "\"{name}\": without NCCL the host back end also transfers device memory, so \
                     both names of the map must be equal: use \"cpu:{cpu},cuda:{cpu}\""
                )));
            }
            Ok(Some(DeviceMap { cpu, cuda_backend: CudaBackend::ThroughHost }))
        }
        _ => Err(invalid_map(name)),
    }
}

fn invalid_map(name: &str) -> Error {
    Error::invalid(format!(
        "\"{name}\" is not a map of back ends: use \"cpu:NAME,cuda:nccl\", \"cuda:nccl\" or \
         \"cpu:NAME,cuda:NAME\""
    ))
}

fn is_native(name: &str) -> bool {
    registry::canonical_name(name) == Some(NATIVE_NAME)
}

/// Returns true if both names mean the same back end.
fn is_same_backend(one: &str, other: &str) -> bool {
    let known = |name| registry::canonical_name(name);
    one.eq_ignore_ascii_case(other) || known(one).is_some_and(|one| known(other) == Some(one))
}

/// Returns the map that a back end's name means for a rank with a device: this back end serves
/// device memory too.
pub(super) fn map_for_device(name: &str) -> Option<DeviceMap> {
    registry::canonical_name(name)
        .map(|cpu| DeviceMap { cpu: cpu.to_owned(), cuda_backend: CudaBackend::ThroughHost })
}

impl DeviceMap {
    /// Returns the name of the back end for host memory.
    pub(super) fn host_backend(&self) -> &str {
        registry::canonical_name(&self.cpu).unwrap_or(&self.cpu)
    }

    /// Checks that this process has the back ends, the driver and the NCCL library that the map
    /// needs.
    pub(super) fn check(&self) -> Result<()> {
        check_single_name(&self.cpu)?;
        match self.cuda_backend {
            CudaBackend::NcclIfAvailable => Ok(()),
            CudaBackend::ThroughHost => device::driver::get_or_load().map(drop),
            CudaBackend::NcclAndHost | CudaBackend::NcclOnly => library::get().map(drop),
        }
    }
}

/// Creates the back ends of a group. All ranks call it together.
pub(super) fn create(
    devices: &DeviceMap,
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
) -> Result<Arc<dyn Backend>> {
    if devices.cuda_backend == CudaBackend::NcclIfAvailable && context.device.is_none() {
        return create_single_backend(&devices.cpu, context, exchange);
    }
    let (nccl_options, rest) = nccl::split_options(context.options)?;
    let (staging_options, rest) = staging::split_options(&rest)?;
    // If NCCL serves the device, the host back end gets no device.
    let device = match devices.cuda_backend {
        CudaBackend::ThroughHost => device_context(context).ok().map(|context| context.device()),
        _ => None,
    };
    let for_host = GroupContext { options: &rest, device, ..*context };
    let cpu = create_single_backend(&devices.cpu, &for_host, exchange)?;
    let failure_state = cpu.failure_state().ok_or_else(|| {
        let message =
            format!("the back end {} cannot be combined with another back end", devices.cpu);
        Error::new(ErrorKind::Unsupported, message)
    })?;
    let map = devices.to_string();
    let setup = DeviceBackendSetup {
        context,
        exchange,
        cpu: &cpu,
        failure_state: &failure_state,
        map: &map,
    };
    let device_backend =
        setup.create_device_backend(devices.cuda_backend, nccl_options, staging_options);
    let device_backend = device_backend.inspect_err(|error| {
        exchange.publish_failure(error);
        failure_state.fail(error);
    })?;
    let (device, device_backend_name) = match &device_backend {
        Ok(backend) => {
            (backend.device(), if backend.is_stream_ordered() { NCCL_NAME } else { cpu.name() })
        }
        // Only the default map can lack a device back end, and its caller named a device.
        Err(_) => (context.device.unwrap_or(0), ""),
    };
    let name = match devices.cuda_backend {
        _ if device_backend_name.is_empty() => cpu.name(),
        CudaBackend::NcclOnly => NCCL_NAME,
        _ => intern_name(&format!("cpu:{},cuda:{device_backend_name}", cpu.name())),
    };
    Ok(Arc::new(DeviceMapBackend {
        device_backend,
        name,
        device,
        cuda_backend: devices.cuda_backend,
        device_backend_name,
        cpu,
    }))
}

/// The arguments for the creation of the device back end of a group.
struct DeviceBackendSetup<'a> {
    context: &'a GroupContext<'a>,
    exchange: &'a dyn BootstrapExchange,
    cpu: &'a Arc<dyn Backend>,
    failure_state: &'a Arc<dyn GroupFailureState>,
    map: &'a str,
}

/// The device back end, or the reason why the group works without one.
type DeviceBackendOrReason = std::result::Result<Box<dyn DeviceBackend>, String>;

impl DeviceBackendSetup<'_> {
    fn create_device_backend(
        &self,
        cuda: CudaBackend,
        nccl_options: nccl::NcclOptions,
        staging_options: staging::StagingOptions,
    ) -> Result<DeviceBackendOrReason> {
        let Self { context, exchange, cpu, failure_state, map } = *self;
        let is_optional = cuda == CudaBackend::NcclIfAvailable;
        let mut nccl_missing = None;
        if cuda != CudaBackend::ThroughHost {
            let request = nccl::NcclRequest { map, is_optional, options: nccl_options };
            match NcclBackend::create(
                context,
                exchange,
                (failure_state, cpu.rank_locations()),
                &request,
            )? {
                Ok(nccl) => return Ok(Ok(Box::new(nccl))),
                // All ranks reach the same result, so all of them continue with staging.
                Err(reason) => nccl_missing = Some(reason),
            }
        }
        let request =
            staging::StagingRequest { map, is_optional, options: staging_options, nccl_missing };
        match StagingBackend::create(context, exchange, (cpu, failure_state), &request)? {
            Ok(staging) => {
                if let Some(reason) = &request.nccl_missing {
                    crate::log!(
                        LogLevel::Warn,
                        "group {}: transfers of device memory are staged through host memory: \
                         {reason}",
                        context.name
                    );
                }
                Ok(Ok(Box::new(staging)))
            }
            Err(reason) => {
                let reason = request
                    .nccl_missing
                    .map_or(reason.clone(), |first| format!("{first}; and {reason}"));
                crate::log!(
                    LogLevel::Warn,
                    "group {} supports host memory only: {reason}",
                    context.name
                );
                Ok(Err(reason))
            }
        }
    }
}

/// Returns an interned copy of a name. It leaks one string per distinct map of registered back
/// ends.
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

/// The host back end and the device back end of one group.
#[derive(Debug)]
struct DeviceMapBackend {
    /// The device back end, or the reason why there is none. It is the first field because it must
    /// be dropped before `cpu`, which owns the failure state.
    device_backend: DeviceBackendOrReason,
    name: &'static str,
    device: usize,
    cuda_backend: CudaBackend,
    /// The name of the back end for device memory; empty if there is none.
    device_backend_name: &'static str,
    cpu: Arc<dyn Backend>,
}

impl DeviceMapBackend {
    /// Returns the device back end if it serves `device`, otherwise an `Unsupported` error about
    /// the call `what`.
    fn backend_for_device(
        &self,
        device: usize,
        what: &dyn fmt::Display,
    ) -> Result<&dyn DeviceBackend> {
        let unsupported = |reason: String| {
            let message =
                format!("{what} in memory of device {device}: back end {}: {reason}", self.name);
            Error::new(ErrorKind::Unsupported, message)
        };
        let backend = self.device_backend.as_ref().map_err(|reason| unsupported(reason.clone()))?;
        if device == self.device {
            return Ok(backend.as_ref());
        }
        Err(unsupported(format!("the group uses device {} on this rank", self.device)))
    }
}

impl Backend for DeviceMapBackend {
    fn name(&self) -> &'static str {
        self.name
    }

    fn check_algorithm_request(
        &self,
        kind: OpKind,
        bytes: usize,
        wanted: AlgorithmRequest<'_>,
    ) -> Result<()> {
        self.cpu.check_algorithm_request(kind, bytes, wanted)
    }

    fn supports(&self, query: &SupportQuery) -> Result<()> {
        match query.gpu {
            Some(device) => self.backend_for_device(device, query)?.supports(query),
            None => {
                if self.cuda_backend == CudaBackend::NcclOnly {
                    check_host_support(query)?;
                }
                self.cpu.supports(query)
            }
        }
    }

    fn can_refuse_calls(&self) -> bool {
        true
    }

    fn run(&self, operation: &Operation<'_>) -> Result<()> {
        match &operation.enqueue_request {
            None => self.cpu.run(operation),
            Some(launch) => self
                .backend_for_device(launch.gpu.device, &operation.descriptor)?
                .run(operation, launch),
        }
    }

    fn point_to_point(&self) -> Option<&dyn PointToPoint> {
        self.cpu.point_to_point()
    }

    fn device(&self) -> Option<usize> {
        Some(self.device)
    }

    fn device_of(&self, address: usize) -> Result<Option<usize>> {
        device::memory::device_of(address)
    }

    fn check_stream(&self, gpu: GpuTarget) -> Result<()> {
        match gpu.stream {
            Some(stream) => self.backend_for_device(gpu.device, &"a call")?.check_stream(stream),
            None => Ok(()),
        }
    }

    fn is_stream_ordered(&self) -> bool {
        self.device_backend.as_ref().is_ok_and(|backend| backend.is_stream_ordered())
    }

    fn record_stream_event(&self, gpu: GpuTarget) -> Result<Option<Arc<dyn StreamMarker>>> {
        self.backend_for_device(gpu.device, &"a call")?.record_stream_event(gpu)
    }

    fn device_point_to_point(&self) -> Option<&dyn DevicePointToPoint> {
        self.device_backend.as_ref().ok()?.device_point_to_point()
    }

    fn enqueuer(&self) -> Option<NcclEnqueuer<'_>> {
        self.device_backend.as_ref().ok()?.enqueuer()
    }

    fn allocate_on(&self, device: usize, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        self.backend_for_device(device, &format!("{bytes} bytes"))?.allocate(bytes)
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        self.cpu.allocate(bytes)
    }

    fn abort(&self, reason: &Error) {
        self.cpu.abort(reason);
        if let Ok(backend) = &self.device_backend {
            backend.on_group_failure();
        }
    }

    fn failure(&self) -> Option<Error> {
        self.cpu.failure()
    }

    fn failure_state(&self) -> Option<Arc<dyn GroupFailureState>> {
        self.cpu.failure_state()
    }

    fn survivor_endpoint(&self) -> Option<&Arc<SurvivorEndpoint>> {
        self.cpu.survivor_endpoint()
    }

    fn has_left(&self, rank: Rank) -> bool {
        self.cpu.has_left(rank)
    }

    fn rank_locations(&self) -> &[RankLocation] {
        self.cpu.rank_locations()
    }

    fn last_activity(&self, rank: Rank) -> Option<String> {
        self.cpu.last_activity(rank)
    }

    fn has_arrival_check(&self) -> bool {
        self.cpu.has_arrival_check()
    }

    fn algorithm_overrides(&self) -> &[AlgorithmRule] {
        self.cpu.algorithm_overrides()
    }

    fn describe(&self) -> Value {
        let details = match &self.device_backend {
            Ok(backend) => backend.describe(),
            Err(reason) => json!({ "missing": reason }),
        };
        json!({
            "cpu": { "backend": self.cpu.name(), "details": self.cpu.describe() },
            "cuda": { "backend": if self.device_backend_name.is_empty() { "none" } else { self.device_backend_name }, "details": details },
        })
    }
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
