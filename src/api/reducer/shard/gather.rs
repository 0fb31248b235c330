//! The gather of parameters: every rank sends the elements that it has updated to all ranks.
//! Buckets are gathered one after the other, starting with the buckets of the model's first layers.

use super::super::operation::{
    self, OperationTurn, ReducerOperation, fail, failed_before, new_work,
};
use super::super::reducer_state::{Reducer, ShardGather};
use super::reshard::{self, ShardModel, ShardSnapshot};
use super::{PendingGather, Shard};
use crate::api::collective::call::Call;
use crate::api::group::process_group::Group;
use crate::api::work::callbacks;
use crate::api::work::handle::Work;
use crate::base::buffer::Dst;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, Result};
use crate::base::label::Label;
use crate::transport::Descriptor;
use std::sync::Arc;

/// The state of a gather after [`Shard::begin_gather`].
enum GatherProgress {
    Completed,
    Pending(Arc<Work>),
}

impl Shard {
    /// Creates a work for [`Self::gather_with`].
    ///
    /// # Errors
    /// `InvalidHandle` if the group was released.
    pub fn new_work(&self) -> Result<Arc<Work>> {
        Ok(new_work(&*self.reducer.lock().group()?))
    }

    /// Sends the elements that this rank has updated to all ranks, and receives the elements that
    /// the other ranks have updated. If the reducer has another group now, also redistributes the
    /// states.
    ///
    /// # Errors
    /// `InvalidArgument` during another gather; `NotFound` if states are lost; the errors of
    /// collectives.
    pub fn gather(&self) -> Result<()> {
        callbacks::reject_blocking_in_callback("dist_shard_gather")?;
        match self.begin_gather(None)? {
            GatherProgress::Completed => Ok(()),
            GatherProgress::Pending(work) => {
                work.set_awaited();
                let outcome = work.wait(&Deadline::never()).map(drop);
                if outcome.is_err() {
                    self.await_gather();
                }
                outcome
            }
        }
    }

    /// Begins a gather like [`Self::gather`] without waiting: `work` completes with the gather.
    /// After a regroup, this function waits.
    ///
    /// # Errors
    /// The errors of [`Self::gather`], except errors of operations, which the work reports.
    pub fn gather_with(&self, work: &Arc<Work>) -> Result<()> {
        if let GatherProgress::Completed = self.begin_gather(Some(work))? {
            work.end(Ok(None));
        }
        Ok(())
    }

    /// Waits until all elements of a parameter have arrived from all ranks.
    ///
    /// # Errors
    /// `InvalidArgument` for a parameter that does not exist; the errors of the gather.
    pub fn wait(&self, param: usize) -> Result<()> {
        self.reducer.trained(param)?;
        let gather = self.lock().gather.clone();
        let position = self.reducer.lock().memory.layout.positions[param];
        let work = gather.as_ref().zip(position);
        let work = work.map(|(gather, position)| &gather.buckets[position.bucket]);
        let Some(work) = work else { return Ok(()) };
        callbacks::reject_blocking_in_callback("dist_shard_wait")?;
        work.set_awaited();
        let waited = work.wait(&Deadline::never()).map(drop);
        waited.context(|| format!("parameter \"{}\"", self.reducer.params[param].name))
    }

    fn begin_gather(&self, work: Option<&Arc<Work>>) -> Result<GatherProgress> {
        let (group, steps) = {
            let state = self.reducer.lock();
            (state.group()?, state.steps)
        };
        let is_same = {
            let mut state = self.lock();
            let is_same = state.local.is_in(&group);
            if state.adopted.take() == Some(steps) {
                return Ok(GatherProgress::Completed);
            }
            match state.gather.as_ref().map(|gather| gather.end.outcome()) {
                None | Some(Some(Ok(()))) => {}
                Some(None) => {
                    return Err(Error::invalid("the last gather has not ended: wait for its work"));
                }
                Some(Some(Err(error))) if is_same => return Err(failed_before(&error)),
                Some(Some(Err(_))) => {}
            }
            state.gather = None;
            is_same
        };
        if !is_same {
            self.redistribute(&group)?;
            return Ok(GatherProgress::Completed);
        }
        let gathering = self.issue(&group, steps, work).map_err(|error| fail(&group, error))?;
        let end = Arc::clone(&gathering.end);
        self.lock().gather = Some(gathering);
        Ok(GatherProgress::Pending(end))
    }

    /// Redistributes the states to the ranks of another group, and the parameters to all ranks.
    fn redistribute(&self, group: &Arc<Group>) -> Result<()> {
        callbacks::reject_blocking_in_callback("dist_shard_gather")?;
        let (memory, gathers) = {
            let state = self.reducer.lock();
            (Arc::clone(&state.memory), state.gathers)
        };
        let model = ShardModel { params: &self.reducer.params, memory: &memory };
        let old = ShardSnapshot { local: self.local_shard(), gathers };
        let new = reshard::redistribute(model, group, &self.options, Some(old))?;
        self.lock().local = new.local;
        self.reducer.lock().gathers = new.gathers + 1;
        Ok(())
    }

    fn issue(
        &self,
        group: &Arc<Group>,
        steps: u64,
        work: Option<&Arc<Work>>,
    ) -> Result<PendingGather> {
        let memory = Arc::clone(&self.reducer.lock().memory);
        let local = self.local_shard();
        let (layout, split) = (&memory.layout, &local.split);
        let options = self.call_options();
        let mut buckets = Vec::with_capacity(layout.buckets.len());
        // The buckets are in the order of the backward pass, so the reverse order begins with the
        // first layers.
        for bucket in (0..layout.buckets.len()).rev() {
            let work = new_work(group);
            let values = |rank| {
                let pieces = split.bucket_pieces(layout, bucket, rank);
                pieces.iter().map(|piece| piece.values(&self.reducer.params)).collect()
            };
            let task = BucketGather { params: (0..split.ranks).map(values).collect(), bucket };
            operation::enqueue(group, options.clone(), &work, task)?;
            buckets.push(work);
        }
        buckets.reverse();
        let end = work.map_or_else(|| new_work(group), Arc::clone);
        let task = GatherEnd { reducer: Arc::clone(&self.reducer) };
        operation::enqueue(group, options, &end, task)?;
        Ok(PendingGather { buckets, end, steps })
    }
}

impl ShardGather for Shard {
    fn await_gather(&self) {
        let works = self.lock().gather.as_ref().map(PendingGather::all).unwrap_or_default();
        works.iter().for_each(|work| drop(work.wait(&Deadline::never())));
    }

    fn adopt(&self) -> bool {
        let mut state = self.lock();
        let complete = state.gather.take_if(|gather| gather.is_complete());
        state.adopted = complete.as_ref().map(|gather| gather.steps);
        complete.is_some()
    }

    fn complete(&self) -> Result<()> {
        let failure = match &self.lock().gather {
            Some(gather) => gather.end.outcome().and_then(Result::err),
            None => None,
        };
        let Some(failure) = failure else { return Ok(()) };
        let group = self.reducer.lock().group()?;
        let is_same = self.local_shard().is_in(&group);
        if is_same { Err(failed_before(&failure)) } else { self.gather() }
    }
}

/// The values of the elements that one rank sends.
type RankValues = Vec<Dst<'static>>;

/// The operation that gathers the parameters of a bucket.
#[derive(Debug)]
struct BucketGather {
    /// The values of the bucket's parameters, by sending rank.
    params: Vec<RankValues>,
    bucket: usize,
}

fn len(values: &RankValues) -> usize {
    values.iter().map(|values| values.len()).sum()
}

impl BucketGather {
    /// Gathers without intermediate copies, which is possible if each rank has at most one piece.
    fn run_in_place(&self, mut turn: OperationTurn<'_>) -> Result<()> {
        let rank = turn.group.rank();
        let piece = |values: &RankValues| values.first().copied().unwrap_or(Dst::empty());
        let recvs: Vec<Dst<'static>> = self.params.iter().map(piece).collect();
        turn.run(&Call::all_gather_v(recvs[rank].as_src(), recvs, DataType::U8))
    }

    fn run_collected(&self, mut turn: OperationTurn<'_>) -> Result<()> {
        let rank = turn.group.rank();
        let mut room: Vec<Vec<u8>> =
            self.params.iter().map(|values| vec![0; len(values)]).collect();
        let mut send = vec![0; len(&self.params[rank])];
        let view = Dst::from(send.as_mut_slice());
        each_part(&self.params[rank], view, |values, part| part.copy_from(values.as_src()));
        let recvs = room.iter_mut().map(|room| Dst::from(room.as_mut_slice())).collect();
        turn.run(&Call::all_gather_v(view.as_src(), recvs, DataType::U8))?;
        for (owner, values) in self.params.iter().enumerate().filter(|&(owner, _)| owner != rank) {
            let view = Dst::from(room[owner].as_mut_slice());
            each_part(values, view, |values, part| values.copy_from(part.as_src()));
        }
        Ok(())
    }
}

/// Calls `copy` for each piece, with the values of the piece and its part of `room`. The pieces
/// follow each other in `room` without gaps.
fn each_part<'r>(values: &RankValues, room: Dst<'r>, mut copy: impl FnMut(Dst<'static>, Dst<'r>)) {
    let mut begin = 0;
    for &values in values {
        copy(values, room.slice(begin, values.len()));
        begin += values.len();
    }
}

impl ReducerOperation for BucketGather {
    fn descriptor(&self, sequence: u64, label: Label) -> Descriptor {
        let counts: Vec<usize> = self.params.iter().map(len).collect();
        Call::all_gather_v_without_buffers(&counts, DataType::U8).descriptor(sequence, label)
    }

    fn title(&self, descriptor: &Descriptor) -> String {
        format!("the parameters of bucket {} ({descriptor})", self.bucket)
    }

    fn run(&mut self, turn: OperationTurn<'_>) -> Result<()> {
        if self.params.iter().all(|values| values.len() <= 1) {
            self.run_in_place(turn)
        } else {
            self.run_collected(turn)
        }
    }
}

/// The operation at the end of a gather: a barrier, after which each rank knows that all ranks have
/// all parameters.
#[derive(Debug)]
struct GatherEnd {
    reducer: Arc<Reducer>,
}

impl ReducerOperation for GatherEnd {
    fn descriptor(&self, sequence: u64, label: Label) -> Descriptor {
        Call::barrier().descriptor(sequence, label)
    }

    fn title(&self, descriptor: &Descriptor) -> String {
        format!("the end of a gather of parameters ({descriptor})")
    }

    fn run(&mut self, mut turn: OperationTurn<'_>) -> Result<()> {
        turn.run(&Call::barrier())?;
        self.reducer.lock().gathers += 1;
        Ok(())
    }
}
