//! How much the library looks at what it is given, and how much it tells: the debug level and what
//! is set beside it. One for the process, changed at any time.
//!
//! The environment is read by [`read_environment`], which whoever makes a group calls first, so
//! that a wrong value is an error there; the level only as long as nobody has set one. Reading what
//! is set is a load.
//!
//! Must not know: what a level means to those who ask for it.

use super::config;
use super::error::{Error, Result};
use super::log;
pub use super::nan_check::NanCheck;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// How much. The discriminants are the C API's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum DebugLevel {
    /// What always is.
    Off = 0,
    /// Groups are told in the log: how they are made, and what they have done.
    Info = 1,
    /// Calls are checked in ways that cost.
    Detail = 2,
}

impl DebugLevel {
    /// The level with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Off, Self::Info, Self::Detail].into_iter().find(|&level| level as u8 == number)
    }

    /// The level with this name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        match name.to_ascii_uppercase().as_str() {
            "OFF" => Some(Self::Off),
            "INFO" => Some(Self::Info),
            "DETAIL" => Some(Self::Detail),
            _ => None,
        }
    }
}

/// In place of a level: nobody has set one.
const UNSET: u8 = u8::MAX;

/// The time after which a wait is told, in milliseconds.
const DEFAULT_SLOW_WAIT_MS: u64 = 30_000;

static LEVEL: AtomicU8 = AtomicU8::new(UNSET);
static NAN_CHECK: AtomicU8 = AtomicU8::new(NanCheck::Off as u8);
static BACKTRACES: AtomicBool = AtomicBool::new(false);
static SLOW_WAIT_MS: AtomicU64 = AtomicU64::new(DEFAULT_SLOW_WAIT_MS);

/// The level in force.
pub fn level() -> DebugLevel {
    DebugLevel::from_number(LEVEL.load(Ordering::Relaxed)).unwrap_or(DebugLevel::Off)
}

/// Whether calls are looked at in ways that cost.
#[inline]
pub fn has_expensive_checks() -> bool {
    LEVEL.load(Ordering::Relaxed) == DebugLevel::Detail as u8
        || NAN_CHECK.load(Ordering::Relaxed) != NanCheck::Off as u8
}

/// Sets the level for the whole process. Where nobody has chosen a level of the log, it tells what
/// this one is about.
pub fn set_level(level: DebugLevel) {
    LEVEL.store(level as u8, Ordering::Relaxed);
    let log_level = if level == DebugLevel::Off { log::LogLevel::Off } else { log::LogLevel::Info };
    log::suggest_level(log_level);
}

/// Takes the level from the environment, whatever was set before.
///
/// # Errors
/// `InvalidArgument` where the variable names no level; then nothing has changed.
pub fn set_level_from_environment() -> Result<()> {
    set_level(level_in_environment()?);
    Ok(())
}

/// The level in force, which is the environment's where nobody has set one.
///
/// # Errors
/// `InvalidArgument` where the variable names no level.
pub fn level_or_environment() -> Result<DebugLevel> {
    if LEVEL.load(Ordering::Relaxed) == UNSET {
        set_level_from_environment()?;
    }
    Ok(level())
}

/// The first of the two variables that is set; they have torch's words.
fn level_in_environment() -> Result<DebugLevel> {
    for variable in [config::DEBUG_LEVEL, config::TORCH_DEBUG] {
        let Some(name) = config::read_text(variable)? else { continue };
        return DebugLevel::from_name(&name).ok_or_else(|| {
            let message = format!("{}=\"{name}\" is none of OFF, INFO, DETAIL", variable.name);
            Error::invalid(message)
        });
    }
    Ok(DebugLevel::Off)
}

/// Takes everything that is here from the environment, the level only where nobody has set one.
///
/// # Errors
/// `InvalidArgument` naming a variable that cannot be used.
pub fn read_environment() -> Result<()> {
    log_level_from_environment()?;
    level_or_environment()?;
    let name = config::CHECK_NAN.name;
    let nan_check = match config::read_text(config::CHECK_NAN)?.as_deref() {
        None | Some("0") => NanCheck::Off,
        Some("1") => NanCheck::RejectNan,
        Some("inf") => NanCheck::RejectNonFinite,
        Some(other) => {
            return Err(Error::invalid(format!("{name}=\"{other}\" is none of 0, 1, inf")));
        }
    };
    let backtraces = match config::read_bool(config::STACKTRACES)? {
        Some(wanted) => wanted,
        None => config::read_bool(config::TORCH_STACKTRACES)?.unwrap_or(false),
    };
    let slow_wait_ms = config::read_timeout_ms(config::SLOW_WARNING_MS, DEFAULT_SLOW_WAIT_MS)?;
    NAN_CHECK.store(nan_check as u8, Ordering::Relaxed);
    BACKTRACES.store(backtraces, Ordering::Relaxed);
    SLOW_WAIT_MS.store(slow_wait_ms, Ordering::Relaxed);
    Ok(())
}

/// Takes the level of the log from the environment, unless one was set in the program.
///
/// # Errors
/// `InvalidArgument` where a variable names no level.
pub fn log_level_from_environment() -> Result<()> {
    if log::is_level_set() {
        return Ok(());
    }
    let own_variable =
        (config::LOG_LEVEL, log::LogLevel::from_name as fn(&str) -> Option<log::LogLevel>);
    for (variable, parse) in [own_variable, (config::TORCH_LOG_LEVEL, log::LogLevel::from_torch)] {
        let Some(name) = config::read_text(variable)? else { continue };
        let level = parse(&name).ok_or_else(|| {
            let text =
                format!("{}=\"{name}\" is none of OFF, ERROR, WARN, INFO, DEBUG", variable.name);
            Error::invalid(text)
        })?;
        log::set_level(level);
        return Ok(());
    }
    Ok(())
}

/// Which elements are looked for in every call.
pub fn nan_check() -> NanCheck {
    match NAN_CHECK.load(Ordering::Relaxed) {
        0 => NanCheck::Off,
        1 => NanCheck::RejectNan,
        _ => NanCheck::RejectNonFinite,
    }
}

/// Whether errors are to keep where in the program they come from.
pub fn is_backtrace_enabled() -> bool {
    BACKTRACES.load(Ordering::Relaxed) || level() == DebugLevel::Detail
}

/// After how long a wait is told; `None` where that is never, or nobody would hear it.
pub fn slow_wait_threshold() -> Option<Duration> {
    if !log::enabled(log::LogLevel::Warn) {
        return None;
    }
    Some(SLOW_WAIT_MS.load(Ordering::Relaxed))
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
}
