//! The options of the NCCL back end. They are given as `nccl.KEY=VALUE` in the back-end options of
//! a group, or by the environment variables that c10d (PyTorch) uses. The back-end options override
//! the environment.

use crate::backend::device_factory::split_prefixed_options;
use crate::base::config::{self, EnvVariable};
use crate::base::error::{Error, Result};
use crate::base::renamed::{self, NameKind};

/// The options of a group's NCCL back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NcclOptions {
    /// True if the library's own stream has a high priority on the device.
    pub(super) high_priority: bool,
    /// True if a call returns only after the device has completed it.
    pub(super) blocking_wait: bool,
    /// True if all ranks allocate memory together and register it as a window.
    pub(super) windows: bool,
    /// True if an NCCL call may block until the other ranks have made the same call. Blocking calls
    /// cost less.
    pub(super) may_block: bool,
    /// True if the watchdog fails the group on errors and at deadlines.
    pub(super) handles_errors: bool,
    /// True if the device time of all operations is measured. A trace measures it in any case.
    pub(super) has_timing: bool,
}

/// The prefix of the NCCL options.
const PREFIX: &str = "nccl.";

/// Separates the NCCL options of a group from its other options, and returns both.
///
/// # Errors
/// `InvalidArgument`, naming the option or the variable.
pub(super) fn split_options(options: &str) -> Result<(NcclOptions, String)> {
    let mut parsed = from_environment()?;
    let rest = split_prefixed_options(options, PREFIX, |option, own| {
        let name = option.split('=').next().unwrap_or(option).trim();
        if let Some(error) = renamed::former_name_error(NameKind::BackendOption, name) {
            return Err(error);
        }
        let invalid_option = || {
            Error::invalid(format!(
                "backend_options: \"{option}\" is unknown: use nccl.high_priority=0|1, \
                 nccl.blocking_wait=0|1, nccl.windows=0|1 or nccl.blocking=0|1"
            ))
        };
        let (key, value) = own.split_once('=').ok_or_else(invalid_option)?;
        let value = match value.trim() {
            "0" => false,
            "1" => true,
            _ => return Err(invalid_option()),
        };
        match key.trim() {
            "high_priority" => parsed.high_priority = value,
            "blocking_wait" => parsed.blocking_wait = value,
            "windows" => parsed.windows = value,
            "blocking" => parsed.may_block = value,
            _ => return Err(invalid_option()),
        }
        Ok(())
    })?;
    Ok((parsed, rest))
}

/// Returns true if the environment allows several ranks to use one GPU.
///
/// # Errors
/// `InvalidArgument`.
pub(super) fn may_share_gpus() -> Result<bool> {
    Ok(config::read_text(config::NCCL_MULTI_RANK_GPU)?.as_deref() == Some("1"))
}

fn from_environment() -> Result<NcclOptions> {
    let handling = first_set([config::TORCH_NCCL_ASYNC_ERRORS, config::NCCL_ASYNC_ERRORS])?;
    let handles_errors = match handling.as_ref().map(|(_, value)| value.as_str()) {
        None | Some("1" | "2" | "3") => true,
        Some("0") => false,
        Some(_) => return Err(unusable_value(handling, "0 to 3")),
    };
    let blocking_wait =
        parse_switch([config::TORCH_NCCL_BLOCKING_WAIT, config::NCCL_BLOCKING_WAIT])?;
    let high_priority = parse_switch([config::TORCH_NCCL_HIGH_PRIORITY])?;
    let non_blocking = config::TORCH_NCCL_NON_BLOCKING;
    let may_block = first_set([non_blocking])?.is_some() && !parse_switch([non_blocking])?;
    let has_timing = parse_switch([config::TORCH_NCCL_TIMING])?;
    let windows = false;
    Ok(NcclOptions { high_priority, blocking_wait, windows, may_block, handles_errors, has_timing })
}

/// Returns the name and the value of the first variable that is set.
fn first_set<const N: usize>(
    variables: [EnvVariable; N],
) -> Result<Option<(&'static str, String)>> {
    for variable in variables {
        if let Some(value) = config::read_text(variable)? {
            return Ok(Some((variable.name, value.trim().to_owned())));
        }
    }
    Ok(None)
}

fn parse_switch<const N: usize>(variables: [EnvVariable; N]) -> Result<bool> {
    let found = first_set(variables)?;
    match found.as_ref().map(|(_, value)| value.to_ascii_lowercase()).as_deref() {
        None | Some("0" | "n" | "no" | "f" | "false" | "off") => Ok(false),
        Some("1" | "y" | "yes" | "t" | "true" | "on") => Ok(true),
        Some(_) => Err(unusable_value(found, "0 or 1")),
    }
}

fn unusable_value(found: Option<(&'static str, String)>, possible: &str) -> Error {
    let (name, value) = found.unwrap_or_default();
    Error::invalid(format!("{name}=\"{value}\" is invalid: use {possible}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_options_are_split_from_the_others() {
        let (options, rest) =
            split_options("transport=tcp; nccl.high_priority=1 ;slot_bytes=4096").unwrap();
        assert!(options.high_priority && !options.may_block);
        assert!(split_options("nccl.blocking=1").unwrap().0.may_block);
        assert_eq!(rest, "transport=tcp;slot_bytes=4096");
        let error = split_options("nccl.may_block=1").unwrap_err();
        let expected = "back-end option \"nccl.may_block\" is now called \"nccl.blocking\"";
        assert!(error.message().starts_with(expected), "{error}");
        for wrong in ["nccl.high_priority=2", "nccl.nothing=1", "nccl.high_priority"] {
            let error = split_options(wrong).unwrap_err();
            assert!(error.message().contains(wrong), "{error}");
        }
    }
}
