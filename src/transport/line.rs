//! The control line: what a rank says about one step of an operation.
//!
//! One writer, many readers, 128 bytes. The first 64 hold what the fast path needs (the step number,
//! the fingerprint, a small payload), so that a small operation moves one cache line; the second 64
//! hold the description of the operation, which is read only to explain a mismatch.
//!
//! Every field is an atomic word, so that reading a line while a rank that has gone wrong writes it
//! is harmless. The step number is stored last (release) and read first (acquire).

use crate::base::dtype::DataType;
use crate::base::ids::Rank;
use crate::base::op::ReduceOp;
use crate::base::sync::{AtomicU64, Ordering};
use std::fmt;

/// The bytes of payload that fit beside the step number.
pub const INLINE_BYTES: usize = 48;
const INLINE_WORDS: usize = INLINE_BYTES / 8;

/// Which collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are their own documentation")]
pub enum OpKind {
    AllReduce = 0,
    Reduce = 1,
    Broadcast = 2,
    AllGather = 3,
    ReduceScatter = 4,
    Barrier = 5,
}

impl OpKind {
    /// Every kind, in the order of its number.
    pub const ALL: [Self; 6] = [
        Self::AllReduce,
        Self::Reduce,
        Self::Broadcast,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Barrier,
    ];

    /// The name, as in the C function.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Reduce => "reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Barrier => "barrier",
        }
    }
}

/// What all ranks must agree on for one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The operation.
    pub kind: OpKind,
    /// The element type; `None` where there are no elements.
    pub dtype: Option<DataType>,
    /// The operator, for reductions.
    pub op: Option<ReduceOp>,
    /// The root, for rooted operations.
    pub root: Option<Rank>,
    /// The count argument of the call, in elements.
    pub count: u64,
    /// The number of the operation in its group, from 1.
    pub sequence: u64,
    /// The number of the algorithm among those of the operation, from 1; 0 where none has been chosen.
    pub algorithm: u8,
}

const NONE: u64 = 0xff;

impl Descriptor {
    /// The three words that represent it in a line.
    pub fn encode(&self) -> [u64; 3] {
        let dtype = self.dtype.map_or(NONE, |dtype| dtype as u64);
        let op = self.op.map_or(NONE, |op| op as u64);
        let root = self.root.map_or(0, |root| root as u64 + 1);
        // 1 in the lowest byte tells a written descriptor from zeroed memory.
        let first = 1 | (self.kind as u64) << 8 | dtype << 16 | op << 24 | root << 32;
        let first = first | u64::from(self.algorithm) << 56;
        [first, self.count, self.sequence]
    }

    /// The inverse of [`Descriptor::encode`]; `None` for words that no descriptor has.
    pub fn decode(words: [u64; 3]) -> Option<Self> {
        let byte = |shift: u32| usize::try_from((words[0] >> shift) & 0xff).unwrap_or(usize::MAX);
        if byte(0) != 1 {
            return None;
        }
        let root = usize::try_from(words[0] >> 32 & 0xff_ffff).ok()?;
        Some(Self {
            kind: OpKind::ALL.get(byte(8)).copied()?,
            dtype: DataType::ALL.get(byte(16)).copied(),
            op: ReduceOp::ALL.get(byte(24)).copied(),
            root: root.checked_sub(1),
            count: words[1],
            sequence: words[2],
            algorithm: u8::try_from(byte(56)).ok()?,
        })
    }
}

impl fmt::Display for Descriptor {
    /// For instance `all_reduce #57 (f32, SUM, count 1000)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{}", self.kind.name(), self.sequence)?;
        let mut parts = Vec::new();
        parts.extend(self.dtype.map(|dtype| dtype.to_string()));
        parts.extend(self.op.map(|op| op.to_string()));
        parts.extend(self.root.map(|root| format!("root {root}")));
        if self.dtype.is_some() {
            parts.push(format!("count {}", self.count));
        }
        if parts.is_empty() { Ok(()) } else { write!(f, " ({})", parts.join(", ")) }
    }
}

/// One control line. All zero bytes are a line never written.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Line {
    step: AtomicU64,
    chain: AtomicU64,
    inline: [AtomicU64; INLINE_WORDS],
    descriptor: [AtomicU64; 3],
}

impl Line {
    /// Writes the line for `step`. Only its owner does, and only when no reader needs the step that
    /// the line held before.
    pub fn publish(&self, step: u64, chain: u64, descriptor: &[u64; 3], payload: &[u8]) {
        self.chain.store(chain, Ordering::Relaxed);
        for (cell, &word) in self.descriptor.iter().zip(descriptor) {
            cell.store(word, Ordering::Relaxed);
        }
        for (cell, bytes) in self.inline.iter().zip(payload.chunks(8)) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            cell.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        self.step.store(step, Ordering::Release);
    }

    /// The step that the line holds.
    pub fn step(&self) -> u64 {
        self.step.load(Ordering::Acquire)
    }

    /// The fingerprint of everything that its owner has done up to this step.
    pub fn chain(&self) -> u64 {
        self.chain.load(Ordering::Relaxed)
    }

    /// Copies the payload out; `into` says how many bytes there are.
    ///
    /// # Panics
    /// If `into` is longer than a payload can be.
    pub fn read_payload(&self, into: &mut [u8]) {
        assert!(into.len() <= INLINE_BYTES, "an inline payload has at most {INLINE_BYTES} bytes");
        for (cell, bytes) in self.inline.iter().zip(into.chunks_mut(8)) {
            let word = cell.load(Ordering::Relaxed).to_le_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
    }

    /// The description of the operation that the line belongs to.
    pub fn descriptor(&self) -> Option<Descriptor> {
        Descriptor::decode(std::array::from_fn(|i| self.descriptor[i].load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_survives_its_words() {
        let mut all = Vec::new();
        for kind in OpKind::ALL {
            for root in [None, Some(0), Some(65_535)] {
                all.push(Descriptor {
                    kind,
                    dtype: Some(DataType::F8E5M2),
                    op: Some(ReduceOp::PremulSum),
                    root,
                    count: u64::MAX,
                    sequence: 1 << 60,
                    algorithm: 255,
                });
                let (dtype, op, count, sequence, algorithm) = (None, None, 0, 0, 0);
                all.push(Descriptor { kind, dtype, op, root, count, sequence, algorithm });
            }
        }
        for descriptor in all {
            assert_eq!(Descriptor::decode(descriptor.encode()), Some(descriptor));
        }
        assert_eq!(Descriptor::decode([0; 3]), None);
        assert_eq!(Descriptor::decode([u64::MAX; 3]), None);
    }

    #[test]
    fn a_payload_survives_the_line() {
        let line = Line::default();
        let payload: Vec<u8> = (0..48).collect();
        for len in 0..=INLINE_BYTES {
            line.publish(len as u64, 9, &[1, 2, 3], &payload[..len]);
            let mut back = vec![0; len];
            line.read_payload(&mut back);
            assert_eq!(back, payload[..len]);
            assert_eq!((line.step(), line.chain()), (len as u64, 9));
        }
        assert_eq!((size_of::<Line>(), std::mem::offset_of!(Line, descriptor)), (128, 64));
    }
}
