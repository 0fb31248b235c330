//! Agreement of the ranks on the state of a reducer, when it is created and when it continues in
//! another group.
//!
//! Each rank sends one record of its state to all ranks. All ranks draw the same conclusions from
//! the same records. Some ranks may create a reducer while others regroup theirs. The creating
//! ranks then get the existing layout and number of steps.

use super::ballot::{Ballot, BallotShape};
use super::layout::BucketLayout;
use super::options::ReducerOptions;
use super::param::{self, Param};
use super::shard::OwnGrads;
use super::step::ReducerStep;
use super::weights::StepSums;
use super::{ParamSelection, Reducer, ReducerPhase, ReducerState};
use crate::api::collective::bytes::BytesCall;
use crate::api::collective::call::CallOptions;
use crate::api::group::process_group::Group;
use crate::api::work::callbacks;
use crate::api::work::handle::Work;
use crate::base::buffer::Src;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use serde_json::{Value, json};
use std::sync::Arc;

/// The initial state of a rank that creates a reducer.
#[derive(Debug)]
pub(super) struct NewReducer {
    pub(super) layout: BucketLayout,
    /// Whether the caller gave the layout.
    pub(super) is_given: bool,
    /// Whether the layout should follow the order in which gradients become ready.
    pub(super) wants_order: bool,
}

/// The state that the ranks have agreed on.
#[derive(Debug)]
pub(super) struct ReducerAgreement {
    pub(super) layout: BucketLayout,
    /// The rank whose values are broadcast.
    pub(super) source_rank: Rank,
    pub(super) steps: u64,
    pub(super) gathers: u64,
    pub(super) initial_ranks: usize,
    pub(super) wants_order: bool,
}

/// The record that a rank sends to all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReducerRecord {
    /// Whether the rank creates the reducer; otherwise it has one.
    is_new: bool,
    is_given: bool,
    wants_order: bool,
    /// Whether the rank has a step that must be retried.
    is_open: bool,
    steps: u64,
    /// The number of completed gathers of the shard.
    gathers: u64,
    initial_ranks: usize,
    /// A hash of the parameters' descriptions.
    params: String,
    /// A hash of the layout.
    layout: String,
    options: String,
}

impl ReducerRecord {
    fn encode(&self) -> Vec<u8> {
        json!({
            "is_new": self.is_new,
            "is_given": self.is_given,
            "wants_order": self.wants_order,
            "is_open": self.is_open,
            "steps": self.steps,
            "gathers": self.gathers,
            "initial_ranks": self.initial_ranks,
            "params": self.params,
            "layout": self.layout,
            "options": self.options,
        })
        .to_string()
        .into_bytes()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(bytes).ok()?;
        let flag = |name: &str| value.get(name)?.as_bool();
        let text = |name: &str| value.get(name)?.as_str().map(str::to_owned);
        Some(Self {
            is_new: flag("is_new")?,
            is_given: flag("is_given")?,
            wants_order: flag("wants_order")?,
            is_open: flag("is_open")?,
            steps: value.get("steps")?.as_u64()?,
            gathers: value.get("gathers")?.as_u64()?,
            initial_ranks: usize::try_from(value.get("initial_ranks")?.as_u64()?).ok()?,
            params: text("params")?,
            layout: text("layout")?,
            options: text("options")?,
        })
    }
}

/// Gathers the byte strings of all ranks.
fn gather(group: &Group, bytes: &[u8], options: &CallOptions) -> Result<Vec<Vec<u8>>> {
    let gathered = group.run_bytes(&BytesCall::all_gather(Src::from(bytes)), options)?;
    gathered.ok_or_else(|| Error::internal("an all-gather returned no result"))
}

/// Broadcasts the bytes of one rank.
fn broadcast(group: &Group, bytes: &[u8], root: Rank, options: &CallOptions) -> Result<Vec<u8>> {
    let bytes = group.run_bytes(&BytesCall::broadcast(Src::from(bytes), root), options)?;
    let bytes = bytes.and_then(|strings| strings.into_iter().next());
    bytes.ok_or_else(|| Error::internal("a broadcast returned no result"))
}

fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// The records of all ranks after the consistency check.
#[derive(Debug)]
struct RecordExchange {
    records: Vec<ReducerRecord>,
    source_rank: Rank,
}

impl RecordExchange {
    /// Exchanges records, and compares parameters and options.
    fn exchange_records(
        group: &Group,
        own: &ReducerRecord,
        params: &[Param],
        options: &CallOptions,
    ) -> Result<Self> {
        let gathered = gather(group, &own.encode(), options)?;
        let records: Option<Vec<ReducerRecord>> =
            gathered.iter().map(|bytes| ReducerRecord::decode(bytes)).collect();
        let records = records.ok_or_else(|| {
            let message =
                "the ranks have different versions of libdist: use the same one on all ranks";
            Error::new(ErrorKind::Mismatch, message)
        })?;
        let first = &records[0];
        if records.iter().any(|record| record.params != first.params) {
            let texts = gather(group, param::describe_params(params).as_bytes(), options)?;
            let difference = param::first_difference(&texts);
            return Err(difference.unwrap_or_else(|| {
                Error::internal("equal parameter lists have different hashes")
            }));
        }
        if let Some(rank) = records.iter().position(|record| record.options != first.options) {
            let message = format!(
                "the ranks have different options: rank 0 has {}, and rank {rank} {}",
                first.options, records[rank].options
            );
            return Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank));
        }
        let is_old = |record: &ReducerRecord| !record.is_new;
        let source_rank = records.iter().position(is_old);
        let source_rank =
            source_rank.or_else(|| records.iter().position(|record| record.is_given)).unwrap_or(0);
        let has_new = records.iter().any(|record| record.is_new);
        if let Some(rank) = records.iter().position(|record| record.is_open).filter(|_| has_new) {
            let message = format!(
                "rank {rank} must repeat a step: a rank can join after that step has ended"
            );
            return Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank));
        }
        Ok(Self { records, source_rank })
    }

    fn has_new(&self) -> bool {
        self.records.iter().any(|record| record.is_new)
    }

    fn has_one_layout(&self) -> bool {
        self.records.iter().all(|record| record.layout == self.records[0].layout)
    }
}

/// Runs the first agreement of a rank that creates a reducer.
///
/// # Errors
/// `Mismatch` on all ranks; the errors of collectives.
pub(super) fn create(
    group: &Group,
    params: &[Param],
    options: &ReducerOptions,
    own: NewReducer,
) -> Result<ReducerAgreement> {
    let text = own.layout.export(params).to_string();
    let record = ReducerRecord {
        is_new: true,
        is_given: own.is_given,
        wants_order: own.wants_order,
        is_open: false,
        steps: 0,
        gathers: 0,
        initial_ranks: group.size(),
        params: hash(&param::describe_params(params)),
        layout: hash(&text),
        options: options.agreement(),
    };
    let call = CallOptions { timeout_ms: options.timeout_ms, ..CallOptions::DEFAULT };
    let exchange = RecordExchange::exchange_records(group, &record, params, &call)?;
    let source = &exchange.records[exchange.source_rank];
    let layout = if exchange.has_one_layout() {
        own.layout
    } else {
        let bytes = broadcast(group, text.as_bytes(), exchange.source_rank, &call)?;
        BucketLayout::import(params, &bytes)?
    };
    Ok(ReducerAgreement {
        layout,
        source_rank: exchange.source_rank,
        steps: source.steps,
        gathers: source.gathers,
        initial_ranks: source.initial_ranks,
        wants_order: source.wants_order,
    })
}

impl Reducer {
    /// Continues in another group, for example in the group of the survivors. All its ranks call
    /// this, or create a reducer.
    ///
    /// If a step had not ended, it is open again afterwards: [`Reducer::end`] sends the same
    /// gradients again, if steps can be retried. Otherwise the step is abandoned.
    ///
    /// # Errors
    /// `InvalidArgument` if a step is open in a group that has not failed; `Mismatch` on all ranks;
    /// the errors of collectives.
    pub fn regroup(self: &Arc<Self>, group: &Arc<Group>) -> Result<()> {
        callbacks::reject_blocking_in_callback("dist_reducer_regroup")?;
        let (record, text) = self.prepare_to_regroup(group)?;
        let call = self.call_options();
        let exchange = RecordExchange::exchange_records(group, &record, &self.params, &call)?;
        if !exchange.has_one_layout() {
            // The broadcast is for new ranks; this rank has the layout of the source rank.
            drop(broadcast(group, text.as_bytes(), exchange.source_rank, &call)?);
        }
        self.catch_up(group, &exchange, &call)?;
        self.catch_up_gathers(&exchange)?;
        self.share_again(group)?;
        if let Some(hook) = &self.hook {
            let steps = self.lock().steps;
            hook.regroup(group, steps)?;
        }
        if exchange.has_new() && self.options.broadcasts_values {
            self.broadcast_in(group, exchange.source_rank, ParamSelection::ALL)?;
        }
        Ok(())
    }

    fn prepare_to_regroup(&self, group: &Group) -> Result<(ReducerRecord, String)> {
        self.await_step();
        self.await_gather();
        let mut state = self.settled();
        let state = &mut *state;
        if let ReducerPhase::Open(_) = &state.phase {
            let failure = state.group.upgrade().map_or_else(
                || Some(Error::invalid("the group was released")),
                |former| former.failure(),
            );
            let Some(failure) = failure else {
                return Err(state.refuse("a reducer can change its group only between steps"));
            };
            if let ReducerPhase::Open(step) =
                std::mem::replace(&mut state.phase, ReducerPhase::Idle)
            {
                let failure = step.failure.clone().unwrap_or(failure);
                state.phase = ReducerPhase::Failed(step, failure);
            }
        }
        if matches!(state.phase, ReducerPhase::Ending(..) | ReducerPhase::Local(_)) {
            return Err(state.refuse("a reducer can change its group only between steps"));
        }
        let text = state.memory.layout.export(&self.params).to_string();
        let record = ReducerRecord {
            is_new: false,
            is_given: false,
            wants_order: state.wants_order,
            is_open: matches!(state.phase, ReducerPhase::Failed(..)),
            steps: state.steps,
            gathers: state.gathers,
            initial_ranks: state.initial_ranks,
            params: hash(&param::describe_params(&self.params)),
            layout: hash(&text),
            options: self.options.agreement(),
        };
        crate::log!(
            crate::base::log::LogLevel::Info,
            "{}: the reducer continues at step {}",
            group.describe_rank(),
            state.steps
        );
        Ok((record, text))
    }

    /// Adopts the end of a step from a rank that has received the agreement.
    fn catch_up(
        &self,
        group: &Arc<Group>,
        exchange: &RecordExchange,
        call: &CallOptions,
    ) -> Result<()> {
        let old = || exchange.records.iter().filter(|record| !record.is_new);
        let max_steps = old().map(|record| record.steps).max().unwrap_or(0);
        let is_behind = old().any(|record| record.steps < max_steps);
        if !is_behind {
            return self.reopen(group);
        }
        let is_ahead = |record: &ReducerRecord| !record.is_new && record.steps == max_steps;
        let source_rank = exchange.records.iter().position(is_ahead).unwrap_or(0);
        let received = broadcast(group, &self.last_ballot(), source_rank, call)?;
        let own = self.lock().steps;
        if own == max_steps {
            return self.reopen(group);
        }
        if own + 1 != max_steps {
            return Err(behind_error(own, max_steps));
        }
        let ballot = decode_ballot(&received)
            .ok_or_else(|| Error::internal("the agreement on a step has an unknown format"))?;
        self.adopt(group, max_steps, &ballot)
    }

    /// Adopts the end of a gather that ended on another rank: it has then ended on all ranks.
    fn catch_up_gathers(&self, exchange: &RecordExchange) -> Result<()> {
        let old = exchange.records.iter().filter(|record| !record.is_new);
        let max_gathers = old.map(|record| record.gathers).max().unwrap_or(0);
        let (own, shard) = {
            let state = self.lock();
            (state.gathers, state.shard.upgrade())
        };
        if own == max_gathers {
            return Ok(());
        }
        if !shard.is_some_and(|shard| own + 1 == max_gathers && shard.adopt()) {
            let message = format!(
                "this rank has gathered the parameters of {own} steps, but another rank those of {max_gathers}"
            );
            return Err(Error::new(ErrorKind::Mismatch, message));
        }
        self.lock().gathers = max_gathers;
        Ok(())
    }

    /// Splits the buckets over the ranks of a group.
    fn share_again(&self, group: &Group) -> Result<()> {
        if !self.options.is_sharded {
            return Ok(());
        }
        let memory = Arc::clone(&self.lock().memory);
        let own = OwnGrads::new(group, &memory.layout)?;
        if let Some(pool) = &memory.pool {
            pool.reset();
        }
        self.lock().own = Some(own);
        Ok(())
    }

    /// Encodes the agreement on the last step, for ranks that have not received it.
    fn last_ballot(&self) -> Vec<u8> {
        let state = self.lock();
        let Some(ballot) = &state.last else { return Vec::new() };
        let BallotShape { ranks, params, has_order } = ballot.shape();
        let mut bytes: Vec<u8> = [ranks as u64, params as u64, u64::from(has_order)]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect();
        bytes.extend_from_slice(ballot.bytes());
        bytes
    }

    /// Ends a step with the ballot that another rank has sent.
    fn adopt(&self, group: &Arc<Group>, max_steps: u64, ballot: &Ballot) -> Result<()> {
        let mut state = self.lock();
        let state = &mut *state;
        let phase = std::mem::replace(&mut state.phase, ReducerPhase::Idle);
        let ReducerPhase::Failed(step, error) = phase else {
            state.phase = phase;
            return Err(behind_error(state.steps, max_steps));
        };
        let has_results = step.sent == state.memory.layout.buckets.len()
            && ballot.shape().params == self.params.len()
            && step.works.iter().all(|work| matches!(work.outcome(), Some(Ok(()))));
        if !has_results {
            let behind = behind_error(state.steps, max_steps);
            state.phase = ReducerPhase::Failed(step, error);
            return Err(behind);
        }
        state.group = Arc::downgrade(group);
        let (is_joined, number) = (step.is_joined, step.number);
        let votes = Arc::clone(&step.votes);
        let former = Arc::clone(&state.memory);
        let outcome = self.finish(state, *step, ballot, group);
        if !is_joined && self.options.is_retryable {
            self.call_back_now(state, group, (&former, votes), number)?;
        }
        state.totals.retries += 1;
        // A rank without data does not call the end of a step.
        state.phase = if is_joined {
            ReducerPhase::Idle
        } else {
            ReducerPhase::Adopted(ballot.votes(), outcome)
        };
        Ok(())
    }

    /// Prepares a failed step for a retry.
    fn reopen(&self, group: &Arc<Group>) -> Result<()> {
        let mut state = self.lock();
        let state = &mut *state;
        state.group = Arc::downgrade(group);
        state.last_active = state.last_active.min(group.size() - 1);
        match std::mem::replace(&mut state.phase, ReducerPhase::Idle) {
            ReducerPhase::Failed(mut step, _) if self.options.is_retryable && !step.is_joined => {
                let limit = group.deadline(&self.call_options());
                let rewound = step.rewind(self.device.as_ref(), &limit);
                state.totals.retries += 1;
                state.phase = ReducerPhase::Open(step);
                rewound?;
            }
            ReducerPhase::Failed(step, _) => drop::<Box<ReducerStep>>(step),
            other => state.phase = other,
        }
        Ok(())
    }
}

/// Returns the error for ranks that have ended different numbers of steps.
fn behind_error(own: u64, max_steps: u64) -> Error {
    let message = format!(
        "this rank has ended {own} steps, but another rank {max_steps}: a rank can catch up only with a \
         step that it was about to end"
    );
    Error::new(ErrorKind::Mismatch, message)
}

fn decode_ballot(bytes: &[u8]) -> Option<Ballot> {
    let (words, _) = bytes.as_chunks::<8>();
    let word = |index: usize| usize::try_from(u64::from_le_bytes(*words.get(index)?)).ok();
    let (ranks, params, has_order) = (word(0)?, word(1)?, word(2)? != 0);
    if ranks > crate::base::ids::MAX_WORLD_SIZE || params > param::MOST_PARAMS {
        return None;
    }
    let shape = BallotShape { ranks, params, has_order };
    Ballot::from_bytes(shape, bytes.get(24..)?.to_vec())
}

impl ReducerState {
    /// Returns the work that exchanges the weights of the open step, and its result.
    pub(super) fn step_sums(&self) -> Result<(Arc<Work>, Arc<StepSums>)> {
        let none = || Error::internal("the step of the other ranks has no weights");
        let ReducerPhase::Open(step) = &self.phase else { return Err(none()) };
        match (&step.failure, step.works.first(), &step.sums) {
            (Some(failure), ..) => Err(failure.clone()),
            (None, Some(work), Some(sums)) => Ok((Arc::clone(work), Arc::clone(sums))),
            _ => Err(none()),
        }
    }

    /// Returns the works of a step that is open, is ending, or has failed.
    pub(super) fn works(&self) -> Vec<Arc<Work>> {
        match &self.phase {
            ReducerPhase::Open(step) | ReducerPhase::Failed(step, _) => step.works.clone(),
            ReducerPhase::Ending(step, work, _) => {
                step.works.iter().chain(std::iter::once(work)).map(Arc::clone).collect()
            }
            ReducerPhase::Idle | ReducerPhase::Local(_) | ReducerPhase::Adopted(..) => Vec::new(),
        }
    }
}
