//! What the caller and the environment ask of NCCL's part: `nccl.KEY=VALUE` among a group's
//! back-end options, and the variables that c10d's users know.

use crate::base::config::{self, Variable};
use crate::base::error::{Error, Result};
use crate::base::renamed::{self, NameKind};

/// How a group's part behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend) struct Options {
    /// The library's stream is one that the device prefers.
    pub(super) high_priority: bool,
    /// A call has ended only when the device is done with it.
    pub(super) blocking_wait: bool,
    /// All ranks allocate memory together, which becomes a window.
    pub(super) windows: bool,
    /// Calls may block inside NCCL until the other ranks have come, and cost less.
    pub(super) may_block: bool,
    /// The watchdog fails the group on errors and at deadlines.
    pub(super) handles_errors: bool,
}

/// What begins those of the options that are NCCL's.
const PREFIX: &str = "nccl.";

/// Parts a group's options into those of NCCL's part, and the rest.
///
/// # Errors
/// `InvalidArgument`, naming the option or the variable.
pub(in crate::backend) fn split(options: &str) -> Result<(Options, String)> {
    let mut found = from_environment()?;
    let mut rest = Vec::new();
    for option in options.split(';').map(str::trim).filter(|option| !option.is_empty()) {
        let Some(own) = option.strip_prefix(PREFIX) else {
            rest.push(option);
            continue;
        };
        let name = option.split('=').next().unwrap_or(option).trim();
        if let Some(error) = renamed::refusal(NameKind::BackendOption, name) {
            return Err(error);
        }
        let wrong = || {
            Error::invalid(format!(
                "backend_options: \"{option}\" is none of nccl.high_priority=0|1, nccl.blocking_wait=0|1, nccl.windows=0|1, nccl.blocking=0|1"
            ))
        };
        let (key, value) = own.split_once('=').ok_or_else(wrong)?;
        let value = match value.trim() {
            "0" => false,
            "1" => true,
            _ => return Err(wrong()),
        };
        match key.trim() {
            "high_priority" => found.high_priority = value,
            "blocking_wait" => found.blocking_wait = value,
            "windows" => found.windows = value,
            "blocking" => found.may_block = value,
            _ => return Err(wrong()),
        }
    }
    Ok((found, rest.join(";")))
}

/// Whether NCCL was told that several ranks may have one GPU.
///
/// # Errors
/// `InvalidArgument`.
pub(super) fn may_share_gpus() -> Result<bool> {
    Ok(config::text(config::NCCL_MULTI_RANK_GPU)?.as_deref() == Some("1"))
}

fn from_environment() -> Result<Options> {
    let handling = first([config::TORCH_NCCL_ASYNC_ERRORS, config::NCCL_ASYNC_ERRORS])?;
    let handles_errors = match handling.as_ref().map(|(_, value)| value.as_str()) {
        None | Some("1" | "2" | "3") => true,
        Some("0") => false,
        Some(_) => return Err(unusable(handling, "0 to 3")),
    };
    let blocking_wait = switch([config::TORCH_NCCL_BLOCKING_WAIT, config::NCCL_BLOCKING_WAIT])?;
    let high_priority = switch([config::TORCH_NCCL_HIGH_PRIORITY])?;
    let non_blocking = config::TORCH_NCCL_NON_BLOCKING;
    let may_block = first([non_blocking])?.is_some() && !switch([non_blocking])?;
    Ok(Options { high_priority, blocking_wait, windows: false, may_block, handles_errors })
}

/// The first of some variables that is set.
fn first<const N: usize>(variables: [Variable; N]) -> Result<Option<(&'static str, String)>> {
    for variable in variables {
        if let Some(value) = config::text(variable)? {
            return Ok(Some((variable.name, value.trim().to_owned())));
        }
    }
    Ok(None)
}

fn switch<const N: usize>(variables: [Variable; N]) -> Result<bool> {
    let found = first(variables)?;
    match found.as_ref().map(|(_, value)| value.to_ascii_lowercase()).as_deref() {
        None | Some("0" | "n" | "no" | "f" | "false" | "off") => Ok(false),
        Some("1" | "y" | "yes" | "t" | "true" | "on") => Ok(true),
        Some(_) => Err(unusable(found, "0 or 1")),
    }
}

fn unusable(found: Option<(&'static str, String)>, possible: &str) -> Error {
    let (name, value) = found.unwrap_or_default();
    Error::invalid(format!("{name}=\"{value}\" is not usable: {possible} is possible"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_nccl_are_taken_out_of_the_others() {
        let (options, rest) =
            split("transport=tcp; nccl.high_priority=1 ;slot_bytes=4096").unwrap();
        assert!(options.high_priority && !options.may_block);
        assert!(split("nccl.blocking=1").unwrap().0.may_block);
        assert_eq!(rest, "transport=tcp;slot_bytes=4096");
        let error = split("nccl.may_block=1").unwrap_err();
        let expected = "back-end option \"nccl.may_block\" is now called \"nccl.blocking\"";
        assert!(error.message().starts_with(expected), "{error}");
        for wrong in ["nccl.high_priority=2", "nccl.nothing=1", "nccl.high_priority"] {
            let error = split(wrong).unwrap_err();
            assert!(error.message().contains(wrong), "{error}");
        }
    }
}
