//! Data-parallel training: a reducer that averages gradients while they are computed, and a
//! sampler.
//!
//! A reducer corresponds to the part of PyTorch's DistributedDataParallel below autograd (c10d's
//! `Reducer`). The caller marks each gradient that is ready. When all gradients of a bucket are
//! ready, the bucket is reduced. Buckets are sent in the order of the layout, so all ranks issue
//! the same operations in the same order ([`launch`]). A step ends with one agreement of all ranks
//! ([`ballot`]).
//!
//! # Retry of a failed step
//! The operations of a group run in order, so a rank contributes to the agreement only after all
//! its buckets are reduced. If one rank has received the agreement on a step, every other rank has
//! all results of the step. After a failure, a rank without the agreement gets it from a rank that
//! has it ([`state_agreement`]). If no rank has it, all ranks reduce the same gradients again.
//!
//! This module does not depend on C types, on back ends, or on how operations run.

mod array;
mod ballot;
mod check;
mod clip;
mod device;
mod device_bucket;
mod end;
mod hook;
mod join;
mod launch;
mod layout;
mod memory;
mod options;
mod outer;
mod param;
mod pool;
mod report;
pub mod sampler;
mod shard;
mod sparse;
mod state_agreement;
mod step;
mod task;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod values;
mod weights;

pub use clip::NormType;
pub use end::VoteDelivery;
pub use hook::{HookBody, HookCall, HookChoice, HookFunction};
pub use launch::{BucketView, OnBucket};
pub use options::{DividePolicy, MissingPolicy, ReducerOptions};
pub use outer::{Outer, OuterOptimizer, OuterOptions, OuterStats, OuterUpdate};
pub use param::{MOST_PARAMS, Param, ParamRole};
pub use report::ReducerStats;
pub use shard::{Shard, ShardOptions, ShardRange};
pub use values::ParamSelection;

use super::call::{Call, CallOptions};
use super::callbacks;
use super::group::Group;
use super::work::Work;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::gpu::GpuTarget;
use crate::base::op::ReduceOp;
use crate::base::sync::lock;
use crate::wait::doorbell::Doorbell;
use ballot::Ballot;
use device::GradStream;
use hook::Hook;
use layout::BucketLayout;
use memory::GradMemory;
use report::ReducerTotals;
use shard::OwnGrads;
use sparse::SparseResult;
use state_agreement::NewReducer;
use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use step::ReducerStep;

/// Averages the gradients of a model over the ranks of a group.
#[derive(Debug)]
pub struct Reducer {
    params: Vec<Param>,
    options: ReducerOptions,
    /// The device of the gradients, if they are on a device.
    device: Option<GradStream>,
    /// The hook that reduces buckets; `None` for one all_reduce per bucket.
    hook: Option<Arc<Hook>>,
    state: Mutex<ReducerState>,
    /// The number of pending functions of [`Reducer::on_bucket`].
    callbacks: Arc<CallbackCount>,
}

/// Counts functions that have not returned.
#[derive(Debug, Default)]
struct CallbackCount {
    left: AtomicUsize,
    doorbell: Doorbell,
}

#[derive(Debug)]
struct ReducerState {
    /// A weak reference, so that a rank can release the group before the reducer.
    group: Weak<Group>,
    memory: Arc<GradMemory>,
    /// The reduced gradients of this rank's elements, if buckets are scattered.
    own: Option<Arc<OwnGrads>>,
    /// The shard that distributes the optimizer over the ranks.
    shard: Weak<Shard>,
    /// The number of completed gathers of the shard.
    gathers: u64,
    phase: ReducerPhase,
    /// The number of synchronised steps that have ended.
    steps: u64,
    /// The number of ranks when the reducer was created.
    initial_ranks: usize,
    /// Whether each parameter was used in the steps without communication since the last
    /// synchronised step.
    used_before: Vec<bool>,
    /// Whether the ranks still need the order in which gradients become ready.
    wants_order: bool,
    /// How often each parameter is marked in a step, if this is fixed and known.
    expected_marks: Option<Vec<u32>>,
    /// The agreement on the last step that ended.
    last: Option<Ballot>,
    /// The lowest rank with data in the last step in which a rank had data.
    last_active: usize,
    on_bucket: Option<OnBucket>,
    /// The reduced rows of sparse gradients of the last step that ended.
    sparse: HashMap<usize, SparseResult>,
    totals: ReducerTotals,
}

/// The phase of a reducer.
#[derive(Debug)]
enum ReducerPhase {
    /// No step is open.
    Idle,
    /// A step without communication is open; the flags show the marked parameters.
    Local(Vec<bool>),
    /// A step is open. Its end was not called, or must be called again after [`Reducer::regroup`].
    Open(Box<ReducerStep>),
    /// The ranks agree on a step; the work is that of the agreement.
    Ending(Box<ReducerStep>, Arc<Work>, Option<VoteDelivery>),
    /// The step failed at its end.
    Failed(Box<ReducerStep>, Error),
    /// The step ended on another rank, which reported it. This rank's end was not called again yet.
    Adopted(u64, Result<()>),
}

impl ReducerPhase {
    fn name(&self) -> &'static str {
        match self {
            Self::Idle => "no step has begun",
            Self::Local(_) => "a step without communication is open",
            Self::Open(_) => "a step is open",
            Self::Ending(..) => "the ranks agree on a step",
            Self::Failed(..) => "a step has failed",
            Self::Adopted(..) => "a step has ended on other ranks",
        }
    }
}

impl Reducer {
    /// Creates a reducer together with the other ranks of a group. The ranks compare parameters and
    /// options, agree on the layout, and broadcast the values of the parameters.
    ///
    /// # Errors
    /// `InvalidArgument` and `Unsupported` before any communication; `Mismatch` on all ranks if
    /// parameters or options differ; the errors of collectives.
    pub fn create(
        group: &Arc<Group>,
        params: Vec<Param>,
        options: ReducerOptions,
    ) -> Result<Arc<Self>> {
        callbacks::reject_blocking_in_callback("dist_reducer_create")?;
        param::check_params(&params)?;
        options.check()?;
        check_supported(group, &params, &options)?;
        let device = params.iter().find_map(|param| param.device.filter(|_| param.is_trained()));
        let device =
            device.map(|device| GradStream::new(GpuTarget { device, stream: options.stream }));
        let device = device.transpose()?;
        let given = options.layout.as_deref().map(|bytes| BucketLayout::import(&params, bytes));
        let (own, is_given) = match given {
            Some(layout) => (layout?, true),
            None => (BucketLayout::reversed(&params, options.limits(&params)), false),
        };
        let has_places = params.iter().any(|param| param.is_trained() && param.grad.is_none());
        let follows_order = !options.has_fixed_layout
            && !options.is_sharded
            && !is_given
            && (!has_places || options.moves_grads);
        let newcomer = NewReducer { layout: own, is_given, wants_order: follows_order };
        let met = state_agreement::create(group, &params, &options, newcomer)?;
        let hook = Hook::new(&options.hook, group, &params, met.steps)?.map(Arc::new);
        let own = match options.is_sharded {
            true => Some(OwnGrads::new(group, &met.layout)?),
            false => None,
        };
        let memory = GradMemory::new(group, met.layout, options.apart(), device.as_ref())?;
        let state = ReducerState {
            group: Arc::downgrade(group),
            memory: Arc::new(memory),
            own,
            shard: Weak::new(),
            gathers: met.gathers,
            phase: ReducerPhase::Idle,
            steps: met.steps,
            initial_ranks: met.initial_ranks,
            used_before: vec![false; params.len()],
            wants_order: met.wants_order,
            expected_marks: None,
            last: None,
            last_active: 0,
            on_bucket: None,
            sparse: HashMap::new(),
            totals: ReducerTotals::default(),
        };
        let state = Mutex::new(state);
        let reducer =
            Arc::new(Self { params, options, device, hook, state, callbacks: Arc::default() });
        if reducer.options.broadcasts_values {
            reducer.broadcast_in(group, met.source_rank, ParamSelection::ALL)?;
        }
        reducer.log_creation(group);
        Ok(reducer)
    }

    fn lock(&self) -> MutexGuard<'_, ReducerState> {
        lock(&self.state)
    }

    /// Locks the state and records the outcome of the last agreement.
    fn settled(&self) -> MutexGuard<'_, ReducerState> {
        let mut state = self.lock();
        state.settle();
        state
    }

    /// Returns the options of an operation.
    fn call_options(&self) -> CallOptions {
        CallOptions {
            timeout_ms: self.options.timeout_ms,
            canonical: self.options.is_canonical,
            ..CallOptions::DEFAULT
        }
    }

    /// Returns the memory into which a gradient must be written, and its number of elements.
    ///
    /// # Errors
    /// `InvalidArgument` for a parameter that does not exist or has no gradient.
    pub fn grad(&self, param: usize) -> Result<(Dst<'static>, usize)> {
        let known = self.dense(param)?;
        if known.grad.is_none() && self.options.shares_grads {
            return Ok((self.shared_place(param)?, known.count));
        }
        let buffer = known.grad.or_else(|| self.lock().memory.place(param));
        Ok((buffer.unwrap_or(Dst::empty()), known.count))
    }

    /// Returns the memory of a reduced gradient after the end of a step, and its number of
    /// elements.
    ///
    /// # Errors
    /// The errors of [`Self::grad`].
    pub fn result(&self, param: usize) -> Result<(Dst<'static>, usize)> {
        let known = self.dense(param)?;
        if self.options.is_sharded {
            let message = "with DIST_REDUCER_SHARDED a rank has only the results of its own \
                           elements: read them with dist_shard_ranges";
            return Err(Error::invalid(message));
        }
        let memory = Arc::clone(&self.lock().memory);
        let buffer = known.grad.or_else(|| memory.result(param)).or_else(|| memory.place(param));
        Ok((buffer.unwrap_or(Dst::empty()), known.count))
    }

    /// Returns a parameter with a dense gradient.
    fn dense(&self, param: usize) -> Result<&Param> {
        let known = self.trained(param)?;
        if !known.is_sparse {
            return Ok(known);
        }
        let message = format!(
            "the gradient of parameter \"{}\" is sparse: pass it to dist_reducer_ready_rows, and read it with \
             dist_reducer_rows",
            known.name
        );
        Err(Error::invalid(message))
    }

    /// Returns a parameter with a gradient.
    fn trained(&self, param: usize) -> Result<&Param> {
        let Some(known) = self.params.get(param) else {
            let count = self.params.len();
            return Err(Error::invalid(format!(
                "parameter {param} does not exist: the reducer has {count} parameters"
            )));
        };
        if known.is_trained() {
            return Ok(known);
        }
        let message =
            format!("parameter \"{}\" is frozen or a buffer: it has no gradient", known.name);
        Err(Error::invalid(message))
    }

    /// Waits until no operation uses memory of the caller or of the reducer. Each operation has a
    /// deadline.
    pub fn retire(&self) {
        self.await_step();
        self.await_last_callback();
    }

    /// Returns the exported layout.
    pub fn layout(&self) -> Vec<u8> {
        let memory = Arc::clone(&self.lock().memory);
        memory.layout.export(&self.params).to_string().into_bytes()
    }
}

impl ReducerState {
    /// Returns the group if it was not released.
    fn group(&self) -> Result<Arc<Group>> {
        self.group.upgrade().ok_or_else(|| {
            let message = "the group of the reducer was released: pass another one to dist_reducer_regroup, or release \
                           the reducer first";
            Error::new(ErrorKind::InvalidHandle, message)
        })
    }

    /// Records a failed agreement on a step.
    fn settle(&mut self) {
        let ReducerPhase::Ending(_, work, _) = &self.phase else { return };
        let Some(Err(error)) = work.outcome() else { return };
        if let ReducerPhase::Ending(step, ..) =
            std::mem::replace(&mut self.phase, ReducerPhase::Idle)
        {
            self.phase = ReducerPhase::Failed(step, error);
        }
    }

    /// Returns the error of a call that is not allowed in the current phase.
    fn refuse(&self, needs: &str) -> Error {
        let (phase, step) = (self.phase.name(), self.steps);
        Error::invalid(format!("{needs}, but {phase} (step {step})"))
    }
}

/// Refuses gradients that the group or its back end cannot reduce.
fn check_supported(group: &Arc<Group>, params: &[Param], options: &ReducerOptions) -> Result<()> {
    let op = match options.divide {
        DividePolicy::None => ReduceOp::Sum,
        DividePolicy::World if !options.is_uneven => ReduceOp::Avg,
        // The divisor may differ from the number of ranks.
        DividePolicy::World | DividePolicy::Initial | DividePolicy::Weighted => ReduceOp::PremulSum,
    };
    for param in params.iter().filter(|param| param.is_trained()) {
        let title = || format!("the gradient of parameter \"{}\"", param.name);
        options.hook.check(param).context(title)?;
        if options.is_sharded && (param.is_sparse || param.device.is_some()) {
            let message = format!(
                "{}: DIST_REDUCER_SHARDED supports only dense gradients in host memory",
                title()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if let Some(device) = param.device {
            device_bucket::check(group, (device, param.grad_dtype, op), options).context(title)?;
            continue;
        }
        let mut call = Call::all_reduce(Src::empty(), Dst::empty(), param.grad_dtype, op);
        let call_options = CallOptions {
            premul_scale: 1.0,
            canonical: options.is_canonical,
            ..CallOptions::DEFAULT
        };
        group.check_call(&mut call, &call_options).context(title)?;
    }
    Ok(())
}
