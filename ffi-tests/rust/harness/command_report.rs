//! The report of a worker on one command, and assertions about it.

use serde_json::Value;

/// A report on one command.
#[derive(Clone, Debug)]
pub(crate) struct CommandReport {
    /// The command.
    pub(crate) command: String,
    /// The status that the command returned.
    pub(crate) status: i32,
    /// The message of the error.
    pub(crate) message: String,
    /// The duration of the command.
    pub(crate) took_us: u64,
    /// The end of the command, on the clock that all processes share.
    pub(crate) at_us: u64,
    /// The process id of the worker.
    pub(crate) pid: u32,
}

/// Parses all complete lines of a report file.
pub(super) fn parse_reports(text: &str) -> Vec<CommandReport> {
    let end = text.rfind('\n').map_or(0, |newline| newline + 1);
    text[..end].lines().map(|line| CommandReport::parse(line).expect(line)).collect()
}

impl CommandReport {
    fn parse(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        Some(Self {
            command: value["what"].as_str()?.to_owned(),
            status: i32::try_from(value["status"].as_i64()?).ok()?,
            message: value["message"].as_str()?.to_owned(),
            took_us: value["took_us"].as_u64()?,
            at_us: value["at_us"].as_u64()?,
            pid: u32::try_from(value["pid"].as_u64()?).ok()?,
        })
    }

    /// Asserts that the command succeeded.
    pub(crate) fn assert_succeeded(&self) -> &Self {
        assert_eq!(self.status, 0, "{self:?}");
        self
    }

    /// Asserts the status, and that the message contains all parts.
    pub(crate) fn assert_failed(&self, status: i32, parts: &[&str]) -> &Self {
        assert_eq!(self.status, status, "{self:?}");
        for part in parts {
            assert!(self.message.contains(part), "\"{part}\" is missing: {self:?}");
        }
        self
    }

    /// Asserts that the command took at most `limit` ms.
    pub(crate) fn assert_within_ms(&self, limit: u64) -> &Self {
        assert!(self.took_us <= limit * 1000, "more than {limit} ms: {self:?}");
        self
    }
}
