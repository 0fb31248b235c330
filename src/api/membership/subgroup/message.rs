//! Control messages, which ranks of a parent group send each other to create a new group, and their
//! encoding.
//!
//! Each message has an [`ExchangeKey`], which says to which exchange it belongs. The key is the
//! group's name while the members find each other (join by name), and the group's id after they
//! have agreed. A name can be used again, so messages under a name also have nonces (random
//! numbers), which distinguish attempts. An id is never used again.
//!
//! [`wire`](crate::api::membership::wire) has the byte format of the fields.

use super::definition::GroupDefinition;
use crate::api::membership::bootstrap::BootstrapMessage;
use crate::api::membership::wire::{WireReader, WireWriter};
use crate::base::error::Error;
use crate::base::ids::{GroupId, Nonce};

/// The codes of the two messages of the bootstrap exchange.
const BOOTSTRAP_CODES: [u8; 2] = [3, 4];

/// The exchange that a message belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ExchangeKey {
    /// The join by name, in which the members of a group with this name find each other.
    Name(String),
    /// The bootstrap exchange of the group with this id.
    Id(GroupId),
}

/// A control message between two ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SubgroupMessage {
    /// The sender takes part in the creation of the group, with this definition.
    JoinRequest {
        /// The nonce of the sender's attempt.
        nonce: Nonce,
        /// The nonce of the coordinator's attempt, if the sender has received the coordinator's
        /// join request.
        peer_nonce: Option<Nonce>,
        /// The sender's definition of the group.
        definition: GroupDefinition,
    },
    /// All members have joined, and the group gets this id.
    Commit {
        /// The nonce of the recipient's attempt.
        nonce: Nonce,
        /// The group's id.
        id: GroupId,
    },
    /// The sender's attempt has failed.
    Fail {
        /// The nonce of the sender's attempt.
        attempt: Nonce,
        /// The nonce of the recipient's attempt, if the sender knows it.
        peer_attempt: Option<Nonce>,
        /// True if the sender got this failure from the recipient, the coordinator.
        is_echo: bool,
        /// The reason of the failure.
        reason: Error,
    },
    /// A message of the bootstrap exchange.
    Bootstrap(BootstrapMessage),
    /// The sender has given up the creation of the group with this id.
    Abandoned(Error),
}

impl SubgroupMessage {
    /// Encodes the message with its key.
    pub(super) fn encode(&self, key: &ExchangeKey) -> Vec<u8> {
        let mut out = WireWriter(Vec::new());
        match key {
            ExchangeKey::Name(name) => out.byte(0).text(name),
            ExchangeKey::Id(id) => out.byte(1).nonce(*id),
        };
        match self {
            Self::JoinRequest { nonce, peer_nonce, definition } => {
                out.byte(0).nonce(*nonce).optional_nonce(*peer_nonce).bytes(&definition.encode())
            }
            Self::Commit { nonce, id } => out.byte(1).nonce(*nonce).nonce(*id),
            Self::Fail { attempt, peer_attempt, is_echo, reason } => {
                let known = out.byte(2).nonce(*attempt).optional_nonce(*peer_attempt);
                known.byte(u8::from(*is_echo)).error(reason)
            }
            Self::Bootstrap(message) => message.encode(&mut out, BOOTSTRAP_CODES),
            Self::Abandoned(reason) => out.byte(5).error(reason),
        };
        out.0
    }

    /// Decodes a message and its key. Returns `None` for invalid bytes.
    pub(super) fn decode(bytes: &[u8]) -> Option<(ExchangeKey, Self)> {
        let mut input = WireReader(bytes);
        let key = match input.byte()? {
            0 => ExchangeKey::Name(input.text()?),
            1 => ExchangeKey::Id(input.nonce()?),
            _ => return None,
        };
        let message = match input.byte()? {
            0 => {
                let (nonce, peer_nonce) = (input.nonce()?, input.optional_nonce()?);
                Self::JoinRequest {
                    nonce,
                    peer_nonce,
                    definition: GroupDefinition::decode(input.bytes()?)?,
                }
            }
            1 => Self::Commit { nonce: input.nonce()?, id: input.nonce()? },
            2 => {
                let (attempt, peer_attempt) = (input.nonce()?, input.optional_nonce()?);
                Self::Fail {
                    attempt,
                    peer_attempt,
                    is_echo: input.byte()? != 0,
                    reason: input.error()?,
                }
            }
            5 => Self::Abandoned(input.error()?),
            code => Self::Bootstrap(BootstrapMessage::decode(code, BOOTSTRAP_CODES, &mut input)?),
        };
        input.0.is_empty().then_some((key, message))
    }
}

#[cfg(test)]
mod tests {
    use super::super::definition::CreationCall;
    use super::*;
    use crate::base::error::ErrorKind;

    #[test]
    fn messages_round_trip_and_bad_bytes_are_refused() {
        let (name, id) = (ExchangeKey::Name("a".into()), ExchangeKey::Id(Nonce([7; 16])));
        let reason = Error::new(ErrorKind::Mismatch, "they differ");
        let (nonce, phase) = (Nonce([1; 16]), "card".to_owned());
        let definition = GroupDefinition::new(CreationCall::MembersOnly, "a", &[2, 0], "native");
        let (attempt, is_echo) = (nonce, true);
        let list = vec![vec![], vec![1, 2]];
        for (key, message) in [
            (&name, SubgroupMessage::JoinRequest { nonce, peer_nonce: Some(attempt), definition }),
            (&name, SubgroupMessage::Commit { nonce, id: Nonce([2; 16]) }),
            (
                &name,
                SubgroupMessage::Fail {
                    attempt,
                    peer_attempt: None,
                    is_echo,
                    reason: reason.clone(),
                },
            ),
            (
                &name,
                SubgroupMessage::Fail {
                    attempt,
                    peer_attempt: Some(nonce),
                    is_echo: false,
                    reason: reason.clone(),
                },
            ),
            (
                &id,
                SubgroupMessage::Bootstrap(BootstrapMessage::Contribution {
                    phase: phase.clone(),
                    bytes: vec![9; 5000],
                }),
            ),
            (&id, SubgroupMessage::Bootstrap(BootstrapMessage::AllContributions { phase, list })),
            (&id, SubgroupMessage::Abandoned(reason)),
        ] {
            let bytes = message.encode(key);
            assert_eq!(SubgroupMessage::decode(&bytes), Some((key.clone(), message)));
            for len in 0..bytes.len().min(200) {
                assert_eq!(SubgroupMessage::decode(&bytes[..len]), None, "{len}");
            }
            assert_eq!(SubgroupMessage::decode(&[&bytes[..], &[0]].concat()), None);
        }
        // A huge count in the bytes must not cause an allocation.
        let none = BootstrapMessage::AllContributions { phase: "p".into(), list: Vec::new() };
        let mut absurd = SubgroupMessage::Bootstrap(none).encode(&id);
        let at = absurd.len() - 4;
        absurd[at..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(SubgroupMessage::decode(&absurd), None);
    }
}
