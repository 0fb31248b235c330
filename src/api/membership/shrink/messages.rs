//! Messages between the ranks of a failed group during a shrink, and their encoding. The module has
//! no side effects.
//!
//! The normal sequence between a follower and the coordinator:
//!
//! ```text
//! follower              coordinator
//!    -- Join ----------------->
//!    <------------- Welcome --      (or Wait, until it coordinates)
//!    <------------- Propose --
//!    -- Accept --------------->
//!    <-------------- Commit --      after all members have accepted
//!    <----------- Bootstrap -->     the data of the back end, and the ready notice
//! ```
//!
//! A rank that comes too late gets `GroupFormed`.
//!
//! [`wire`](crate::api::membership::wire) has the byte format of the fields.

use crate::api::membership::bootstrap::BootstrapMessage;
use crate::api::membership::wire::{WireReader, WireWriter};
use crate::base::error::Error;
use crate::base::ids::{GroupId, Rank};
use std::time::Duration;

/// The timeout for sending one message.
pub(super) const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The first bytes of the two messages of the bootstrap exchange.
const BOOTSTRAP_CODES: [u8; 2] = [8, 9];

/// A proposal for the members of a new group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MembershipProposal {
    pub(super) id: GroupId,
    pub(super) epoch: u32,
    /// The members as ranks of the failed group, in ascending order. The index of a member is its
    /// rank in the new group.
    pub(super) members: Vec<Rank>,
}

/// A message between two ranks during shrink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ShrinkMessage {
    /// The sender wants to follow the recipient. The list has the ranks whose death the sender can
    /// prove, in ascending order.
    Join(Vec<Rank>),
    /// The sender, which has joined, can now prove the death of these ranks, in ascending order.
    Deaths(Vec<Rank>),
    /// The sender coordinates and has admitted the recipient.
    Welcome,
    /// Wait notice: the sender is alive and follows another rank. The sender may become the
    /// coordinator later, so the recipient must keep waiting. Sent periodically.
    Wait,
    /// The coordinator's proposal.
    Propose(MembershipProposal),
    /// The sender accepts the proposal with this id.
    Accept(GroupId),
    /// All members have accepted the proposal with this id.
    Commit(GroupId),
    /// The recipient gets no new group, for this reason.
    Refuse(Error),
    /// This group is formed. If the recipient is not a member, it has come too late.
    GroupFormed(MembershipProposal),
    /// The sender has given up, for this reason. During the bootstrap exchange it has given up this
    /// group, otherwise its whole shrink call.
    Abandoned(Error),
    /// A message of the bootstrap exchange.
    Bootstrap(BootstrapMessage),
}

impl ShrinkMessage {
    /// Encodes the message.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = WireWriter(Vec::new());
        match self {
            Self::Join(dead) => write_ranks(out.byte(0), dead),
            Self::Deaths(dead) => write_ranks(out.byte(11), dead),
            Self::Welcome => out.byte(1),
            Self::Propose(proposal) => write_proposal(out.byte(2), proposal),
            Self::Accept(id) => out.byte(3).nonce(*id),
            Self::Commit(id) => out.byte(4).nonce(*id),
            Self::Refuse(reason) => out.byte(5).error(reason),
            Self::GroupFormed(proposal) => write_proposal(out.byte(6), proposal),
            Self::Abandoned(reason) => out.byte(7).error(reason),
            Self::Wait => out.byte(10),
            Self::Bootstrap(message) => message.encode(&mut out, BOOTSTRAP_CODES),
        };
        out.0
    }

    /// Decodes a message. Returns `None` for invalid bytes.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = WireReader(bytes);
        let message = match input.byte()? {
            0 => Self::Join(read_ranks(&mut input)?),
            11 => Self::Deaths(read_ranks(&mut input)?),
            1 => Self::Welcome,
            2 => Self::Propose(read_proposal(&mut input)?),
            3 => Self::Accept(input.nonce()?),
            4 => Self::Commit(input.nonce()?),
            5 => Self::Refuse(input.error()?),
            6 => Self::GroupFormed(read_proposal(&mut input)?),
            7 => Self::Abandoned(input.error()?),
            10 => Self::Wait,
            code => Self::Bootstrap(BootstrapMessage::decode(code, BOOTSTRAP_CODES, &mut input)?),
        };
        input.0.is_empty().then_some(message)
    }
}

fn write_proposal<'a>(
    out: &'a mut WireWriter,
    proposal: &MembershipProposal,
) -> &'a mut WireWriter {
    let MembershipProposal { id, epoch, members } = proposal;
    let out = out.nonce(*id).len(usize::try_from(*epoch).unwrap_or(usize::MAX));
    write_ranks(out, members)
}

fn write_ranks<'a>(out: &'a mut WireWriter, ranks: &[Rank]) -> &'a mut WireWriter {
    ranks.iter().fold(out.len(ranks.len()), |out, &rank| out.len(rank))
}

/// Reads a list of ranks in ascending order.
fn read_ranks(input: &mut WireReader<'_>) -> Option<Vec<Rank>> {
    let count = input.len()?;
    let ranks: Vec<Rank> = (0..count).map(|_| input.len()).collect::<Option<_>>()?;
    ranks.windows(2).all(|pair| pair[0] < pair[1]).then_some(ranks)
}

fn read_proposal(input: &mut WireReader<'_>) -> Option<MembershipProposal> {
    let (id, epoch) = (input.nonce()?, u32::try_from(input.len()?).ok()?);
    Some(MembershipProposal { id, epoch, members: read_ranks(input)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;
    use crate::base::ids::Nonce;

    #[test]
    fn messages_round_trip_and_bad_bytes_are_refused() {
        let id = Nonce([3; 16]);
        let proposal = MembershipProposal { id, epoch: 2, members: vec![1, 3, 4] };
        let reason = Error::new(ErrorKind::PeerFailed, "it is late");
        let (phase, list) = ("card".to_owned(), vec![vec![], vec![1, 2]]);
        for message in [
            ShrinkMessage::Join(vec![]),
            ShrinkMessage::Join(vec![0, 7]),
            ShrinkMessage::Deaths(vec![2]),
            ShrinkMessage::Welcome,
            ShrinkMessage::Wait,
            ShrinkMessage::Propose(proposal.clone()),
            ShrinkMessage::Accept(id),
            ShrinkMessage::Commit(id),
            ShrinkMessage::Refuse(reason.clone()),
            ShrinkMessage::GroupFormed(proposal),
            ShrinkMessage::Abandoned(reason),
            ShrinkMessage::Bootstrap(BootstrapMessage::Contribution {
                phase: phase.clone(),
                bytes: vec![9; 300],
            }),
            ShrinkMessage::Bootstrap(BootstrapMessage::AllContributions { phase, list }),
        ] {
            let bytes = message.encode();
            assert_eq!(ShrinkMessage::decode(&bytes), Some(message));
            for len in 0..bytes.len() {
                assert_eq!(ShrinkMessage::decode(&bytes[..len]), None, "{len}");
            }
            assert_eq!(ShrinkMessage::decode(&[&bytes[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn decode_refuses_unordered_members_and_huge_counts() {
        let twice = MembershipProposal { id: Nonce([3; 16]), epoch: 1, members: vec![1, 1] };
        assert_eq!(ShrinkMessage::decode(&ShrinkMessage::Propose(twice).encode()), None);
        let none = MembershipProposal { id: Nonce([3; 16]), epoch: 1, members: Vec::new() };
        let mut absurd = ShrinkMessage::Propose(none).encode();
        let at = absurd.len() - 4;
        absurd[at..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(ShrinkMessage::decode(&absurd), None);
    }
}
