//! The entry that a rank publishes in the store about itself, and the state that rank 0 keeps of
//! each rank.

use crate::base::config;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Nonce, Rank, WorldSize};
use crate::security::SecuritySetting;
use serde_json::{Value, json};

/// The entry that a rank publishes under the key `rank/<r>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RendezvousEntry {
    /// A random value that is new for every process and every attempt.
    pub(super) nonce: Nonce,
    /// The number of ranks that the process expects.
    pub(super) size: WorldSize,
    /// The name of the process's security setting.
    pub(super) security: String,
    /// The version of libdist that the process runs.
    pub(super) version: String,
    /// The process id and the host, for log and error texts.
    pub(super) process: String,
    /// The key by which processes of the same host find out whether the process has ended.
    pub(super) process_key: String,
}

impl RendezvousEntry {
    /// Encodes the entry as JSON for the store.
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { nonce, size, security, version, process, process_key } = self;
        let entry = json!({
            "nonce": nonce.to_string(),
            "size": size,
            "security": security,
            "version": version,
            "who": process,
            "process_key": process_key,
        });
        entry.to_string().into_bytes()
    }

    /// Decodes the entry that `rank` has published.
    ///
    /// # Errors
    /// `Mismatch`, which names the rank, if the bytes are not a valid entry.
    pub(super) fn decode(rank: Rank, bytes: &[u8]) -> Result<Self> {
        let parse = || {
            let entry: Value = serde_json::from_slice(bytes).ok()?;
            Some(Self {
                nonce: Nonce::parse(entry.get("nonce")?.as_str()?)?,
                size: usize::try_from(entry.get("size")?.as_u64()?).ok()?,
                // Another version may publish none. The check of the versions reports this.
                security: entry
                    .get("security")
                    .and_then(Value::as_str)
                    .unwrap_or("unknown")
                    .to_owned(),
                version: entry.get("version")?.as_str()?.to_owned(),
                process: entry.get("who")?.as_str()?.to_owned(),
                // The same holds here. A process without a key is not known to have ended.
                process_key: entry
                    .get("process_key")
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned(),
            })
        };
        parse().ok_or_else(|| {
            let message = format!(
                "the store entry of rank {rank} is not from libdist {}: all ranks must run the same version",
                env!("CARGO_PKG_VERSION")
            );
            Error::new(ErrorKind::Mismatch, message).with_culprit(rank)
        })
    }
}

/// The state that rank 0 keeps of one rank.
#[derive(Debug)]
pub(super) struct RendezvousPeer {
    /// The entry that the rank has published.
    pub(super) entry: RendezvousEntry,
    /// The number of offers (proposals of a group id) that rank 0 made to the nonce of this entry
    /// before the current offer.
    pub(super) prior_offers: u64,
}

impl RendezvousPeer {
    /// Creates the state before the first offer.
    pub(super) fn new(entry: RendezvousEntry) -> Self {
        Self { entry, prior_offers: 0 }
    }

    /// Updates the state after an offer that failed. `entry` is the rank's current entry. If it has
    /// another nonce, it comes from another process.
    pub(super) fn update(&mut self, entry: RendezvousEntry) {
        *self = if entry.nonce == self.entry.nonce {
            Self { entry, prior_offers: self.prior_offers + 1 }
        } else {
            Self::new(entry)
        };
    }
}

/// Checks every entry with `find_problem`, which returns a description of the problem.
///
/// # Errors
/// An error of this kind, which names the first rank with a problem.
pub(super) fn check_all_entries(
    peers: &[RendezvousPeer],
    kind: ErrorKind,
    find_problem: impl Fn(&RendezvousEntry) -> Option<String>,
) -> Result<()> {
    for (rank, RendezvousPeer { entry, .. }) in peers.iter().enumerate() {
        if let Some(problem) = find_problem(entry) {
            let message = format!("rank {rank} ({}) {problem}", entry.process);
            return Err(Error::new(kind, message).with_culprit(rank));
        }
    }
    Ok(())
}

/// Checks on rank 0 that all ranks have the same world size. Called after all ranks have confirmed.
///
/// # Errors
/// `Mismatch`.
pub(super) fn check_sizes(peers: &[RendezvousPeer], own: WorldSize) -> Result<()> {
    check_all_entries(peers, ErrorKind::Mismatch, |RendezvousEntry { size, .. }| {
        let message = || format!("has a world size of {size}, but rank 0 has {own}");
        (*size != own).then(message)
    })
}

/// Checks on rank 0 that all ranks have the same security setting. Called after all ranks have
/// confirmed.
///
/// # Errors
/// `Auth`.
pub(super) fn check_security(peers: &[RendezvousPeer], own: SecuritySetting) -> Result<()> {
    let name = config::SECURITY.name;
    check_all_entries(peers, ErrorKind::Auth, |RendezvousEntry { security, .. }| {
        let message = || {
            format!(
                "has {name}={security}, but rank 0 has {name}={own}: set {name}, and the job's \
                 secret, in the same way on all ranks"
            )
        };
        (*security != own.name()).then(message)
    })
}

/// Encodes an error for the store: the number of its kind, and its text.
pub(super) fn encode_failure(error: &Error) -> String {
    format!("{} {error}", error.kind().code())
}

/// Decodes a text of [`encode_failure`].
pub(super) fn decode_failure(text: &str) -> (ErrorKind, &str) {
    match text.split_once(' ').and_then(|(code, text)| Some((code.parse().ok()?, text))) {
        Some((code, text)) => (ErrorKind::from_code(code), text),
        None => (ErrorKind::Mismatch, text),
    }
}

/// The maximum number of ranks that a text lists.
const MAX_RANKS_LISTED: usize = 8;

/// Formats ranks for a text, each with its process if `process_of` returns the process.
pub(super) fn format_ranks(ranks: &[Rank], process_of: impl Fn(Rank) -> Option<String>) -> String {
    let named = |&rank: &Rank| {
        process_of(rank).map_or(rank.to_string(), |process| format!("{rank} ({process})"))
    };
    match ranks {
        [] => "the last rank".to_owned(),
        [rank] => format!("rank {}", named(rank)),
        _ => {
            let named: Vec<String> = ranks.iter().take(MAX_RANKS_LISTED).map(named).collect();
            let text = format!("ranks {}", named.join(", "));
            match ranks.len() - named.len() {
                0 => text,
                more => format!("{text} and {more} more"),
            }
        }
    }
}
