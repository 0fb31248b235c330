//! What a rank publishes about itself, and what rank 0 keeps of it.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Nonce, Rank, WorldSize};
use serde_json::{Value, json};

/// What a rank publishes under its rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RendezvousEntry {
    /// Fresh for every process and attempt.
    pub(super) nonce: Nonce,
    /// The world size that it was told.
    pub(super) size: WorldSize,
    /// Its version of libdist.
    pub(super) version: String,
    /// Process and host, for messages.
    pub(super) process: String,
}

impl RendezvousEntry {
    /// As it stands in the store.
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { nonce, size, version, process: who } = self;
        json!({ "nonce": nonce.to_string(), "size": size, "version": version, "who": who })
            .to_string()
            .into_bytes()
    }

    /// The inverse, for what a rank has published.
    ///
    /// # Errors
    /// `Mismatch` naming the rank where it is something else.
    pub(super) fn decode(rank: Rank, bytes: &[u8]) -> Result<Self> {
        let parse = || {
            let entry: Value = serde_json::from_slice(bytes).ok()?;
            Some(Self {
                nonce: Nonce::parse(entry.get("nonce")?.as_str()?)?,
                size: usize::try_from(entry.get("size")?.as_u64()?).ok()?,
                version: entry.get("version")?.as_str()?.to_owned(),
                process: entry.get("who")?.as_str()?.to_owned(),
            })
        };
        parse().ok_or_else(|| {
            let message = format!(
                "what rank {rank} has published in the store is not from libdist {}: all ranks must \
                 run the same version",
                env!("CARGO_PKG_VERSION")
            );
            Error::new(ErrorKind::Mismatch, message).with_culprit(rank)
        })
    }
}

/// A rank as rank 0 sees it.
#[derive(Debug)]
pub(super) struct RendezvousPeer {
    /// What it has published.
    pub(super) entry: RendezvousEntry,
    /// How many offers its nonce was made before the present one.
    pub(super) prior_offers: u64,
}

impl RendezvousPeer {
    /// Before the first offer.
    pub(super) fn new(entry: RendezvousEntry) -> Self {
        Self { entry, prior_offers: 0 }
    }

    /// After an offer that came to nothing: the same process as before, or another.
    pub(super) fn update(&mut self, entry: RendezvousEntry) {
        *self = if entry.nonce == self.entry.nonce {
            Self { entry, prior_offers: self.prior_offers + 1 }
        } else {
            Self::new(entry)
        };
    }
}

/// The first rank of which `find_problem` has something to say.
///
/// # Errors
/// `Mismatch` with what it said.
pub(super) fn check_all_entries(
    peers: &[RendezvousPeer],
    find_problem: impl Fn(&RendezvousEntry) -> Option<String>,
) -> Result<()> {
    for (rank, RendezvousPeer { entry, .. }) in peers.iter().enumerate() {
        if let Some(problem) = find_problem(entry) {
            let message = format!("rank {rank} ({}) {problem}", entry.process);
            return Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank));
        }
    }
    Ok(())
}
