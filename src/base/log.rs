//! The log: silent unless somebody set a level, and then written to the sink that was installed
//! (standard error, or the caller's callback).
//!
//! A level that was set for the log itself stands. Where nobody has set one, a debug level may want
//! some.
//!
//! This module holds the level and the sink; who installs which is `api`'s affair.

use std::fmt;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// How important a line is. The discriminants are the C API's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum LogLevel {
    /// Nothing is logged.
    Off = 0,
    /// Something failed that no return value can tell.
    Error = 1,
    /// Something is unusual: a long wait, a dropped peer.
    Warn = 2,
    /// What was chosen and why.
    Info = 3,
    /// Every step.
    Debug = 4,
}

impl LogLevel {
    /// The level with this number; larger numbers mean `Debug`.
    pub fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Off,
            1 => Self::Error,
            2 => Self::Warn,
            3 => Self::Info,
            _ => Self::Debug,
        }
    }

    /// The level with this name, in any case; also torch's `WARNING`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name.to_ascii_uppercase().as_str() {
            "OFF" | "NONE" => Some(Self::Off),
            "ERROR" | "FATAL" => Some(Self::Error),
            "WARN" | "WARNING" => Some(Self::Warn),
            "INFO" => Some(Self::Info),
            "DEBUG" | "DETAIL" | "TRACE" => Some(Self::Debug),
            _ => None,
        }
    }

    /// The level that torch means by a name or a number of its own, in any case.
    pub fn from_torch(name: &str) -> Option<Self> {
        match name {
            "0" => Some(Self::Info),
            "1" => Some(Self::Warn),
            "2" | "3" => Some(Self::Error),
            _ => Self::from_name(name),
        }
    }

    /// The name in a log line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "OFF",
            Self::Error => "ERROR",
            Self::Warn => "WARN",
            Self::Info => "INFO",
            Self::Debug => "DEBUG",
        }
    }
}

/// Receives each line that passes the level. Called from any thread.
pub trait LogSink: Send + Sync {
    /// One line, without its end.
    fn write_line(&self, level: LogLevel, text: &str);
}

static LEVEL: AtomicU8 = AtomicU8::new(0);
/// Somebody has said which level the log is to have.
static IS_LEVEL_SET: AtomicBool = AtomicBool::new(false);
static SINK: RwLock<Option<Box<dyn LogSink>>> = RwLock::new(None);

/// Sets the level for the whole process.
pub fn set_level(level: LogLevel) {
    IS_LEVEL_SET.store(true, Ordering::Relaxed);
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Sets the level where nobody has done so with [`set_level`].
pub fn suggest_level(level: LogLevel) {
    if !is_level_set() {
        LEVEL.store(level as u8, Ordering::Relaxed);
    }
}

/// Whether somebody has set a level.
pub fn is_level_set() -> bool {
    IS_LEVEL_SET.load(Ordering::Relaxed)
}

/// The level in force.
pub fn level() -> LogLevel {
    LogLevel::from_number(LEVEL.load(Ordering::Relaxed))
}

/// Replaces the sink; `None` goes back to standard error.
pub fn set_sink(sink: Option<Box<dyn LogSink>>) {
    let old = match SINK.write() {
        Ok(mut slot) => std::mem::replace(&mut *slot, sink),
        Err(poisoned) => std::mem::replace(&mut *poisoned.into_inner(), sink),
    };
    drop(old);
}

/// True where a line of this level would be written.
pub fn enabled(level: LogLevel) -> bool {
    level as u8 <= LEVEL.load(Ordering::Relaxed)
}

/// Writes a line; use the [`log!`](crate::log) macro, which builds the text only when needed.
pub fn write(level: LogLevel, text: fmt::Arguments<'_>) {
    let guard = match SINK.read() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    };
    match guard.as_deref() {
        Some(sink) => sink.write_line(level, &text.to_string()),
        None => write_to_stderr(level, text),
    }
}

fn write_to_stderr(level: LogLevel, text: fmt::Arguments<'_>) {
    use std::io::Write as _;
    let line = format!("libdist {}: {text}\n", level.name());
    // A log that cannot be written has nowhere to say so.
    drop(std::io::stderr().lock().write_all(line.as_bytes()));
}

/// Logs a line at a level: `log!(LogLevel::Warn, "rank {} is record_late_rank", rank)`.
#[macro_export]
macro_rules! log {
    ($level:expr, $($text:tt)+) => {
        if $crate::base::log::enabled($level) {
            $crate::base::log::write($level, format_args!($($text)+));
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torch_level_names_and_numbers_are_parsed() {
        for (name, level) in [
            ("INFO", LogLevel::Info),
            ("warning", LogLevel::Warn),
            ("FATAL", LogLevel::Error),
            ("0", LogLevel::Info),
            ("1", LogLevel::Warn),
            ("3", LogLevel::Error),
        ] {
            assert_eq!(LogLevel::from_torch(name), Some(level), "{name}");
        }
        assert_eq!(LogLevel::from_torch("4"), None);
        assert_eq!(LogLevel::from_name("0"), None);
    }
}
