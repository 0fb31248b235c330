//! Access to the memory of gradients and results, and the broadcast of parameter values from one
//! rank to all ranks.

use super::layout::GradPosition;
use super::param::{Param, ParamRole};
use super::reducer_state::{Reducer, ReducerPhase};
use super::step::{GradMark, marked_twice};
use crate::api::collective::call::{Call, CallOptions};
use crate::api::group::process_group::Group;
use crate::api::work::callbacks;
use crate::api::work::handle::Work;
use crate::base::buffer::Dst;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorContext as _, Result};
use crate::base::ids::Rank;
use std::sync::Arc;

/// A selection of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamSelection {
    /// Trained and frozen parameters.
    pub params: bool,
    /// Buffers.
    pub buffers: bool,
    /// Reduced gradients.
    pub grads: bool,
}

impl ParamSelection {
    /// Parameters and buffers.
    pub const ALL: Self = Self { params: true, buffers: true, grads: false };
    /// Buffers only.
    pub const BUFFERS: Self = Self { params: false, ..Self::ALL };

    fn includes(self, param: &Param) -> bool {
        match param.role {
            ParamRole::Trained | ParamRole::Frozen => self.params,
            ParamRole::Buffer => self.buffers,
        }
    }

    /// Returns the parameters and buffers of the selection.
    pub(super) fn select(self, params: &[Param]) -> impl Iterator<Item = &Param> {
        params.iter().filter(move |param| self.includes(param))
    }
}

impl Reducer {
    /// Broadcasts the values of one rank to all ranks.
    ///
    /// # Errors
    /// `InvalidArgument` inside a step or for a rank that does not exist; the errors of a
    /// broadcast.
    pub fn broadcast(&self, root: Rank, values: ParamSelection) -> Result<()> {
        callbacks::reject_blocking_in_callback("dist_reducer_broadcast")?;
        if values.grads {
            return Err(Error::invalid(
                "gradients are not broadcast: they are the same on all ranks",
            ));
        }
        let group = self.between_steps("values can be broadcast only between steps")?.group()?;
        self.broadcast_in(&group, root, values)
    }

    /// Broadcasts values in a group. Issues all broadcasts before it waits for any of them.
    pub(super) fn broadcast_in(
        &self,
        group: &Arc<Group>,
        root: Rank,
        values: ParamSelection,
    ) -> Result<()> {
        let options = CallOptions { timeout_ms: self.options.timeout_ms, ..CallOptions::DEFAULT };
        let mut works: Vec<Arc<Work>> = Vec::new();
        let mut outcome = Ok(());
        for param in values.select(&self.params).filter(|param| param.count > 0) {
            let call = Call::broadcast(param.data, param.dtype, root, group.rank());
            let options = match param.device {
                Some(device) => self.device_options(device),
                None => options.clone(),
            };
            match group.issue(call, options) {
                Ok(work) => works.push(work),
                Err(error) => {
                    outcome = Err(error).context(|| format!("parameter \"{}\"", param.name));
                    break;
                }
            }
        }
        for work in works {
            work.set_awaited();
            // The caller may use the values on the host, so this also waits for the device.
            let ended = work.synchronize(&Deadline::never()).map(drop);
            outcome = outcome.and(ended);
        }
        outcome
    }

    /// Returns the memory into which the caller must write a gradient, and the gradient's number of
    /// elements.
    ///
    /// # Errors
    /// `InvalidArgument` for a parameter that does not exist or has no gradient.
    pub fn grad(&self, param: usize) -> Result<(Dst<'static>, usize)> {
        let known = self.dense(param)?;
        if known.grad.is_none() && self.options.shares_grads {
            return Ok((self.shared_slot(param)?, known.count));
        }
        let buffer = known.grad.or_else(|| self.lock().memory.slot(param));
        Ok((buffer.unwrap_or(Dst::empty()), known.count))
    }

    /// Returns the memory that contains a reduced gradient after the end of a step, and the
    /// gradient's number of elements.
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
        let buffer = self.lock().memory.reduced_grad(param, &self.params);
        Ok((buffer.unwrap_or(Dst::empty()), known.count))
    }

    /// Returns the slot of a gradient in the memory that buckets share. The slot is valid until the
    /// gradient is marked. If too many buckets have memory, waits until another bucket is reduced.
    fn shared_slot(&self, param: usize) -> Result<Dst<'static>> {
        let mut at_once = false;
        loop {
            let state = self.lock();
            let ReducerPhase::Open(step) = &state.phase else {
                return Err(state.refuse(
                    "with DIST_REDUCER_SHARE_GRADS a gradient has memory only inside a step \
                     (dist_reducer_begin)",
                ));
            };
            let memory = &state.memory;
            let (Some(GradPosition { bucket, index }), Some(pool)) =
                (memory.layout.positions[param], &memory.pool)
            else {
                return Err(Error::internal("a gradient has no memory"));
            };
            if step.marks[param] != GradMark::Open {
                return Err(marked_twice(&self.params[param].name, step.number));
            }
            let spec = &memory.layout.buckets[bucket];
            if let Some(block) = pool.assign(&*state.group()?, bucket, at_once)? {
                return Ok(spec.part(block.view().slice(0, spec.bytes), index));
            }
            let running = step.works.iter().find(|work| work.outcome().is_none());
            let Some(running) = running.map(Arc::clone) else {
                at_once = true;
                continue;
            };
            drop(state);
            callbacks::reject_blocking_in_callback("dist_reducer_grad")?;
            running.set_awaited();
            running.wait(&Deadline::never())?;
        }
    }

    /// Waits until no operation uses memory of the caller or of the reducer. Each operation has a
    /// deadline, so the wait ends.
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
