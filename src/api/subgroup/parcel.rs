//! Letters cut into pieces that each travel as one message, and put together again.
//!
//! Pieces are small, so that they go whole and need no receive of the right size. They lie in blocks that the process
//! keeps for ever and uses again, since the engine borrows them until it says otherwise: there are as many as were ever
//! on their way at once.
//!
//! What comes from another rank is believed only as far as it fits together; the rest is dropped.
//!
//! Must not know: what letters say.

use crate::base::buffer::{Dst, Src};
use crate::base::ids::Rank;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The longest piece, its head included.
const BLOCK_BYTES: usize = 4096;
const HEAD_BYTES: usize = 24;
const PIECE_BYTES: usize = BLOCK_BYTES - HEAD_BYTES;
const MAGIC: [u8; 8] = *b"distlttr";

/// The longest letter: the cards of as many ranks as a group may have.
pub(super) const LONGEST_LETTER: usize = 64 << 20;

/// How much of letters that are not complete is kept.
const MOST_INCOMPLETE: usize = 2 * LONGEST_LETTER;

/// Blocks that nobody uses.
static FREE: Mutex<Vec<Dst<'static>>> = Mutex::new(Vec::new());

fn free() -> MutexGuard<'static, Vec<Dst<'static>>> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory for one piece, which goes back to the others when nobody holds it any more.
#[derive(Debug)]
pub(super) struct Block {
    memory: Dst<'static>,
    used: usize,
}

impl Block {
    /// An empty one, to receive into.
    pub(super) fn new() -> Self {
        let known = free().pop();
        let fresh = || Dst::from(Box::leak(vec![0; BLOCK_BYTES].into_boxed_slice()));
        Self { memory: known.unwrap_or_else(fresh), used: BLOCK_BYTES }
    }

    /// Where a piece goes.
    pub(super) fn room(&self) -> Dst<'static> {
        self.memory
    }

    /// The piece.
    pub(super) fn bytes(&self) -> Src<'static> {
        self.memory.as_src().slice(0, self.used)
    }

    /// A copy of what has come.
    pub(super) fn read(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len.min(BLOCK_BYTES)];
        let len = bytes.len();
        Dst::from(bytes.as_mut_slice()).copy_from(self.memory.as_src().slice(0, len));
        bytes
    }

    fn of(head: &[u8; HEAD_BYTES], piece: &[u8]) -> Self {
        let mut block = Self::new();
        block.used = HEAD_BYTES + piece.len();
        block.memory.slice(0, HEAD_BYTES).copy_from(head.as_slice().into());
        block.memory.slice(HEAD_BYTES, piece.len()).copy_from(piece.into());
        block
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        free().push(self.memory);
    }
}

/// Cuts a letter; `number` tells it from the sender's others.
pub(super) fn cut(number: u64, letter: &[u8]) -> Vec<Block> {
    let total = u32::try_from(letter.len()).unwrap_or(u32::MAX);
    let pieces = letter.chunks(PIECE_BYTES).enumerate();
    let block = |(index, piece): (usize, &[u8])| {
        let offset = u32::try_from(index * PIECE_BYTES).unwrap_or(u32::MAX);
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&MAGIC);
        head[8..16].copy_from_slice(&number.to_le_bytes());
        head[16..20].copy_from_slice(&total.to_le_bytes());
        head[20..].copy_from_slice(&offset.to_le_bytes());
        Block::of(&head, piece)
    };
    pieces.map(block).collect()
}

/// Letters of which only the beginning has come.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    begun: HashMap<(Rank, u64), Vec<u8>>,
    bytes: usize,
}

impl Assembly {
    /// Takes a piece; gives the letter when it is complete.
    pub(super) fn add(&mut self, from: Rank, block: &[u8]) -> Option<Vec<u8>> {
        let (head, piece) = block.split_at_checked(HEAD_BYTES)?;
        let number = u64::from_le_bytes(head[8..16].try_into().ok()?);
        let total = usize::try_from(u32::from_le_bytes(head[16..20].try_into().ok()?)).ok()?;
        let offset = usize::try_from(u32::from_le_bytes(head[20..].try_into().ok()?)).ok()?;
        let begun = self.begun.remove(&(from, number)).unwrap_or_default();
        self.bytes -= begun.len();
        let fits = head[..8] == MAGIC
            && total <= LONGEST_LETTER
            && offset == begun.len()
            && !piece.is_empty()
            && piece.len() <= total - offset.min(total)
            && self.bytes + offset + piece.len() <= MOST_INCOMPLETE;
        if !fits {
            return None;
        }
        let mut letter = begun;
        letter.extend_from_slice(piece);
        if letter.len() == total {
            return Some(letter);
        }
        self.bytes += letter.len();
        self.begun.insert((from, number), letter);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(block: &Block) -> Vec<u8> {
        block.read(block.bytes().len())
    }

    #[test]
    fn letters_survive_whatever_comes_between_their_pieces() {
        let long: Vec<u8> = (0..=250).cycle().take(3 * PIECE_BYTES + 1).collect();
        let short = vec![7];
        let (one, two) = (cut(1, &long), cut(2, &short));
        assert_eq!((one.len(), two.len()), (4, 1));
        let mut assembly = Assembly::default();
        assert_eq!(assembly.add(0, &content(&one[0])), None);
        assert_eq!(assembly.add(0, &content(&two[0])), Some(short));
        assert_eq!(assembly.add(1, &content(&one[0])), None);
        assert_eq!(assembly.add(0, &content(&one[1])), None);
        assert_eq!(assembly.add(0, &content(&one[2])), None);
        assert_eq!(assembly.add(0, &content(&one[3])), Some(long));
        assert_eq!(assembly.bytes, PIECE_BYTES);
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
        let mut assembly = Assembly::default();
        for bad in [&b""[..], &[0; HEAD_BYTES], &[0xff; 100], &content(&pieces[1])] {
            assert_eq!(assembly.add(0, bad), None);
        }
        let mut huge = content(&pieces[0]);
        huge[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(assembly.add(0, &huge), None);
        assert_eq!((assembly.bytes, assembly.begun.len()), (0, 0));
        // Twice the first piece: neither of the two letters is believed.
        assert_eq!(assembly.add(0, &content(&pieces[0])), None);
        assert_eq!(assembly.add(0, &content(&pieces[0])), None);
        assert_eq!(assembly.add(0, &content(&pieces[1])), None);
        assert_eq!((assembly.bytes, assembly.begun.len()), (0, 0));
    }
}
