//! Receives the time that a device needed for an operation, and adds it to the recorder and the
//! trace. An enqueued operation ends on the host when it is on its stream, so its entry has the
//! state "done" before the device has completed it. The device time comes later.

use super::details::update_details;
use super::record::OperationRecord;
use crate::api::observe::trace::DeviceSpan;
use crate::base::gpu::{DeviceTimeListener, EnqueuedOperationSlot};
use std::sync::Arc;
use std::time::Duration;

/// The receiver of the device time of one operation.
#[derive(Clone, Debug)]
pub(in crate::api) struct DeviceTimeRecord {
    number: u64,
    /// The operation in the trace, if a trace is written.
    span: Option<DeviceSpan>,
}

impl DeviceTimeRecord {
    /// Adds the device time of the operation in `slot` when the device has completed it. Does
    /// nothing if the slot is empty, or if the back end does not measure the time.
    pub(in crate::api) fn listen(&self, slot: &EnqueuedOperationSlot) {
        if let Some(enqueued) = slot.get() {
            enqueued.listen_for_device_time(&|| Arc::new(self.clone()));
        }
    }
}

impl DeviceTimeListener for DeviceTimeRecord {
    fn on_device_time(&self, time: Duration) {
        update_details(self.number, |details| details.device_time = Some(time));
        if let Some(span) = &self.span {
            span.record(time);
        }
    }
}

impl OperationRecord {
    /// Returns the receiver of the operation's device time.
    pub(in crate::api) fn device_time_record(&self) -> DeviceTimeRecord {
        DeviceTimeRecord { number: self.number(), span: self.device_span() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::observe::recorder::{self, DumpReason, OperationOrigin, RecorderSlot};
    use crate::base::deadline::Deadline;
    use crate::base::error::Result;
    use crate::base::ids::Nonce;
    use crate::base::label::Label;
    use crate::transport::{CountSpec, Descriptor, OpKind};
    use std::sync::Mutex;

    /// An operation whose device time the test reports.
    #[derive(Debug, Default)]
    struct TimedOperation(Mutex<Option<Arc<dyn DeviceTimeListener>>>);

    impl crate::base::gpu::EnqueuedOperation for TimedOperation {
        fn wait(&self, _: &Deadline) -> Result<bool> {
            Ok(true)
        }

        fn listen_for_device_time(&self, listener: &dyn Fn() -> Arc<dyn DeviceTimeListener>) {
            *self.0.lock().unwrap() = Some(listener());
        }
    }

    #[test]
    fn device_time_is_added_after_the_end_of_the_record() {
        let group = Nonce(*b"device-time-test");
        let descriptor = Descriptor {
            kind: OpKind::Barrier,
            dtype: None,
            op: None,
            root: None,
            count_spec: CountSpec::Count(0),
            sequence: 1,
            algorithm: 0,
            part: 0,
            label: Label::NONE,
        };
        let origin = OperationOrigin { group, rank: 0, issued_ns: 1 };
        let begin =
            || recorder::begin_collective(RecorderSlot::reserve(), origin, &descriptor, true);
        let (on_host, on_device) = (begin(), begin());
        on_host.device_time_record().listen(&EnqueuedOperationSlot::new());
        on_host.end(&Ok(()));
        let (slot, operation) = (EnqueuedOperationSlot::new(), Arc::<TimedOperation>::default());
        assert!(slot.set(Arc::clone(&operation) as Arc<_>).is_ok());
        on_device.device_time_record().listen(&slot);
        on_device.end(&Ok(()));
        let times = || {
            let dump = recorder::dump(Some(group), DumpReason::Request);
            let entries = dump["entries"].as_array().unwrap().clone();
            entries.iter().map(|entry| entry["device_ms"].as_f64()).collect::<Vec<_>>()
        };
        assert_eq!(times(), [None, None]);
        let listener = operation.0.lock().unwrap().take().unwrap();
        listener.on_device_time(Duration::from_millis(302));
        assert_eq!(times(), [None, Some(302.0)]);
    }
}
