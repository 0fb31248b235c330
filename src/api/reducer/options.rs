//! What a caller chooses for a reducer, and what all ranks must choose alike.

use super::hook::HookChoice;
use super::layout::BucketLimits;
use super::param::Param;
use super::step::GradMark;
use crate::base::error::{Error, Result};

/// The bucket of PyTorch, which suits NCCL: its calls cost tens of microseconds.
const DEVICE_BUCKET: usize = 25 << 20;

/// In shared memory a call costs a microsecond, and so much stays in the cache. Over TCP (loopback,
/// 100 MiB of gradients, 0.5 ms of computation for each 512 KiB) buckets of 1, 2, 4, 8 and 25 MiB
/// exposed 10, 28, 32, 37 and 29 ms.
const HOST_BUCKET: usize = 1 << 20;

/// The first bucket is no larger by default, so that communication begins early.
const FIRST_BUCKET: usize = 1 << 20;

/// What the sum of gradients is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DividePolicy {
    /// The number of ranks that have data in the step.
    World,
    /// Nothing.
    None,
    /// The number of ranks with which the reducer was created.
    Initial,
    /// The weights of all ranks together.
    Weighted,
}

/// What happens if the caller did not mark a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingPolicy {
    /// The step fails on all ranks.
    Error,
    /// The rank contributes zeros, and gets the result.
    Zero,
    /// The rank contributes zeros; a parameter that no rank used keeps its gradient.
    Skip,
}

/// See `dist_reducer_options_t`.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "the flags of the C interface")]
pub struct ReducerOptions {
    /// 0 for what suits the transport.
    pub bucket_bytes: usize,
    /// 0 for the smaller of `bucket_bytes` and 1 MiB.
    pub first_bucket_bytes: usize,
    /// What the sum of gradients is divided by.
    pub divide: DividePolicy,
    /// What happens if the caller did not mark a parameter.
    pub missing: MissingPolicy,
    /// The deadline of each operation in milliseconds; 0 for the group's, `u64::MAX` for none.
    pub timeout_ms: u64,
    /// Results do not overwrite gradients, so that a step can be repeated.
    pub is_retryable: bool,
    /// Gradients are added in the order of ranks.
    pub is_canonical: bool,
    /// The layout does not follow the order in which gradients become ready.
    pub has_fixed_layout: bool,
    /// Places may move when the layout changes.
    pub moves_grads: bool,
    /// All steps use the same parameters, equally often.
    pub is_static: bool,
    /// Buffers are broadcast at the beginning of each step.
    pub broadcasts_buffers: bool,
    /// Ranks may run out of data at different steps.
    pub is_uneven: bool,
    /// The values of rank 0 are broadcast when the reducer is created.
    pub broadcasts_values: bool,
    /// An exported layout.
    pub layout: Option<Vec<u8>>,
    /// The caller's stream in which gradients on a device are computed.
    pub stream: Option<usize>,
    /// Each rank gets the results of its own elements only.
    pub is_sharded: bool,
    /// Buckets of places share memory.
    pub shares_grads: bool,
    /// How buckets are reduced.
    pub hook: HookChoice,
    /// A name for the log.
    pub name: String,
}

impl Default for ReducerOptions {
    fn default() -> Self {
        Self {
            bucket_bytes: 0,
            first_bucket_bytes: 0,
            divide: DividePolicy::World,
            missing: MissingPolicy::Error,
            timeout_ms: 0,
            is_retryable: false,
            is_canonical: false,
            has_fixed_layout: false,
            moves_grads: false,
            is_static: false,
            broadcasts_buffers: false,
            is_uneven: false,
            broadcasts_values: true,
            layout: None,
            stream: None,
            is_sharded: false,
            shares_grads: false,
            hook: HookChoice::AllReduce,
            name: String::new(),
        }
    }
}

impl ReducerOptions {
    /// The limits of buckets.
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

    /// Refuses choices that exclude each other.
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
            "DIST_REDUCER_RETRYABLE: a rank that has died had results that no other rank has. For steps that can be repeated, \
             leave DIST_REDUCER_SHARDED out and give the shard two `copies`"
        } else if !matches!(self.hook, HookChoice::AllReduce) {
            "a hook"
        } else {
            return Ok(());
        };
        Err(Error::invalid(format!("flags: DIST_REDUCER_SHARDED does not go with {wrong}")))
    }

    /// Whether results are apart from gradients, and whether buckets of places share memory.
    pub(super) fn apart(&self) -> (bool, bool) {
        (self.is_retryable, self.shares_grads)
    }

    /// Whether a parameter with this mark keeps its gradient if no rank used it.
    pub(super) fn keeps_unused(&self, mark: GradMark) -> bool {
        mark == GradMark::Unused || self.missing == MissingPolicy::Skip
    }

    /// Whether steps begin with an exchange of weights.
    pub(super) fn exchanges_weights(&self) -> bool {
        self.is_uneven || self.divide == DividePolicy::Weighted
    }

    /// What all ranks must choose alike, as text.
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
            (!self.broadcasts_values, "NO_BROADCAST"),
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
