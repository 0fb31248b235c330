//! What a rank publishes about itself before the ranks meet.

use super::tuning;
use crate::algo::rules::{self, Rule, Source};
use crate::base::config;
use crate::base::error::{Context as _, Error, Result};
use crate::base::ids::{Nonce, Rank};
use crate::sys::host;
use serde_json::{Value, json};

/// The smallest and the largest slot that can be configured.
const SLOT_LIMITS: (u64, u64) = (4096, 64 << 20);
const DEFAULT_SLOT: u64 = 256 << 10;

/// One rank's card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Card {
    /// What ranks must have in common to be on one host.
    pub(super) host_id: String,
    /// The host's name, for messages.
    pub(super) host_name: String,
    /// The process id.
    pub(super) pid: u32,
    /// The same for all ranks of one process.
    pub(super) process: Nonce,
    /// This rank's own.
    pub(super) nonce: Nonce,
    /// The name of its Unix socket.
    pub(super) socket: String,
    /// How many cores it may use.
    pub(super) cores: usize,
    /// `auto`, `shm`, `inproc` or `tcp`; that of rank 0 counts.
    pub(super) transport: String,
    /// The slot size it would like; that of rank 0 counts.
    pub(super) slot_bytes: usize,
    /// Overrides of the choice among algorithms; only rank 0 has any.
    pub(super) rules: Vec<Rule>,
}

impl Card {
    /// This rank's card, with the name of its socket, and what its options or the environment ask for.
    pub(super) fn of_this_rank(socket: &str, options: &str, rank: Rank) -> Result<Self> {
        let Wishes { transport, slot_bytes, host_id, mut rules, tuning_file } =
            Wishes::parse(options)?;
        // The others check what they were told, and take what rank 0 was.
        if rank != 0 {
            rules.clear();
        } else if let Some(path) = tuning_file {
            rules.extend(tuning::read(&path)?);
        }
        Ok(Self {
            host_id: host_id.unwrap_or_else(host::identity),
            host_name: host::name(),
            pid: host::pid(),
            process: host::process_nonce()?,
            nonce: host::random_nonce()?,
            socket: socket.to_owned(),
            cores: host::cores(),
            transport,
            slot_bytes,
            rules,
        })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let card = json!({
            "host_id": self.host_id,
            "host_name": self.host_name,
            "pid": self.pid,
            "process": self.process.to_string(),
            "nonce": self.nonce.to_string(),
            "socket": self.socket,
            "cores": self.cores,
            "transport": self.transport,
            "slot_bytes": self.slot_bytes,
            "rules": tuning::encode(&self.rules),
        });
        card.to_string().into_bytes()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let card: Value = serde_json::from_slice(bytes).ok()?;
        let text = |name: &str| card.get(name)?.as_str().map(str::to_owned);
        let number = |name: &str| usize::try_from(card.get(name)?.as_u64()?).ok();
        Some(Self {
            host_id: text("host_id")?,
            host_name: text("host_name")?,
            pid: u32::try_from(number("pid")?).ok()?,
            process: Nonce::parse(&text("process")?)?,
            nonce: Nonce::parse(&text("nonce")?)?,
            socket: text("socket")?,
            cores: number("cores")?,
            transport: text("transport")?,
            slot_bytes: number("slot_bytes")?,
            rules: tuning::decode(card.get("rules")?)?,
        })
    }
}

/// What can be asked of the native back end.
#[derive(Debug)]
struct Wishes {
    transport: String,
    slot_bytes: usize,
    host_id: Option<String>,
    rules: Vec<Rule>,
    tuning_file: Option<String>,
}

impl Wishes {
    /// The options, "transport=...;slot_bytes=...;...", over the environment, over the defaults.
    fn parse(options: &str) -> Result<Self> {
        let (low, high) = SLOT_LIMITS;
        let mut transport = config::text(config::TRANSPORT)?;
        let mut host_id = config::text(config::HOST_ID)?;
        let mut slot_bytes = config::bounded(config::SLOT_BYTES, DEFAULT_SLOT, low, high)?;
        let mut tuning_file = config::text(config::TUNING_FILE)?;
        let name = config::ALGORITHM.name;
        let wanted = config::text(config::ALGORITHM)?.unwrap_or_default();
        let mut rules = rules::parse(&wanted, Source::Environment).context(|| name)?;
        for option in options.split(';').map(str::trim).filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("transport", name)) => transport = Some(name.to_owned()),
                Some(("host_id", label)) if !label.is_empty() => host_id = Some(label.to_owned()),
                Some(("algorithm", list)) => {
                    rules.extend(rules::parse(list, Source::Options).context(|| "algorithm")?);
                }
                Some(("tuning_file", path)) => {
                    tuning_file = Some(path.to_owned()).filter(|path| !path.is_empty());
                }
                Some(("slot_bytes", bytes)) => {
                    let wanted = bytes.parse().ok().filter(|bytes| (low..=high).contains(bytes));
                    slot_bytes = wanted.ok_or_else(|| {
                        Error::invalid(format!(
                            "slot_bytes={bytes} is not one from {low} to {high}"
                        ))
                    })?;
                }
                _ => {
                    return Err(Error::invalid(format!(
                        "the native back end has no option \"{option}\"; it has \
                         transport=auto|shm|inproc|tcp, host_id=LABEL, slot_bytes=N, \
                         algorithm=OPERATION=ALGORITHM,... and tuning_file=PATH"
                    )));
                }
            }
        }
        Ok(Self {
            transport: transport.unwrap_or_else(|| "auto".to_owned()),
            slot_bytes: usize::try_from(slot_bytes).unwrap_or(usize::MAX),
            host_id,
            rules,
            tuning_file,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_or_refused() {
        let wishes = Wishes::parse("transport=shm; slot_bytes=8192;host_id=a;").unwrap();
        assert_eq!((wishes.transport.as_str(), wishes.slot_bytes), ("shm", 8192));
        assert_eq!(wishes.host_id.as_deref(), Some("a"));
        for (bad, word) in [
            ("slot_bytes=1", "4096"),
            ("tarnsport=shm", "tarnsport"),
            ("x", "\"x\""),
            ("algorithm=all_reduce=rnig", "rabenseifner"),
            ("algorithm=ring", "OPERATION=ALGORITHM"),
        ] {
            let error = Wishes::parse(bad).unwrap_err();
            assert!(error.message().contains(word), "{error}");
        }
    }

    #[test]
    fn a_card_survives_its_bytes() {
        let options = "algorithm=all_reduce=ring,broadcast=tree;slot_bytes=8192";
        let card = Card::of_this_rank("some-socket", options, 0).unwrap();
        assert_eq!(card.rules.len(), 2);
        assert_eq!(Card::decode(&card.encode()), Some(card));
        assert!(Card::of_this_rank("some-socket", options, 1).unwrap().rules.is_empty());
        assert!(Card::of_this_rank("some-socket", "algorithm=x=y", 1).is_err());
        assert!(Card::of_this_rank("some-socket", "tuning_file=/nonexistent", 0).is_err());
        assert_eq!(Card::decode(b"{}"), None);
        assert_eq!(Card::decode(b"\xff"), None);
    }
}
