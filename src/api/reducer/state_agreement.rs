//! Agreement of the ranks on the state of a reducer, when the reducer is created and when it
//! continues in another group.
//!
//! Each rank sends one record of its state to all ranks. All ranks draw the same conclusions from
//! the same records. Some ranks may create a reducer while others regroup theirs. The ranks that
//! create a reducer then get the layout and the number of steps of the ranks that regroup.

use super::layout::BucketLayout;
use super::options::ReducerOptions;
use super::param::{self, Param};
use super::records;
use crate::api::collective::call::CallOptions;
use crate::api::group::process_group::Group;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use serde_json::{Value, json};

/// The initial state of a rank that creates a reducer.
#[derive(Debug)]
pub(super) struct NewReducer {
    pub(super) layout: BucketLayout,
    /// Whether the caller gave the layout.
    pub(super) is_given: bool,
    /// Whether the layout should follow the order in which gradients become ready.
    pub(super) wants_order: bool,
}

impl NewReducer {
    /// Returns the state for some parameters and options.
    ///
    /// # Errors
    /// `InvalidArgument` if the layout in the options does not match the parameters.
    pub(super) fn of(params: &[Param], options: &ReducerOptions) -> Result<Self> {
        let given = options.layout.as_deref().map(|bytes| BucketLayout::import(params, bytes));
        let given = given.transpose()?;
        let has_slots = params.iter().any(|param| param.is_trained() && param.grad.is_none());
        Ok(Self {
            is_given: given.is_some(),
            wants_order: !options.has_fixed_layout
                && !options.is_sharded
                && given.is_none()
                && (!has_slots || options.moves_grads),
            layout: given.unwrap_or_else(|| BucketLayout::reversed(params, options.limits(params))),
        })
    }
}

/// The state that the ranks have agreed on.
#[derive(Debug)]
pub(super) struct ReducerAgreement {
    pub(super) layout: BucketLayout,
    /// The rank whose values are broadcast.
    pub(super) source_rank: Rank,
    /// The record of that rank.
    pub(super) source: ReducerRecord,
}

/// The record that a rank sends to all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReducerRecord {
    /// Whether the rank creates the reducer; otherwise it has one.
    pub(super) is_new: bool,
    pub(super) is_given: bool,
    pub(super) wants_order: bool,
    /// Whether the rank has a step that must be retried.
    pub(super) is_open: bool,
    pub(super) steps: u64,
    /// The number of completed gathers of the shard.
    pub(super) gathers: u64,
    pub(super) initial_ranks: usize,
    /// A hash of the parameters' descriptions.
    pub(super) params: String,
    /// A hash of the layout.
    pub(super) layout: String,
    pub(super) options: String,
}

impl ReducerRecord {
    /// Creates the record of a reducer between two steps.
    pub(super) fn new(
        params: &[Param],
        options: &ReducerOptions,
        layout: &str,
        initial_ranks: usize,
    ) -> Self {
        Self {
            is_new: false,
            is_given: false,
            wants_order: false,
            is_open: false,
            steps: 0,
            gathers: 0,
            initial_ranks,
            params: hash(&param::describe_params(params)),
            layout: hash(layout),
            options: options.agreement(),
        }
    }

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

fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// The records of all ranks after the consistency check.
#[derive(Debug)]
pub(super) struct RecordExchange {
    pub(super) records: Vec<ReducerRecord>,
    pub(super) source_rank: Rank,
}

impl RecordExchange {
    /// Exchanges records, and compares parameters and options. The source rank, whose state the new
    /// ranks get, is the first of these that exists:
    ///
    /// 1. the lowest rank that already has a reducer;
    /// 2. the lowest rank whose caller gave a layout;
    /// 3. rank 0.
    pub(super) fn exchange_records(
        group: &Group,
        own: &ReducerRecord,
        params: &[Param],
        options: &CallOptions,
    ) -> Result<Self> {
        let records = records::exchange(group, &own.encode(), ReducerRecord::decode, options)?;
        let first = &records[0];
        if records.iter().any(|record| record.params != first.params) {
            let texts = records::gather(group, param::describe_params(params).as_bytes(), options)?;
            let difference = param::first_difference(&texts);
            return Err(difference.unwrap_or_else(|| {
                Error::internal("equal parameter lists have different hashes")
            }));
        }
        records::check_equal_options(records.iter().map(|record| record.options.as_str()))?;
        let is_old = |record: &ReducerRecord| !record.is_new;
        let source_rank = records.iter().position(is_old);
        let source_rank =
            source_rank.or_else(|| records.iter().position(|record| record.is_given)).unwrap_or(0);
        let exchange = Self { records, source_rank };
        let is_open = |record: &ReducerRecord| record.is_open;
        let open = exchange.records.iter().position(is_open).filter(|_| exchange.has_new());
        if let Some(rank) = open {
            let message = format!(
                "rank {rank} must repeat a step: a rank can join after that step has ended"
            );
            return Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank));
        }
        Ok(exchange)
    }

    pub(super) fn has_new(&self) -> bool {
        self.records.iter().any(|record| record.is_new)
    }

    pub(super) fn has_one_layout(&self) -> bool {
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
        ..ReducerRecord::new(params, options, &text, group.size())
    };
    let call = CallOptions { timeout_ms: options.timeout_ms, ..CallOptions::DEFAULT };
    let exchange = RecordExchange::exchange_records(group, &record, params, &call)?;
    let layout = if exchange.has_one_layout() {
        own.layout
    } else {
        let bytes = records::broadcast(group, text.as_bytes(), exchange.source_rank, &call)?;
        BucketLayout::import(params, &bytes)?
    };
    let RecordExchange { mut records, source_rank } = exchange;
    let source = records.swap_remove(source_rank);
    Ok(ReducerAgreement { layout, source_rank, source })
}
