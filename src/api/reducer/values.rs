//! Broadcast of the values of parameters and buffers from one rank to all ranks.

use super::param::{Param, ParamRole};
use super::{Reducer, ReducerPhase};
use crate::api::collective::call::{Call, CallOptions};
use crate::api::group::process_group::Group;
use crate::api::work::callbacks;
use crate::api::work::handle::Work;
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
        let group = {
            let state = self.settled();
            if !matches!(state.phase, ReducerPhase::Idle) {
                return Err(state.refuse("values can be broadcast only between steps"));
            }
            state.group()?
        };
        self.broadcast_in(&group, root, values)
    }

    /// Broadcasts values in a group. Issues all broadcasts before it waits for the first one.
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
            // The caller may use the values on the host.
            let ended = work.synchronize(&Deadline::never()).map(drop);
            outcome = outcome.and(ended);
        }
        outcome
    }
}
