//! The description of a list call: the operation, and the name, the type, the shape and the kind of
//! memory of each tensor. The ranks compare their descriptions. This file encodes a description,
//! and finds the first difference between two descriptions.
//!
//! ```text
//! header   kind (1 byte) | operator (1) | is canonical (1) | root (4) | number of tensors (4)
//! tensor   length of the name (2) | name | type (1) | is on a device (1) | dimensions (1)
//!          | one extent for each dimension (8)
//! ```
//!
//! Numbers are little endian. The absence of an operator or a root has all bits set.

use super::{ListCall, ListTensor, MAX_LIST_TENSORS, MAX_TENSOR_DIMS, MAX_TENSOR_NAME_BYTES};
use crate::base::dtype::DataType;
use crate::base::op::ReduceOp;
use crate::transport::OpKind;
use std::fmt;

const HEADER_BYTES: usize = 11;

/// The number of bytes of an encoded tensor without its name and its extents.
const TENSOR_BYTES: usize = 5;

/// The maximum length of an encoded description.
pub(super) const MAX_DESCRIPTION_BYTES: usize = HEADER_BYTES
    + MAX_LIST_TENSORS
        * (TENSOR_BYTES + MAX_TENSOR_NAME_BYTES + MAX_TENSOR_DIMS * size_of::<u64>());

/// The byte that encodes the absence of an operator.
const NO_OP: u8 = 0xff;

/// The description of a list call of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListDescription {
    operation: ListOperation,
    tensors: Vec<TensorDescription>,
}

/// The operation of a list call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ListOperation {
    kind: OpKind,
    op: Option<ReduceOp>,
    root: Option<u32>,
    is_canonical: bool,
}

/// The properties of a tensor that must be equal on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TensorDescription {
    name: String,
    dtype: DataType,
    is_on_device: bool,
    shape: Vec<u64>,
}

/// The first difference between the descriptions of two ranks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ListDifference {
    /// The tensor and the property that differs, for instance `tensor 3 "bias": the shapes differ`.
    pub(super) what: String,
    /// The property of the one rank.
    pub(super) one: String,
    /// The property of the other rank.
    pub(super) other: String,
}

impl ListDescription {
    pub(super) fn of(call: &ListCall<'_>, is_canonical: bool) -> Self {
        let describe = |tensor: &ListTensor<'_>| TensorDescription {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            is_on_device: tensor.device.is_some(),
            shape: tensor.shape.iter().map(|&extent| extent as u64).collect(),
        };
        let root = call.root.and_then(|root| u32::try_from(root).ok());
        Self {
            operation: ListOperation { kind: call.kind, op: call.op, root, is_canonical },
            tensors: call.tensors.iter().map(describe).collect(),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let ListOperation { kind, op, root, is_canonical } = self.operation;
        let mut bytes = vec![kind as u8, op.map_or(NO_OP, |op| op as u8), u8::from(is_canonical)];
        bytes.extend(root.unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend(u32::try_from(self.tensors.len()).unwrap_or(u32::MAX).to_le_bytes());
        for tensor in &self.tensors {
            let TensorDescription { name, dtype, is_on_device, shape } = tensor;
            bytes.extend(u16::try_from(name.len()).unwrap_or(u16::MAX).to_le_bytes());
            bytes.extend(name.as_bytes());
            let dims = u8::try_from(shape.len()).unwrap_or(u8::MAX);
            bytes.extend([*dtype as u8, u8::from(*is_on_device), dims]);
            shape.iter().for_each(|extent| bytes.extend(extent.to_le_bytes()));
        }
        bytes
    }

    /// Decodes a description; `None` for invalid bytes.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let [kind, op, canonical] = take(&mut rest)?;
        let root = u32::from_le_bytes(take(&mut rest)?);
        let count = u32::from_le_bytes(take(&mut rest)?);
        let operation = ListOperation {
            kind: OpKind::ALL.get(usize::from(kind)).copied()?,
            op: ReduceOp::ALL.get(usize::from(op)).copied(),
            root: Some(root).filter(|&root| root != u32::MAX),
            is_canonical: canonical != 0,
        };
        let mut tensors = Vec::new();
        for _ in 0..count {
            tensors.push(TensorDescription::decode(&mut rest)?);
        }
        rest.is_empty().then_some(Self { operation, tensors })
    }

    /// Returns the first difference between this description and the description of another rank.
    pub(super) fn first_difference(&self, other: &Self) -> Option<ListDifference> {
        if self.operation != other.operation {
            let [one, other] = [self, other].map(|list| list.operation.to_string());
            return Some(ListDifference { what: "the operations differ".to_owned(), one, other });
        }
        let longest = self.tensors.len().max(other.tensors.len());
        (0..longest).find_map(|index| {
            let (one, other_tensor) = (self.tensors.get(index), other.tensors.get(index));
            match (one, other_tensor) {
                (Some(one), Some(other)) => one.difference(other, index),
                _ => Some(ListDifference {
                    what: format!("tensor {index}: the lists have different lengths"),
                    one: self.describe_entry(index),
                    other: other.describe_entry(index),
                }),
            }
        })
    }

    /// Describes a tensor of a list, or that the list ends before it.
    fn describe_entry(&self, index: usize) -> String {
        let count = self.tensors.len();
        match self.tensors.get(index) {
            Some(tensor) => format!("{tensor} in a list of {count}"),
            None => format!("only {count} tensors"),
        }
    }
}

impl TensorDescription {
    fn decode(rest: &mut &[u8]) -> Option<Self> {
        let len = usize::from(u16::from_le_bytes(take(rest)?));
        let (name, behind) = rest.split_at_checked(len)?;
        *rest = behind;
        let name = std::str::from_utf8(name).ok()?.to_owned();
        let [dtype, device, dims] = take(rest)?;
        let dtype = DataType::ALL.get(usize::from(dtype)).copied()?;
        let extents = (0..dims).map(|_| take(rest).map(u64::from_le_bytes));
        Some(Self {
            name,
            dtype,
            is_on_device: device != 0,
            shape: extents.collect::<Option<_>>()?,
        })
    }

    /// Returns the difference between this tensor and the tensor at the same index of another rank.
    fn difference(&self, other: &Self, index: usize) -> Option<ListDifference> {
        let title = format!("tensor {index} {:?}", self.name);
        let difference = |property: &str, text: fn(&Self) -> String| ListDifference {
            what: format!("{title}: the {property} differ"),
            one: text(self),
            other: text(other),
        };
        if self.name != other.name {
            return Some(ListDifference {
                what: format!("tensor {index}: the names differ"),
                one: format!("{:?}", self.name),
                other: format!("{:?}", other.name),
            });
        }
        if self.dtype != other.dtype {
            return Some(difference("types", |tensor| tensor.dtype.to_string()));
        }
        if self.shape != other.shape {
            return Some(difference("shapes", |tensor| format!("{:?}", tensor.shape)));
        }
        (self.is_on_device != other.is_on_device)
            .then(|| difference("kinds of memory", |tensor| tensor.memory().to_owned()))
    }

    fn memory(&self) -> &'static str {
        if self.is_on_device { "device memory" } else { "host memory" }
    }
}

/// Takes the first `N` bytes.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*first)
}

impl fmt::Display for ListOperation {
    /// Formats the operation, for instance `broadcast_list (root 1)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, op, root, is_canonical } = self;
        let parts = [
            op.map(|op| op.to_string()),
            root.map(|root| format!("root {root}")),
            is_canonical.then(|| "canonical".to_owned()),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        write!(f, "{}_list", kind.name())?;
        if parts.is_empty() { Ok(()) } else { write!(f, " ({})", parts.join(", ")) }
    }
}

impl fmt::Display for TensorDescription {
    /// Formats the tensor, for instance `"bias" (f32, [3, 5], host memory)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({}, {:?}, {})", self.name, self.dtype, self.shape, self.memory())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, dtype: DataType, shape: &[u64]) -> TensorDescription {
        TensorDescription {
            name: name.to_owned(),
            dtype,
            is_on_device: false,
            shape: shape.to_vec(),
        }
    }

    fn sample() -> ListDescription {
        let operation = ListOperation {
            kind: OpKind::AllReduce,
            op: Some(ReduceOp::Sum),
            root: None,
            is_canonical: false,
        };
        let longest = "n".repeat(MAX_TENSOR_NAME_BYTES);
        let tensors = vec![
            tensor("weight", DataType::F32, &[3, 5]),
            tensor("", DataType::I64, &[]),
            tensor(&longest, DataType::Bf16, &[u64::MAX; MAX_TENSOR_DIMS]),
        ];
        ListDescription { operation, tensors }
    }

    /// Returns the first difference between a changed copy of the sample and the sample.
    fn difference(change: impl FnOnce(&mut ListDescription)) -> [String; 3] {
        let mut changed = sample();
        change(&mut changed);
        assert_ne!(changed.encode(), sample().encode());
        assert_eq!(ListDescription::decode(&changed.encode()).as_ref(), Some(&changed));
        let ListDifference { what, one, other } = changed.first_difference(&sample()).unwrap();
        [what, one, other]
    }

    #[test]
    fn description_round_trips_and_damaged_bytes_are_refused() {
        let bytes = sample().encode();
        assert!(bytes.len() < MAX_DESCRIPTION_BYTES);
        assert_eq!(ListDescription::decode(&bytes), Some(sample()));
        assert_eq!(sample().first_difference(&sample()), None);
        for len in 0..bytes.len() {
            assert_eq!(ListDescription::decode(&bytes[..len]), None, "{len}");
        }
        assert_eq!(ListDescription::decode(&[bytes.as_slice(), &[0]].concat()), None);
        let mut damaged = bytes;
        damaged[HEADER_BYTES - 1] = 0xff;
        assert_eq!(ListDescription::decode(&damaged), None);
    }

    #[test]
    fn the_first_difference_names_the_property_and_both_values() {
        let found = difference(|it| it.tensors[0].shape = vec![3, 4]);
        assert_eq!(found, ["tensor 0 \"weight\": the shapes differ", "[3, 4]", "[3, 5]"]);
        let found = difference(|it| {
            it.tensors[1].dtype = DataType::U8;
            it.tensors[2].name.clear();
        });
        assert_eq!(found, ["tensor 1 \"\": the types differ", "u8", "i64"]);
        let found = difference(|it| it.tensors[0].name = "a\nb".to_owned());
        assert_eq!(found, ["tensor 0: the names differ", "\"a\\nb\"", "\"weight\""]);
        let found = difference(|it| it.tensors[0].is_on_device = true);
        let what = "tensor 0 \"weight\": the kinds of memory differ";
        assert_eq!(found, [what, "device memory", "host memory"]);
        let found = difference(|it| it.operation.op = Some(ReduceOp::Max));
        assert_eq!(
            found,
            ["the operations differ", "all_reduce_list (MAX)", "all_reduce_list (SUM)"]
        );
        let found = difference(|it| {
            it.operation = ListOperation {
                kind: OpKind::Broadcast,
                op: None,
                root: Some(1),
                is_canonical: true,
            };
        });
        assert_eq!(found[1], "broadcast_list (root 1, canonical)");
    }

    #[test]
    fn a_missing_tensor_is_named_with_the_length_of_its_list() {
        let found = difference(|it| it.tensors.truncate(1));
        assert_eq!(found[0], "tensor 1: the lists have different lengths");
        assert_eq!(found[1], "only 1 tensors");
        assert_eq!(found[2], "\"\" (i64, [], host memory) in a list of 3");
        let found = difference(|it| it.tensors.push(tensor("more", DataType::U8, &[7])));
        assert_eq!(found[1], "\"more\" (u8, [7], host memory) in a list of 4");
        assert_eq!(found[2], "only 3 tensors");
    }
}
