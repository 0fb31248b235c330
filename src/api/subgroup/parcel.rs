//! Letters cut into pieces that each travel as one message, and put together again.
//!
//! Pieces are small, so that one receive takes any of them; in groups of up to two thousand ranks
//! or so they also go without having been asked for. They lie in memory that is
//! [lent](crate::backend::lent) to the engine.
//!
//! What comes from another rank is believed only as far as it fits together; the rest is dropped.
//! What is kept of letters that are not complete is bounded; a sender's oldest goes first, which
//! nobody sends any more.
//!
//! Must not know: what letters say.

use super::shares::Shares;
use crate::backend::lent::Lent;
use crate::base::buffer::{Dst, Src};
use crate::base::ids::Rank;
use std::collections::BTreeMap;

/// The longest piece, its head included.
const BLOCK_BYTES: usize = 4096;
const HEAD_BYTES: usize = 24;
const PIECE_BYTES: usize = BLOCK_BYTES - HEAD_BYTES;
const MAGIC: [u8; 8] = *b"distlttr";

/// The longest letter: a kilobyte for each rank of the largest group, of whose cards most have a
/// third of that.
pub(super) const LONGEST_LETTER: usize = 64 << 20;

/// Memory for one piece.
#[derive(Debug)]
pub(super) struct Block(Lent);

impl Block {
    /// One to receive into.
    pub(super) fn new() -> Self {
        Self(Lent::new(BLOCK_BYTES))
    }

    /// Where a piece goes.
    pub(super) fn room(&self) -> Dst<'static> {
        self.0.room()
    }

    /// The piece.
    pub(super) fn bytes(&self) -> Src<'static> {
        self.0.bytes()
    }

    /// A copy of what has come.
    pub(super) fn read(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len.min(BLOCK_BYTES)];
        let len = bytes.len();
        Dst::from(bytes.as_mut_slice()).copy_from(self.bytes().slice(0, len));
        bytes
    }

    fn of(head: &[u8; HEAD_BYTES], piece: &[u8]) -> Self {
        let block = Self(Lent::new(HEAD_BYTES + piece.len()));
        block.room().slice(0, HEAD_BYTES).copy_from(head.as_slice().into());
        block.room().slice(HEAD_BYTES, piece.len()).copy_from(piece.into());
        block
    }
}

/// Cuts a letter, piece by piece; `number` tells it from the sender's others.
pub(super) fn cut(number: u64, letter: &[u8]) -> impl Iterator<Item = Block> + '_ {
    let total = u32::try_from(letter.len()).unwrap_or(u32::MAX);
    let pieces = letter.chunks(PIECE_BYTES).enumerate();
    let block = move |(index, piece): (usize, &[u8])| {
        let offset = u32::try_from(index * PIECE_BYTES).unwrap_or(u32::MAX);
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&MAGIC);
        head[8..16].copy_from_slice(&number.to_le_bytes());
        head[16..20].copy_from_slice(&total.to_le_bytes());
        head[20..].copy_from_slice(&offset.to_le_bytes());
        Block::of(&head, piece)
    };
    pieces.map(block)
}

/// Letters of which only the beginning has come.
#[derive(Debug)]
pub(super) struct Assembly {
    begun: BTreeMap<(Rank, u64), Vec<u8>>,
    shares: Shares,
}

impl Assembly {
    /// Of a rank of a group of so many.
    pub(super) fn new(size: usize) -> Self {
        Self { begun: BTreeMap::new(), shares: Shares::new(LONGEST_LETTER, size) }
    }

    /// Takes a piece; gives the letter when it is complete.
    pub(super) fn add(&mut self, from: Rank, block: &[u8]) -> Option<Vec<u8>> {
        let (head, piece) = block.split_at_checked(HEAD_BYTES)?;
        let number = u64::from_le_bytes(head[8..16].try_into().ok()?);
        let total = usize::try_from(u32::from_le_bytes(head[16..20].try_into().ok()?)).ok()?;
        let offset = usize::try_from(u32::from_le_bytes(head[20..].try_into().ok()?)).ok()?;
        let mut letter = self.remove(from, number).unwrap_or_default();
        let fits = head[..8] == MAGIC
            && total <= LONGEST_LETTER
            && offset == letter.len()
            && !piece.is_empty()
            && piece.len() <= total - offset.min(total);
        if !fits {
            return None;
        }
        letter.extend_from_slice(piece);
        if letter.len() == total {
            return Some(letter);
        }
        let begun = &mut self.begun;
        let drop_oldest = || {
            let (&oldest, _) = begun.range((from, 0)..=(from, u64::MAX)).next()?;
            begun.remove(&oldest).map(|bytes| bytes.len())
        };
        if self.shares.make_room(from, letter.len(), drop_oldest) {
            self.begun.insert((from, number), letter);
        }
        None
    }

    /// Drops what those have begun who will not go on.
    pub(super) fn forget(&mut self, is_gone: impl Fn(Rank) -> bool) {
        let mut senders: Vec<Rank> = self.begun.keys().map(|&(from, _)| from).collect();
        senders.dedup();
        for from in senders.into_iter().filter(|&from| is_gone(from)) {
            let of = self.begun.range((from, 0)..=(from, u64::MAX));
            let numbers: Vec<u64> = of.map(|(&(_, number), _)| number).collect();
            numbers.into_iter().for_each(|number| drop(self.remove(from, number)));
        }
    }

    fn remove(&mut self, from: Rank, number: u64) -> Option<Vec<u8>> {
        let bytes = self.begun.remove(&(from, number))?;
        self.shares.give_back(from, bytes.len());
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(number: u64, letter: &[u8]) -> Vec<Block> {
        super::cut(number, letter).collect()
    }

    fn content(block: &Block) -> Vec<u8> {
        block.read(block.bytes().len())
    }

    #[test]
    fn letters_survive_whatever_comes_between_their_pieces() {
        let long: Vec<u8> = (0..=250).cycle().take(3 * PIECE_BYTES + 1).collect();
        let short = vec![7];
        let (one, two) = (cut(1, &long), cut(2, &short));
        assert_eq!((one.len(), two.len()), (4, 1));
        let mut assembly = Assembly::new(2);
        assert_eq!(assembly.add(0, &content(&one[0])), None);
        assert_eq!(assembly.add(0, &content(&two[0])), Some(short));
        assert_eq!(assembly.add(1, &content(&one[0])), None);
        assert_eq!(assembly.add(0, &content(&one[1])), None);
        assert_eq!(assembly.add(0, &content(&one[2])), None);
        assert_eq!(assembly.add(0, &content(&one[3])), Some(long));
        assert_eq!(assembly.begun.keys().collect::<Vec<_>>(), [&(1, 1)]);
        // Rank 1 has left in the middle of it.
        assembly.forget(|from| from == 0);
        assert_eq!(assembly.begun.len(), 1);
        assembly.forget(|from| from == 1);
        assert_eq!((assembly.shares.total(), assembly.begun.len()), (0, 0));
    }

    #[test]
    fn two_blocks_never_share_memory() {
        let blocks: Vec<Block> = (0..4).flat_map(|i| cut(i, &[1; 3 * PIECE_BYTES])).collect();
        let mut places: Vec<_> = blocks.iter().map(|block| block.room().as_mut_ptr()).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), blocks.len());
    }

    #[test]
    fn what_does_not_fit_together_is_dropped() {
        let letter = vec![1; 2 * PIECE_BYTES];
        let pieces = cut(1, &letter);
        let mut assembly = Assembly::new(2);
        for bad in [&b""[..], &[0; HEAD_BYTES], &[0xff; 100], &content(&pieces[1])] {
            assert_eq!(assembly.add(0, bad), None);
        }
        let mut huge = content(&pieces[0]);
        huge[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(assembly.add(0, &huge), None);
        assert_eq!((assembly.shares.total(), assembly.begun.len()), (0, 0));
        // Twice the first piece: neither of the two letters is believed.
        assert_eq!(assembly.add(0, &content(&pieces[0])), None);
        assert_eq!(assembly.add(0, &content(&pieces[0])), None);
        assert_eq!(assembly.add(0, &content(&pieces[1])), None);
        assert_eq!((assembly.shares.total(), assembly.begun.len()), (0, 0));
    }

    #[test]
    fn letters_that_nobody_completes_make_room_for_later_ones() {
        let mut assembly = Assembly { begun: BTreeMap::new(), shares: Shares::new(BLOCK_BYTES, 2) };
        let letters: Vec<_> = (1..=10).map(|number| cut(number, &[7; 2 * PIECE_BYTES])).collect();
        for letter in &letters[..9] {
            assert_eq!(assembly.add(0, &content(&letter[0])), None);
        }
        assert_eq!(assembly.begun.keys().collect::<Vec<_>>(), [&(0, 9)]);
        // Those of others stay.
        assert_eq!(assembly.add(1, &content(&letters[0][0])), None);
        assert_eq!(assembly.add(0, &content(&letters[9][0])), None);
        assert_eq!(assembly.add(0, &content(&letters[8][1])), None);
        assert!(assembly.add(0, &content(&letters[9][1])).is_some());
        assert!(assembly.add(1, &content(&letters[0][1])).is_some());
        assert_eq!(assembly.shares.total(), 0);
    }
}
