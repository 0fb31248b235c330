//! A hook that calls a function of the caller.
//!
//! The function communicates in a group of its own with the same ranks as the reducer's group. The
//! function cannot use the reducer's group, because the operations of that group wait in the queue
//! until the function returns. An abort of the reducer's group also aborts the hook's group.

use super::super::bucket_callback::BucketView;
use super::bucket::{HookBucket, HookOutcome};
use crate::api::group::process_group::Group;
use crate::api::membership::subgroup::SubgroupOptions;
use crate::base::error::{Error, ErrorContext as _, Result};
use std::fmt;
use std::sync::Arc;

/// The input of a hook function: this rank's gradients, each multiplied by this rank's factor. The
/// function replaces the gradients by the sums over all ranks.
#[derive(Debug)]
pub struct HookCall<'c> {
    /// The group in which the function communicates.
    pub group: &'c Arc<Group>,
    /// The bucket.
    pub bucket: BucketView<'c>,
    /// The number of bytes sent, for the statistics; initially the size of the bucket.
    pub bytes_sent: u64,
}

/// A function that reduces a bucket.
pub type HookBody = dyn Fn(&mut HookCall<'_>) -> Result<()> + Send + Sync;

/// A caller's function with its name and settings.
#[derive(Clone)]
pub struct HookFunction {
    /// A name that must be equal on all ranks.
    pub name: String,
    /// Settings that must be equal on all ranks; the library does not interpret them.
    pub settings: String,
    /// The function. It is called with one bucket at a time, in the same order on all ranks.
    pub function: Arc<HookBody>,
}

impl fmt::Debug for HookFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookFunction").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A hook function with its group.
#[derive(Debug)]
pub(super) struct FunctionHook {
    function: HookFunction,
    group: Arc<Group>,
}

impl FunctionHook {
    /// Creates the hook and its group. All ranks of the group call this.
    pub(super) fn new(function: &HookFunction, group: &Arc<Group>) -> Result<Self> {
        let created = group.new_group(&[], &SubgroupOptions::default());
        let created = created.context(|| "the group of a hook")?;
        let own = created.ok_or_else(|| Error::internal("a group of all ranks lacks this rank"))?;
        Ok(Self { function: function.clone(), group: Arc::new(own) })
    }

    pub(super) fn function(&self) -> HookFunction {
        self.function.clone()
    }

    pub(super) fn reduce(&self, bucket: &HookBucket<'_>) -> Result<HookOutcome> {
        bucket.scale_own();
        let mut call = HookCall {
            group: &self.group,
            bucket: BucketView {
                index: bucket.index,
                n_buckets: bucket.n_buckets,
                data: bucket.recv,
                dtype: bucket.spec.dtype,
                params: &bucket.spec.params,
                offsets: &bucket.spec.offsets,
                step: bucket.step,
            },
            bytes_sent: bucket.recv.len() as u64,
        };
        let done =
            (self.function.function)(&mut call).map_err(|error| match self.group.failure() {
                // The error of the hook's group names the failed rank as culprit. The reducer's
                // group has the same ranks with the same numbers.
                Some(cause) => cause,
                // The other ranks may wait for this rank in the group of the hook, so this group
                // must fail.
                None => self.group.fail_with_local_blame(error),
            });
        done.context(|| format!("the hook \"{}\"", self.function.name))?;
        Ok(HookOutcome { bytes_sent: call.bytes_sent, updates: Vec::new() })
    }
}
