//! Control messages between the ranks of a parent group during the creation of a group, and their
//! byte format.
//!
//! Each message has an [`ExchangeKey`]: the group's name during a join by name, or the group's id
//! after the members have agreed. A name can be used again, so messages under a name carry nonces.
//! An id is never used again.
//!
//! Integers are little-endian. The decoder checks the bytes, since another process wrote them, and
//! returns `None` for an invalid message.

use super::definition::GroupDefinition;
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::{GroupId, Nonce};

/// The exchange that a message belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ExchangeKey {
    /// The join by name of the members of a group.
    Name(String),
    /// The exchange between the members of a group with this id.
    Id(GroupId),
}

/// A control message between two ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SubgroupMessage {
    /// The sender takes part in the creation of the group, with this definition.
    JoinRequest {
        /// The nonce of the sender's attempt.
        nonce: Nonce,
        /// The nonce of the coordinator's attempt, if the sender has received its join request.
        peer_nonce: Option<Nonce>,
        /// The sender's definition of the group.
        definition: GroupDefinition,
    },
    /// All members have joined; the group gets this id.
    Commit {
        /// The nonce of the recipient's attempt.
        nonce: Nonce,
        /// The group's id.
        id: GroupId,
    },
    /// The attempt has failed.
    Fail {
        /// The nonce of the sender's attempt.
        attempt: Nonce,
        /// The nonce of the recipient's attempt, if the sender knows it.
        peer_attempt: Option<Nonce>,
        /// Whether the sender received this failure from the recipient, so that no other rank needs
        /// it.
        is_echo: bool,
        /// The reason of the failure.
        reason: Error,
    },
    /// The contribution of one member to a phase.
    Contribution {
        /// The phase.
        phase: String,
        /// The contribution.
        bytes: Vec<u8>,
    },
    /// The contributions of all members to a phase, in rank order.
    AllContributions {
        /// The phase.
        phase: String,
        /// The contributions.
        list: Vec<Vec<u8>>,
    },
    /// The sender abandoned the group.
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
            Self::Contribution { phase, bytes } => out.byte(3).text(phase).bytes(bytes),
            Self::AllContributions { phase, list } => {
                out.byte(4).text(phase).len(list.len());
                list.iter().fold(&mut out, |out, bytes| out.bytes(bytes))
            }
            Self::Abandoned(reason) => out.byte(5).error(reason),
        };
        out.0
    }

    /// Decodes a message; returns `None` for invalid bytes.
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
            3 => Self::Contribution { phase: input.text()?, bytes: input.bytes()?.to_vec() },
            4 => {
                let (phase, count) = (input.text()?, input.len()?);
                let list = (0..count).map(|_| Some(input.bytes()?.to_vec()));
                Self::AllContributions { phase, list: list.collect::<Option<_>>()? }
            }
            5 => Self::Abandoned(input.error()?),
            _ => return None,
        };
        input.0.is_empty().then_some((key, message))
    }
}

/// Appends encoded values to a byte vector.
#[derive(Debug)]
pub(in crate::api) struct WireWriter(pub(in crate::api) Vec<u8>);

impl WireWriter {
    pub(in crate::api) fn byte(&mut self, byte: u8) -> &mut Self {
        self.0.push(byte);
        self
    }

    pub(in crate::api) fn len(&mut self, len: usize) -> &mut Self {
        self.0.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
        self
    }

    pub(in crate::api) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.len(bytes.len());
        self.0.extend_from_slice(bytes);
        self
    }

    pub(in crate::api) fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    pub(in crate::api) fn nonce(&mut self, nonce: Nonce) -> &mut Self {
        self.0.extend_from_slice(&nonce.0);
        self
    }

    /// Writes a nonce; zeros encode `None`.
    fn optional_nonce(&mut self, nonce: Option<Nonce>) -> &mut Self {
        self.nonce(nonce.unwrap_or_default())
    }

    pub(in crate::api) fn error(&mut self, error: &Error) -> &mut Self {
        self.byte(error.kind().code()).text(error.message())
    }
}

/// Decodes values from the front of a byte slice.
#[derive(Debug)]
pub(in crate::api) struct WireReader<'a>(pub(in crate::api) &'a [u8]);

impl<'a> WireReader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(in crate::api) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(in crate::api) fn len(&mut self) -> Option<usize> {
        let bytes = self.take(4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    }

    pub(in crate::api) fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.len()?;
        self.take(len)
    }

    pub(in crate::api) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    pub(in crate::api) fn nonce(&mut self) -> Option<Nonce> {
        self.take(16)?.try_into().ok().map(Nonce)
    }

    fn optional_nonce(&mut self) -> Option<Option<Nonce>> {
        self.nonce().map(|nonce| Some(nonce).filter(|&nonce| nonce != Nonce::default()))
    }

    pub(in crate::api) fn error(&mut self) -> Option<Error> {
        let kind = ErrorKind::from_code(self.byte()?);
        Some(Error::new(kind, self.text()?))
    }
}

#[cfg(test)]
mod tests {
    use super::super::definition::CreationCall;
    use super::*;

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
            (&id, SubgroupMessage::Contribution { phase: phase.clone(), bytes: vec![9; 5000] }),
            (&id, SubgroupMessage::AllContributions { phase, list }),
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
        let mut absurd =
            SubgroupMessage::AllContributions { phase: "p".into(), list: Vec::new() }.encode(&id);
        let at = absurd.len() - 4;
        absurd[at..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(SubgroupMessage::decode(&absurd), None);
    }
}
