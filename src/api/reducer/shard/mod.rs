//! Distribution of the state of an optimizer over the ranks (ZeRO).
//!
//! Each rank updates only its own elements, and keeps the optimizer's state only for these
//! elements. After the update, every rank sends its elements to all ranks ([`gather`]). With
//! copies, several ranks update the same elements with the same gradients. Then no state is lost if
//! a rank dies, and the remaining ranks redistribute the states ([`reshard`]).
//!
//! # Failure of a gather
//! A gather ends with one agreement, to which a rank contributes after it has all parameters. If
//! one rank has received the agreement, all ranks have the parameters. A rank without the agreement
//! gets it when the reducer continues in another group. If no rank has the agreement, the caller
//! repeats the call, which redistributes states and parameters from the ranks that updated them.
//!
//! This module does not depend on how an optimizer uses the states.

mod gather;
mod local;
mod reshard;
mod save;

pub use local::ShardOptions;

use super::reducer_state::{Reducer, ReducerState, ShardGather};
use super::shard_split::SplitPiece;
use crate::api::collective::call::CallOptions;
use crate::api::group::process_group::Group;
use crate::api::work::callbacks;
use crate::api::work::handle::Work;
use crate::base::buffer::Dst;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::lock;
use local::{LocalShard, ShardPiece};
use reshard::{ShardModel, ShardSnapshot};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The maximum number of states of a shard.
const MOST_STATES: usize = 64;

/// A gather in progress.
#[derive(Clone, Debug)]
pub(super) struct PendingGather {
    /// The works of the buckets.
    buckets: Vec<Arc<Work>>,
    /// The work of the agreement.
    end: Arc<Work>,
    /// The number of steps that had ended when the gather began.
    steps: u64,
}

impl PendingGather {
    pub(super) fn all(&self) -> Vec<Arc<Work>> {
        self.buckets.iter().chain(std::iter::once(&self.end)).map(Arc::clone).collect()
    }

    /// Returns whether this rank has all parameters.
    fn is_complete(&self) -> bool {
        self.buckets.iter().all(|work| matches!(work.outcome(), Some(Ok(()))))
    }
}

/// A range of elements that this rank updates.
#[derive(Clone, Copy, Debug)]
pub struct ShardRange {
    /// The parameter.
    pub param: usize,
    /// The index of the first element in the parameter.
    pub begin: usize,
    /// The number of elements.
    pub count: usize,
    /// The bucket with the gradients of the elements.
    pub bucket: usize,
    /// The index of the first element in each state.
    pub offset: usize,
    /// The values of the elements.
    pub data: Dst<'static>,
    /// The reduced gradients of the elements.
    pub grad: Dst<'static>,
}

/// This rank's part of an optimizer.
#[derive(Debug)]
pub struct Shard {
    reducer: Arc<Reducer>,
    options: ShardOptions,
    state: Mutex<ShardState>,
}

#[derive(Debug)]
struct ShardState {
    local: Arc<LocalShard>,
    /// The last gather, unless it has ended without error.
    gather: Option<PendingGather>,
    /// Set if this rank learned from another rank that its failed gather has ended: the number of
    /// steps that had ended when the gather began. If the caller repeats the gather before the next
    /// step ends, the call has nothing to do.
    adopted: Option<u64>,
}

impl Shard {
    /// Distributes the states of an optimizer over the ranks of a reducer, or joins ranks that
    /// redistribute the states of their shard. All ranks call this.
    ///
    /// # Errors
    /// `InvalidArgument` and `Unsupported` before any communication; `Mismatch` on all ranks if the
    /// options differ; the errors of collectives.
    pub fn create(reducer: &Arc<Reducer>, options: ShardOptions) -> Result<Arc<Self>> {
        callbacks::reject_blocking_in_callback("dist_shard_create")?;
        check(reducer, &options)?;
        let group = {
            let mut state = reducer.between_steps("a shard can be created only between steps")?;
            if state.shard.as_ref().is_some_and(|shard| shard.strong_count() > 0) {
                return Err(Error::invalid(
                    "the reducer already has a shard: release that shard first",
                ));
            }
            // The layout must not change any more, because the elements of a rank depend on it.
            state.wants_order = false;
            state.group()?
        };
        let memory = Arc::clone(&reducer.lock().memory);
        let model = ShardModel { params: &reducer.params, memory: &memory };
        let ShardSnapshot { local, gathers } =
            reshard::redistribute(model, &group, &options, None)?;
        let state = Mutex::new(ShardState { local, gather: None, adopted: None });
        let shard = Arc::new(Self { reducer: Arc::clone(reducer), options, state });
        let mut state = reducer.lock();
        let gather: Weak<dyn ShardGather> = Arc::<Self>::downgrade(&shard);
        state.shard = Some(gather);
        state.gathers = gathers;
        drop(state);
        Ok(shard)
    }

    fn lock(&self) -> MutexGuard<'_, ShardState> {
        lock(&self.state)
    }

    fn local_shard(&self) -> Arc<LocalShard> {
        Arc::clone(&self.lock().local)
    }

    /// Returns the elements that this rank updates.
    ///
    /// # Errors
    /// `InvalidArgument` if the gradients are split over another group than the states.
    pub fn ranges(&self) -> Result<Vec<ShardRange>> {
        let local = self.local_shard();
        if self.reducer.options.is_sharded {
            self.usable_group()?;
        } else {
            self.reducer.lock().group()?;
        }
        let state = self.reducer.lock();
        let range = |held: &ShardPiece| self.reducer.range(&state, held);
        local.pieces.iter().map(range).collect()
    }

    /// Returns the group of the reducer, over which the states are split.
    fn usable_group(&self) -> Result<Arc<Group>> {
        let group = self.reducer.lock().group()?;
        if self.local_shard().is_in(&group) {
            return Ok(group);
        }
        let message = "the reducer continues in another group: call dist_shard_gather first, which \
                       redistributes the states";
        Err(Error::invalid(message))
    }

    /// Returns the address of one state of the elements that this rank updates, and the number of
    /// these elements. The address is valid until states are redistributed.
    ///
    /// # Errors
    /// `InvalidArgument` for a state that does not exist.
    pub fn state(&self, index: usize) -> Result<(*mut f32, usize)> {
        let local = self.local_shard();
        let Some(array) = local.states.get(index) else {
            let count = local.states.len();
            return Err(Error::invalid(format!(
                "state {index} does not exist: the shard has {count}"
            )));
        };
        Ok((array.as_mut_ptr(), local.count))
    }

    fn call_options(&self) -> CallOptions {
        CallOptions { timeout_ms: self.options.timeout_ms, ..CallOptions::DEFAULT }
    }

    /// Waits until no operation uses the parameters. Each operation has a deadline.
    pub fn retire(&self) {
        self.await_gather();
    }
}

impl Reducer {
    fn range(&self, state: &ReducerState, held: &ShardPiece) -> Result<ShardRange> {
        let ShardPiece { piece, offset, .. } = *held;
        let SplitPiece { param, begin, count, bucket, .. } = piece;
        let known = &self.params[param];
        let part = |whole: Dst<'static>, size: usize| whole.slice(begin * size, count * size);
        let grad = match &state.own {
            Some(own) => own.grad(&state.memory.layout, &piece),
            None => {
                let buffer = state.memory.reduced_grad(param, &self.params);
                let buffer = buffer.ok_or_else(|| Error::internal("a gradient has no memory"))?;
                part(buffer, known.grad_dtype.size())
            }
        };
        let data = piece.values(&self.params);
        Ok(ShardRange { param, begin, count, bucket, offset, data, grad })
    }
}

impl ReducerState {
    /// Returns the scattered gradients of this rank, by parameter.
    pub(super) fn own_grads(&self) -> Vec<(usize, Dst<'static>)> {
        let Some(own) = &self.own else { return Vec::new() };
        let layout = &self.memory.layout;
        let pieces = own.pieces(layout);
        pieces.into_iter().map(|piece| (piece.param, own.grad(layout, &piece))).collect()
    }
}

/// Checks the arguments locally.
fn check(reducer: &Reducer, options: &ShardOptions) -> Result<()> {
    let ShardOptions { states, copies, .. } = options;
    if states.len() > MOST_STATES {
        let message =
            format!("n_states is {}: a shard has at most {MOST_STATES} states", states.len());
        return Err(Error::invalid(message));
    }
    let is_new =
        |(index, name): (usize, &String)| !name.is_empty() && !states[..index].contains(name);
    if !states.iter().enumerate().all(is_new) {
        return Err(Error::invalid(format!(
            "states are {states:?}: give each state a distinct, nonempty name"
        )));
    }
    if *copies > 1 && reducer.options.is_sharded {
        let message = "copies: with DIST_REDUCER_SHARDED only one rank has the gradients of an \
                       element; for copies create the reducer without it";
        return Err(Error::invalid(message));
    }
    if reducer.options.is_uneven {
        let message = "the reducer has DIST_REDUCER_UNEVEN: a rank without data would not update its elements";
        return Err(Error::invalid(message));
    }
    for param in reducer.params.iter().filter(|param| param.is_trained()) {
        let wrong = match (param.is_sparse, param.device) {
            (true, _) => "has sparse rows",
            (_, Some(_)) => "is in the memory of a device",
            _ => continue,
        };
        let message = format!("parameter \"{}\" {wrong}: a shard does not support it", param.name);
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(())
}
