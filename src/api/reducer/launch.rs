//! The beginning of a step, and the buckets that are sent during the step.

use super::memory::GradMemory;
use super::options::DividePolicy;
use super::param::Param;
use super::sparse::SparseInput;
use super::step::{GradMark, JobContext, ReducerStep};
use super::task::BucketTask;
use super::weights::{ReduceFactor, StepWeights, WeightsTask};
use super::{CallbackCount, ParamSelection, Reducer, ReducerPhase, ReducerState};
use crate::api::group::process_group::Group;
use crate::api::work::callbacks::{self, CallbackKey};
use crate::api::work::handle::{Work, WorkKind};
use crate::api::work::issue::enqueue_task;
use crate::base::buffer::Dst;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::LogLevel;
use crate::transport::OpKind;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// A bucket with its result, as passed to a caller's function.
#[derive(Debug)]
pub struct BucketView<'b> {
    /// The position of the bucket in the layout.
    pub index: usize,
    /// The number of buckets.
    pub n_buckets: usize,
    /// The reduced gradients; empty if the gradients are in the caller's memory.
    pub data: Dst<'static>,
    /// The element type.
    pub dtype: DataType,
    /// The parameters.
    pub params: &'b [usize],
    /// The offset of each gradient in `data`, in bytes.
    pub offsets: &'b [usize],
    /// The number of the step, from 0.
    pub step: u64,
}

/// A caller's function for reduced buckets.
#[derive(Clone)]
pub struct OnBucket {
    /// The key of its completion callbacks.
    pub key: CallbackKey,
    /// The function. It is called with one bucket at a time.
    pub function: Arc<dyn Fn(&BucketView<'_>) + Send + Sync>,
}

impl fmt::Debug for OnBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnBucket").field("key", &self.key).finish_non_exhaustive()
    }
}

/// A pending call of the caller's function, which has not returned.
#[derive(Debug)]
struct PendingCallback(Arc<CallbackCount>);

impl PendingCallback {
    fn new(count: &Arc<CallbackCount>) -> Self {
        count.left.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for PendingCallback {
    fn drop(&mut self) {
        self.0.left.fetch_sub(1, Ordering::AcqRel);
        self.0.doorbell.notify();
    }
}

impl Reducer {
    /// Registers a function that is called with each reduced bucket; `None` removes it.
    ///
    /// # Errors
    /// `InvalidArgument` inside a step.
    pub fn on_bucket(&self, function: Option<OnBucket>) -> Result<()> {
        let mut state = self.settled();
        if !matches!(state.phase, ReducerPhase::Idle) {
            return Err(state.refuse("a function for buckets can be set only between steps"));
        }
        state.on_bucket = function;
        Ok(())
    }

    /// Begins a step. `weight` counts only if the sum of gradients is divided by weights. A step
    /// without `syncs` only records the used parameters: its gradients stay on this rank, and the
    /// caller accumulates the next gradients into them.
    ///
    /// # Errors
    /// `InvalidArgument` if a step is open or the weight is negative or no number; errors of
    /// operations that are issued.
    pub fn begin(self: &Arc<Self>, weight: f64, syncs: bool) -> Result<()> {
        if !weight.is_finite() || weight < 0.0 {
            let message = format!("weight is {weight}: pass the number of samples of this rank");
            return Err(Error::invalid(message));
        }
        let group = {
            let mut state = self.settled();
            match &state.phase {
                ReducerPhase::Idle => {}
                ReducerPhase::Failed(_, error) => return Err(failed_before(error)),
                _ => {
                    return Err(
                        state.refuse("a step can begin only after the previous step has ended")
                    );
                }
            }
            if !syncs && self.options.shares_grads {
                let message = "DIST_STEP_NO_SYNC: with DIST_REDUCER_SHARE_GRADS gradients are not kept from step to step";
                return Err(Error::invalid(message));
            }
            if !syncs {
                state.phase = ReducerPhase::Local(vec![false; self.params.len()]);
                return Ok(());
            }
            state.group()?
        };
        if self.options.broadcasts_buffers {
            let outcome =
                self.broadcast_in(&group, self.lowest_rank_with_data(), ParamSelection::BUFFERS);
            self.unless_retryable(outcome)?;
        }
        let mut state = self.lock();
        self.open(&mut state, &group, weight, false)
    }

    /// Returns the rank whose buffers are broadcast: the lowest rank that had data in the last
    /// step.
    pub(super) fn lowest_rank_with_data(&self) -> usize {
        self.lock().last_active
    }

    /// Returns the error of a group failure before the end of a step. If the step can be retried,
    /// returns `Ok`, since the end of the step reports the failure.
    fn unless_retryable(&self, outcome: Result<()>) -> Result<()> {
        if self.options.is_retryable { Ok(()) } else { outcome }
    }

    /// Opens a step that communicates.
    pub(super) fn open(
        self: &Arc<Self>,
        state: &mut ReducerState,
        group: &Arc<Group>,
        weight: f64,
        is_joined: bool,
    ) -> Result<()> {
        let mut step = Box::new(ReducerStep::new(state.steps, &state.memory, weight));
        step.is_joined = is_joined;
        match &state.expected_marks {
            // The first step determines how often parameters are marked.
            None => step.is_held_back = self.options.is_static,
            Some(expected) => {
                let memory = Arc::clone(&state.memory);
                for (param, _) in expected.iter().enumerate().filter(|&(_, &marks)| marks == 0) {
                    if self.params[param].is_trained() && !is_joined {
                        step.resolve(&memory, param, GradMark::Unused);
                    }
                }
            }
        }
        // The factor of a bucket on a device must be known when it is sent.
        step.is_held_back |= self.device.is_some() && self.options.exchanges_weights();
        self.send_weights(&mut step, group);
        self.send_full_buckets(state, &mut step, group);
        let outcome = step.failure.clone().map_or(Ok(()), Err);
        if outcome.is_err() && !self.options.is_retryable {
            return outcome;
        }
        state.phase = ReducerPhase::Open(step);
        Ok(())
    }

    /// Returns the place of a gradient in memory that buckets share. It is valid until the gradient
    /// is marked. If too many buckets have memory, waits for another bucket.
    pub(super) fn shared_place(&self, param: usize) -> Result<Dst<'static>> {
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
            let (Some((bucket, position)), Some(pool)) =
                (memory.layout.places[param], &memory.pool)
            else {
                return Err(Error::internal("a gradient has no memory"));
            };
            if step.marks[param] != GradMark::Open {
                return Err(marked_twice(&self.params[param].name, step.number));
            }
            let spec = &memory.layout.buckets[bucket];
            if let Some(block) = pool.assign(&*state.group()?, bucket, at_once)? {
                return Ok(spec.part(block.view().slice(0, spec.bytes), position));
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

    /// Marks gradients as ready. They must not change until the step has ended.
    ///
    /// # Errors
    /// `InvalidArgument` outside a step, for a parameter without a gradient, and for a parameter
    /// that was marked before. In this case, the parameters before it in the list are marked. The
    /// errors of operations that are issued.
    pub fn ready(self: &Arc<Self>, params: &[usize]) -> Result<()> {
        self.mark(params, GradMark::Ready, None)
    }

    /// Marks a sparse gradient.
    pub(super) fn mark_sparse(self: &Arc<Self>, param: usize, input: SparseInput) -> Result<()> {
        self.mark(&[param], GradMark::Ready, Some(input))
    }

    /// Marks a parameter that this rank does not use in the step.
    ///
    /// # Errors
    /// The errors of [`Self::ready`].
    pub fn unused(self: &Arc<Self>, param: usize) -> Result<()> {
        self.mark(&[param], GradMark::Unused, None)
    }

    fn mark(
        self: &Arc<Self>,
        params: &[usize],
        mark: GradMark,
        rows: Option<SparseInput>,
    ) -> Result<()> {
        let mut state = self.lock();
        let state = &mut *state;
        if let ReducerPhase::Local(used) = &mut state.phase {
            for &param in params {
                self.check_form(param, mark, rows)?;
                used[param] |= mark == GradMark::Ready;
            }
            return Ok(());
        }
        if !matches!(state.phase, ReducerPhase::Open(_)) {
            return Err(
                state.refuse("gradients can be marked only inside a step (dist_reducer_begin)")
            );
        }
        let ReducerPhase::Open(mut step) = std::mem::replace(&mut state.phase, ReducerPhase::Idle)
        else {
            return Err(Error::internal("the open step is missing"));
        };
        let marked = params
            .iter()
            .try_for_each(|&param| self.mark_one(state, &mut step, param, (mark, rows)));
        let sent = match step.has_full_bucket() {
            true => state.group().map(|group| self.send_full_buckets(state, &mut step, &group)),
            false => Ok(()),
        };
        let failure = step.failure.clone().map_or(Ok(()), Err);
        state.phase = ReducerPhase::Open(step);
        marked?;
        sent?;
        self.unless_retryable(failure)
    }

    /// Checks that a mark matches the gradient: sparse gradients come with rows.
    fn check_form(
        &self,
        param: usize,
        mark: GradMark,
        rows: Option<SparseInput>,
    ) -> Result<&Param> {
        match (mark, rows) {
            (GradMark::Ready, None) => self.dense(param),
            _ => self.trained(param),
        }
    }

    fn mark_one(
        &self,
        state: &ReducerState,
        step: &mut ReducerStep,
        param: usize,
        (mark, rows): (GradMark, Option<SparseInput>),
    ) -> Result<()> {
        let name = &self.check_form(param, mark, rows)?.name;
        let expected = state.expected_marks.as_ref().map(|marks| marks[param]);
        let known = step.marks[param];
        if mark == GradMark::Unused {
            return match known {
                GradMark::Open => {
                    step.resolve(&state.memory, param, mark);
                    Ok(())
                }
                GradMark::Unused if expected == Some(0) => Ok(()),
                _ => Err(marked_twice(name, step.number)),
            };
        }
        step.counts[param] = step.counts[param].saturating_add(1);
        match expected {
            Some(0) => return Err(not_in_first_step(name, step.number)),
            Some(marks) if step.counts[param] < marks => return Ok(()),
            _ => {}
        }
        match known {
            GradMark::Open => step.resolve(&state.memory, param, mark),
            // The first step of a static graph counts the marks. Rows are passed only once.
            GradMark::Ready if step.is_held_back && rows.is_none() => {}
            _ => return Err(marked_twice(name, step.number)),
        }
        // Only rows of an accepted mark are kept, because a retried step sends them again.
        step.sparse.extend(rows.map(|rows| (param, rows)));
        Ok(())
    }

    /// Exchanges the weights of a step, if its buckets need them.
    pub(super) fn send_weights(&self, step: &mut ReducerStep, group: &Arc<Group>) {
        if !self.options.exchanges_weights() || step.sums.is_some() || step.failure.is_some() {
            return;
        }
        let weights = StepWeights {
            is_active: !step.is_joined,
            weight: if step.is_joined { 0.0 } else { step.weight },
            names_ranks: self.options.is_uneven,
        };
        let work = new_work(group);
        let options = self.call_options();
        let deadline = group.deadline(&options);
        let task = WeightsTask::new(group, weights, options, Arc::clone(&work));
        let sums = task.sums();
        match enqueue_task(Arc::clone(group), deadline, task) {
            Ok(()) => {
                step.sums = Some(sums);
                step.works.push(work);
            }
            Err(error) => step.failure = Some(fail(group, error)),
        }
    }

    /// Sends the buckets whose gradients are all ready, in the order of the layout.
    pub(super) fn send_full_buckets(
        self: &Arc<Self>,
        state: &ReducerState,
        step: &mut ReducerStep,
        group: &Arc<Group>,
    ) {
        while step.has_full_bucket() {
            if let Err(error) = self.send_bucket(state, step, group) {
                step.failure = Some(fail(group, error));
            }
        }
    }

    fn send_bucket(
        self: &Arc<Self>,
        state: &ReducerState,
        step: &mut ReducerStep,
        group: &Arc<Group>,
    ) -> Result<()> {
        if state.memory.layout.buckets[step.sent].is_sparse {
            return self.send_sparse_bucket(state, step, group);
        }
        let factor = self.factor(state, step, group)?;
        if state.memory.layout.buckets[step.sent].device.is_some() {
            return self.send_device_bucket(state, step, group, &factor);
        }
        let context = JobContext {
            group,
            memory: &state.memory,
            params: &self.params,
            options: &self.options,
            factor: &factor,
            own: state.own.as_ref(),
        };
        let job = context.next_job(step)?;
        let (index, work) = (job.index, new_work(group));
        let is_called = !self.options.is_retryable && !step.is_joined;
        if let Some(function) = state.on_bucket.as_ref().filter(|_| is_called) {
            let bucket = (index..index + 1, step.number);
            self.call_back(&state.memory, (&work, None), function, bucket)?;
        }
        let options = self.call_options();
        let deadline = group.deadline(&options);
        let notes = Arc::clone(&step.notes);
        let works = [Arc::clone(&work)];
        let hook = self.hook.clone();
        enqueue_task(Arc::clone(group), deadline, BucketTask { job, hook, notes, options, works })?;
        step.times.first_sent.get_or_insert_with(Instant::now);
        step.works.push(work);
        step.sent += 1;
        Ok(())
    }

    fn factor(
        &self,
        state: &ReducerState,
        step: &ReducerStep,
        group: &Group,
    ) -> Result<ReduceFactor> {
        let sums = || {
            let none = || Error::internal("the step has no weights");
            step.sums.as_ref().map(Arc::clone).ok_or_else(none)
        };
        Ok(match self.options.divide {
            DividePolicy::None => ReduceFactor::Sum,
            DividePolicy::Weighted => {
                ReduceFactor::ByWeight(sums()?, if step.is_joined { 0.0 } else { step.weight })
            }
            DividePolicy::World if self.options.is_uneven => ReduceFactor::ByActive(sums()?),
            DividePolicy::Initial
                if self.options.is_uneven || group.size() != state.initial_ranks =>
            {
                ReduceFactor::Scale(1.0 / state.initial_ranks as f64)
            }
            DividePolicy::World | DividePolicy::Initial => ReduceFactor::Average,
        })
    }

    /// Schedules the caller's function for all buckets of an ended step, if no rank voted against
    /// it.
    pub(super) fn call_back_now(
        &self,
        state: &ReducerState,
        group: &Group,
        (memory, votes): (&Arc<GradMemory>, Arc<OnceLock<u64>>),
        step: u64,
    ) -> Result<()> {
        let Some(on_bucket) = &state.on_bucket else { return Ok(()) };
        let (work, all) = (new_work(group), 0..memory.layout.buckets.len());
        self.call_back(memory, (&work, Some(votes)), on_bucket, (all, step))?;
        work.end(Ok(None));
        Ok(())
    }

    /// Schedules the caller's function for some buckets of a step after a work ends without error.
    /// With `votes`, the function is called only if no rank voted against the step.
    pub(super) fn call_back(
        &self,
        memory: &Arc<GradMemory>,
        (work, votes): (&Work, Option<Arc<OnceLock<u64>>>),
        on_bucket: &OnBucket,
        (buckets, step): (Range<usize>, u64),
    ) -> Result<()> {
        let pending = PendingCallback::new(&self.callbacks);
        let is_sharded = self.options.is_sharded;
        let memory = Arc::clone(memory);
        let function = Arc::clone(&on_bucket.function);
        work.on_complete(on_bucket.key, move |outcome| {
            let _pending = pending;
            let is_refused = votes.is_some_and(|votes| votes.get() != Some(&0));
            if outcome.is_err() || is_refused {
                return;
            }
            for index in buckets {
                let bucket = &memory.layout.buckets[index];
                // Scattered results are in other memory, which dist_shard_ranges returns.
                let data = memory.bucket_result(index).or_else(|| memory.bucket_places(index));
                function(&BucketView {
                    index,
                    n_buckets: memory.layout.buckets.len(),
                    data: data.filter(|_| !bucket.is_owned && !is_sharded).unwrap_or(Dst::empty()),
                    dtype: bucket.dtype,
                    params: &bucket.params,
                    offsets: &bucket.offsets,
                    step,
                });
            }
        })
    }
}

fn marked_twice(name: &str, step: u64) -> Error {
    Error::invalid(format!(
        "parameter \"{name}\" was marked twice in step {step}: mark each gradient once, when it is complete"
    ))
}

fn not_in_first_step(name: &str, step: u64) -> Error {
    Error::invalid(format!(
        "parameter \"{name}\" was marked in step {step} but not in the first step: with \
         DIST_REDUCER_STATIC_GRAPH all steps use the same parameters"
    ))
}

/// Creates a work for an operation of a reducer.
pub(super) fn new_work(group: &Group) -> Arc<Work> {
    Work::new(WorkKind::Collective(OpKind::AllReduce), Arc::clone(&group.queue))
}

/// Fails the group, because other ranks wait for an operation that this rank cannot issue.
pub(super) fn fail(group: &Group, error: Error) -> Error {
    if group.failure().is_none() {
        crate::log!(
            LogLevel::Error,
            "{}: a reducer cannot continue: {error}",
            group.describe_rank()
        );
        group.fail_with_local_blame(error.clone());
    }
    group.failure().unwrap_or(error)
}

/// Returns the error for a call after a failed step, with the error of that step.
pub(super) fn failed_before(error: &Error) -> Error {
    let message = format!(
        "the last step failed ({error}): call dist_group_shrink and dist_reducer_regroup first"
    );
    Error::new(ErrorKind::InvalidArgument, message)
}
