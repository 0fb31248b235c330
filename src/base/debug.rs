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
pub use super::values::Values;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// How much. The discriminants are the C API's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// What always is.
    Off = 0,
    /// Groups are told in the log: how they are made, and what they have done.
    Info = 1,
    /// Calls are checked in ways that cost.
    Detail = 2,
}

impl Level {
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
const SLOW_MS: u64 = 30_000;

static LEVEL: AtomicU8 = AtomicU8::new(UNSET);
static VALUES: AtomicU8 = AtomicU8::new(Values::Any as u8);
static BACKTRACES: AtomicBool = AtomicBool::new(false);
static SLOW: AtomicU64 = AtomicU64::new(SLOW_MS);

/// The level in force.
pub fn level() -> Level {
    Level::from_number(LEVEL.load(Ordering::Relaxed)).unwrap_or(Level::Off)
}

/// Whether calls are looked at in ways that cost.
#[inline]
pub fn looks() -> bool {
    LEVEL.load(Ordering::Relaxed) == Level::Detail as u8
        || VALUES.load(Ordering::Relaxed) != Values::Any as u8
}

/// Sets the level for the whole process. Where nobody has chosen a level of the log, it tells what
/// this one is about.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
    let told = if level == Level::Off { log::Level::Off } else { log::Level::Info };
    log::suggest_level(told);
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
pub fn level_or_environment() -> Result<Level> {
    if LEVEL.load(Ordering::Relaxed) == UNSET {
        set_level_from_environment()?;
    }
    Ok(level())
}

/// The first of the two variables that is set; they have torch's words.
fn level_in_environment() -> Result<Level> {
    for variable in [config::DEBUG_LEVEL, config::TORCH_DEBUG] {
        let Some(name) = config::text(variable)? else { continue };
        return Level::from_name(&name).ok_or_else(|| {
            let message = format!("{}=\"{name}\" is none of OFF, INFO, DETAIL", variable.name);
            Error::invalid(message)
        });
    }
    Ok(Level::Off)
}

/// Takes everything that is here from the environment, the level only where nobody has set one.
///
/// # Errors
/// `InvalidArgument` naming a variable that cannot be used.
pub fn read_environment() -> Result<()> {
    log_level_from_environment()?;
    level_or_environment()?;
    let name = config::CHECK_NAN.name;
    let values = match config::text(config::CHECK_NAN)?.as_deref() {
        None | Some("0") => Values::Any,
        Some("1") => Values::NoNan,
        Some("inf") => Values::Finite,
        Some(other) => {
            return Err(Error::invalid(format!("{name}=\"{other}\" is none of 0, 1, inf")));
        }
    };
    let backtraces = match config::switch(config::STACKTRACES)? {
        Some(wanted) => wanted,
        None => config::switch(config::TORCH_STACKTRACES)?.unwrap_or(false),
    };
    let slow_ms = config::time_limit(config::SLOW_WARNING_MS, SLOW_MS)?;
    VALUES.store(values as u8, Ordering::Relaxed);
    BACKTRACES.store(backtraces, Ordering::Relaxed);
    SLOW.store(slow_ms, Ordering::Relaxed);
    Ok(())
}

/// Takes the level of the log from the environment, unless one was set in the program.
///
/// # Errors
/// `InvalidArgument` where a variable names no level.
pub fn log_level_from_environment() -> Result<()> {
    if log::is_chosen() {
        return Ok(());
    }
    let ours = (config::LOG_LEVEL, log::Level::from_name as fn(&str) -> Option<log::Level>);
    for (variable, parse) in [ours, (config::TORCH_LOG_LEVEL, log::Level::from_torch)] {
        let Some(name) = config::text(variable)? else { continue };
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
pub fn values() -> Values {
    match VALUES.load(Ordering::Relaxed) {
        0 => Values::Any,
        1 => Values::NoNan,
        _ => Values::Finite,
    }
}

/// Whether errors are to keep where in the program they come from.
pub fn wants_backtraces() -> bool {
    BACKTRACES.load(Ordering::Relaxed) || level() == Level::Detail
}

/// After how long a wait is told; `None` where that is never, or nobody would hear it.
pub fn slow_after() -> Option<Duration> {
    if !log::enabled(log::Level::Warn) {
        return None;
    }
    Some(SLOW.load(Ordering::Relaxed)).filter(|&ms| ms != u64::MAX).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_names_and_numbers() {
        for (name, level) in [("off", Level::Off), ("INFO", Level::Info), ("Detail", Level::Detail)]
        {
            assert_eq!(Level::from_name(name), Some(level));
            assert_eq!(Level::from_number(level as u8), Some(level));
        }
        assert_eq!((Level::from_name("DEBUG"), Level::from_number(3)), (None, None));
    }
}
