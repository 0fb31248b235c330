//! The host back end to which the parts of the staging back end pass device memory, with the
//! device.

use super::buffers::StagingWaitLimits;
use crate::backend::{Backend, GroupFailureState, PointToPoint};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::device::stream::DEFAULT_STREAM;
use crate::device::{CudaContext, CudaEvent};
use std::sync::Arc;

/// The host back end of a group and its device.
#[derive(Clone, Debug)]
pub(super) struct StagingHost {
    pub(super) context: Arc<CudaContext>,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) failure_state: Arc<dyn GroupFailureState>,
}

impl StagingHost {
    pub(super) fn point_to_point(&self) -> Result<&dyn PointToPoint> {
        self.backend
            .point_to_point()
            .ok_or_else(|| Error::internal("the host back end has no messages"))
    }

    /// Records an event for the work that is in a stream.
    pub(super) fn record_event(&self, stream: Option<usize>) -> Result<CudaEvent> {
        let event = CudaEvent::new(&self.context)?;
        event.record(stream.unwrap_or(DEFAULT_STREAM))?;
        Ok(event)
    }

    /// Returns the limits of a wait for the device in an operation with this deadline.
    pub(super) fn wait_limits<'a>(&'a self, deadline: &'a Deadline) -> StagingWaitLimits<'a> {
        StagingWaitLimits { deadline, failure_state: Some(self.failure_state.as_ref()) }
    }
}
