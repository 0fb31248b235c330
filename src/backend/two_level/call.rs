//! One operation of a two-level group in progress: its steps, its scratch memory, and the place of
//! this rank.

use super::average::StepOperators;
use super::inner_group::InnerGroups;
use super::scratch::Scratch;
use super::steps::StepRunner;
use crate::base::error::Result;
use crate::base::ids::Rank;

/// One operation in progress.
pub(super) struct TwoLevelCall<'a> {
    pub(super) steps: &'a StepRunner<'a>,
    pub(super) scratch: &'a Scratch,
}

impl<'a> TwoLevelCall<'a> {
    pub(super) fn groups(&self) -> &'a InnerGroups {
        self.steps.groups
    }

    /// Returns the host of this rank.
    pub(super) fn own_host(&self) -> usize {
        self.groups().hosts.node_of(self.groups().rank)
    }

    /// Returns the local rank of this rank.
    pub(super) fn own_local(&self) -> Rank {
        self.groups().hosts.local_rank(self.groups().rank)
    }

    /// Returns the host of the root and its local rank.
    pub(super) fn root(&self) -> Result<(usize, Rank)> {
        let (hosts, root) = (&self.groups().hosts, self.steps.whole.root()?);
        Ok((hosts.node_of(root), hosts.local_rank(root)))
    }

    /// Returns the operators of the steps of this reduction.
    pub(super) fn operators(&self) -> Result<StepOperators> {
        let whole = self.steps.whole;
        let size = self.groups().hosts.rank_count();
        StepOperators::of(whole.op()?, whole.dtype(), whole.factor, size)
    }
}
