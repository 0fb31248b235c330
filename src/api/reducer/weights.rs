//! The exchange of the ranks' weights at the beginning of a step, and the factor by which a rank
//! multiplies its gradients.

use super::operation::{OperationTurn, ReducerOperation};
use crate::api::collective::call::Call;
use crate::api::group::process_group::Group;
use crate::base::buffer::Dst;
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::label::Label;
use crate::base::op::ReduceOp;
use crate::kernel;
use crate::transport::Descriptor;
use std::sync::{Arc, OnceLock};

/// The sums over all ranks of the values that [`WeightsTask`] sends. Number 0 is the number of
/// ranks with data, and number 1 is the sum of the weights. If requested, number 2 + r is 1 if rank
/// r has data, otherwise 0.
#[derive(Debug, Default)]
pub(super) struct StepSums(OnceLock<Vec<f64>>);

impl StepSums {
    /// Returns the number of ranks that have data, or `None` before the sums have arrived.
    pub(super) fn active(&self) -> Option<f64> {
        self.0.get().and_then(|sums| sums.first().copied())
    }

    /// Returns the sum of the weights of all ranks.
    fn weight(&self) -> Option<f64> {
        self.0.get().and_then(|sums| sums.get(1).copied())
    }

    /// Returns the lowest rank that has data.
    pub(super) fn lowest_active(&self) -> Option<usize> {
        self.0.get()?.iter().skip(2).position(|&is_active| is_active > 0.0)
    }
}

/// The contribution of a rank at the beginning of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepWeights {
    /// Whether the rank has data.
    pub(super) is_active: bool,
    pub(super) weight: f64,
}

/// The operation that sums the contributions at the beginning of a step.
#[derive(Debug)]
pub(super) struct WeightsTask {
    values: Vec<f64>,
    sums: Arc<StepSums>,
}

impl WeightsTask {
    /// Creates the operation. If `names_ranks` is true, the ranks also exchange which of them have
    /// data.
    pub(super) fn new(group: &Group, weights: StepWeights, names_ranks: bool) -> Self {
        let active = if weights.is_active { 1.0 } else { 0.0 };
        let mut values: Vec<f64> = vec![active, weights.weight];
        if names_ranks {
            let is_own = |rank| if rank == group.rank() { active } else { 0.0 };
            values.extend((0..group.size()).map(is_own));
        }
        Self { values, sums: Arc::default() }
    }

    pub(super) fn sums(&self) -> Arc<StepSums> {
        Arc::clone(&self.sums)
    }
}

/// Returns the all_reduce that sums the values. Its descriptor depends only on the number of
/// values.
fn sum_of(values: &mut [f64]) -> Call<'_> {
    let view = Dst::from(values);
    Call::all_reduce(view.as_src(), view, DataType::F64, ReduceOp::Sum)
}

impl ReducerOperation for WeightsTask {
    fn descriptor(&self, sequence: u64, label: Label) -> Descriptor {
        sum_of(&mut self.values.clone()).descriptor(sequence, label)
    }

    fn title(&self, descriptor: &Descriptor) -> String {
        format!("the weights of a step ({descriptor})")
    }

    fn run(&mut self, mut turn: OperationTurn<'_>) -> Result<()> {
        turn.run(&sum_of(&mut self.values))?;
        let sums = std::mem::take(&mut self.values);
        self.sums
            .0
            .set(sums)
            .map_err(|_| Error::internal("the weights of a step were summed twice"))
    }
}

/// The divisor of the sum of a bucket.
#[derive(Clone, Debug)]
pub(super) enum ReduceFactor {
    /// The number of ranks.
    Average,
    /// No division.
    Sum,
    /// Each rank's gradients are multiplied by this factor before they are added.
    Scale(f64),
    /// The number of ranks that have data in this step.
    ByActive(Arc<StepSums>),
    /// The sum of the weights of all ranks. The gradients of each rank are multiplied by the weight
    /// of that rank.
    ByWeight(Arc<StepSums>, f64),
}

impl ReduceFactor {
    /// Returns the reduction operator of the bucket, equal on all ranks.
    pub(super) fn op(&self) -> ReduceOp {
        match self {
            Self::Average => ReduceOp::Avg,
            Self::Sum => ReduceOp::Sum,
            Self::Scale(_) | Self::ByActive(_) | Self::ByWeight(..) => ReduceOp::PremulSum,
        }
    }

    /// Returns the factor by which this rank's gradients must be multiplied before an all_reduce
    /// with the operator SUM.
    ///
    /// # Errors
    /// The errors of [`Self::value`].
    pub(super) fn of_sum(&self, ranks: usize) -> Result<f64> {
        match self {
            Self::Average => Ok(kernel::with_default_float_mode(|| 1.0 / ranks as f64)),
            _ => self.value(),
        }
    }

    /// Returns this rank's factor after the weights have arrived.
    ///
    /// # Errors
    /// `Internal` before the weights have arrived.
    pub(super) fn value(&self) -> Result<f64> {
        let value = kernel::with_default_float_mode(|| match self {
            Self::Average | Self::Sum => Some(1.0),
            Self::Scale(factor) => Some(*factor),
            Self::ByActive(sums) => sums.active().map(|active| 1.0 / active.max(1.0)),
            Self::ByWeight(sums, own) => {
                sums.weight().map(|all| if all > 0.0 { own / all } else { 0.0 })
            }
        });
        value.ok_or_else(|| Error::internal("a bucket runs before the weights of its step"))
    }
}
