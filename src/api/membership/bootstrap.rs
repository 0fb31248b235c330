//! Bootstrap exchange among the members of a new group. In this exchange, the members give each
//! other the data with which they create the group's back end (for example addresses).
//!
//! The exchange consists of phases and has the form of a star. In each phase, every member sends
//! its contribution to the coordinator, which is rank 0 of the new group. The coordinator sends the
//! contributions of all members back to every member. If a contribution is missing at the
//! coordinator's deadline, the coordinator's error names the missing members. The other members
//! wait [`MEMBER_GRACE`] longer, so that they receive this error.
//!
//! This module does not depend on how the messages travel ([`StarLinks`]).

use super::wire::{WireReader, WireWriter};
use crate::backend::BootstrapExchange;
use crate::base::error::{Error, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::base::log::LogLevel;
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

/// The time by which the members wait longer than the coordinator. Also the timeout for a report of
/// a failure to the other members.
pub(super) const MEMBER_GRACE: Duration = Duration::from_millis(500);

/// A message of the exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BootstrapMessage {
    /// The contribution of one member to a phase.
    Contribution {
        /// The name of the phase.
        phase: String,
        /// The contribution.
        bytes: Vec<u8>,
    },
    /// The contributions of all members to a phase, in rank order.
    AllContributions {
        /// The name of the phase.
        phase: String,
        /// The contributions.
        list: Vec<Vec<u8>>,
    },
}

impl BootstrapMessage {
    /// Writes the message. `codes` has the first byte of each of the two variants.
    pub(super) fn encode<'w>(&self, out: &'w mut WireWriter, codes: [u8; 2]) -> &'w mut WireWriter {
        match self {
            Self::Contribution { phase, bytes } => out.byte(codes[0]).text(phase).bytes(bytes),
            Self::AllContributions { phase, list } => {
                let out = out.byte(codes[1]).text(phase).len(list.len());
                list.iter().fold(out, |out, bytes| out.bytes(bytes))
            }
        }
    }

    /// Reads the rest of a message whose first byte is `code`. Returns `None` for invalid bytes or
    /// another code.
    pub(super) fn decode(code: u8, codes: [u8; 2], input: &mut WireReader<'_>) -> Option<Self> {
        let variant = codes.iter().position(|&known| known == code)?;
        let phase = input.text()?;
        if variant == 0 {
            return Some(Self::Contribution { phase, bytes: input.bytes()?.to_vec() });
        }
        let count = input.len()?;
        let list = (0..count).map(|_| Some(input.bytes()?.to_vec())).collect::<Option<_>>()?;
        Some(Self::AllContributions { phase, list })
    }
}

/// The contributions that a member has received.
#[derive(Debug)]
pub(super) struct BootstrapContributions {
    /// This member's rank in the new group.
    me: Rank,
    size: WorldSize,
    /// On the coordinator: the contributions, by phase and member.
    by_phase: HashMap<String, HashMap<Rank, Vec<u8>>>,
    /// On the other members: the list of all contributions, by phase.
    complete: HashMap<String, Vec<Vec<u8>>>,
    /// The first reason why the exchange fails.
    failure: Option<Error>,
}

impl BootstrapContributions {
    pub(super) fn new(me: Rank, size: WorldSize) -> Self {
        let (by_phase, complete) = (HashMap::new(), HashMap::new());
        Self { me, size, by_phase, complete, failure: None }
    }

    /// Stores a message of a member. Returns false for an unexpected message.
    pub(super) fn store(&mut self, from: Rank, message: BootstrapMessage) -> bool {
        match message {
            BootstrapMessage::Contribution { phase, bytes } if self.me == 0 => {
                self.by_phase.entry(phase).or_default().insert(from, bytes);
            }
            BootstrapMessage::AllContributions { phase, list }
                if from == 0 && list.len() == self.size =>
            {
                self.complete.insert(phase, list);
            }
            _ => return false,
        }
        true
    }

    /// Stores the reason why the exchange fails. If there is already a reason, it stays.
    pub(super) fn fail(&mut self, reason: Error) {
        self.failure.get_or_insert(reason);
    }

    pub(super) fn failure(&self) -> Option<Error> {
        self.failure.clone()
    }

    /// Returns the members whose messages this member still waits for in a phase.
    fn missing(&self, phase: &str) -> Vec<Rank> {
        if self.me != 0 {
            return vec![0];
        }
        let contributions = self.by_phase.get(phase);
        (0..self.size)
            .filter(|rank| {
                contributions.is_none_or(|contributions| !contributions.contains_key(rank))
            })
            .collect()
    }

    /// Takes the contributions of all members to a phase, if all have arrived.
    fn take(&mut self, phase: &str) -> Option<Vec<Vec<u8>>> {
        if self.me != 0 {
            return self.complete.remove(phase);
        }
        if !self.missing(phase).is_empty() {
            return None;
        }
        let mut contributions = self.by_phase.remove(phase)?;
        (0..self.size).map(|rank| contributions.remove(&rank)).collect()
    }
}

/// The connections of a member. The coordinator has connections to all other members, and each
/// other member has a connection to the coordinator.
pub(super) trait StarLinks {
    fn contributions(&self) -> &RefCell<BootstrapContributions>;

    /// Called before the wait for the messages of a phase.
    fn begin_phase(&self) {}

    /// Sends a message over all connections.
    fn send(&self, message: BootstrapMessage) -> Result<()>;

    /// Waits for messages and stores them in [`Self::contributions`]. `missing` has the members
    /// whose messages are awaited. Returns false if the deadline has passed.
    fn await_messages(
        &self,
        missing: &[Rank],
        cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<bool>;

    fn timeout_error(&self, phase: &str, missing: &[Rank]) -> Error;
}

/// Runs a phase and returns the contributions of all members. `mine` is this member's contribution.
pub(super) fn run_phase(
    links: &impl StarLinks,
    phase: &str,
    mine: &[u8],
    cancelled: &dyn Fn() -> Option<Error>,
) -> Result<Vec<Vec<u8>>> {
    if links.contributions().borrow().me != 0 {
        links.begin_phase();
        links.send(BootstrapMessage::Contribution {
            phase: phase.to_owned(),
            bytes: mine.to_vec(),
        })?;
        return await_phase(links, phase, cancelled);
    }
    let list = collect_phase(links, phase, mine, cancelled)?;
    links
        .send(BootstrapMessage::AllContributions { phase: phase.to_owned(), list: list.clone() })?;
    Ok(list)
}

/// Runs a phase on the coordinator up to the point where it has all contributions, without sending
/// them back.
pub(super) fn collect_phase(
    links: &impl StarLinks,
    phase: &str,
    mine: &[u8],
    cancelled: &dyn Fn() -> Option<Error>,
) -> Result<Vec<Vec<u8>>> {
    links.begin_phase();
    let (phase_name, bytes) = (phase.to_owned(), mine.to_vec());
    let contribution = BootstrapMessage::Contribution { phase: phase_name, bytes };
    links.contributions().borrow_mut().store(0, contribution);
    await_phase(links, phase, cancelled)
}

fn await_phase(
    links: &impl StarLinks,
    phase: &str,
    cancelled: &dyn Fn() -> Option<Error>,
) -> Result<Vec<Vec<u8>>> {
    let received = links.contributions();
    loop {
        let (list, missing) = {
            let mut received = received.borrow_mut();
            (received.take(phase), received.missing(phase))
        };
        if let Some(list) = list {
            return Ok(list);
        }
        if let Some(reason) = received.borrow().failure() {
            return Err(reason);
        }
        if !links.await_messages(&missing, cancelled)? {
            return Err(links.timeout_error(phase, &missing));
        }
    }
}

/// Logs that this rank could not report its failure to the other members.
pub(super) fn log_unreported_failure(error: &Error) {
    crate::log!(
        LogLevel::Info,
        "cannot report the failure of this rank to the other ranks: {error}"
    );
}

/// The bootstrap exchange of a group of one rank.
#[derive(Debug)]
pub(super) struct SoloExchange;

impl BootstrapExchange for SoloExchange {
    fn all_gather(
        &self,
        _: &str,
        mine: &[u8],
        _: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        Ok(vec![mine.to_vec()])
    }

    fn publish_failure(&self, _: &Error) {}

    fn peer_failure(&self) -> Option<Error> {
        None
    }
}
