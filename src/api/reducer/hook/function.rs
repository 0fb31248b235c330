//! A caller's function as a hook.
//!
//! It communicates in a group of its own, which has the ranks of the reducer's group: the turn of
//! the bucket keeps the operations of the reducer's group waiting until the function returns. An
//! abort of the reducer's group reaches that group too.

use super::{HookBucket, HookOutcome};
use crate::api::group::Group;
use crate::api::reducer::launch::BucketView;
use crate::api::subgroup::SubgroupOptions;
use crate::base::error::{Error, ErrorContext as _, Result};
use std::fmt;
use std::sync::Arc;

/// What a function reduces: this rank's gradients, each multiplied by the rank's factor, to be
/// replaced by the sums over all ranks.
#[derive(Debug)]
pub struct HookCall<'c> {
    /// The group in which it communicates.
    pub group: &'c Arc<Group>,
    /// The bucket.
    pub bucket: BucketView<'c>,
    /// The bytes that it sends, for the figures; those of the bucket at first.
    pub bytes_sent: u64,
}

/// Reduces a bucket.
pub type HookBody = dyn Fn(&mut HookCall<'_>) -> Result<()> + Send + Sync;

/// A caller's function.
#[derive(Clone)]
pub struct HookFunction {
    /// A name that all ranks give alike.
    pub name: String,
    /// Settings that all ranks give alike; the library does not read them.
    pub settings: String,
    /// Called with each bucket, one after the other, in the same order on all ranks.
    pub function: Arc<HookBody>,
}

impl fmt::Debug for HookFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookFunction").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The function, and its group.
#[derive(Debug)]
pub(super) struct FunctionHook {
    function: HookFunction,
    group: Arc<Group>,
}

impl FunctionHook {
    /// Made by all ranks of the group together.
    pub(super) fn new(function: &HookFunction, group: &Arc<Group>) -> Result<Self> {
        let made = group.new_group(&[], &SubgroupOptions::default());
        let made = made.context(|| "the group of a hook")?;
        let own = made.ok_or_else(|| Error::internal("a group of all ranks lacks this one"))?;
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
                // The cause, which names the rank that has failed. The group of the hook has the
                // same ranks.
                Some(cause) => cause,
                // The other ranks may wait for this one in the group of the hook.
                None => self.group.fail_with_local_blame(error),
            });
        done.context(|| format!("the hook \"{}\"", self.function.name))?;
        Ok(HookOutcome { bytes_sent: call.bytes_sent, updates: Vec::new() })
    }
}
