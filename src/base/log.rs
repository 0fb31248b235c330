//! The log of the library. The library logs nothing until a level is set. With a level, lines go to
//! standard error, or to the installed sink (the caller's callback).
//!
//! A log level that the program or the environment sets has precedence. If none is set, the debug
//! level suggests a log level ([`suggest_level`]).
//!
//! This module holds the level and the sink; `api` sets the level and installs the sink.

use std::fmt;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// The importance of a log line. The discriminants are the numbers of the C API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum LogLevel {
    /// No line is logged.
    Off = 0,
    /// A failure that no return value can report.
    Error = 1,
    /// An unusual event: a long wait, a dropped peer.
    Warn = 2,
    /// A choice of the library, with its reason.
    Info = 3,
    /// The end of each operation, and every step.
    Debug = 4,
    /// The issue and the start of each operation.
    Trace = 5,
}

impl LogLevel {
    /// Returns the level with this number; larger numbers are `Trace`.
    pub fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Off,
            1 => Self::Error,
            2 => Self::Warn,
            3 => Self::Info,
            4 => Self::Debug,
            _ => Self::Trace,
        }
    }

    /// Returns the level with this name, in upper or lower case; also accepts torch's `WARNING`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name.to_ascii_uppercase().as_str() {
            "OFF" | "NONE" => Some(Self::Off),
            "ERROR" | "FATAL" => Some(Self::Error),
            "WARN" | "WARNING" => Some(Self::Warn),
            "INFO" => Some(Self::Info),
            "DEBUG" | "DETAIL" => Some(Self::Debug),
            "TRACE" => Some(Self::Trace),
            _ => None,
        }
    }

    /// Returns the level for a name or number of torch, in upper or lower case.
    pub fn from_torch(name: &str) -> Option<Self> {
        match name {
            "0" => Some(Self::Info),
            "1" => Some(Self::Warn),
            "2" | "3" => Some(Self::Error),
            _ => Self::from_name(name),
        }
    }

    /// Returns the name for a log line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "OFF",
            Self::Error => "ERROR",
            Self::Warn => "WARN",
            Self::Info => "INFO",
            Self::Debug => "DEBUG",
            Self::Trace => "TRACE",
        }
    }
}

/// A receiver of the lines that pass the level. Any thread may call it.
pub trait LogSink: Send + Sync {
    /// Writes one line, without a line end.
    fn write_line(&self, level: LogLevel, text: &str);
}

/// The maximum number of characters of a line that describes an object.
const MAX_LINE_CHARS: usize = 200;

static LEVEL: AtomicU8 = AtomicU8::new(0);
/// Whether the log level has been set explicitly.
static IS_LEVEL_SET: AtomicBool = AtomicBool::new(false);
static SINK: RwLock<Option<Box<dyn LogSink>>> = RwLock::new(None);
/// Whether the sink gets no more lines.
static IS_SINK_DISABLED: AtomicBool = AtomicBool::new(false);

/// Sets the level for the whole process.
pub fn set_level(level: LogLevel) {
    IS_LEVEL_SET.store(true, Ordering::Relaxed);
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Sets the level if [`set_level`] has not been called.
pub fn suggest_level(level: LogLevel) {
    if !is_level_set() {
        LEVEL.store(level as u8, Ordering::Relaxed);
    }
}

/// Returns whether the level has been set explicitly.
pub fn is_level_set() -> bool {
    IS_LEVEL_SET.load(Ordering::Relaxed)
}

/// Returns the current level.
pub fn level() -> LogLevel {
    LogLevel::from_number(LEVEL.load(Ordering::Relaxed))
}

/// Replaces the sink; `None` restores standard error.
pub fn set_sink(sink: Option<Box<dyn LogSink>>) {
    let old = match SINK.write() {
        Ok(mut slot) => std::mem::replace(&mut *slot, sink),
        Err(poisoned) => std::mem::replace(&mut *poisoned.into_inner(), sink),
    };
    drop(old);
}

/// Discards all later lines for the sink, because the process is ending and the functions of the
/// program may be unusable. Lines for standard error are still written.
pub fn disable_sink() {
    IS_SINK_DISABLED.store(true, Ordering::Relaxed);
}

/// Returns whether a line of this level is written. This costs one relaxed load.
#[inline]
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
        Some(_) if IS_SINK_DISABLED.load(Ordering::Relaxed) => {}
        Some(sink) => sink.write_line(level, &text.to_string()),
        None => write_to_stderr(level, text),
    }
}

/// Writes fields as "name: value", in as many lines as they need. Each line begins with `head`, and
/// has at most [`MAX_LINE_CHARS`] characters if `head` is not longer than half of that.
pub fn write_fields(level: LogLevel, head: &str, fields: &[(&str, String)]) {
    let head_chars = "libdist ERROR: ".len() + head.chars().count() + ": ".len();
    let room = MAX_LINE_CHARS.saturating_sub(head_chars).max(MAX_LINE_CHARS / 3);
    let mut line = String::new();
    for (name, value) in fields {
        let field = cut(format!("{name}: {value}"), room);
        if !line.is_empty() && line.chars().count() + ", ".len() + field.chars().count() > room {
            write(level, format_args!("{head}: {line}"));
            line.clear();
        }
        if !line.is_empty() {
            line += ", ";
        }
        line += &field;
    }
    write(level, format_args!("{head}: {line}"));
}

/// Cuts a text to this number of characters. The end of a text that was cut is "...".
fn cut(text: String, room: usize) -> String {
    const MARK: &str = "...";
    match text.chars().count() <= room {
        true => text,
        false => text.chars().take(room.saturating_sub(MARK.len())).chain(MARK.chars()).collect(),
    }
}

fn write_to_stderr(level: LogLevel, text: fmt::Arguments<'_>) {
    use std::io::Write as _;
    let line = format!("libdist {}: {text}\n", level.name());
    // There is no place to report that the log could not be written.
    drop(std::io::stderr().lock().write_all(line.as_bytes()));
}

/// Logs a line at a level: `log!(LogLevel::Warn, "rank {} is late", rank)`.
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
    fn long_text_is_cut_between_characters() {
        assert_eq!(cut("é".repeat(5), 5), "é".repeat(5));
        assert_eq!(cut("é".repeat(9), 5), "éé...");
    }

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
