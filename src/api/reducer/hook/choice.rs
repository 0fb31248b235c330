//! The choice of a hook by its name and settings.

use super::function::HookFunction;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, Result};
use std::fmt;
use std::ops::RangeInclusive;

/// The names of the built-in hooks.
const NAMES: &str = "\"all_reduce\", \"f16\", \"bf16\", \"int8\", \"powersgd\" or \"none\"";

/// The default number of elements that share a scale in the hook `int8`.
const BLOCK: u64 = 256;

/// The maximum number of elements that share a scale. Larger blocks would only reduce the
/// precision.
const LARGEST_BLOCK: u64 = 1 << 20;

/// The default of [`PowerSettings::rank`], as in PyTorch.
const RANK: u64 = 1;
/// The default of [`PowerSettings::start`]. It is 1,000 in PyTorch.
const START: u64 = 10;
/// The default of [`PowerSettings::min_ratio`], as in PyTorch.
const MIN_RATIO: u64 = 2;

/// A method to reduce buckets.
#[derive(Clone, Debug, Default)]
pub enum HookChoice {
    /// One all_reduce per bucket.
    #[default]
    AllReduce,
    /// Gradients are sent and added as elements of this type.
    Cast(DataType),
    /// Gradients are sent as 8-bit integers with one scale for each block.
    Int8 {
        /// The number of elements in a block.
        block: usize,
    },
    /// Gradients are sent as matrices of low rank.
    PowerSgd(PowerSettings),
    /// Gradients are not sent.
    Off,
    /// A function of the caller reduces the gradients.
    Function(HookFunction),
}

impl HookChoice {
    /// Returns the hook with this name; `settings` is a list such as `rank=2;start=10`.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn parse(name: &str, settings: &str) -> Result<Self> {
        let mut settings = HookSettings::parse(settings)?;
        let choice = match name {
            "" | "all_reduce" => Self::AllReduce,
            "f16" => Self::Cast(DataType::F16),
            "bf16" => Self::Cast(DataType::Bf16),
            "none" => Self::Off,
            "int8" => {
                let block = settings.number("block", BLOCK, 1..=LARGEST_BLOCK)?;
                Self::Int8 { block: usize::try_from(block).unwrap_or(usize::MAX) }
            }
            "powersgd" => Self::PowerSgd(PowerSettings::take(&mut settings)?),
            _ => {
                let message = format!(
                    "hook is \"{name}\": pass {NAMES}, or a function of your own in hook_function"
                );
                return Err(Error::invalid(message));
            }
        };
        settings.check_used().context(|| format!("hook \"{name}\""))?;
        Ok(choice)
    }

    /// Returns the name of the hook.
    pub fn name(&self) -> &str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Cast(dtype) => dtype.name(),
            Self::Int8 { .. } => "int8",
            Self::PowerSgd(_) => "powersgd",
            Self::Off => "none",
            Self::Function(function) => &function.name,
        }
    }

    /// Describes the settings that must be equal on all ranks.
    pub(in crate::api::reducer) fn agreement(&self) -> String {
        match self {
            Self::Int8 { block } => format!("int8 block={block}"),
            Self::PowerSgd(settings) => format!("powersgd {settings}"),
            Self::Function(function) => {
                format!("function \"{}\" {}", function.name, function.settings)
            }
            other => other.name().to_owned(),
        }
    }
}

/// The settings of the hook `powersgd`; see `hook_settings` of `dist_reducer_options_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerSettings {
    /// The rank of the matrices.
    pub(super) rank: usize,
    /// The first step with compression.
    pub(super) start: u64,
    /// Whether a step begins with the factor of the last step.
    pub(super) has_warm_start: bool,
    /// Whether the error of a step is added to the gradient of the next step.
    pub(super) has_feedback: bool,
    /// A gradient is compressed only if its two factors together are this many times smaller than
    /// the gradient.
    pub(super) min_ratio: usize,
}

impl PowerSettings {
    fn take(settings: &mut HookSettings<'_>) -> Result<Self> {
        let small = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Ok(Self {
            rank: small(settings.number("rank", RANK, 1..=1024)?),
            start: settings.number("start", START, 0..=u64::MAX)?,
            has_warm_start: settings.number("warm", 1, 0..=1)? == 1,
            has_feedback: settings.number("feedback", 1, 0..=1)? == 1,
            min_ratio: small(settings.number("min_ratio", MIN_RATIO, 1..=1024)?),
        })
    }
}

impl fmt::Display for PowerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, start, min_ratio, .. } = self;
        let [warm, feedback] = [self.has_warm_start, self.has_feedback].map(u8::from);
        write!(f, "rank={rank};start={start};warm={warm};feedback={feedback};min_ratio={min_ratio}")
    }
}

/// The settings that the hook has not read yet. Reading a setting removes it from the list.
#[derive(Debug)]
struct HookSettings<'s>(Vec<(&'s str, &'s str)>);

impl<'s> HookSettings<'s> {
    fn parse(text: &'s str) -> Result<Self> {
        let mut pairs = Vec::new();
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            let pair = part.split_once('=').ok_or_else(|| {
                let message = format!("hook_settings has \"{part}\": write name=value;name=value");
                Error::invalid(message)
            })?;
            let (name, value) = (pair.0.trim(), pair.1.trim());
            if pairs.iter().any(|&(known, _)| known == name) {
                let message = format!("hook_settings has \"{name}\" twice");
                return Err(Error::invalid(message));
            }
            pairs.push((name, value));
        }
        Ok(Self(pairs))
    }

    /// Removes a setting from the list and returns its value, an integer; returns `default` if the
    /// list does not contain the setting.
    ///
    /// # Errors
    /// `InvalidArgument` if the setting is not an integer in the range.
    fn number(&mut self, name: &str, default: u64, range: RangeInclusive<u64>) -> Result<u64> {
        let Some(at) = self.0.iter().position(|&(known, _)| known == name) else {
            return Ok(default);
        };
        let (_, text) = self.0.remove(at);
        let value = text.parse().ok().filter(|value| range.contains(value));
        value.ok_or_else(|| {
            let (low, high) = (range.start(), range.end());
            let message = format!(
                "hook_settings has {name}={text}: pass a whole number from {low} to {high}"
            );
            Error::invalid(message)
        })
    }

    fn check_used(&self) -> Result<()> {
        let Some((name, _)) = self.0.first() else { return Ok(()) };
        Err(Error::invalid(format!("hook_settings has \"{name}\", which the hook does not know")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_settings() {
        let chosen = |name: &str, settings: &str| {
            HookChoice::parse(name, settings).map(|choice| choice.agreement())
        };
        assert_eq!(chosen("", "").unwrap(), "all_reduce");
        assert_eq!(chosen("f16", "").unwrap(), "f16");
        assert_eq!(chosen("none", " ; ").unwrap(), "none");
        assert_eq!(chosen("int8", "").unwrap(), "int8 block=256");
        assert_eq!(chosen("int8", " block = 64 ;").unwrap(), "int8 block=64");
        let power = chosen("powersgd", "rank=4;start=0").unwrap();
        assert_eq!(power, "powersgd rank=4;start=0;warm=1;feedback=1;min_ratio=2");
        for (name, settings, part) in [
            ("int4", "", "hook is \"int4\""),
            ("int8", "block", "name=value"),
            ("int8", "block=0", "from 1"),
            ("int8", "block=8;block=9", "twice"),
            ("int8", "rank=1", "\"rank\""),
            ("powersgd", "rank=0", "rank=0"),
            ("powersgd", "warm=yes", "warm=yes"),
        ] {
            let error = chosen(name, settings).unwrap_err();
            assert!(error.message().contains(part), "{error}");
        }
    }
}
