//! [`StagingHost`]: the shared context of the parts of the staging back end, that is, of
//! collectives, messages and direct calls. It contains the group's host back end, which runs the
//! operations on host memory, and the group's GPU.

use super::buffers::StagingWaitLimits;
use crate::backend::{Backend, GroupFailureState, PointToPoint};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::device::stream::DEFAULT_STREAM;
use crate::device::{CudaContext, CudaEvent};
use std::sync::Arc;

/// The host back end of a group, and the GPU whose memory is staged.
#[derive(Clone, Debug)]
pub(super) struct StagingHost {
    /// The CUDA context of the GPU.
    pub(super) context: Arc<CudaContext>,
    /// The host back end.
    pub(super) backend: Arc<dyn Backend>,
    /// The failure state of the group, which the host back end owns.
    pub(super) failure_state: Arc<dyn GroupFailureState>,
}

impl StagingHost {
    /// Returns the host back end's interface for point-to-point messages in host memory.
    ///
    /// # Errors
    /// `Internal` if the host back end has no such messages.
    pub(super) fn point_to_point(&self) -> Result<&dyn PointToPoint> {
        self.backend
            .point_to_point()
            .ok_or_else(|| Error::internal("the host back end has no messages"))
    }

    /// Records a CUDA event behind the work that is in a stream now, and returns the event. The
    /// event is complete when the GPU has completed this work. `None` is the default stream.
    pub(super) fn record_event(&self, stream: Option<usize>) -> Result<CudaEvent> {
        let event = CudaEvent::new(&self.context)?;
        event.record(stream.unwrap_or(DEFAULT_STREAM))?;
        Ok(event)
    }

    /// Returns the limits for waits for the GPU. Such a wait ends at `deadline`, or when the group
    /// fails.
    pub(super) fn wait_limits<'a>(&'a self, deadline: &'a Deadline) -> StagingWaitLimits<'a> {
        StagingWaitLimits { deadline, failure_state: Some(self.failure_state.as_ref()) }
    }
}
