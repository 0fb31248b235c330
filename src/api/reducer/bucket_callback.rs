//! The caller's function for reduced buckets, and the number of calls of the function that have not
//! returned.
//!
//! The function is called by a completion callback. This is a callback of the bucket's work (the
//! handle of its operation), or, if steps can be retried, of the work that ends the step.

use super::memory::GradMemory;
use crate::api::work::callbacks::CallbackKey;
use crate::api::work::handle::Work;
use crate::base::buffer::Dst;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::Result;
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, wait_until};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// A bucket, as passed to a caller's function.
#[derive(Debug)]
pub struct BucketView<'b> {
    /// The position of the bucket in the layout.
    pub index: usize,
    /// The number of buckets.
    pub n_buckets: usize,
    /// The gradients. A function of [`OnBucket`] gets the reduced gradients, or an empty view if
    /// these are in the caller's memory or scattered over the ranks. A hook function gets this
    /// rank's gradients.
    pub data: Dst<'static>,
    /// The element type.
    pub dtype: DataType,
    /// The parameters.
    pub params: &'b [usize],
    /// The offset of each gradient in `data`, in bytes.
    pub offsets: &'b [usize],
    /// The number of the step, from 0.
    pub step: u64,
}

/// A caller's function for reduced buckets.
#[derive(Clone)]
pub struct OnBucket {
    /// The key of the completion callbacks that call the function.
    pub key: CallbackKey,
    /// The function. It is called with one bucket at a time.
    pub function: Arc<dyn Fn(&BucketView<'_>) + Send + Sync>,
}

impl fmt::Debug for OnBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnBucket").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Counts the scheduled calls of the caller's function that have not returned.
#[derive(Debug, Default)]
pub(super) struct CallbackCount {
    left: AtomicUsize,
    doorbell: Doorbell,
}

impl CallbackCount {
    /// Waits until all scheduled calls have returned. Returns false if the deadline passes before
    /// that.
    pub(super) fn wait(&self, deadline: &Deadline) -> bool {
        let returned = || self.is_zero().then_some(());
        wait_until(&self.doorbell, WaitPolicy::SLEEP_SOON, deadline, || None, returned).is_ok()
    }

    pub(super) fn is_zero(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }
}

/// One scheduled call of the caller's function, which is counted until this value is dropped.
#[derive(Debug)]
struct PendingCallback(Arc<CallbackCount>);

impl PendingCallback {
    fn new(count: &Arc<CallbackCount>) -> Self {
        count.left.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for PendingCallback {
    fn drop(&mut self) {
        self.0.left.fetch_sub(1, Ordering::AcqRel);
        self.0.doorbell.notify();
    }
}

/// The buckets of a step for which one completion callback calls the caller's function.
#[derive(Debug)]
pub(super) struct CallbackBuckets {
    pub(super) memory: Arc<GradMemory>,
    pub(super) buckets: Range<usize>,
    pub(super) step: u64,
    /// The votes of all ranks. If set, the function is called only if no rank voted against the
    /// step.
    pub(super) votes: Option<Arc<OnceLock<u64>>>,
    /// Whether the results are scattered over the ranks. The results are then in other memory,
    /// which `dist_shard_ranges` returns.
    pub(super) is_sharded: bool,
}

impl CallbackBuckets {
    fn call(&self, function: &dyn Fn(&BucketView<'_>)) {
        let is_refused = self.votes.as_ref().is_some_and(|votes| votes.get() != Some(&0));
        if is_refused {
            return;
        }
        for index in self.buckets.clone() {
            let bucket = &self.memory.layout.buckets[index];
            let is_here = !bucket.is_owned && !self.is_sharded;
            let data = self.memory.bucket_result(index).or_else(|| self.memory.bucket_slots(index));
            function(&BucketView {
                index,
                n_buckets: self.memory.layout.buckets.len(),
                data: data.filter(|_| is_here).unwrap_or(Dst::empty()),
                dtype: bucket.dtype,
                params: &bucket.params,
                offsets: &bucket.offsets,
                step: self.step,
            });
        }
    }
}

impl OnBucket {
    /// Schedules a call of the function for each of `buckets`. The calls are made when `work` ends
    /// without error.
    pub(super) fn schedule(
        &self,
        count: &Arc<CallbackCount>,
        work: &Work,
        buckets: CallbackBuckets,
    ) -> Result<()> {
        let pending = PendingCallback::new(count);
        let function = Arc::clone(&self.function);
        work.on_complete(self.key, move |outcome| {
            let _pending = pending;
            if outcome.is_ok() {
                buckets.call(&*function);
            }
        })
    }
}
