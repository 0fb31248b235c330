//! The signature of a call that reduces with an operator of the caller: the operator and the
//! arguments. The ranks compare their signatures before they reduce.
//!
//! A record is an encoded signature. Every rank gets the records of all ranks, so that the error
//! for a difference can name the operators of both ranks.

use super::call::OperatorCall;
use super::{LONGEST_NAME, Operator};
use crate::base::dtype::DataType;
use crate::base::ids::Rank;
use crate::transport::{CountSpec, OpKind};
use std::fmt;

/// The size of a record in bytes. It is small enough for the inline payload of a control slot (a
/// slot for short messages in shared memory).
pub(super) const RECORD_BYTES: usize = 32 + LONGEST_NAME;

/// The byte that encodes the absence of an element type.
const NO_DTYPE: u8 = 0xff;

/// The operator and the arguments of the call of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OperatorSignature {
    kind: OpKind,
    dtype: Option<DataType>,
    is_commutative: bool,
    root: Option<Rank>,
    element_bytes: u64,
    /// The number of elements of a vector or a block. In operations with a count for each rank, the
    /// sum of all counts.
    count: u64,
    /// A hash of the counts, in operations with a count for each rank. 0 in other operations.
    fingerprint: u64,
    name: String,
}

impl OperatorSignature {
    pub(super) fn from_call(call: &OperatorCall<'_>) -> Self {
        let Operator { name, element_bytes, is_commutative, .. } = &*call.operator;
        let (count, fingerprint) = match call.extent() {
            CountSpec::Counts { total, fingerprint } => (total, fingerprint),
            _ => (call.count() as u64, 0),
        };
        Self {
            kind: call.kind(),
            dtype: call.dtype,
            is_commutative: *is_commutative,
            root: call.bytes_call.root,
            element_bytes: *element_bytes as u64,
            count,
            fingerprint,
            name: name.clone(),
        }
    }

    pub(super) fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut record = [0; RECORD_BYTES];
        record[0] = self.kind as u8;
        record[1] = self.dtype.map_or(NO_DTYPE, |dtype| dtype as u8);
        record[2] = u8::from(self.is_commutative);
        record[3] = u8::try_from(self.name.len()).unwrap_or(NO_DTYPE);
        let root = self.root.and_then(|root| u32::try_from(root).ok()).unwrap_or(u32::MAX);
        record[4..8].copy_from_slice(&root.to_le_bytes());
        let words = [self.element_bytes, self.count, self.fingerprint];
        for (bytes, word) in record[8..32].chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        record[32..32 + self.name.len()].copy_from_slice(self.name.as_bytes());
        record
    }

    /// Decodes a record; `None` for invalid bytes.
    pub(super) fn decode(record: &[u8]) -> Option<Self> {
        let record: &[u8; RECORD_BYTES] = record.try_into().ok()?;
        let (words, _) = record[8..32].as_chunks::<8>();
        let word = |index: usize| u64::from_le_bytes(words[index]);
        let root = u32::from_le_bytes(record[4..8].try_into().ok()?);
        let name = record[32..].get(..usize::from(record[3]))?;
        Some(Self {
            kind: OpKind::ALL.get(usize::from(record[0])).copied()?,
            dtype: DataType::ALL.get(usize::from(record[1])).copied(),
            is_commutative: record[2] != 0,
            root: Some(root).filter(|&root| root != u32::MAX).map(|root| root as Rank),
            element_bytes: word(0),
            count: word(1),
            fingerprint: word(2),
            name: std::str::from_utf8(name).ok()?.to_owned(),
        })
    }
}

impl fmt::Display for OperatorSignature {
    /// Formats the signature, for instance `all_reduce (operator "matmul" on elements of 16 bytes,
    /// count 3)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, element_bytes, count, .. } = self;
        write!(f, "{} (operator \"{name}\" on elements of {element_bytes} bytes", kind.name())?;
        if self.is_commutative {
            f.write_str(", commutative")?;
        }
        if let Some(dtype) = self.dtype {
            write!(f, ", {dtype}")?;
        }
        if let Some(root) = self.root {
            write!(f, ", root {root}")?;
        }
        match self.fingerprint {
            0 => write!(f, ", count {count})"),
            counts => write!(f, ", counts #{counts:09x}, in all {count})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_record_round_trips_every_field() {
        let terms = OperatorSignature {
            kind: OpKind::Exscan,
            dtype: None,
            is_commutative: true,
            root: None,
            element_bytes: 1 << 20,
            count: u64::MAX,
            fingerprint: 0,
            name: "n".repeat(LONGEST_NAME),
        };
        let others = [
            OperatorSignature { kind: OpKind::Scan, ..terms.clone() },
            OperatorSignature { dtype: Some(DataType::I8), ..terms.clone() },
            OperatorSignature { is_commutative: false, ..terms.clone() },
            OperatorSignature { root: Some(65_535), ..terms.clone() },
            OperatorSignature { element_bytes: 1, ..terms.clone() },
            OperatorSignature { count: 0, ..terms.clone() },
            OperatorSignature { fingerprint: 7, ..terms.clone() },
            OperatorSignature { name: "matmul".to_owned(), ..terms },
        ];
        for other in &others {
            assert_eq!(OperatorSignature::decode(&other.encode()).as_ref(), Some(other));
            assert_ne!(other.encode(), terms.encode());
        }
        assert_eq!(OperatorSignature::decode(&terms.encode()), Some(terms));
        assert_eq!(OperatorSignature::decode(&[0xee; RECORD_BYTES]), None);
        assert_eq!(OperatorSignature::decode(&[0; 3]), None);
    }

    #[test]
    fn signature_text_names_operator_and_arguments() {
        let terms = OperatorSignature {
            kind: OpKind::Reduce,
            dtype: Some(DataType::F32),
            is_commutative: true,
            root: Some(2),
            element_bytes: 4,
            count: 3,
            fingerprint: 0,
            name: "logsumexp".to_owned(),
        };
        let text = "reduce (operator \"logsumexp\" on elements of 4 bytes, commutative, f32, root 2, count 3)";
        assert_eq!(terms.to_string(), text);
    }
}
