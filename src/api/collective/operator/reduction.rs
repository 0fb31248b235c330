//! The reduction with an operator of the caller. A reduction consists of several collectives on
//! bytes, which are called its parts. After the exchange of signatures, the parts are:
//!
//! | vectors | parts | reduced by |
//! |---|---|---|
//! | short | all_gather (reduce: gather) | each rank with a result, all vectors |
//! | long | 1. all_to_all_v of slices | each rank, its slice of all vectors |
//! |  | 2. all_gather_v, gather_v or all_to_all_v of the results | |
//! | reduce_scatter | all_to_all_v of blocks | each rank, its block of all vectors |
//!
//! Terms:
//! * A *chunk* is a range of the vectors. Long vectors are processed chunk by chunk, so that a rank
//!   needs a bounded amount of memory.
//! * A *slice* is the range of a chunk that one rank reduces. The slices of all ranks make up the
//!   chunk.
//! * A *block* is the input for one rank of a reduce_scatter.
//!
//! A rank reduces its vectors in place, in the order of the ranks. Then vector r has the reduction
//! of vectors 0 to r. For example, with 3 ranks, the vectors `a b c` become `a`, `a∘b`, `a∘b∘c`.
//! The last vector is the result of an all_reduce. The prefix reductions (scan, exscan) send each
//! rank the vector for its prefix.

use super::call::OperatorCall;
use super::signature::{OperatorSignature, RECORD_BYTES};
use crate::api::collective::call::Call;
use crate::api::group::process_group::Group;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::LazyDeadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::label::Label;
use crate::kernel;
use crate::transport::{CountSpec, Descriptor, OpKind};
use std::ops::Range;

/// The element type of the collectives that transfer the vectors.
const BYTE_DTYPE: DataType = DataType::U8;

/// The maximum total size in bytes of all ranks' vectors for which the ranks exchange whole vectors
/// in a single part.
const WHOLE_VECTOR_LIMIT: usize = 64 << 10;

/// The maximum size of a chunk in bytes: of one vector, or in a reduce_scatter of all blocks of one
/// rank together. A chunk has at least one element, even if this is larger.
const CHUNK_BYTES: usize = 32 << 20;

/// The alignment of the first vector that an operator receives.
const ALIGNMENT: usize = 64;

/// Private memory of a reduction. The part from `align_offset` on is aligned.
struct OperatorScratch {
    memory: Vec<u8>,
    align_offset: usize,
}

impl OperatorScratch {
    fn new(bytes: usize) -> Result<Self> {
        let out_of_memory = || {
            let message =
                format!("cannot allocate {bytes} bytes of scratch memory for the operator");
            Error::new(ErrorKind::OutOfMemory, message)
        };
        let padded_bytes = bytes.checked_add(ALIGNMENT).ok_or_else(out_of_memory)?;
        let mut memory = Vec::new();
        memory.try_reserve_exact(padded_bytes).map_err(|_| out_of_memory())?;
        memory.resize(padded_bytes, 0);
        let skip = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Ok(Self { memory, align_offset: skip })
    }

    fn view(&mut self) -> Dst<'_> {
        Dst::from(&mut self.memory[self.align_offset..])
    }
}

/// The vectors of all ranks in private memory. Vector r has `len` bytes and starts at offset `r *
/// stride`.
#[derive(Clone, Copy)]
struct RankVectors<'m> {
    memory: Dst<'m>,
    stride: usize,
    len: usize,
}

impl<'m> RankVectors<'m> {
    /// Returns the stride for vectors of `len` bytes with which each vector has an aligned address.
    fn aligned_stride(len: usize) -> usize {
        len.next_multiple_of(ALIGNMENT)
    }

    fn vector_of(self, rank: usize) -> Dst<'m> {
        self.memory.slice(rank * self.stride, self.len)
    }

    /// Returns the buffers for the vectors of all ranks.
    fn all_ranks(self, size: usize) -> Vec<Dst<'m>> {
        (0..size).map(|rank| self.vector_of(rank)).collect()
    }
}

/// A reduction that runs. The caller has the turn.
pub(super) struct OperatorReduction<'r, 'a> {
    group: &'r Group,
    call: &'r OperatorCall<'a>,
    sequence: u64,
    label: Label,
    deadline: &'r LazyDeadline,
    /// The number of the part that has run last. 0 before the first part.
    part: u16,
}

impl<'r, 'a> OperatorReduction<'r, 'a> {
    pub(super) fn new(
        group: &'r Group,
        call: &'r OperatorCall<'a>,
        descriptor: &Descriptor,
        deadline: &'r LazyDeadline,
    ) -> Self {
        let (sequence, label) = (descriptor.sequence, descriptor.label);
        Self { group, call, sequence, label, deadline, part: 0 }
    }

    /// Compares the signatures and runs the parts of the reduction.
    pub(super) fn run_all_parts(mut self) -> Result<()> {
        self.compare_signatures()?;
        match self.call.kind() {
            OpKind::ReduceScatter | OpKind::ReduceScatterV => self.reduce_blocks(),
            _ => self.reduce_vectors(),
        }
    }

    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    /// Runs a collective on bytes as the next part. `extent` replaces the count that the ranks
    /// compare.
    fn run_part(&mut self, call: &Call<'_>, extent: Option<CountSpec>) -> Result<()> {
        self.part = self.part.checked_add(1).ok_or_else(|| {
            let message =
                "the vectors need more parts than one call can number: pass shorter vectors";
            self.fail_group(Error::new(ErrorKind::Unsupported, message))
        })?;
        let of_call = call.descriptor(self.sequence, self.label);
        let extent = extent.unwrap_or(of_call.count_spec);
        let descriptor = Descriptor { part: self.part, count_spec: extent, ..of_call };
        self.group.run_part(call, descriptor, self.deadline)
    }

    /// Fails the group because of an error on this rank, as the other ranks wait for this rank.
    fn fail_group(&self, error: Error) -> Error {
        self.group.fail_with_local_blame(error)
    }

    fn scratch(&self, bytes: usize) -> Result<OperatorScratch> {
        OperatorScratch::new(bytes).map_err(|error| self.fail_group(error))
    }

    /// Exchanges and compares the signatures (operator and arguments) of all ranks.
    fn compare_signatures(&mut self) -> Result<()> {
        let mine = OperatorSignature::from_call(self.call);
        let record = mine.encode();
        let mut records = vec![0; self.size() * RECORD_BYTES];
        let (send, recv) = (Src::from(&record[..]), Dst::from(records.as_mut_slice()));
        self.run_part(&Call::all_gather(send, recv, BYTE_DTYPE), Some(CountSpec::Operator))?;
        let (records, _) = records.as_chunks::<RECORD_BYTES>();
        let Some(other) = records.iter().position(|theirs| *theirs != record) else {
            return Ok(());
        };
        let theirs = OperatorSignature::decode(&records[other]).map_or_else(
            || "an operation that this version of libdist does not know".to_owned(),
            |terms| terms.to_string(),
        );
        let message = format!(
            "{} called {theirs}, and rank {} called {mine}; pass the same operator and arguments on all ranks",
            self.group.backend.rank_locations()[other].name,
            self.rank(),
        );
        let error = Error::new(ErrorKind::Mismatch, message).with_culprit(other);
        self.group.fail(&error);
        Err(error)
    }

    /// Reduces the first `vector_count` vectors in the order of the ranks. Each vector becomes the
    /// reduction of all vectors from the first up to itself.
    fn fold(&self, vectors: RankVectors<'_>, vector_count: usize) {
        let element_count = vectors.len / self.call.operator.element_bytes();
        if element_count == 0 {
            return;
        }
        for rank in 1..vector_count {
            let (lower, inout) = (vectors.vector_of(rank - 1).as_src(), vectors.vector_of(rank));
            // Several ranks may compute the same elements, so all must use the same mode.
            kernel::with_default_float_mode(|| {
                self.call.operator.function.combine(lower, inout, element_count);
            });
        }
    }

    /// Returns the number of vectors, from the first, that are reduced to the result of a rank.
    /// Returns 0 if the rank gets no result.
    fn fold_count_for(&self, rank: usize) -> usize {
        let kind = self.call.kind();
        match kind {
            OpKind::Reduce if self.call.bytes_call.root != Some(rank) => 0,
            _ if kind.is_prefix() => kind.prefix_len(rank),
            _ => self.size(),
        }
    }

    fn reduce_vectors(&mut self) -> Result<()> {
        let element = self.call.operator.element_bytes();
        let (count, chunk_elements) = (self.call.count(), (CHUNK_BYTES / element).max(1));
        let is_short = (count * element).saturating_mul(self.size()) <= WHOLE_VECTOR_LIMIT;
        for start in (0..count).step_by(chunk_elements) {
            let chunk = start * element..(start + chunk_elements.min(count - start)) * element;
            if is_short { self.gather_and_fold(chunk)? } else { self.fold_slices(chunk)? }
        }
        Ok(())
    }

    /// Sends a chunk of each vector to each rank that gets a result. Each of these ranks reduces
    /// the chunk.
    fn gather_and_fold(&mut self, chunk: Range<usize>) -> Result<()> {
        let (len, fold_count) = (chunk.len(), self.fold_count_for(self.rank()));
        let send = self.call.bytes_call.send.slice(chunk.start, len);
        let root = self.call.bytes_call.root.filter(|_| self.call.kind() == OpKind::Reduce);
        let gets_all = root.is_none_or(|root| root == self.rank());
        let mut scratch = self.scratch(if gets_all { len * self.size() } else { 0 })?;
        let memory = scratch.view();
        let recv = memory.slice(0, if gets_all { len * self.size() } else { 0 });
        let call = match root {
            Some(root) => Call::gather(send, recv, BYTE_DTYPE, root),
            None => Call::all_gather(send, recv, BYTE_DTYPE),
        };
        self.run_part(&call, None)?;
        if fold_count > 0 {
            let vectors = RankVectors { memory, stride: len, len };
            self.fold(vectors, fold_count);
            let result = vectors.vector_of(fold_count - 1).as_src();
            kernel::copy(self.call.bytes_call.recv.slice(chunk.start, len), result);
        }
        Ok(())
    }

    /// Sends each rank its slice of a chunk, of all vectors. Each rank reduces its slice. Then each
    /// rank sends its reduced slice to the ranks that get a result.
    fn fold_slices(&mut self, chunk: Range<usize>) -> Result<()> {
        let (rank, size, element) = (self.rank(), self.size(), self.call.operator.element_bytes());
        let count = chunk.len() / element;
        let slice_start = |rank: usize| chunk.start + count * rank / size * element;
        let slice = |rank: usize| slice_start(rank)..slice_start(rank + 1);
        let len = slice(rank).len();
        let stride = RankVectors::aligned_stride(len);
        let mut scratch = self.scratch(stride * size)?;
        let vectors = RankVectors { memory: scratch.view(), stride, len };
        let send = self.call.bytes_call.send;
        let sends = (0..size).map(|to| send.slice(slice(to).start, slice(to).len())).collect();
        self.run_part(&Call::all_to_all_v(sends, vectors.all_ranks(size), BYTE_DTYPE), None)?;
        self.fold(vectors, size);
        let recv = self.call.bytes_call.recv;
        let fold_count = self.fold_count_for(rank);
        let outputs: Vec<Dst<'_>> = (0..size)
            .map(|from| match fold_count {
                0 => Dst::empty(),
                _ => recv.slice(slice(from).start, slice(from).len()),
            })
            .collect();
        let reduced = vectors.vector_of(size - 1).as_src();
        match (self.call.kind(), self.call.bytes_call.root) {
            (OpKind::Reduce, Some(root)) => {
                let outputs = (rank == root).then_some(outputs);
                self.run_part(&Call::gather_v(reduced, outputs, BYTE_DTYPE, root), None)
            }
            (kind, _) if kind.is_prefix() => {
                let prefix = |to: usize| match kind.prefix_len(to) {
                    0 => Src::empty(),
                    fold_count => vectors.vector_of(fold_count - 1).as_src(),
                };
                let sends = (0..size).map(prefix).collect();
                self.run_part(&Call::all_to_all_v(sends, outputs, BYTE_DTYPE), None)
            }
            _ => {
                kernel::copy(outputs[rank], reduced);
                self.run_part(
                    &Call::all_gather_v(outputs[rank].as_src(), outputs, BYTE_DTYPE),
                    None,
                )
            }
        }
    }

    /// Runs a reduction with a block for each rank: rank r receives block r of all ranks and
    /// reduces these blocks.
    fn reduce_blocks(&mut self) -> Result<()> {
        let (rank, size, element) = (self.rank(), self.size(), self.call.operator.element_bytes());
        let lens: Vec<usize> = (0..size).map(|to| self.call.send_block_for(to).len()).collect();
        let longest = lens.iter().copied().max().unwrap_or(0);
        let chunk_bytes = (CHUNK_BYTES / size / element).max(1) * element;
        for start in (0..longest).step_by(chunk_bytes) {
            let chunk_range = |to: usize| {
                let start = start.min(lens[to]);
                start..(start + chunk_bytes).min(lens[to])
            };
            let (own, len) = (chunk_range(rank), chunk_range(rank).len());
            let stride = RankVectors::aligned_stride(len);
            let mut scratch = self.scratch(stride * size)?;
            let vectors = RankVectors { memory: scratch.view(), stride, len };
            let block = |to: usize| {
                self.call.send_block_for(to).slice(chunk_range(to).start, chunk_range(to).len())
            };
            let sends = (0..size).map(block).collect();
            self.run_part(&Call::all_to_all_v(sends, vectors.all_ranks(size), BYTE_DTYPE), None)?;
            self.fold(vectors, size);
            let result = vectors.vector_of(size - 1).as_src();
            kernel::copy(self.call.bytes_call.recv.slice(own.start, len), result);
        }
        Ok(())
    }
}
