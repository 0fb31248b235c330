//! Divides a list of tensors into parts. All ranks must make the same plan. Therefore the plan
//! depends only on properties that the ranks have compared before ([`super::agreement`]).
//!
//! A bucket has tensors in host memory that one operation processes together. An operation that
//! reduces needs one element type, so each element type has buckets of its own. Operations that
//! only transfer bytes need no element type, so their buckets have tensors of all types.
//!
//! The longest bucket determines the memory of a call: the buckets run one after the other in the
//! same memory.

use super::tensor::{ListTensor, blocks_of};
use crate::base::dtype::DataType;
use crate::base::ids::WorldSize;
use crate::transport::OpKind;

/// The maximum size of a bucket in bytes, with the blocks of all ranks.
pub(super) const MAX_BUCKET_BYTES: usize = 4 << 20;

/// The maximum size in bytes of a tensor in a bucket, or of one block of this tensor if it has a
/// block for each rank. The copies of longer tensors cost more than a shared operation saves.
pub(super) const MAX_COPIED_BYTES: usize = 64 << 10;

/// The parts of a call that transfer or reduce the data. Tensors are represented by their indices
/// in the list. Tensors without elements are in no part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ListPlan {
    /// The tensors in device memory, each with an operation of its own.
    pub(super) on_device: Vec<usize>,
    /// The operations in host memory.
    pub(super) on_host: Vec<HostStep>,
}

/// An operation in host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HostStep {
    /// An operation on one tensor, in place.
    Tensor(usize),
    /// An operation on a bucket with the copies of several tensors.
    Bucket(Vec<usize>),
}

impl HostStep {
    /// Creates a step. A bucket with one tensor needs no copy.
    fn of(tensors: Vec<usize>) -> Self {
        match tensors[..] {
            [tensor] => Self::Tensor(tensor),
            _ => Self::Bucket(tensors),
        }
    }

    fn first_tensor(&self) -> usize {
        match self {
            Self::Tensor(tensor) => *tensor,
            Self::Bucket(tensors) => tensors[0],
        }
    }
}

/// A bucket to which tensors can be added.
struct UnfilledBucket {
    dtype: DataType,
    bytes: usize,
    tensors: Vec<usize>,
}

impl ListPlan {
    /// Plans a call of this kind in a group of `size` ranks.
    pub(super) fn new(kind: OpKind, size: WorldSize, tensors: &[ListTensor<'_>]) -> Self {
        let mut plan = Self::default();
        let mut open_buckets: Vec<UnfilledBucket> = Vec::new();
        for (index, tensor) in tensors.iter().enumerate() {
            let bytes = tensor.data.len();
            if bytes == 0 {
                continue;
            }
            if tensor.device.is_some() {
                plan.on_device.push(index);
                continue;
            }
            if bytes / blocks_of(kind, size) > MAX_COPIED_BYTES || bytes > MAX_BUCKET_BYTES {
                plan.on_host.push(HostStep::Tensor(index));
                continue;
            }
            let dtype = bucket_dtype(kind, tensor.dtype);
            let Some(bucket) = open_buckets.iter_mut().find(|bucket| bucket.dtype == dtype) else {
                open_buckets.push(UnfilledBucket { dtype, bytes, tensors: vec![index] });
                continue;
            };
            if bucket.bytes + bytes > MAX_BUCKET_BYTES {
                plan.on_host.push(HostStep::of(std::mem::take(&mut bucket.tensors)));
                bucket.bytes = 0;
            }
            bucket.bytes += bytes;
            bucket.tensors.push(index);
        }
        let rest = open_buckets.into_iter().map(|bucket| HostStep::of(bucket.tensors));
        plan.on_host.extend(rest);
        // The order of the buckets does not depend on when they became full.
        plan.on_host.sort_by_key(HostStep::first_tensor);
        plan
    }

    /// Returns the size in bytes of the longest bucket.
    pub(super) fn longest_bucket(&self, tensors: &[ListTensor<'_>]) -> usize {
        let bytes = |step: &HostStep| match step {
            HostStep::Tensor(_) => 0,
            HostStep::Bucket(list) => list.iter().map(|&index| tensors[index].data.len()).sum(),
        };
        self.on_host.iter().map(bytes).max().unwrap_or(0)
    }
}

/// Returns the element type of the operation on a bucket that has tensors of this type.
pub(super) fn bucket_dtype(kind: OpKind, dtype: DataType) -> DataType {
    if kind.is_reduction() { dtype } else { DataType::U8 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::buffer::Dst;

    /// Returns a tensor whose memory the plan never accesses.
    fn tensor(dtype: DataType, bytes: usize, device: Option<usize>) -> ListTensor<'static> {
        let data = Dst::from(Box::leak(vec![0_u8; bytes].into_boxed_slice()));
        let shape = vec![dtype.elements_in(bytes)];
        ListTensor { name: String::new(), dtype, shape, device, data }
    }

    fn on_host(dtype: DataType, bytes: usize) -> ListTensor<'static> {
        tensor(dtype, bytes, None)
    }

    #[test]
    fn reductions_have_a_bucket_for_each_type() {
        let (f32, i64) = (DataType::F32, DataType::I64);
        let list = [
            on_host(f32, 4),
            on_host(i64, 8),
            on_host(f32, 0),
            on_host(f32, MAX_COPIED_BYTES + 4),
            tensor(f32, 4, Some(0)),
            on_host(f32, MAX_COPIED_BYTES),
            on_host(DataType::U8, 1),
            on_host(i64, 16),
        ];
        let plan = ListPlan::new(OpKind::AllReduce, 3, &list);
        let (bucket, alone) = (HostStep::Bucket, HostStep::Tensor);
        assert_eq!(plan.on_device, [4]);
        assert_eq!(plan.on_host, [bucket(vec![0, 5]), bucket(vec![1, 7]), alone(3), alone(6)]);
        assert_eq!(plan.longest_bucket(&list), MAX_COPIED_BYTES + 4);
        let plan = ListPlan::new(OpKind::Broadcast, 3, &list);
        assert_eq!(plan.on_host, [bucket(vec![0, 1, 5, 6, 7]), alone(3)]);
        assert_eq!(ListPlan::new(OpKind::Broadcast, 3, &[]), ListPlan::default());
    }

    #[test]
    fn buckets_are_bounded_and_have_each_tensor_once() {
        let sizes = [1, 60_000, 64 << 10, 4096, 3, 65_000];
        let list: Vec<_> =
            (0..500).map(|i| on_host(DataType::U8, sizes[i % sizes.len()])).collect();
        for (kind, size) in [(OpKind::AllReduce, 2), (OpKind::AllGather, 5)] {
            let plan = ListPlan::new(kind, size, &list);
            assert!(plan.longest_bucket(&list) <= MAX_BUCKET_BYTES);
            assert!(plan.longest_bucket(&list) > MAX_BUCKET_BYTES / 2);
            let mut found = Vec::new();
            for step in &plan.on_host {
                match step {
                    HostStep::Tensor(tensor) => found.push(*tensor),
                    HostStep::Bucket(tensors) => found.extend(tensors),
                }
            }
            found.sort_unstable();
            assert_eq!(found, (0..500).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_limit_of_a_copy_is_for_a_block() {
        let len = MAX_COPIED_BYTES * 4;
        let list = [on_host(DataType::F32, len), on_host(DataType::F32, len)];
        let bucket = [HostStep::Bucket(vec![0, 1])];
        let alone = [HostStep::Tensor(0), HostStep::Tensor(1)];
        assert_eq!(ListPlan::new(OpKind::ReduceScatter, 4, &list).on_host, bucket);
        assert_eq!(ListPlan::new(OpKind::ReduceScatter, 3, &list).on_host, alone);
        assert_eq!(ListPlan::new(OpKind::AllReduce, 4, &list).on_host, alone);
        // A tensor that is longer than a bucket is never copied.
        let list = [on_host(DataType::F32, 8 << 20), on_host(DataType::F32, 4)];
        assert_eq!(ListPlan::new(OpKind::AllGather, 1024, &list).on_host, alone);
    }
}
