//! The NCCL back end of one group, and the factory of such back ends. [`super::launch`] enqueues
//! the operations of the group. [`super::watchdog`] owns the communicator of the group and monitors
//! it.

use super::enqueued::NcclEnqueuedOperation;
use super::options::NcclOptions;
use super::watchdog::NcclWatchdog;
use super::{bootstrap, calls, library, memory, options, types};
use crate::backend::device_factory::{
    DeviceBackendCreator, DeviceBackendFactory, DeviceBackendOrReason, DeviceBackendSetup,
    check_not_capturing,
};
use crate::backend::{
    BackendMemory, DeviceBackend, DeviceBatch, DoorbellListener, JointEnqueuer, OpKind, Operation,
    SupportQuery,
};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::{EnqueueRequest, EnqueuedOperation, GpuTarget};
use crate::base::ids::{Rank, WorldSize};
use crate::base::op::ReduceOp;
use crate::device::CudaEvent;
use crate::device::driver::CudaHandle;
use crate::device::stream::DEFAULT_STREAM;
use serde_json::{Value, json};
use std::sync::Arc;

/// The name of the back end.
pub(super) const NAME: &str = "nccl";

/// The factory of the NCCL back ends.
#[derive(Debug)]
pub(in crate::backend) struct NcclFactory;

impl DeviceBackendFactory for NcclFactory {
    fn name(&self) -> &'static str {
        NAME
    }

    fn check(&self) -> Result<()> {
        library::get().map(drop)
    }

    fn split_options(&self, options: &str) -> Result<(DeviceBackendCreator, String)> {
        let (options, rest) = options::split_options(options)?;
        Ok((Box::new(move |setup| NcclBackend::create(setup, options)), rest))
    }

    fn check_host_support(&self, query: &SupportQuery) -> Result<()> {
        check_host_support(query)
    }
}

/// Checks whether a group supports a kind of call on host memory if its caller requested only NCCL.
/// Such a group supports only barriers and point-to-point messages.
///
/// # Errors
/// `Unsupported`.
pub fn check_host_support(query: &SupportQuery) -> Result<()> {
    if query.kind.is_none_or(|kind| kind == OpKind::Barrier) {
        return Ok(());
    }
    let message = format!(
        "{query} in host memory: the back end nccl supports GPU memory only; use \
         \"cpu:native,cuda:nccl\" for both"
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// The NCCL back end of a group.
#[derive(Debug)]
pub(super) struct NcclBackend {
    pub(super) rank: Rank,
    pub(super) size: WorldSize,
    /// The event that is recorded on the default stream before an operation is enqueued on the
    /// library's own stream.
    default_stream_event: CudaEvent,
    pub(super) watchdog: Arc<NcclWatchdog>,
}

impl NcclBackend {
    /// Creates the NCCL back end of this rank. All ranks must call this function, because it waits
    /// for all ranks. If NCCL is optional and a rank cannot use it, the function returns the
    /// reason.
    pub(super) fn create(
        setup: &DeviceBackendSetup<'_>,
        options: NcclOptions,
    ) -> Result<DeviceBackendOrReason> {
        let watchdog = match bootstrap::create(setup, options)? {
            Ok(watchdog) => watchdog,
            Err(reason) => return Ok(Err(reason)),
        };
        let (rank, size) = (setup.context.rank, setup.context.size);
        match CudaEvent::new(watchdog.comm.context()) {
            Ok(default_stream_event) => {
                Ok(Ok(Box::new(Self { rank, size, default_stream_event, watchdog })))
            }
            Err(error) => {
                watchdog.fail(&error);
                watchdog.close();
                Err(error)
            }
        }
    }

    /// Returns the library's own stream, which serves calls that name no stream. Before that, makes
    /// this stream wait for the work that is in the default stream now.
    pub(super) fn own_stream(&self) -> Result<CudaHandle> {
        let stream = &self.watchdog.stream;
        self.default_stream_event.record(DEFAULT_STREAM)?;
        self.default_stream_event.make_stream_wait(stream.handle())?;
        Ok(stream.handle())
    }

    /// If the group has the option `blocking_wait`, waits until the device has completed the
    /// operations.
    pub(super) fn wait_if_blocking(&self, enqueued: &[Arc<NcclEnqueuedOperation>]) -> Result<()> {
        if !self.watchdog.options.blocking_wait {
            return Ok(());
        }
        enqueued.iter().try_for_each(|flight| match flight.wait(&flight.deadline)? {
            true => Ok(()),
            false => Err(self.watchdog.timeout_error(flight)),
        })
    }
}

impl DeviceBackend for NcclBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn device(&self) -> usize {
        self.watchdog.comm.context().device()
    }

    fn on_group_failure(&self) {
        self.watchdog.on_doorbell();
    }

    fn supports(&self, query: &SupportQuery) -> Result<()> {
        let library = self.watchdog.comm.library();
        types::check_support(query, library.version(), self.size).map_err(|error| {
            error.context(format_args!("{query} ({})", library.version_and_file()))
        })?;
        let has_premul_sum = library.functions.create_premul_sum.is_some();
        if query.op == Some(ReduceOp::PremulSum) && !has_premul_sum {
            return Err(calls::missing_premul_sum(library.version_and_file(), ReduceOp::PremulSum));
        }
        Ok(())
    }

    fn is_stream_ordered(&self) -> bool {
        true
    }

    fn run(&self, operation: &Operation<'_>, request: &EnqueueRequest<'_>) -> Result<()> {
        let operation = Operation { enqueue_request: Some(*request), ..*operation };
        let (operations, messages) = (&[operation][..], &[][..]);
        let deadline = operation.deadline();
        let batch = DeviceBatch { enqueuer: self, operations, messages, deadline };
        self.enqueue_batches(&[batch]).into_iter().collect()
    }

    fn enqueuer(&self) -> Option<&dyn JointEnqueuer> {
        Some(self)
    }

    fn check_stream(&self, gpu: GpuTarget) -> Result<()> {
        check_not_capturing(self.watchdog.comm.context(), gpu, NAME)
    }

    fn allocate(&self, _: usize, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        memory::allocate(&self.watchdog, bytes)
    }

    fn describe(&self) -> Value {
        let library = self.watchdog.comm.library();
        let options = &self.watchdog.options;
        json!({
            "version": library.version_text(),
            "library": library.file(),
            "missing": library.missing_functions(),
            "driver": self.watchdog.comm.context().driver().file(),
            "device": self.device(),
            "high_priority": options.high_priority,
            "blocking_wait": options.blocking_wait,
            "windows": options.windows,
            "blocking": self.watchdog.comm.may_block(),
            "async_error_handling": options.handles_errors,
            "timing": options.has_timing,
        })
    }
}

impl Drop for NcclBackend {
    fn drop(&mut self) {
        self.watchdog.close();
    }
}
