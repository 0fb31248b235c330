//! Sparse gradients, such as those of embeddings: each rank contributes some rows, and receives the
//! sums of the rows of all ranks.
//!
//! The ranks gather the rows of all ranks as byte strings. Every rank adds them in rank order, so
//! that all ranks have the same bits. A message contains all numbers that the divisor needs.
//!
//! | part of a message | bytes |
//! |---|---|
//! | 1 if the rank has data, otherwise 0 | 8 |
//! | the weight of the rank's step | 8 |
//! | the number of rows | 8 |
//! | the indices of the rows | 8 per row |
//! | the values of the rows | the size of a row, per row |

#![allow(unsafe_code, reason = "views of a message that the handler of its call owns")]

use super::memory::GradBlock;
use super::options::DividePolicy;
use super::param::Param;
use super::step::ReducerStep;
use super::task::StepLog;
use super::{Reducer, ReducerState};
use crate::api::collective::bytes::{BytesCall, BytesHandler};
use crate::api::collective::call::CallOptions;
use crate::api::group::process_group::Group;
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::op::ReduceOp;
use crate::kernel;
use std::sync::Arc;

/// The size of a number in a message, in bytes.
const WORD: usize = 8;

/// The size of a message before the indices, in bytes.
const HEAD: usize = 3 * WORD;

/// The caller's rows, which must not change until the step has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct SparseInput {
    rows: Src<'static>,
    values: Src<'static>,
}

/// Reduced rows, in ascending order.
#[derive(Debug)]
pub(super) struct SparseResult {
    pub(super) rows: Vec<i64>,
    pub(super) values: GradBlock,
}

/// The parameters of the sum of sparse rows.
#[derive(Clone, Copy, Debug)]
struct SparseSum {
    dtype: DataType,
    row_bytes: usize,
    n_rows: usize,
    divide: DividePolicy,
    initial_ranks: usize,
}

/// The message of one rank.
#[derive(Clone, Copy, Debug)]
struct SparseMessage<'m> {
    is_active: bool,
    weight: f64,
    rows: Src<'m>,
    values: Src<'m>,
}

/// Returns the number of rows of a parameter with a sparse gradient.
fn row_count(param: &Param) -> usize {
    param.shape.first().and_then(|&extent| usize::try_from(extent).ok()).unwrap_or(0)
}

/// Returns the size of one row of the gradient in bytes.
fn row_bytes(param: &Param) -> usize {
    (param.count / row_count(param).max(1)) * param.grad_dtype.size()
}

/// Returns the row index at a position of a list.
fn row_at(rows: Src<'_>, position: usize) -> i64 {
    rows.word(position * WORD).cast_signed()
}

impl SparseInput {
    /// Checks rows of a parameter that the caller passed.
    ///
    /// # Errors
    /// `InvalidArgument` if the parameter has no such row.
    pub(super) fn new(param: &Param, rows: Src<'static>, values: Src<'static>) -> Result<Self> {
        let count = row_count(param);
        for position in 0..rows.len() / WORD {
            let row = row_at(rows, position);
            if usize::try_from(row).is_ok_and(|row| row < count) {
                continue;
            }
            let message =
                format!("rows[{position}] is {row}: parameter \"{}\" has {count} rows", param.name);
            return Err(Error::invalid(message));
        }
        Ok(Self { rows, values })
    }
}

impl<'m> SparseMessage<'m> {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD + self.rows.len() + self.values.len()];
        let view = Dst::from(bytes.as_mut_slice());
        view.set_word(0, u64::from(self.is_active));
        view.set_word(WORD, self.weight.to_bits());
        view.set_word(2 * WORD, (self.rows.len() / WORD) as u64);
        view.slice(HEAD, self.rows.len()).copy_from(self.rows);
        view.slice(HEAD + self.rows.len(), self.values.len()).copy_from(self.values);
        bytes
    }

    /// Decodes a message of another rank; returns `None` for another format or for rows that do not
    /// exist.
    fn decode(bytes: &'m [u8], sum: SparseSum) -> Option<Self> {
        let view = Src::from(bytes);
        let n = usize::try_from((bytes.len() >= HEAD).then(|| view.word(2 * WORD))?).ok()?;
        let row_len = n.checked_mul(WORD)?;
        let value_len = n.checked_mul(sum.row_bytes)?;
        if HEAD.checked_add(row_len)?.checked_add(value_len)? != bytes.len() {
            return None;
        }
        let rows = view.slice(HEAD, row_len);
        let exists =
            |position| usize::try_from(row_at(rows, position)).is_ok_and(|row| row < sum.n_rows);
        (0..n).all(exists).then(|| Self {
            is_active: view.word(0) == 1,
            weight: f64::from_bits(view.word(WORD)),
            rows,
            values: view.slice(HEAD + row_len, value_len),
        })
    }
}

impl SparseSum {
    /// Adds the rows in the messages of all ranks.
    ///
    /// # Errors
    /// `Mismatch` for a message of another format; `OutOfMemory`, `System`.
    fn of(self, messages: &[Vec<u8>], group: &Group) -> Result<SparseResult> {
        let mut decoded = Vec::with_capacity(messages.len());
        for (rank, bytes) in messages.iter().enumerate() {
            decoded.push(SparseMessage::decode(bytes, self).ok_or_else(|| {
                let message = format!("the sparse gradient of rank {rank} has an unknown format");
                Error::new(ErrorKind::Mismatch, message).with_culprit(rank)
            })?);
        }
        let mut rows: Vec<i64> = decoded
            .iter()
            .flat_map(|message| (0..message.rows.len() / WORD).map(|at| row_at(message.rows, at)))
            .collect();
        rows.sort_unstable();
        rows.dedup();
        let values = GradBlock::new(group, rows.len() * self.row_bytes, None)?;
        let weights: f64 = decoded.iter().map(|message| message.weight).sum();
        for message in &decoded {
            let factor = match self.divide {
                DividePolicy::Weighted if weights > 0.0 => Some(message.weight / weights),
                DividePolicy::Weighted => Some(0.0),
                _ => None,
            };
            self.add(message, factor, &rows, values.view());
        }
        let active = decoded.iter().filter(|message| message.is_active).count();
        match self.divide {
            DividePolicy::World => kernel::average(self.dtype, values.view(), active.max(1)),
            DividePolicy::Initial => kernel::average(self.dtype, values.view(), self.initial_ranks),
            DividePolicy::None | DividePolicy::Weighted => {}
        }
        Ok(SparseResult { rows, values })
    }

    /// Adds the rows of one rank, multiplied by its factor if there is one.
    fn add(self, message: &SparseMessage<'_>, factor: Option<f64>, rows: &[i64], into: Dst<'_>) {
        let mut scaled = vec![0; if factor.is_some() { self.row_bytes } else { 0 }];
        for position in 0..message.rows.len() / WORD {
            let row = row_at(message.rows, position);
            // The list contains every row of a message.
            let Ok(place) = rows.binary_search(&row) else { continue };
            let place = into.slice(place * self.row_bytes, self.row_bytes);
            let mut value = message.values.slice(position * self.row_bytes, self.row_bytes);
            if let Some(factor) = factor {
                let room = Dst::from(scaled.as_mut_slice());
                kernel::scale_copy(self.dtype, factor, room, value);
                value = room.as_src();
            }
            kernel::fold(self.dtype, ReduceOp::Sum, place, &[place.as_src(), value]);
        }
    }
}

impl Reducer {
    /// Marks a sparse gradient as ready. The rows and their values must not change until the step
    /// has ended. Rows that occur several times are added.
    ///
    /// # Errors
    /// The errors of [`Self::ready`], and `InvalidArgument` for a dense gradient and for rows that
    /// do not exist.
    pub fn ready_rows(
        self: &Arc<Self>,
        param: usize,
        rows: Src<'static>,
        values: impl FnOnce(usize) -> Result<Src<'static>>,
    ) -> Result<()> {
        let known = self.trained(param)?;
        if !known.is_sparse {
            let message = format!(
                "the gradient of parameter \"{}\" is dense: mark it with dist_reducer_ready",
                known.name
            );
            return Err(Error::invalid(message));
        }
        let input = SparseInput::new(known, rows, values(row_bytes(known))?)?;
        self.mark_sparse(param, input)
    }

    /// Returns the reduced rows of a sparse gradient, in ascending order, and their values. Both
    /// are empty before the first step.
    ///
    /// # Errors
    /// `InvalidArgument` for a parameter that does not exist or has a dense gradient.
    pub fn rows(&self, param: usize) -> Result<(Src<'static>, Dst<'static>)> {
        let known = self.trained(param)?;
        if !known.is_sparse {
            let message = format!(
                "the gradient of parameter \"{}\" is dense: read it with dist_reducer_result",
                known.name
            );
            return Err(Error::invalid(message));
        }
        let state = self.settled();
        let Some(result) = state.sparse.get(&param) else {
            return Ok((Src::empty(), Dst::empty()));
        };
        let (rows, len) = (result.rows.as_ptr().cast(), result.rows.len() * WORD);
        // SAFETY: the list is not changed. It stays allocated until the next step ends, as the
        // interface documents.
        Ok((unsafe { Src::new(rows, len) }, result.values.view()))
    }

    /// Sends the next bucket, which is a sparse gradient.
    ///
    /// # Errors
    /// The errors of operations that are issued.
    pub(super) fn send_sparse_bucket(
        &self,
        state: &ReducerState,
        step: &mut ReducerStep,
        group: &Arc<Group>,
    ) -> Result<()> {
        let index = state.memory.layout.buckets[step.sent].params[0];
        let (param, initial_ranks) = (&self.params[index], state.initial_ranks);
        let sum = SparseSum {
            dtype: param.grad_dtype,
            row_bytes: row_bytes(param),
            n_rows: row_count(param),
            divide: self.options.divide,
            initial_ranks,
        };
        let input = step.sparse.get(&index).filter(|_| !step.is_joined);
        let message = SparseMessage {
            is_active: !step.is_joined,
            weight: if step.is_joined { 0.0 } else { step.weight },
            rows: input.map_or(Src::empty(), |input| input.rows),
            values: input.map_or(Src::empty(), |input| input.values),
        };
        let message: Arc<[u8]> = message.encode().into();
        // SAFETY: the bytes are not changed, and the job holds them until it has ended.
        let bytes = unsafe { Src::new(message.as_ptr(), message.len()) };
        let (notes, weak) = (Arc::clone(&step.notes), Arc::downgrade(group));
        let deliver = BytesHandler::new(move |messages| {
            let held = message;
            let group = weak
                .upgrade()
                .ok_or_else(|| Error::internal("the group of a sparse gradient was released"))?;
            record_result(&notes, index, sum.of(&messages, &group)?, held.len());
            Ok(())
        });
        let options = CallOptions { timeout_ms: self.options.timeout_ms, ..CallOptions::DEFAULT };
        let call = group.prepare_bytes(BytesCall::all_gather(bytes), options, deliver)?;
        let work = Arc::clone(call.work());
        let is_called = !self.options.is_retryable && !step.is_joined;
        if let Some(function) = state.on_bucket.as_ref().filter(|_| is_called) {
            let bucket = (step.sent..step.sent + 1, step.number);
            self.call_back(&state.memory, (&work, None), function, bucket)?;
        }
        call.issue().context(|| format!("the gradient of parameter \"{}\"", param.name))?;
        step.works.push(work);
        step.sent += 1;
        Ok(())
    }
}

fn record_result(notes: &StepLog, param: usize, result: SparseResult, sent: usize) {
    let mut notes = notes.lock();
    notes.bytes_reduced += sent as u64;
    notes.bytes_sent += sent as u64;
    notes.bytes_copied += sent as u64;
    notes.sparse.push((param, result));
}
