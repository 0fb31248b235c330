//! The debug settings of the process: the debug level, the NaN check, back-traces and the slow-wait
//! threshold. The settings may change at any time.
//!
//! [`read_environment`] reads the environment. A call that creates a group first calls
//! [`read_environment`], and reports a wrong value as an error. The environment sets the debug
//! level only if the program has not set one. Reading a setting takes one load.
//!
//! The effects of a level are defined by the code that reads the level, not by this module.

use super::config;
use super::error::{Error, Result};
use super::log;
pub use super::nan_check::NanCheck;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// The debug level. The discriminants are the numbers of the C API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum DebugLevel {
    /// Only the default checks run.
    Off = 0,
    /// The log also reports how groups are made, and a summary of their work.
    Info = 1,
    /// The library also runs expensive checks of calls.
    Detail = 2,
}

impl DebugLevel {
    /// Returns the level with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Off, Self::Info, Self::Detail].into_iter().find(|&level| level as u8 == number)
    }

    /// Returns the level with this name, in upper or lower case.
    pub fn from_name(name: &str) -> Option<Self> {
        match name.to_ascii_uppercase().as_str() {
            "OFF" => Some(Self::Off),
            "INFO" => Some(Self::Info),
            "DETAIL" => Some(Self::Detail),
            _ => None,
        }
    }
}

/// The value of `LEVEL` before the program or the environment has set a level.
const UNSET: u8 = u8::MAX;

/// The default time after which the log reports a wait, in milliseconds.
const DEFAULT_SLOW_WAIT_MS: u64 = 30_000;

/// The default time after which a waiting call is checked for a deadlock, in milliseconds.
const DEFAULT_BLOCKED_CALL_MS: u64 = 300;

static LEVEL: AtomicU8 = AtomicU8::new(UNSET);
static NAN_CHECK: AtomicU8 = AtomicU8::new(NanCheck::Off as u8);
static BACKTRACES: AtomicBool = AtomicBool::new(false);
static SLOW_WAIT_MS: AtomicU64 = AtomicU64::new(DEFAULT_SLOW_WAIT_MS);
static BLOCKED_CALL_MS: AtomicU64 = AtomicU64::new(DEFAULT_BLOCKED_CALL_MS);

/// Returns the current level.
pub fn level() -> DebugLevel {
    DebugLevel::from_number(LEVEL.load(Ordering::Relaxed)).unwrap_or(DebugLevel::Off)
}

/// Returns whether calls run expensive checks.
#[inline]
pub fn has_expensive_checks() -> bool {
    LEVEL.load(Ordering::Relaxed) == DebugLevel::Detail as u8
        || NAN_CHECK.load(Ordering::Relaxed) != NanCheck::Off as u8
}

/// Sets the level for the whole process. If no log level has been set, also sets the log level that
/// this debug level needs.
pub fn set_level(level: DebugLevel) {
    LEVEL.store(level as u8, Ordering::Relaxed);
    let log_level = if level == DebugLevel::Off { log::LogLevel::Off } else { log::LogLevel::Info };
    log::suggest_level(log_level);
}

/// Sets the level from the environment, and replaces any earlier setting.
///
/// # Errors
/// `InvalidArgument` if the variable names no level. The level then remains unchanged.
pub fn set_level_from_environment() -> Result<()> {
    set_level(level_in_environment()?);
    Ok(())
}

/// Returns the current level. If no level has been set, sets it from the environment first.
///
/// # Errors
/// `InvalidArgument` if the variable names no level.
pub fn level_or_environment() -> Result<DebugLevel> {
    if LEVEL.load(Ordering::Relaxed) == UNSET {
        set_level_from_environment()?;
    }
    Ok(level())
}

/// Reads the level from `DIST_DEBUG_LEVEL`, or from `TORCH_DISTRIBUTED_DEBUG` if the first variable
/// is not set. Both variables use torch's names of the levels.
fn level_in_environment() -> Result<DebugLevel> {
    for variable in [config::DEBUG_LEVEL, config::TORCH_DEBUG] {
        let Some(name) = config::read_text(variable)? else { continue };
        return DebugLevel::from_name(&name).ok_or_else(|| {
            let message = format!("{}=\"{name}\" is not one of OFF, INFO, DETAIL", variable.name);
            Error::invalid(message)
        });
    }
    Ok(DebugLevel::Off)
}

/// Reads all settings of this module from the environment. The debug level and the log level are
/// read only if the program has set none.
///
/// # Errors
/// `InvalidArgument` with the name of a variable that has an invalid value.
pub fn read_environment() -> Result<()> {
    log_level_from_environment()?;
    level_or_environment()?;
    let name = config::CHECK_NAN.name;
    let nan_check = match config::read_text(config::CHECK_NAN)?.as_deref() {
        None | Some("0") => NanCheck::Off,
        Some("1") => NanCheck::RejectNan,
        Some("inf") => NanCheck::RejectNonFinite,
        Some(other) => {
            return Err(Error::invalid(format!("{name}=\"{other}\" is not one of 0, 1, inf")));
        }
    };
    let backtraces = match config::read_bool(config::STACKTRACES)? {
        Some(wanted) => wanted,
        None => config::read_bool(config::TORCH_STACKTRACES)?.unwrap_or(false),
    };
    let slow_wait_ms = config::read_timeout_ms(config::SLOW_WARNING_MS, DEFAULT_SLOW_WAIT_MS)?;
    let blocked_call_ms = config::read_timeout_ms(config::DEADLOCK_MS, DEFAULT_BLOCKED_CALL_MS)?;
    NAN_CHECK.store(nan_check as u8, Ordering::Relaxed);
    BACKTRACES.store(backtraces, Ordering::Relaxed);
    SLOW_WAIT_MS.store(slow_wait_ms, Ordering::Relaxed);
    BLOCKED_CALL_MS.store(blocked_call_ms, Ordering::Relaxed);
    Ok(())
}

/// Sets the log level from the environment, unless the program has set one.
///
/// # Errors
/// `InvalidArgument` if a variable names no level.
pub fn log_level_from_environment() -> Result<()> {
    if log::is_level_set() {
        return Ok(());
    }
    let own_variable =
        (config::LOG_LEVEL, log::LogLevel::from_name as fn(&str) -> Option<log::LogLevel>);
    for (variable, parse) in [own_variable, (config::TORCH_LOG_LEVEL, log::LogLevel::from_torch)] {
        let Some(name) = config::read_text(variable)? else { continue };
        let level = parse(&name).ok_or_else(|| {
            let levels = "OFF, ERROR, WARN, INFO, DEBUG, TRACE";
            Error::invalid(format!("{}=\"{name}\" is not one of {levels}", variable.name))
        })?;
        let is_torch = variable.name == config::TORCH_LOG_LEVEL.name;
        log::set_level(if is_torch {
            with_debug_level(level, level_or_environment()?)
        } else {
            level
        });
        return Ok(());
    }
    Ok(())
}

/// Returns the log level that torch's two variables give together: the debug level raises the log
/// level INFO, and no other level.
fn with_debug_level(log_level: log::LogLevel, debug_level: DebugLevel) -> log::LogLevel {
    match (log_level, debug_level) {
        (log::LogLevel::Info, DebugLevel::Info) => log::LogLevel::Debug,
        (log::LogLevel::Info, DebugLevel::Detail) => log::LogLevel::Trace,
        _ => log_level,
    }
}

/// Returns the NaN check that applies to all calls.
pub fn nan_check() -> NanCheck {
    match NAN_CHECK.load(Ordering::Relaxed) {
        0 => NanCheck::Off,
        1 => NanCheck::RejectNan,
        _ => NanCheck::RejectNonFinite,
    }
}

/// Returns whether errors capture a back-trace.
pub fn is_backtrace_enabled() -> bool {
    BACKTRACES.load(Ordering::Relaxed) || level() == DebugLevel::Detail
}

/// Returns the time after which the log reports a wait, or `None` if waits are not reported or the
/// log level is below WARN.
pub fn slow_wait_threshold() -> Option<Duration> {
    if !log::enabled(log::LogLevel::Warn) {
        return None;
    }
    Some(SLOW_WAIT_MS.load(Ordering::Relaxed))
        .filter(|&ms| ms != u64::MAX)
        .map(Duration::from_millis)
}

/// Returns the time after which a waiting call is checked for a deadlock, or `None` if calls are
/// not checked.
pub fn blocked_call_threshold() -> Option<Duration> {
    Some(BLOCKED_CALL_MS.load(Ordering::Relaxed))
        .filter(|&ms| ms != u64::MAX)
        .map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_names_and_numbers() {
        for (name, level) in
            [("off", DebugLevel::Off), ("INFO", DebugLevel::Info), ("Detail", DebugLevel::Detail)]
        {
            assert_eq!(DebugLevel::from_name(name), Some(level));
            assert_eq!(DebugLevel::from_number(level as u8), Some(level));
        }
        assert_eq!((DebugLevel::from_name("DEBUG"), DebugLevel::from_number(3)), (None, None));
    }

    #[test]
    fn debug_level_raises_only_the_log_level_info() {
        use log::LogLevel::{Debug, Error, Info, Off, Trace, Warn};
        for (log_level, expected) in [
            (Off, [Off; 3]),
            (Error, [Error; 3]),
            (Warn, [Warn; 3]),
            (Info, [Info, Debug, Trace]),
            (Debug, [Debug; 3]),
        ] {
            let levels = [DebugLevel::Off, DebugLevel::Info, DebugLevel::Detail];
            assert_eq!(levels.map(|level| with_debug_level(log_level, level)), expected);
        }
        for number in 0..=5 {
            let level = log::LogLevel::from_number(number);
            assert_eq!(log::LogLevel::from_name(level.name()), Some(level));
        }
    }
}
