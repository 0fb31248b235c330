//! The options of a reducer, and the text by which the ranks check that their options are equal.

use super::hook::HookChoice;
use super::layout::BucketLimits;
use super::memory::MemoryNeeds;
use super::param::Param;
use crate::base::error::{Error, Result};

/// The default bucket size on a device. It is PyTorch's, and suits NCCL, whose calls cost tens of
/// microseconds.
const DEVICE_BUCKET: usize = 25 << 20;

/// The default bucket size in host memory. It suits shared memory, where a call costs a microsecond
/// and a bucket of this size stays in the cache. The exposed communication time is the time for
/// which the caller waits at the end of a step. Over TCP (loopback, 100 MiB of gradients, 0.5 ms of
/// computation per 512 KiB), it depends on the bucket size:
///
/// | bucket (MiB) | exposed (ms) |
/// |---|---|
/// | 1 | 10 |
/// | 2 | 28 |
/// | 4 | 32 |
/// | 8 | 37 |
/// | 25 | 29 |
const HOST_BUCKET: usize = 1 << 20;

/// The default upper limit of the first bucket, so that communication begins early.
const FIRST_BUCKET: usize = 1 << 20;

/// The divisor of the sum of gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DividePolicy {
    /// The number of ranks that have data in the step.
    #[default]
    World,
    /// No division.
    None,
    /// The number of ranks when the reducer was created.
    Initial,
    /// The sum of the weights of all ranks.
    Weighted,
}

/// The handling of a parameter that the caller did not mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingPolicy {
    /// The step fails on all ranks.
    #[default]
    Error,
    /// The rank contributes zeros and receives the result.
    Zero,
    /// The rank contributes zeros; a parameter that no rank used keeps its gradient.
    Skip,
}

/// Options of a reducer; see `dist_reducer_options_t`.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "the flags of the C interface")]
pub struct ReducerOptions {
    /// The size limit of buckets; 0 for the default of the transport.
    pub bucket_bytes: usize,
    /// The size limit of the first bucket; 0 for the smaller of `bucket_bytes` and 1 MiB.
    pub first_bucket_bytes: usize,
    /// The divisor of the sum of gradients.
    pub divide: DividePolicy,
    /// The handling of a parameter that the caller did not mark.
    pub missing: MissingPolicy,
    /// The deadline of each operation in milliseconds; 0 for the group's default, `u64::MAX` for no
    /// deadline.
    pub timeout_ms: u64,
    /// Results do not overwrite gradients, so that a step can be retried.
    pub is_retryable: bool,
    /// Gradients are added in rank order.
    pub is_canonical: bool,
    /// The layout does not follow the order in which gradients become ready.
    pub has_fixed_layout: bool,
    /// Gradient slots may move when the layout changes.
    pub moves_grads: bool,
    /// All steps use the same parameters, equally often.
    pub is_static: bool,
    /// Buffers are broadcast at the beginning of each step.
    pub broadcasts_buffers: bool,
    /// Ranks may run out of data at different steps.
    pub is_uneven: bool,
    /// The values of rank 0 are not broadcast when the reducer is created.
    pub omits_broadcast: bool,
    /// An exported layout to use.
    pub layout: Option<Vec<u8>>,
    /// The caller's stream that computes the gradients on a device.
    pub stream: Option<usize>,
    /// Each rank gets only the results of its own elements.
    pub is_sharded: bool,
    /// Buckets share memory for gradient slots.
    pub shares_grads: bool,
    /// The hook that reduces buckets.
    pub hook: HookChoice,
    /// A name for the log.
    pub name: String,
}

impl ReducerOptions {
    /// Returns the size limits of buckets.
    pub(super) fn limits(&self, params: &[Param]) -> BucketLimits {
        let is_on_device = params.iter().any(|param| param.is_trained() && param.device.is_some());
        let rest = match self.bucket_bytes {
            0 if is_on_device => DEVICE_BUCKET,
            0 => HOST_BUCKET,
            bytes => bytes,
        };
        let first = match self.first_bucket_bytes {
            0 => rest.min(FIRST_BUCKET),
            bytes => bytes,
        };
        BucketLimits { first, rest }
    }

    /// Refuses options that exclude each other.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(super) fn check(&self) -> Result<()> {
        if self.shares_grads && !self.is_sharded {
            return Err(Error::invalid(
                "flags: DIST_REDUCER_SHARE_GRADS needs DIST_REDUCER_SHARDED",
            ));
        }
        if !self.is_sharded {
            return Ok(());
        }
        let wrong = if self.is_retryable {
            "DIST_REDUCER_RETRYABLE, because the results of a dead rank are lost: for steps that \
             can be repeated, omit DIST_REDUCER_SHARDED and give the shard two `copies`"
        } else if !matches!(self.hook, HookChoice::AllReduce) {
            "a hook"
        } else {
            return Ok(());
        };
        Err(Error::invalid(format!("flags: DIST_REDUCER_SHARDED cannot be combined with {wrong}")))
    }

    /// Returns the memory that the buckets need.
    pub(super) fn memory_needs(&self) -> MemoryNeeds {
        MemoryNeeds { has_separate_results: self.is_retryable, shares_slots: self.shares_grads }
    }

    /// Returns whether steps begin with an exchange of weights.
    pub(super) fn exchanges_weights(&self) -> bool {
        self.is_uneven || self.divide == DividePolicy::Weighted
    }

    /// Describes the options that must be equal on all ranks.
    pub(super) fn agreement(&self) -> String {
        let Self { bucket_bytes, first_bucket_bytes, divide, missing, .. } = self;
        let flags = [
            (self.is_retryable, "RETRYABLE"),
            (self.is_canonical, "CANONICAL"),
            (self.has_fixed_layout, "FIXED_LAYOUT"),
            (self.moves_grads, "MOVE_GRADS"),
            (self.is_static, "STATIC_GRAPH"),
            (self.broadcasts_buffers, "BROADCAST_BUFFERS"),
            (self.is_uneven, "UNEVEN"),
            (self.omits_broadcast, "NO_BROADCAST"),
            (self.is_sharded, "SHARDED"),
            (self.shares_grads, "SHARE_GRADS"),
        ];
        let set: Vec<&str> =
            flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name).collect();
        format!(
            "bucket_bytes {bucket_bytes}, first_bucket_bytes {first_bucket_bytes}, divide {divide:?}, missing \
             {missing:?}, hook {}, flags {}",
            self.hook.agreement(),
            if set.is_empty() { "0".to_owned() } else { set.join("|") }
        )
    }
}
