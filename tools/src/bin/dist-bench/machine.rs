//! The description of the machine of a measurement. The description for users contains nothing that
//! distinguishes the host from other hosts of the same kind.

use dist::sys::host;
use serde_json::{Value, json};
use std::fs;

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostMachine {
    pub(crate) cores: u64,
    pub(crate) processor: String,
    /// The size in bytes.
    pub(crate) memory: u64,
    pub(crate) system: String,
}

impl HostMachine {
    /// Returns the description of this machine.
    pub(crate) fn current() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let processors = read("/proc/cpuinfo");
        let names = processors.lines().filter_map(|line| line.strip_prefix("model name"));
        let name = names.map(|rest| rest.trim_start_matches([' ', '\t', ':'])).next();
        Self {
            cores: host::cores() as u64,
            processor: name.unwrap_or("unknown processor").to_owned(),
            memory: host::memory_total().unwrap_or(0),
            system: format!("Linux {}", version_digits(&read("/proc/sys/kernel/osrelease"))),
        }
    }

    /// Formats the description for users.
    pub(crate) fn describe(&self) -> String {
        let Self { cores, processor, memory, system } = self;
        format!("{cores} cores of {processor}, {} GiB, {system}", memory.div_ceil(1 << 30))
    }

    /// Returns the description as JSON.
    pub(crate) fn json(&self) -> Value {
        let Self { cores, processor, memory, system } = self;
        json!({
            "name": host::name(), "cores": cores, "processor": processor, "memory_bytes": memory,
            "system": system,
        })
    }

    /// Parses the result of [`HostMachine::json`].
    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        Some(Self {
            cores: value["cores"].as_u64()?,
            processor: text("processor")?,
            memory: value["memory_bytes"].as_u64()?,
            system: text("system")?,
        })
    }
}

/// Returns the digits and points at the beginning of a version, without the suffix of a
/// distribution.
fn version_digits(version: &str) -> &str {
    let end = version.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    version.get(..end.unwrap_or(version.len())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_survives_json_round_trip() {
        let machine = HostMachine::current();
        assert_eq!(HostMachine::from_json(&machine.json()), Some(machine.clone()));
        assert!(machine.describe().contains(" cores of "));
        assert_eq!(HostMachine::from_json(&json!({"cores": 2})), None);
        assert_eq!([version_digits("6.1.0-18-amd64\n"), version_digits("6.12")], ["6.1.0", "6.12"]);
    }
}
