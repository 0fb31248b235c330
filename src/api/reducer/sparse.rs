//! Sparse gradients, such as those of embeddings: each rank contributes some rows, and receives the
//! sums of the rows of all ranks.
//!
//! The ranks gather the rows of all ranks as byte strings. Every rank adds the rows in rank order,
//! so that the results have the same bits on all ranks. A message also contains the numbers from
//! which the ranks compute the divisor.
//!
//! | part of a message | bytes |
//! |---|---|
//! | 1 if the rank has data, otherwise 0 | 8 |
//! | the weight of the rank's step | 8 |
//! | the number of rows | 8 |
//! | the indices of the rows | 8 per row |
//! | the values of the rows | the size of a row, per row |

use super::memory::GradBlock;
use super::options::DividePolicy;
use super::param::Param;
use super::weights::StepWeights;
use crate::api::group::process_group::Group;
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::op::ReduceOp;
use crate::kernel;

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

/// The properties of a sparse gradient that determine the sum of its rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct SparseSum {
    dtype: DataType,
    row_bytes: usize,
    n_rows: usize,
    divide: DividePolicy,
    initial_ranks: usize,
}

/// The message of one rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct SparseMessage<'m> {
    weights: StepWeights,
    rows: Src<'m>,
    values: Src<'m>,
}

/// Returns the number of rows of a parameter with a sparse gradient.
fn row_count(param: &Param) -> usize {
    param.shape.first().and_then(|&extent| usize::try_from(extent).ok()).unwrap_or(0)
}

/// Returns the size of one row of the gradient in bytes.
pub(super) fn row_bytes(param: &Param) -> usize {
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
    /// Creates the message of this rank; `input` is `None` if this rank has no rows.
    pub(super) fn new(weights: StepWeights, input: Option<&SparseInput>) -> Self {
        let empty = || (Src::empty(), Src::empty());
        let (rows, values) = input.map_or_else(empty, |input| (input.rows, input.values));
        Self { weights, rows, values }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD + self.rows.len() + self.values.len()];
        let view = Dst::from(bytes.as_mut_slice());
        view.set_word(0, u64::from(self.weights.is_active));
        view.set_word(WORD, self.weights.weight.to_bits());
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
            weights: StepWeights {
                is_active: view.word(0) == 1,
                weight: f64::from_bits(view.word(WORD)),
            },
            rows,
            values: view.slice(HEAD + row_len, value_len),
        })
    }
}

impl SparseSum {
    pub(super) fn new(param: &Param, divide: DividePolicy, initial_ranks: usize) -> Self {
        Self {
            dtype: param.grad_dtype,
            row_bytes: row_bytes(param),
            n_rows: row_count(param),
            divide,
            initial_ranks,
        }
    }

    /// Adds the rows in the messages of all ranks.
    ///
    /// # Errors
    /// `Mismatch` for a message of another format; `OutOfMemory`, `System`.
    pub(super) fn of(self, messages: &[Vec<u8>], group: &Group) -> Result<SparseResult> {
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
        let weights: f64 = kernel::with_default_float_mode(|| {
            decoded.iter().map(|message| message.weights.weight).sum()
        });
        let active = decoded.iter().filter(|message| message.weights.is_active).count();
        for message in &decoded {
            let factor = kernel::with_default_float_mode(|| match self.divide {
                DividePolicy::Weighted if weights > 0.0 => Some(message.weights.weight / weights),
                DividePolicy::Weighted => Some(0.0),
                DividePolicy::World => Some(1.0 / active.max(1) as f64),
                DividePolicy::Initial => Some(1.0 / self.initial_ranks as f64),
                DividePolicy::None => None,
            });
            self.add(message, factor, &rows, values.view());
        }
        Ok(SparseResult { rows, values })
    }

    /// Adds the rows of one rank's message to `into`, multiplied by `factor` if it is given. `rows`
    /// lists the rows of `into`.
    fn add(self, message: &SparseMessage<'_>, factor: Option<f64>, rows: &[i64], into: Dst<'_>) {
        let mut scaled = vec![0; if factor.is_some() { self.row_bytes } else { 0 }];
        for position in 0..message.rows.len() / WORD {
            let row = row_at(message.rows, position);
            // `rows` contains every row of every message, so the search always finds the row.
            let Ok(index) = rows.binary_search(&row) else { continue };
            let place = into.slice(index * self.row_bytes, self.row_bytes);
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
