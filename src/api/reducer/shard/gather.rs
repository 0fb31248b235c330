//! The gather of parameters: every rank sends the elements that it has updated to all ranks.
//! Buckets are gathered one after the other, starting with those of the first layers.

use super::super::launch::{fail, failed_before, new_work};
use super::super::memory::GradMemory;
use super::super::param::Param;
use super::super::task::run_in_turn;
use super::Shard;
use super::reshard;
use super::split::{ShardSplit, SplitPiece};
use crate::api::collective::call::{Call, CallOptions};
use crate::api::group::process_group::Group;
use crate::api::work::callbacks;
use crate::api::work::handle::Work;
use crate::api::work::issue::{OperationTask, enqueue_task};
use crate::base::buffer::Dst;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, Result};
use crate::transport::Descriptor;
use std::sync::Arc;

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

/// The progress of a call.
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

    /// Sends the elements that this rank has updated to all ranks, and receives theirs. If the
    /// group has changed, the states are redistributed too.
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

    /// Gathers like [`Self::gather`] without waiting, except after a regroup. The work completes
    /// with the gather.
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
        let position = self.reducer.lock().memory.layout.places[param];
        let work =
            gather.as_ref().zip(position).map(|(gather, (bucket, _))| &gather.buckets[bucket]);
        let Some(work) = work else { return Ok(()) };
        callbacks::reject_blocking_in_callback("dist_shard_wait")?;
        work.set_awaited();
        let waited = work.wait(&Deadline::never()).map(drop);
        waited.context(|| format!("parameter \"{}\"", self.reducer.params[param].name))
    }

    /// Records that the gather has ended on another rank. Returns whether this rank has all
    /// parameters.
    pub(in crate::api::reducer) fn adopt(&self) -> bool {
        let mut state = self.lock();
        let complete = state.gather.take_if(|gather| gather.is_complete());
        state.adopted = complete.as_ref().map(|gather| gather.steps);
        complete.is_some()
    }

    /// Repeats a failed gather if the reducer has another group.
    pub(in crate::api::reducer) fn complete(&self) -> Result<()> {
        let failure = match &self.lock().gather {
            Some(gather) => gather.end.outcome().and_then(Result::err),
            None => None,
        };
        let Some(failure) = failure else { return Ok(()) };
        let group = self.reducer.lock().group()?;
        let is_same = self.local_shard().is_in(&group);
        if is_same { Err(failed_before(&failure)) } else { self.gather() }
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
        let gathers = self.reducer.lock().gathers;
        let former = self.local_shard();
        let old = Some((&*former, gathers));
        let (local, gathers) = reshard::redistribute(&self.reducer, group, &self.options, old)?;
        self.lock().local = Arc::new(local);
        self.reducer.lock().gathers = gathers + 1;
        Ok(())
    }

    fn issue(
        &self,
        group: &Arc<Group>,
        steps: u64,
        work: Option<&Arc<Work>>,
    ) -> Result<PendingGather> {
        let memory = Arc::clone(&self.reducer.lock().memory);
        let split = Arc::new(self.local_shard().split.clone());
        let options = self.call_options();
        let deadline = group.deadline(&options);
        let mut buckets = Vec::with_capacity(memory.layout.buckets.len());
        // The buckets are in the order of the backward pass.
        for bucket in (0..memory.layout.buckets.len()).rev() {
            let work = new_work(group);
            let task = BucketGather {
                params: self.reducer.pieces_of(&memory, &split, bucket),
                bucket,
                options: options.clone(),
                works: [Arc::clone(&work)],
            };
            enqueue_task(Arc::clone(group), deadline, task)?;
            buckets.push(work);
        }
        buckets.reverse();
        let end = work.map_or_else(|| new_work(group), Arc::clone);
        let reducer = Arc::clone(&self.reducer);
        let task = GatherEnd { reducer, options, works: [Arc::clone(&end)] };
        enqueue_task(Arc::clone(group), deadline, task)?;
        Ok(PendingGather { buckets, end, steps })
    }
}

/// The values of the elements that one rank sends.
type RankValues = Vec<Dst<'static>>;

impl super::Reducer {
    /// Returns the values of a bucket's parameters, by sending rank.
    fn pieces_of(&self, memory: &GradMemory, split: &ShardSplit, bucket: usize) -> Vec<RankValues> {
        let values = |piece: &SplitPiece| piece.values(&self.params);
        (0..split.ranks)
            .map(|rank| {
                split.bucket_pieces(&memory.layout, bucket, rank).iter().map(values).collect()
            })
            .collect()
    }
}

impl SplitPiece {
    /// Returns the values of the piece's elements.
    pub(super) fn values(&self, params: &[Param]) -> Dst<'static> {
        let size = params[self.param].dtype.size();
        params[self.param].data.slice(self.begin * size, self.count * size)
    }
}

/// The task that gathers the parameters of a bucket.
#[derive(Debug)]
struct BucketGather {
    params: Vec<RankValues>,
    bucket: usize,
    options: CallOptions,
    works: [Arc<Work>; 1],
}

fn len(values: &RankValues) -> usize {
    values.iter().map(|values| values.len()).sum()
}

impl BucketGather {
    /// Gathers without intermediate copies, which is possible if each rank has at most one piece.
    fn run_in_place(&self, rank: usize, run: impl FnOnce(&Call<'_>) -> Result<()>) -> Result<()> {
        let piece = |values: &RankValues| values.first().copied().unwrap_or(Dst::empty());
        let recvs: Vec<Dst<'static>> = self.params.iter().map(piece).collect();
        run(&Call::all_gather_v(recvs[rank].as_src(), recvs, DataType::U8))
    }

    fn run_collected(&self, rank: usize, run: impl FnOnce(&Call<'_>) -> Result<()>) -> Result<()> {
        let mut room: Vec<Vec<u8>> =
            self.params.iter().map(|values| vec![0; len(values)]).collect();
        let mut send = vec![0; len(&self.params[rank])];
        let view = Dst::from(send.as_mut_slice());
        each_part(&self.params[rank], view, |values, part| part.copy_from(values.as_src()));
        let recvs = room.iter_mut().map(|room| Dst::from(room.as_mut_slice())).collect();
        run(&Call::all_gather_v(view.as_src(), recvs, DataType::U8))?;
        for (owner, values) in self.params.iter().enumerate().filter(|&(owner, _)| owner != rank) {
            let view = Dst::from(room[owner].as_mut_slice());
            each_part(values, view, |values, part| values.copy_from(part.as_src()));
        }
        Ok(())
    }
}

/// Calls `copy` with the values of each piece and its part of `room`, in which the pieces follow
/// each other.
fn each_part<'r>(values: &RankValues, room: Dst<'r>, mut copy: impl FnMut(Dst<'static>, Dst<'r>)) {
    let mut begin = 0;
    for &values in values {
        copy(values, room.slice(begin, values.len()));
        begin += values.len();
    }
}

impl OperationTask for BucketGather {
    fn works(&self) -> &[Arc<Work>] {
        &self.works
    }

    fn descriptor(&self, sequence: u64) -> Descriptor {
        let counts: Vec<usize> = self.params.iter().map(len).collect();
        Call::all_gather_v_without_buffers(&counts, DataType::U8)
            .descriptor(sequence, self.options.label)
    }

    fn title(&self, descriptor: &Descriptor) -> String {
        format!("the parameters of bucket {} ({descriptor})", self.bucket)
    }

    fn run(&mut self, group: &Group, first: Descriptor, deadline: &Deadline) -> Result<()> {
        let run = |call: &Call<'_>| run_in_turn(group, call, &self.options, first, deadline);
        if self.params.iter().all(|values| values.len() <= 1) {
            self.run_in_place(group.rank(), run)
        } else {
            self.run_collected(group.rank(), run)
        }
    }
}

/// Agrees that all ranks have all parameters.
#[derive(Debug)]
struct GatherEnd {
    reducer: Arc<super::Reducer>,
    options: CallOptions,
    works: [Arc<Work>; 1],
}

impl OperationTask for GatherEnd {
    fn works(&self) -> &[Arc<Work>] {
        &self.works
    }

    fn descriptor(&self, sequence: u64) -> Descriptor {
        Call::barrier().descriptor(sequence, self.options.label)
    }

    fn title(&self, descriptor: &Descriptor) -> String {
        format!("the end of a gather of parameters ({descriptor})")
    }

    fn run(&mut self, group: &Group, first: Descriptor, deadline: &Deadline) -> Result<()> {
        run_in_turn(group, &Call::barrier(), &self.options, first, deadline)?;
        self.reducer.lock().gathers += 1;
        Ok(())
    }
}
