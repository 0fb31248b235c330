//! Data-parallel training: a reducer that averages gradients while they are computed, and a
//! sampler.
//!
//! A reducer is what PyTorch's DistributedDataParallel has below autograd (c10d's `Reducer`). The
//! caller says when a gradient is there. Once all gradients of a bucket are, the bucket is reduced,
//! always in the order of the layout, so that all ranks issue the same operations in the same order
//! ([`launch`]). A step ends with one agreement of all ranks ([`ballot`]).
//!
//! # A step that is repeated
//! A rank contributes to the agreement only after all its buckets are reduced, since the operations
//! of a group run in order. So if one rank has seen the agreement on a step, every other rank has
//! all results of the step. After a failure, a rank that has not seen it takes it from one that has
//! ([`state_agreement`]); if no rank has seen it, all reduce the same gradients again.
//!
//! Does not depend on: C types, back ends, how operations run.

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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use step::ReducerStep;

/// Averages the gradients of a model over the ranks of a group.
#[derive(Debug)]
pub struct Reducer {
    params: Vec<Param>,
    options: ReducerOptions,
    /// The device that has gradients, if one has.
    device: Option<GradStream>,
    /// How buckets are reduced, if not by one all_reduce each.
    hook: Option<Arc<Hook>>,
    state: Mutex<ReducerState>,
    /// Functions of [`Reducer::on_bucket`] that are to be called and have not returned.
    callbacks: Arc<CallbackCount>,
}

/// Counts functions that have not returned.
#[derive(Debug, Default)]
struct CallbackCount {
    left: AtomicUsize,
    bell: Doorbell,
}

#[derive(Debug)]
struct ReducerState {
    /// Not kept: who leaves the group need not release the reducer before.
    group: Weak<Group>,
    memory: Arc<GradMemory>,
    /// The reduced gradients, if buckets are scattered.
    own: Option<Arc<OwnGrads>>,
    /// Shares the optimizer over the ranks.
    shard: Weak<Shard>,
    /// How often the shard has given its parameters to all ranks.
    gathers: u64,
    phase: ReducerPhase,
    /// How many synchronised steps have ended.
    steps: u64,
    /// The number of ranks when the reducer was created.
    initial_ranks: usize,
    /// Parameters that were used in steps without communication since the last step with it.
    used_before: Vec<bool>,
    /// The ranks still want to know the order in which gradients become ready.
    wants_order: bool,
    /// How often each parameter is marked in a step, if that is fixed and known.
    expected_marks: Option<Vec<u32>>,
    /// The agreement on the last step that ended.
    last: Option<Ballot>,
    /// The lowest rank that had data in the last step in which ranks had.
    last_active: usize,
    on_bucket: Option<OnBucket>,
    /// The reduced rows of sparse gradients, of the last step that ended.
    sparse: HashMap<usize, SparseResult>,
    totals: ReducerTotals,
}

/// Where a reducer is between steps.
#[derive(Debug)]
enum ReducerPhase {
    /// No step has begun.
    Idle,
    /// A step without communication, with the parameters that were marked.
    Local(Vec<bool>),
    /// A step whose end was not called, or is to be called again after [`Reducer::regroup`].
    Open(Box<ReducerStep>),
    /// The ranks agree on a step. The work is that of the agreement.
    Ending(Box<ReducerStep>, Arc<Work>, Option<VoteDelivery>),
    /// The step could not end.
    Failed(Box<ReducerStep>, Error),
    /// Another rank has told that the step has ended; the end was not called again yet.
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
    /// Makes a reducer together with the other ranks of a group: compares parameters and options,
    /// agrees on the layout, and broadcasts the values of the parameters.
    ///
    /// # Errors
    /// `InvalidArgument`, `Unsupported` with nothing done; `Mismatch` on all ranks if parameters or
    /// options differ; those of collectives.
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, with the outcome of the last agreement noted.
    fn settled(&self) -> MutexGuard<'_, ReducerState> {
        let mut state = self.lock();
        state.settle();
        state
    }

    /// The options of an operation.
    fn call_options(&self) -> CallOptions {
        CallOptions {
            timeout_ms: self.options.timeout_ms,
            canonical: self.options.is_canonical,
            ..CallOptions::DEFAULT
        }
    }

    /// Where a gradient is to be written, and its number of elements.
    ///
    /// # Errors
    /// `InvalidArgument` for a parameter that does not exist or has no gradient.
    pub fn grad(&self, param: usize) -> Result<(Dst<'static>, usize)> {
        let known = self.dense(param)?;
        if known.grad.is_none() && self.options.shares_grads {
            return Ok((self.shared_place(param)?, known.count));
        }
        let place = known.grad.or_else(|| self.lock().memory.place(param));
        Ok((place.unwrap_or(Dst::empty()), known.count))
    }

    /// Where a reduced gradient is after the end of a step, and its number of elements.
    ///
    /// # Errors
    /// As [`Self::grad`].
    pub fn result(&self, param: usize) -> Result<(Dst<'static>, usize)> {
        let known = self.dense(param)?;
        if self.options.is_sharded {
            let message = "with DIST_REDUCER_SHARDED a rank has the results of its own elements only: dist_shard_ranges \
                           gives them";
            return Err(Error::invalid(message));
        }
        let memory = Arc::clone(&self.lock().memory);
        let place = known.grad.or_else(|| memory.result(param)).or_else(|| memory.place(param));
        Ok((place.unwrap_or(Dst::empty()), known.count))
    }

    /// A parameter that has a gradient with a place.
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

    /// A parameter that has a gradient.
    fn trained(&self, param: usize) -> Result<&Param> {
        let Some(known) = self.params.get(param) else {
            let count = self.params.len();
            return Err(Error::invalid(format!(
                "parameter {param} does not exist: the reducer has {count}"
            )));
        };
        if known.is_trained() {
            return Ok(known);
        }
        let message =
            format!("parameter \"{}\" is frozen or a buffer: it has no gradient", known.name);
        Err(Error::invalid(message))
    }

    /// Waits until no operation uses memory of the caller or of the reducer any more. Operations
    /// have deadlines.
    pub fn retire(&self) {
        self.await_step();
        self.await_last_callback();
    }

    /// The exported layout.
    pub fn layout(&self) -> Vec<u8> {
        let memory = Arc::clone(&self.lock().memory);
        memory.layout.export(&self.params).to_string().into_bytes()
    }
}

impl ReducerState {
    /// The group, while there is one.
    fn group(&self) -> Result<Arc<Group>> {
        self.group.upgrade().ok_or_else(|| {
            let message = "the group of the reducer was released: pass another one to dist_reducer_regroup, or release \
                           the reducer first";
            Error::new(ErrorKind::InvalidHandle, message)
        })
    }

    /// Notes that the agreement on a step has failed.
    fn settle(&mut self) {
        let ReducerPhase::Ending(_, work, _) = &self.phase else { return };
        let Some(Err(error)) = work.outcome() else { return };
        if let ReducerPhase::Ending(step, ..) =
            std::mem::replace(&mut self.phase, ReducerPhase::Idle)
        {
            self.phase = ReducerPhase::Failed(step, error);
        }
    }

    /// The error of a call that another phase needs.
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
        // Its divisor may be another number than that of the ranks.
        DividePolicy::World | DividePolicy::Initial | DividePolicy::Weighted => ReduceOp::PremulSum,
    };
    for param in params.iter().filter(|param| param.is_trained()) {
        let title = || format!("the gradient of parameter \"{}\"", param.name);
        options.hook.check(param).context(title)?;
        if options.is_sharded && (param.is_sparse || param.device.is_some()) {
            let message =
                format!("{}: DIST_REDUCER_SHARDED is for dense gradients in host memory", title());
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
