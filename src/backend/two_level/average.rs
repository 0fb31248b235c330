//! The operators of the steps of a reduction. The first step reduces the inputs of the ranks of a
//! host, and the second step reduces the results of the hosts. An average and a sum with factors
//! change their inputs, so only the first step does that.

use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::WorldSize;
use crate::base::op::ReduceOp;
use crate::kernel;

/// The operators of a reduction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StepOperators {
    /// The operator of the first step.
    pub(super) first: ReduceOp,
    /// The factor of this rank, if the operator of the first step is `PREMUL_SUM`.
    pub(super) factor: f64,
    /// The operator of the second step.
    pub(super) second: ReduceOp,
}

impl StepOperators {
    /// Returns the operators for a reduction in a group of `size` ranks. `factor` is the factor of
    /// the caller, for `PREMUL_SUM`.
    ///
    /// An average of floating point is a sum with the factor 1/size, so that no sum overflows.
    ///
    /// # Errors
    /// `Unsupported` for an average of integers: the sum of the first step would wrap.
    pub(super) fn of(op: ReduceOp, dtype: DataType, factor: f64, size: WorldSize) -> Result<Self> {
        match op {
            ReduceOp::Avg if dtype.is_float() => {
                #[expect(clippy::cast_precision_loss, reason = "a group has at most 65,536 ranks")]
                let factor = kernel::with_default_float_mode(|| 1.0 / size as f64);
                Ok(Self { first: ReduceOp::PremulSum, factor, second: ReduceOp::Sum })
            }
            ReduceOp::Avg => {
                let message = format!(
                    "{op} of {dtype} elements: a two-level group averages floating point only; use \
                     SUM and divide the result"
                );
                Err(Error::new(ErrorKind::Unsupported, message))
            }
            ReduceOp::PremulSum => Ok(Self { first: op, factor, second: ReduceOp::Sum }),
            _ => Ok(Self { first: op, factor: 1.0, second: op }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_step_changes_inputs() {
        let of = |op, dtype| StepOperators::of(op, dtype, 3.0, 4);
        let average = of(ReduceOp::Avg, DataType::F16).unwrap();
        assert_eq!((average.first, average.factor), (ReduceOp::PremulSum, 0.25));
        assert_eq!(average.second, ReduceOp::Sum);
        let premul = of(ReduceOp::PremulSum, DataType::F32).unwrap();
        assert_eq!((premul.first, premul.factor), (ReduceOp::PremulSum, 3.0));
        assert_eq!(premul.second, ReduceOp::Sum);
        let max = of(ReduceOp::Max, DataType::I32).unwrap();
        assert_eq!((max.first, max.second), (ReduceOp::Max, ReduceOp::Max));
        let refused = of(ReduceOp::Avg, DataType::I8).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        for word in ["AVG", "i8", "SUM"] {
            assert!(refused.message().contains(word), "{refused}");
        }
    }
}
