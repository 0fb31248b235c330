//! The back end of a group with a device map: it passes each call to the host back end or to the
//! device back end.
//!
//! The host back end is an ordinary [`Backend`]. It performs everything that does not concern
//! device memory: the rank locations, the point-to-point messages in host memory, the barriers, the
//! calls on byte strings, and the failure state. The device back end publishes its failures in this
//! failure state and reads it. The death of a rank therefore also ends the waits of other ranks for
//! their devices.

use super::device_backend::{DeviceBackend, DevicePointToPoint, JointEnqueuer};
use super::device_factory::DeviceBackendOrReason;
use super::device_map::DeviceBackendChoice;
use super::interface::{
    Backend, BackendProperties, FastPath, FastPathKind, GroupFailureState, PeerMonitor,
    RankLocation,
};
use super::linked_failures::LinkedFailures;
use super::memory::BackendMemory;
use super::support_query::SupportQuery;
use crate::algo::{AlgorithmRequest, Operation};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::{EnqueueRequest, GpuTarget, StreamMarker};
use crate::transport::{OpKind, PointToPoint};
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;

/// The host back end and the device of one group.
#[derive(Debug)]
pub(super) struct DeviceMapBackend {
    /// The device. This must be the first field, so that it is dropped before `host`, which owns
    /// the failure state.
    pub(super) device: MappedDevice,
    /// If the caller requested only a device back end: this back end, which decides which calls on
    /// host memory the group supports.
    pub(super) host_restriction: Option<DeviceBackendChoice>,
    /// If the device back end uses a second group: the link between its failure and the failure of
    /// `host`.
    pub(super) second_failures: Option<Arc<LinkedFailures>>,
    pub(super) host: Arc<dyn Backend>,
}

/// The device of a group on this rank.
#[derive(Debug)]
pub(super) struct MappedDevice {
    /// The device back end, or the reason why the group has no device back end.
    pub(super) backend: DeviceBackendOrReason,
    /// The name of the group's back end, that is, of the whole map.
    pub(super) group_backend: &'static str,
    pub(super) device: usize,
}

impl MappedDevice {
    /// Returns the device back end if it serves `device`, otherwise an `Unsupported` error. `what`
    /// describes the call for the error text.
    fn backend_for(&self, device: usize, what: &dyn fmt::Display) -> Result<&dyn DeviceBackend> {
        let reason = match &self.backend {
            Err(reason) => reason.clone(),
            Ok(backend) if device == self.device => return Ok(backend.as_ref()),
            Ok(_) => format!("the group uses device {} on this rank", self.device),
        };
        let message = format!(
            "{what} in memory of device {device}: back end {}: {reason}",
            self.group_backend
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

impl DeviceBackend for MappedDevice {
    fn name(&self) -> &'static str {
        self.backend.as_ref().map_or("", |backend| backend.name())
    }

    fn device(&self) -> usize {
        self.device
    }

    fn supports(&self, query: &SupportQuery) -> Result<()> {
        self.backend_for(query.gpu.unwrap_or(self.device), query)?.supports(query)
    }

    fn run(&self, operation: &Operation<'_>, request: &EnqueueRequest<'_>) -> Result<()> {
        self.backend_for(request.gpu.device, &operation.descriptor)?.run(operation, request)
    }

    fn part_count(&self, kind: OpKind, block_bytes: usize) -> u16 {
        self.backend.as_ref().map_or(1, |backend| backend.part_count(kind, block_bytes))
    }

    fn is_stream_ordered(&self) -> bool {
        self.backend.as_ref().is_ok_and(|backend| backend.is_stream_ordered())
    }

    fn check_stream(&self, gpu: GpuTarget) -> Result<()> {
        match gpu.stream {
            Some(_) => self.backend_for(gpu.device, &"a call")?.check_stream(gpu),
            None => Ok(()),
        }
    }

    fn record_stream_event(&self, gpu: GpuTarget) -> Result<Option<Arc<dyn StreamMarker>>> {
        self.backend_for(gpu.device, &"a call")?.record_stream_event(gpu)
    }

    fn allocate(&self, device: usize, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        self.backend_for(device, &format_args!("{bytes} bytes"))?.allocate(device, bytes)
    }

    fn point_to_point(&self) -> Option<&dyn DevicePointToPoint> {
        self.backend.as_ref().ok()?.point_to_point()
    }

    fn enqueuer(&self) -> Option<&dyn JointEnqueuer> {
        self.backend.as_ref().ok()?.enqueuer()
    }

    fn on_group_failure(&self) {
        self.backend.iter().for_each(|backend| backend.on_group_failure());
    }

    fn describe(&self) -> Value {
        match &self.backend {
            Ok(backend) => json!({ "backend": backend.name(), "details": backend.describe() }),
            Err(reason) => json!({ "backend": "none", "details": { "missing": reason } }),
        }
    }
}

impl FastPath for DeviceMapBackend {}

impl Backend for DeviceMapBackend {
    fn name(&self) -> &'static str {
        self.device.group_backend
    }

    fn properties(&self) -> BackendProperties<'_> {
        let (fast_path, can_refuse_calls) = (FastPathKind::None, true);
        BackendProperties {
            fast_path,
            can_refuse_calls,
            is_releasable_at_exit: false,
            ..self.host.properties()
        }
    }

    fn rank_locations(&self) -> &[RankLocation] {
        self.host.rank_locations()
    }

    fn check_algorithm_request(
        &self,
        kind: OpKind,
        bytes: usize,
        wanted: AlgorithmRequest<'_>,
    ) -> Result<()> {
        self.host.check_algorithm_request(kind, bytes, wanted)
    }

    fn supports(&self, query: &SupportQuery) -> Result<()> {
        if query.gpu.is_some() {
            return self.device.supports(query);
        }
        let restriction = self.host_restriction.as_ref();
        restriction.map_or(Ok(()), |device| device.check_host_support(query))?;
        self.host.supports(query)
    }

    fn run(&self, operation: &Operation<'_>) -> Result<()> {
        match &operation.enqueue_request {
            None => self.host.run(operation),
            Some(request) => self.device.run(operation, request),
        }
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        self.host.allocate(bytes)
    }

    fn abort(&self, reason: &Error) {
        self.host.abort(reason);
        if let Some(linked) = &self.second_failures {
            linked.pass_on();
        }
        self.device.on_group_failure();
    }

    fn failure(&self) -> Option<Error> {
        self.host.failure()
    }

    fn failure_state(&self) -> Option<Arc<dyn GroupFailureState>> {
        self.host.failure_state()
    }

    fn point_to_point(&self) -> Option<&dyn PointToPoint> {
        self.host.point_to_point()
    }

    fn device(&self) -> Option<&dyn DeviceBackend> {
        Some(&self.device)
    }

    fn peer_monitor(&self) -> Option<&dyn PeerMonitor> {
        self.host.peer_monitor()
    }

    fn describe(&self) -> Value {
        json!({
            "cpu": { "backend": self.host.name(), "details": self.host.describe() },
            "cuda": self.device.describe(),
        })
    }
}
