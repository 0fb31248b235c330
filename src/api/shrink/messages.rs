//! What the ranks of a group that has failed say to each other while they make another, as bytes.
//! Pure.
//!
//! A rank joins a candidate, which asks it to wait or welcomes it, proposes a group, and once all
//! members have agreed commits to it; then members and leader exchange what the back end needs.
//! Whoever comes too late hears how it ended.
//!
//! Bytes are little endian. Those of another process are checked; what cannot be read is no word.

use crate::api::subgroup::{WireReader, WireWriter};
use crate::base::error::Error;
use crate::base::ids::{GroupId, Rank};

/// A group that may come to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MembershipProposal {
    pub(super) id: GroupId,
    pub(super) epoch: u32,
    /// Ranks of the group that has failed, in the order of the new ranks.
    pub(super) members: Vec<Rank>,
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ShrinkMessage {
    /// The speaker will follow the listener.
    Join,
    /// The speaker leads, and the listener is with it.
    Welcome,
    /// The speaker is there and follows another; it may come to lead. Said again and again.
    Wait,
    /// The group that the leader has in mind.
    Propose(MembershipProposal),
    /// The speaker agrees to what has this id.
    Accept(GroupId),
    /// All have agreed.
    Commit(GroupId),
    /// There will be no group for the listener.
    Refuse(Error),
    /// There is a group, which the listener is too late for if it is no member.
    GroupFormed(MembershipProposal),
    /// The speaker has given up, this group or all of it.
    Abandoned(Error),
    /// What one member contributes to a phase.
    Contribution {
        /// The phase.
        phase: String,
        /// The contribution.
        bytes: Vec<u8>,
    },
    /// What all members have contributed, in rank order.
    AllContributions {
        /// The phase.
        phase: String,
        /// The contributions.
        list: Vec<Vec<u8>>,
    },
}

impl ShrinkMessage {
    /// Its bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = WireWriter(Vec::new());
        match self {
            Self::Join => out.byte(0),
            Self::Welcome => out.byte(1),
            Self::Propose(proposal) => write_proposal(out.byte(2), proposal),
            Self::Accept(id) => out.byte(3).nonce(*id),
            Self::Commit(id) => out.byte(4).nonce(*id),
            Self::Refuse(reason) => out.byte(5).error(reason),
            Self::GroupFormed(proposal) => write_proposal(out.byte(6), proposal),
            Self::Abandoned(reason) => out.byte(7).error(reason),
            Self::Wait => out.byte(10),
            Self::Contribution { phase, bytes } => out.byte(8).text(phase).bytes(bytes),
            Self::AllContributions { phase, list } => {
                out.byte(9).text(phase).len(list.len());
                list.iter().fold(&mut out, |out, bytes| out.bytes(bytes))
            }
        };
        out.0
    }

    /// The inverse; `None` for bytes that are no word.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = WireReader(bytes);
        let message = match input.byte()? {
            0 => Self::Join,
            1 => Self::Welcome,
            2 => Self::Propose(read_proposal(&mut input)?),
            3 => Self::Accept(input.nonce()?),
            4 => Self::Commit(input.nonce()?),
            5 => Self::Refuse(input.error()?),
            6 => Self::GroupFormed(read_proposal(&mut input)?),
            7 => Self::Abandoned(input.error()?),
            8 => Self::Contribution { phase: input.text()?, bytes: input.bytes()?.to_vec() },
            9 => {
                let (phase, count) = (input.text()?, input.len()?);
                let list = (0..count).map(|_| Some(input.bytes()?.to_vec()));
                Self::AllContributions { phase, list: list.collect::<Option<_>>()? }
            }
            10 => Self::Wait,
            _ => return None,
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
    members.iter().fold(out.len(members.len()), |out, &rank| out.len(rank))
}

fn read_proposal(input: &mut WireReader<'_>) -> Option<MembershipProposal> {
    let (id, epoch) = (input.nonce()?, u32::try_from(input.len()?).ok()?);
    let count = input.len()?;
    let members: Vec<Rank> = (0..count).map(|_| input.len()).collect::<Option<_>>()?;
    let in_order = members.windows(2).all(|pair| pair[0] < pair[1]);
    in_order.then_some(MembershipProposal { id, epoch, members })
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
            ShrinkMessage::Join,
            ShrinkMessage::Welcome,
            ShrinkMessage::Wait,
            ShrinkMessage::Propose(proposal.clone()),
            ShrinkMessage::Accept(id),
            ShrinkMessage::Commit(id),
            ShrinkMessage::Refuse(reason.clone()),
            ShrinkMessage::GroupFormed(proposal),
            ShrinkMessage::Abandoned(reason),
            ShrinkMessage::Contribution { phase: phase.clone(), bytes: vec![9; 300] },
            ShrinkMessage::AllContributions { phase, list },
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
