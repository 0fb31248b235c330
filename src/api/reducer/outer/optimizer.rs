//! The outer optimizer and its options. The optimizer updates the global values from the mean
//! difference between the global values and the ranks' values.

use super::super::array::Array;
use super::super::hook::HookChoice;
use crate::base::error::{Error, Result};
use std::fmt;
use std::sync::Arc;

/// The default learning rate, from DiLoCo (Douillard et al., "DiLoCo: Distributed Low-Communication
/// Training of Language Models", 2023).
const LEARNING_RATE: f64 = 0.7;
/// The default momentum, also from DiLoCo.
const MOMENTUM: f64 = 0.9;

/// The arguments of a caller's optimizer function.
#[derive(Debug)]
pub struct OuterUpdate {
    /// The index of the parameter.
    pub param: usize,
    /// The global values.
    pub global: *mut f32,
    /// The mean over all ranks of the difference: the global values minus the values of a rank.
    pub pseudo_grad: *const f32,
    /// The state of the function, initially zero.
    pub state: *mut f32,
    /// The number of elements of each array.
    pub count: usize,
}

/// The memory of a parameter that the optimizer updates.
#[derive(Clone, Copy, Debug)]
pub(super) struct OptimizerMemory<'m> {
    /// The global values.
    pub(super) global: &'m Array<f32>,
    /// The state of the optimizer.
    pub(super) state: &'m Array<f32>,
}

/// An outer optimizer.
#[derive(Clone)]
pub enum OuterOptimizer {
    /// Stochastic gradient descent. With a learning rate of 1, the global values become the mean of
    /// the ranks' values.
    Sgd {
        /// The learning rate.
        rate: f64,
    },
    /// Stochastic gradient descent with Nesterov momentum, as in PyTorch's `SGD`.
    Nesterov {
        /// The learning rate.
        rate: f64,
        /// The momentum.
        momentum: f64,
    },
    /// A caller's function with its name.
    Function(String, Arc<dyn Fn(&OuterUpdate) + Send + Sync>),
}

impl fmt::Debug for OuterOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sgd { rate } => write!(f, "sgd, learning_rate {rate}"),
            Self::Nesterov { rate, momentum } => {
                write!(f, "nesterov, learning_rate {rate}, momentum {momentum}")
            }
            Self::Function(name, _) => write!(f, "function \"{name}\""),
        }
    }
}

impl OuterOptimizer {
    /// Returns the optimizer with this name. If `rate` or `momentum` is 0, its default applies.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn parse(name: &str, rate: f64, momentum: f64) -> Result<Self> {
        for (name, value) in [("learning_rate", rate), ("momentum", momentum)] {
            if !value.is_finite() || value < 0.0 {
                let message =
                    format!("{name} is {value}: pass a positive number, or 0 for the default");
                return Err(Error::invalid(message));
            }
        }
        let or = |value: f64, default: f64| if value == 0.0 { default } else { value };
        match name {
            "" | "nesterov" => Ok(Self::Nesterov {
                rate: or(rate, LEARNING_RATE),
                momentum: or(momentum, MOMENTUM),
            }),
            _ if momentum != 0.0 => Err(Error::invalid(format!(
                "momentum is {momentum}: only \"nesterov\" has a momentum"
            ))),
            "sgd" => Ok(Self::Sgd { rate: or(rate, LEARNING_RATE) }),
            "average" if rate != 0.0 => {
                let message = format!(
                    "learning_rate is {rate}: \"average\" has no learning rate; use \"sgd\""
                );
                Err(Error::invalid(message))
            }
            "average" => Ok(Self::Sgd { rate: 1.0 }),
            _ => {
                let message = format!(
                    "optimizer is \"{name}\": pass \"nesterov\", \"sgd\" or \"average\", or a function of your own"
                );
                Err(Error::invalid(message))
            }
        }
    }

    /// Returns whether the optimizer has a state for each element.
    pub(super) fn has_state(&self) -> bool {
        !matches!(self, Self::Sgd { .. })
    }

    /// Updates the global values of a parameter.
    pub(super) fn update(
        &self,
        param: usize,
        OptimizerMemory { global, state }: OptimizerMemory<'_>,
        pseudo_grad: &[f32],
    ) {
        #[allow(clippy::cast_possible_truncation, reason = "factors of f32 are rounded")]
        let narrow = |value: f64| value as f32;
        match self {
            Self::Sgd { rate } => {
                let rate = narrow(*rate);
                for (index, gradient) in pseudo_grad.iter().enumerate() {
                    global.set(index, global.get(index) - rate * gradient);
                }
            }
            Self::Nesterov { rate, momentum } => {
                let (rate, momentum) = (narrow(*rate), narrow(*momentum));
                for (index, gradient) in pseudo_grad.iter().enumerate() {
                    let velocity = momentum * state.get(index) + gradient;
                    state.set(index, velocity);
                    let step = gradient + momentum * velocity;
                    global.set(index, global.get(index) - rate * step);
                }
            }
            Self::Function(_, function) => function(&OuterUpdate {
                param,
                global: global.as_mut_ptr(),
                pseudo_grad: pseudo_grad.as_ptr(),
                state: state.as_mut_ptr(),
                count: pseudo_grad.len(),
            }),
        }
    }
}

/// Options of an outer optimizer; see `dist_outer_options_t`.
#[derive(Clone, Debug)]
pub struct OuterOptions {
    /// The number of steps between two agreements on the same fragment.
    pub every: u64,
    /// The number of fragments.
    pub fragments: usize,
    /// The optimizer of the global values.
    pub optimizer: OuterOptimizer,
    /// The hook that reduces the differences.
    pub hook: HookChoice,
    /// The deadline of each operation in milliseconds; 0 for the group's default, `u64::MAX` for no
    /// deadline.
    pub timeout_ms: u64,
    /// A name for the log.
    pub name: String,
}

impl OuterOptions {
    /// Describes the settings that must be equal on all ranks, except the hook, which the reducers
    /// compare.
    pub(super) fn agreement(&self) -> String {
        let Self { every, fragments, optimizer, .. } = self;
        format!("every {every}, fragments {fragments}, optimizer {optimizer:?}")
    }

    /// Returns whether the hook sends nothing.
    pub(super) fn has_no_communication(&self) -> bool {
        matches!(self.hook, HookChoice::Off)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        let parse = |name: &str, rate, momentum| {
            OuterOptimizer::parse(name, rate, momentum).map(|optimizer| format!("{optimizer:?}"))
        };
        assert_eq!(parse("", 0.0, 0.0).unwrap(), "nesterov, learning_rate 0.7, momentum 0.9");
        assert_eq!(parse("sgd", 0.5, 0.0).unwrap(), "sgd, learning_rate 0.5");
        assert_eq!(parse("average", 0.0, 0.0).unwrap(), "sgd, learning_rate 1");
        for (name, rate, momentum) in
            [("adam", 0.0, 0.0), ("sgd", 0.1, 0.9), ("average", 0.1, 0.0), ("", -1.0, 0.0)]
        {
            assert!(parse(name, rate, momentum).is_err(), "{name}");
        }
    }

    #[test]
    fn updates_are_those_of_pytorch() {
        let (global, state) = (Array::new(2), Array::new(2));
        let optimizer = OuterOptimizer::parse("nesterov", 0.5, 0.5).unwrap();
        let memory = OptimizerMemory { global: &global, state: &state };
        optimizer.update(0, memory, &[1.0, -2.0]);
        // The velocity is initially the gradient.
        assert_eq!([state.get(0), state.get(1)], [1.0, -2.0]);
        assert_eq!([global.get(0), global.get(1)], [-0.75, 1.5]);
        optimizer.update(0, memory, &[1.0, 0.0]);
        assert_eq!([state.get(0), state.get(1)], [1.5, -1.0]);
        assert_eq!([global.get(0), global.get(1)], [-0.75 - 0.875, 1.5 + 0.25]);
        let mean = OuterOptimizer::parse("average", 0.0, 0.0).unwrap();
        mean.update(0, memory, &[-1.625, 1.75]);
        assert_eq!([global.get(0), global.get(1)], [0.0, 0.0]);
    }
}
