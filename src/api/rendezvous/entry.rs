//! What a rank publishes about itself, and what rank 0 keeps of it.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Nonce, Rank, WorldSize};
use serde_json::{Value, json};

/// What a rank publishes under its rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Fresh for every process and attempt.
    pub(super) nonce: Nonce,
    /// The world size that it was told.
    pub(super) size: WorldSize,
    /// Its version of libdist.
    pub(super) version: String,
    /// Process and host, for messages.
    pub(super) who: String,
}

impl Entry {
    /// As it stands in the store.
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { nonce, size, version, who } = self;
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
                who: entry.get("who")?.as_str()?.to_owned(),
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
pub(super) struct Guest {
    /// What it has published.
    pub(super) entry: Entry,
    /// How many offers its nonce was made before the present one.
    pub(super) offers: u64,
}

impl Guest {
    /// Before the first offer.
    pub(super) fn new(entry: Entry) -> Self {
        Self { entry, offers: 0 }
    }

    /// After an offer that came to nothing: the same process as before, or another.
    pub(super) fn update(&mut self, entry: Entry) {
        *self = if entry.nonce == self.entry.nonce {
            Self { entry, offers: self.offers + 1 }
        } else {
            Self::new(entry)
        };
    }
}

/// The first rank of which `wrong` has something to say.
///
/// # Errors
/// `Mismatch` with what it said.
pub(super) fn disagreement(
    guests: &[Guest],
    wrong: impl Fn(&Entry) -> Option<String>,
) -> Result<()> {
    for (rank, Guest { entry, .. }) in guests.iter().enumerate() {
        if let Some(what) = wrong(entry) {
            let message = format!("rank {rank} ({}) {what}", entry.who);
            return Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank));
        }
    }
    Ok(())
}
