//! What a newcomer says before anything else, as far as it has come, and what a rank knows of those
//! who may come. Pure: the door brings the bytes.

use super::hello::{self, CONFIRM, HELLO_BYTES, Hello, Purpose, Refusal};
use super::join::Member;
use crate::base::ids::Rank;
use crate::transport::Channel;

/// A hello and the word behind it.
#[derive(Debug)]
pub(super) struct Introduction {
    bytes: [u8; HELLO_BYTES + 1],
    filled: usize,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// More must come.
    Part,
    /// The hello is there, to be checked and answered.
    Hello(Hello),
    /// The newcomer has checked the answer too.
    Confirmed,
}

impl Default for Introduction {
    fn default() -> Self {
        Self { bytes: [0; HELLO_BYTES + 1], filled: 0 }
    }
}

impl Introduction {
    /// Room for what comes next; only for what belongs to the introduction, since anything after is
    /// the stream's.
    pub(super) fn room(&mut self) -> &mut [u8] {
        let end = if self.filled < HELLO_BYTES { HELLO_BYTES } else { self.bytes.len() };
        &mut self.bytes[self.filled..end]
    }

    /// So many bytes have come into the room.
    ///
    /// # Errors
    /// `Foreign`.
    pub(super) fn came(&mut self, count: usize) -> Result<Said, Refusal> {
        self.filled += count;
        let said = &self.bytes[..self.filled];
        if !hello::begins_well(said) {
            return Err(Refusal::Foreign);
        }
        match (self.bytes.first_chunk(), said.len().checked_sub(HELLO_BYTES)) {
            (Some(bytes), Some(0)) => Hello::decode(bytes).map(Said::Hello),
            (_, Some(1)) if said[HELLO_BYTES] == CONFIRM => Ok(Said::Confirmed),
            (_, Some(_)) => Err(Refusal::Foreign),
            (_, None) => Ok(Said::Part),
        }
    }
}

/// The group as a rank knows it.
#[derive(Debug)]
pub(super) struct Circle<'a> {
    pub(super) epoch: u32,
    pub(super) me: Rank,
    pub(super) members: &'a [Member],
    /// The first rank of each node.
    pub(super) leaders: &'a [Rank],
    pub(super) lanes: u8,
}

impl Circle<'_> {
    /// Whether a hello is from whom it says, to this rank, and for something that there is.
    ///
    /// # Errors
    /// `Stranger`.
    pub(super) fn check(&self, hello: &Hello) -> Result<(), Refusal> {
        let Self { epoch, me, members, leaders, lanes } = *self;
        let known = members.get(hello.from).filter(|member| member.nonce == hello.nonce);
        let is_to_this_one = hello.expected == members[me].nonce && hello.epoch == epoch;
        let is_meant = is_to_this_one && hello.from != me;
        let Some(from) = known.filter(|_| is_meant) else { return Err(Refusal::Stranger) };
        let is_wanted = match hello.purpose {
            Purpose::Stream(Channel::Collective(lane)) => lane < lanes,
            Purpose::Stream(Channel::PointToPoint) => true,
            // Of two leaders the one of the later node connects.
            Purpose::Control => {
                from.node > members[me].node && leaders.get(from.node) == Some(&hello.from)
            }
            // Not with the mesh of the group.
            Purpose::Reunion => false,
        };
        if is_wanted { Ok(()) } else { Err(Refusal::Stranger) }
    }
}
