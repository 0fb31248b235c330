//! Gradient clipping by the norm over all gradients, like PyTorch's `clip_grad_norm_`.
//!
//! After a step, every rank has the same gradients. Each rank sums a share of the elements in f64,
//! and one all_reduce adds the partial sums. A rank thus does 1/N of the work, and the norm has the
//! same bits on all ranks.

use super::reducer_state::{Reducer, ReducerPhase, ReducerState};
use crate::api::collective::call::{Call, CallOptions};
use crate::api::work::callbacks;
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::op::ReduceOp;
use crate::kernel::{self, NormPower};
use std::collections::HashMap;
use std::ops::Range;

/// The value that is added to the norm before the division, as in PyTorch.
const EPSILON: f64 = 1e-6;

/// The kind of norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormType {
    /// The largest absolute value.
    Infinity,
    /// The p-th root of the sum of the p-th powers of the absolute values.
    P(f64),
}

impl NormType {
    /// Creates the norm with this exponent.
    ///
    /// # Errors
    /// `InvalidArgument` if `exponent` is not positive.
    pub fn of(exponent: f64) -> Result<Self> {
        match exponent {
            f64::INFINITY => Ok(Self::Infinity),
            p if p > 0.0 => Ok(Self::P(p)),
            _ => Err(Error::invalid(format!(
                "norm_type is {exponent}: pass 2, another positive number, or infinity"
            ))),
        }
    }

    fn power(self) -> NormPower {
        match self {
            Self::Infinity => NormPower::Largest,
            Self::P(1.0) => NormPower::One,
            Self::P(2.0) => NormPower::Two,
            Self::P(p) => NormPower::Any(p),
        }
    }
}

/// The reduced gradient of a parameter.
#[derive(Clone, Copy, Debug)]
struct ReducedGrad {
    view: Dst<'static>,
    dtype: DataType,
}

impl Reducer {
    /// Scales the gradients of the last step so that their norm is at most `max_norm`, and returns
    /// the norm before scaling. If the norm is not finite, the gradients do not change. Gradients
    /// of parameters that no rank used do not change either.
    ///
    /// # Errors
    /// `InvalidArgument` inside a step and before the first step has ended, and if `max_norm` is
    /// negative or no number; `Unsupported` for integers; the errors of an all_reduce.
    pub fn clip(&self, max_norm: f64, norm: NormType) -> Result<f64> {
        callbacks::reject_blocking_in_callback("dist_reducer_clip")?;
        if max_norm.is_nan() || max_norm < 0.0 {
            return Err(Error::invalid(format!(
                "max_norm is {max_norm}: pass a number of at least 0"
            )));
        }
        let (group, grads) = {
            let state = self.settled();
            if !matches!(state.phase, ReducerPhase::Idle) || state.last.is_none() {
                return Err(state.refuse("gradients can be clipped only after the end of a step"));
            }
            (state.group()?, self.reduced(&state)?)
        };
        let total: usize = grads.iter().map(ReducedGrad::count).sum();
        // Scattered results are already distributed over the ranks, so each rank sums all its own
        // elements.
        let share = match self.options.is_sharded {
            true => 0..total,
            false => share(total, group.rank(), group.size()),
        };
        let mut sum = [kernel::with_default_float_mode(|| fold(&grads, share, norm.power()))];
        let view = Dst::from(&mut sum[..]);
        let op = if norm == NormType::Infinity { ReduceOp::Max } else { ReduceOp::Sum };
        let options = CallOptions { canonical: self.options.is_canonical, ..self.call_options() };
        group.run(Call::all_reduce(view.as_src(), view, DataType::F64, op), &options)?;
        let [sum] = sum;
        let (norm, factor) = kernel::with_default_float_mode(|| {
            let norm = match norm {
                NormType::Infinity => sum,
                NormType::P(2.0) => sum.sqrt(),
                NormType::P(p) => sum.powf(1.0 / p),
            };
            (norm, max_norm / (norm + EPSILON))
        });
        if norm.is_finite() && factor < 1.0 {
            for grad in &grads {
                kernel::scale_copy(grad.dtype, factor, grad.view, grad.view.as_src());
            }
        }
        Ok(norm)
    }

    /// Returns the reduced gradients of the parameters that at least one rank used in the last
    /// step.
    fn reduced(&self, state: &ReducerState) -> Result<Vec<ReducedGrad>> {
        let mut grads = Vec::new();
        let mut own: HashMap<usize, Vec<Dst<'static>>> = HashMap::new();
        for (param, grad) in state.own_grads() {
            own.entry(param).or_default().push(grad);
        }
        for (index, param) in self.params.iter().enumerate() {
            let is_used = state.last.as_ref().is_some_and(|ballot| ballot.is_used(index));
            if !param.is_trained() || !is_used {
                continue;
            }
            let dtype = param.grad_dtype;
            if param.device.is_some() {
                let message = format!(
                    "parameter \"{}\" is in the memory of a device: gradients can be clipped only \
                     in host memory",
                    param.name
                );
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            if !dtype.is_float() {
                let message = format!(
                    "parameter \"{}\" has a gradient of {}: only floating-point gradients can be clipped",
                    param.name,
                    dtype.name()
                );
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            let rows = state.sparse.get(&index).map(|result| result.values.view());
            if self.options.is_sharded {
                let views = own.remove(&index).unwrap_or_default();
                grads.extend(views.into_iter().map(|view| ReducedGrad { view, dtype }));
                continue;
            }
            let view = rows.or_else(|| state.memory.reduced_grad(index, &self.params));
            grads.extend(view.map(|view| ReducedGrad { view, dtype }));
        }
        Ok(grads)
    }
}

impl ReducedGrad {
    fn count(&self) -> usize {
        self.dtype.elements_in(self.view.len())
    }
}

/// Returns the range of elements that a rank sums.
fn share(total: usize, rank: usize, size: usize) -> Range<usize> {
    let at = |rank: usize| total / size * rank + (total % size).min(rank);
    at(rank)..at(rank + 1)
}

/// Sums a range of the concatenated elements of all gradients.
fn fold(grads: &[ReducedGrad], range: Range<usize>, power: NormPower) -> f64 {
    let mut begin = 0;
    let mut sum = 0.0;
    for grad in grads {
        let end = begin + grad.count();
        let from = range.start.clamp(begin, end) - begin;
        let to = range.end.clamp(begin, end) - begin;
        if from < to {
            let size = grad.dtype.size();
            let part: Src<'_> = grad.view.as_src().slice(from * size, (to - from) * size);
            let part_sum = kernel::sum_of_powers(grad.dtype, power, part);
            sum = match power {
                NormPower::Largest => larger(sum, part_sum),
                _ => sum + part_sum,
            };
        }
        begin = end;
    }
    sum
}

/// Returns the larger number; NaN if either is NaN.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

#[cfg(test)]
#[allow(clippy::host_endian_bytes, reason = "elements have the byte order of the host")]
mod tests {
    use super::*;

    #[test]
    fn shares_are_even_and_cover_everything() {
        for (total, size) in [(0, 1), (1, 3), (10, 3), (7, 7), (1000, 64)] {
            let shares: Vec<Range<usize>> =
                (0..size).map(|rank| share(total, rank, size)).collect();
            assert_eq!((shares[0].start, shares[size - 1].end), (0, total));
            assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
            let lengths = shares.iter().map(ExactSizeIterator::len);
            assert!(lengths.clone().max().unwrap() - lengths.min().unwrap() <= 1);
        }
    }

    #[test]
    fn exponents_are_checked() {
        assert_eq!(NormType::of(f64::INFINITY).unwrap(), NormType::Infinity);
        assert_eq!(NormType::of(2.0).unwrap(), NormType::P(2.0));
        for wrong in [0.0, -1.0, f64::NAN, f64::NEG_INFINITY] {
            assert!(NormType::of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ranges_cross_gradients_of_different_types() {
        let mut first: Vec<u8> = [3.0_f32, -4.0].iter().flat_map(|v| v.to_ne_bytes()).collect();
        let mut second: Vec<u8> =
            [1.0_f64, 2.0, -7.0].iter().flat_map(|v| v.to_ne_bytes()).collect();
        #[allow(unsafe_code, reason = "views of the test's own memory")]
        // SAFETY: the vectors outlive the views, and no other code uses them.
        let view = |bytes: &mut Vec<u8>| unsafe { Dst::new(bytes.as_mut_ptr(), bytes.len()) };
        let grads = [
            ReducedGrad { view: view(&mut first), dtype: DataType::F32 },
            ReducedGrad { view: view(&mut second), dtype: DataType::F64 },
        ];
        assert_eq!(fold(&grads, 0..5, NormPower::Two), 9.0 + 16.0 + 1.0 + 4.0 + 49.0);
        assert_eq!(fold(&grads, 1..4, NormPower::One), 4.0 + 1.0 + 2.0);
        assert_eq!(fold(&grads, 0..5, NormPower::Largest), 7.0);
        assert_eq!(fold(&grads, 2..2, NormPower::Two), 0.0);
        assert!((fold(&grads, 0..2, NormPower::Any(3.0)) - 91.0).abs() < 1e-9);
    }
}
