//! The agreement at the end of a step: the votes of all ranks, the parameters that at least one
//! rank used, and the parameters that at least one rank did not mark.
//!
//! Each rank makes a ballot. One all_reduce with bitwise OR combines the ballots of all ranks, so
//! every rank gets the same combined ballot. The sections of a ballot:
//!
//! | section | size |
//! |---|---|
//! | the vote: 0 for the step, otherwise a bit set of reasons against it | 8 bytes |
//! | the ranks that voted against the step | 1 bit per rank |
//! | the ranks that did not mark every parameter | 1 bit per rank |
//! | the used parameters | 1 bit per parameter |
//! | the parameters that were not marked | 1 bit per parameter |
//! | the order in which gradients became ready on rank 0 | 4 bytes per parameter |
//!
//! The last section exists only while the ranks still determine the order of the layout. Only rank
//! 0 fills it in.

use super::param::MOST_PARAMS;
use crate::base::ids::MAX_WORLD_SIZE;
use std::fmt;

/// The size of the votes in bytes.
const VOTE_BYTES: usize = 8;

/// The size of one entry in the order of the gradients, in bytes.
const INDEX_BYTES: usize = 4;

/// The shape of a ballot, equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BallotShape {
    /// The number of ranks.
    pub(super) ranks: usize,
    /// The number of parameters.
    pub(super) params: usize,
    /// Whether the ballot has a section for the order in which gradients became ready.
    pub(super) has_order: bool,
}

/// The ballot of a rank, or the combined ballot of all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ballot {
    shape: BallotShape,
    bytes: Vec<u8>,
}

impl BallotShape {
    fn bytes(self) -> usize {
        let order = if self.has_order { self.params * INDEX_BYTES } else { 0 };
        self.order_at() + order
    }

    /// Returns the offset of the bits for ranks that voted against the step.
    fn voters_at(self) -> usize {
        VOTE_BYTES
    }

    /// Returns the offset of the bits for ranks that did not mark every parameter.
    fn incomplete_at(self) -> usize {
        self.voters_at() + self.ranks.div_ceil(8)
    }

    /// Returns the offset of the bits for parameters that were used.
    fn used_at(self) -> usize {
        self.incomplete_at() + self.ranks.div_ceil(8)
    }

    /// Returns the offset of the bits for parameters that were not marked.
    fn missing_at(self) -> usize {
        self.used_at() + self.params.div_ceil(8)
    }

    fn order_at(self) -> usize {
        self.missing_at() + self.params.div_ceil(8)
    }
}

impl Ballot {
    /// Creates the ballot of a rank that used no parameter and votes for the step.
    pub(super) fn new(shape: BallotShape) -> Self {
        Self { shape, bytes: vec![0; shape.bytes()] }
    }

    /// Encodes the ballot and its shape for another rank.
    pub(super) fn encode(&self) -> Vec<u8> {
        let BallotShape { ranks, params, has_order } = self.shape;
        let shape = [ranks as u64, params as u64, u64::from(has_order)];
        let mut bytes: Vec<u8> = shape.into_iter().flat_map(u64::to_le_bytes).collect();
        bytes.extend_from_slice(&self.bytes);
        bytes
    }

    /// Decodes the ballot of another rank; returns `None` for another format.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |index: usize| usize::try_from(u64::from_le_bytes(*words.get(index)?)).ok();
        let shape = BallotShape { ranks: word(0)?, params: word(1)?, has_order: word(2)? != 0 };
        let is_valid = shape.ranks <= MAX_WORLD_SIZE && shape.params <= MOST_PARAMS;
        let bytes = bytes.get(3 * 8..).filter(|_| is_valid)?;
        (bytes.len() == shape.bytes()).then(|| Self { shape, bytes: bytes.to_vec() })
    }

    /// Returns the number of parameters.
    pub(super) fn params(&self) -> usize {
        self.shape.params
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn set(&mut self, section: usize, index: usize) {
        self.bytes[section + index / 8] |= 1 << (index % 8);
    }

    fn has(&self, section: usize, index: usize) -> bool {
        self.bytes[section + index / 8] & (1 << (index % 8)) != 0
    }

    fn members(&self, section: usize, len: usize) -> Vec<usize> {
        (0..len).filter(|&index| self.has(section, index)).collect()
    }

    /// Sets a rank's vote: 0 for the step, otherwise the reasons against it.
    pub(super) fn vote(&mut self, rank: usize, vote: u64) {
        if vote != 0 {
            self.set(self.shape.voters_at(), rank);
        }
        self.bytes[..VOTE_BYTES].copy_from_slice(&vote.to_le_bytes());
    }

    /// Records that a rank used a parameter.
    pub(super) fn add_used(&mut self, param: usize) {
        self.set(self.shape.used_at(), param);
    }

    /// Records that a rank did not mark a parameter.
    pub(super) fn add_missing(&mut self, rank: usize, param: usize) {
        self.set(self.shape.incomplete_at(), rank);
        self.set(self.shape.missing_at(), param);
    }

    /// Sets the order in which gradients became ready, if the ballot has a section for it.
    pub(super) fn set_order(&mut self, order: &[usize]) {
        if !self.shape.has_order {
            return;
        }
        let (entries, _) = self.bytes[self.shape.order_at()..].as_chunks_mut::<INDEX_BYTES>();
        for (entry, &index) in entries.iter_mut().zip(order) {
            // The stored value is the index plus 1, so that 0 means no index. There are at most
            // 2^20 parameters.
            *entry = u32::try_from(index + 1).unwrap_or(0).to_le_bytes();
        }
    }

    /// Returns the reasons of all ranks against the step, combined by bitwise OR; 0 if there are
    /// none.
    pub(super) fn votes(&self) -> u64 {
        let (words, _) = self.bytes.as_chunks::<VOTE_BYTES>();
        words.first().map_or(0, |&word| u64::from_le_bytes(word))
    }

    /// Returns the ranks that voted against the step.
    pub(super) fn voters(&self) -> Vec<usize> {
        self.members(self.shape.voters_at(), self.shape.ranks)
    }

    /// Returns the ranks that did not mark every parameter.
    pub(super) fn ranks_with_missing(&self) -> Vec<usize> {
        self.members(self.shape.incomplete_at(), self.shape.ranks)
    }

    /// Returns the parameters that at least one rank did not mark.
    pub(super) fn missing(&self) -> Vec<usize> {
        self.members(self.shape.missing_at(), self.shape.params)
    }

    /// Returns whether a rank used a parameter.
    pub(super) fn is_used(&self, param: usize) -> bool {
        self.has(self.shape.used_at(), param)
    }

    /// Returns the order in which gradients became ready on rank 0; empty if the ballot has no
    /// order.
    pub(super) fn order(&self) -> Vec<usize> {
        if !self.shape.has_order {
            return Vec::new();
        }
        let (entries, _) = self.bytes[self.shape.order_at()..].as_chunks::<INDEX_BYTES>();
        let index = |&entry: &[u8; INDEX_BYTES]| {
            usize::try_from(u32::from_le_bytes(entry)).unwrap_or(0).checked_sub(1)
        };
        entries.iter().map_while(index).collect()
    }
}

/// The callback that receives the votes of all ranks.
pub struct VoteDelivery(Box<dyn FnOnce(u64) + Send>);

impl VoteDelivery {
    /// Wraps a callback, which must not block.
    pub fn new(take: impl FnOnce(u64) + Send + 'static) -> Self {
        Self(Box::new(take))
    }

    /// Passes the votes to the callback.
    pub(super) fn deliver(self, votes: u64) {
        (self.0)(votes);
    }
}

impl fmt::Debug for VoteDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deliver")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(ballots: &[Ballot]) -> Ballot {
        let mut sum = ballots[0].clone();
        for other in &ballots[1..] {
            sum.bytes.iter_mut().zip(&other.bytes).for_each(|(sum, byte)| *sum |= byte);
        }
        sum
    }

    #[test]
    fn combined_ballot_has_the_entries_of_all_ranks() {
        for (ranks, params) in [(1, 0), (1, 1), (3, 9), (9, 8), (64, 1000)] {
            let shape = BallotShape { ranks, params, has_order: true };
            let mut ballots = vec![Ballot::new(shape); ranks];
            assert_eq!(all(&ballots).votes(), 0);
            assert!(all(&ballots).order().is_empty());
            let order: Vec<usize> = (0..params).rev().collect();
            ballots[0].set_order(&order);
            ballots[ranks - 1].vote(ranks - 1, 5);
            for param in (0..params).step_by(3) {
                ballots[param % ranks].add_used(param);
            }
            if params > 1 {
                ballots[ranks / 2].add_missing(ranks / 2, params - 1);
            }
            let sum = all(&ballots);
            assert_eq!((sum.votes(), sum.voters()), (5, vec![ranks - 1]));
            assert_eq!(sum.order(), order);
            assert!((0..params).all(|param| sum.is_used(param) == (param % 3 == 0)));
            if params > 1 {
                assert_eq!(sum.missing(), [params - 1]);
                assert_eq!(sum.ranks_with_missing(), [ranks / 2]);
            }
            let mut bytes = sum.encode();
            assert_eq!(Ballot::decode(&bytes), Some(sum));
            bytes.push(0);
            assert_eq!(Ballot::decode(&bytes), None);
        }
    }

    #[test]
    fn a_ballot_without_an_order_is_short() {
        let shape = BallotShape { ranks: 2, params: 200, has_order: false };
        let mut ballot = Ballot::new(shape);
        ballot.set_order(&[1, 2]);
        assert_eq!(ballot.bytes().len(), 8 + 1 + 1 + 25 + 25);
        assert!(ballot.order().is_empty());
    }
}
