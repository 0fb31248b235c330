//! The parts of a reduction with a caller's operator.
//!
//! | vectors | parts after the records | folds |
//! |---|---|---|
//! | short | all_gather (reduce: gather) | each rank that gets a result folds all vectors |
//! | long | all_to_all_v of slices; all_gather_v, gather_v or all_to_all_v of what came out | each rank its slice |
//! | reduce_scatter | all_to_all_v of blocks | each rank its block |
//!
//! Long vectors go a chunk at a time, so that a rank needs a bounded amount of memory. A fold in
//! rank order leaves in the place of vector r the fold of the vectors 0 to r, which is what prefix
//! reductions send back.

use super::call::OperatorCall;
use super::signature::{OperatorSignature, RECORD_BYTES};
use crate::api::call::{Call, CallOptions};
use crate::api::group::Group;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::LazyDeadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::label::Label;
use crate::kernel;
use crate::transport::{CountSpec, Descriptor, OpKind};
use std::ops::Range;

/// The element type of the collectives that move the vectors.
const BYTE_DTYPE: DataType = DataType::U8;

/// If the vectors of all ranks together are no longer than this, they go to all ranks whole, in one
/// hop.
const WHOLE_VECTOR_LIMIT: usize = 64 << 10;

/// The longest chunk of a vector, or of the blocks of a rank together, unless one element of each
/// is longer.
const CHUNK_BYTES: usize = 32 << 20;

/// Vectors that an operator gets begin on multiples of this, or on multiples of the element's size
/// from there.
const ALIGNMENT: usize = 64;

/// Private memory.
struct OperatorScratch {
    memory: Vec<u8>,
    align_offset: usize,
}

impl OperatorScratch {
    fn new(bytes: usize) -> Result<Self> {
        let out_of_memory = || {
            let message = format!("no memory for {bytes} bytes that the operator is to fold");
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

/// The vectors of all ranks in private memory, `aligned_stride` bytes from each other.
#[derive(Clone, Copy)]
struct RankVectors<'m> {
    memory: Dst<'m>,
    stride: usize,
    len: usize,
}

impl<'m> RankVectors<'m> {
    /// The bytes that so many vectors of this length need, each on an aligned address.
    fn aligned_stride(len: usize) -> usize {
        len.next_multiple_of(ALIGNMENT)
    }

    fn vector_of(self, rank: usize) -> Dst<'m> {
        self.memory.slice(rank * self.stride, self.len)
    }

    /// Where the vectors of all ranks go.
    fn all_ranks(self, size: usize) -> Vec<Dst<'m>> {
        (0..size).map(|rank| self.vector_of(rank)).collect()
    }
}

/// One call in its turn.
pub(super) struct OperatorReduction<'r, 'a> {
    group: &'r Group,
    call: &'r OperatorCall<'a>,
    sequence: u64,
    label: Label,
    deadline: &'r LazyDeadline,
    /// The part that was carried last.
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

    /// All parts.
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

    /// Carries out a collective on bytes as the next part.
    fn run_part(&mut self, call: &Call<'_>, extent: Option<CountSpec>) -> Result<()> {
        self.part = self.part.checked_add(1).ok_or_else(|| {
            let message = "the vectors are so long that their parts have no numbers";
            self.fail_group(Error::new(ErrorKind::Unsupported, message))
        })?;
        let of_call = call.descriptor(self.sequence, self.label);
        let extent = extent.unwrap_or(of_call.count_spec);
        let descriptor = Descriptor { part: self.part, count_spec: extent, ..of_call };
        let (group, options) = (self.group, CallOptions::DEFAULT);
        let of = (group.name(), self.deadline);
        group.backend.run(&call.operation(descriptor, &options, of, &group.observer))
    }

    /// Other ranks count on this one: what keeps it from going on fails the group.
    fn fail_group(&self, error: Error) -> Error {
        self.group.fail_with_local_blame(error)
    }

    fn scratch(&self, bytes: usize) -> Result<OperatorScratch> {
        OperatorScratch::new(bytes).map_err(|error| self.fail_group(error))
    }

    /// Compares the operator and the arguments of all ranks.
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
            || "something that this version of libdist does not know".to_owned(),
            |terms| terms.to_string(),
        );
        let message = format!(
            "{} called {theirs}, and rank {} called {mine}; give the same operator and arguments on all ranks",
            self.group.backend.rank_locations()[other].name,
            self.rank(),
        );
        let error = Error::new(ErrorKind::Mismatch, message).with_culprit(other);
        self.group.fail(&error);
        Err(error)
    }

    /// Folds the first vectors in rank order: each becomes the fold of those up to it.
    fn fold(&self, vectors: RankVectors<'_>, vector_count: usize) {
        let element_count = vectors.len / self.call.operator().element_bytes();
        if element_count == 0 {
            return;
        }
        for rank in 1..vector_count {
            let (lower, inout) = (vectors.vector_of(rank - 1).as_src(), vectors.vector_of(rank));
            self.call.operator().function.combine(lower, inout, element_count);
        }
    }

    /// Of the vectors of all ranks, how many the result of a rank folds; 0 where it gets none.
    fn fold_count_for(&self, rank: usize) -> usize {
        let kind = self.call.kind();
        match kind {
            OpKind::Reduce if self.call.root() != Some(rank) => 0,
            _ if kind.is_prefix() => kind.prefix_len(rank),
            _ => self.size(),
        }
    }

    fn reduce_vectors(&mut self) -> Result<()> {
        let element = self.call.operator().element_bytes();
        let (count, chunk_elements) = (self.call.count(), (CHUNK_BYTES / element).max(1));
        let is_short = (count * element).saturating_mul(self.size()) <= WHOLE_VECTOR_LIMIT;
        for start in (0..count).step_by(chunk_elements) {
            let chunk = start * element..(start + chunk_elements.min(count - start)) * element;
            if is_short { self.gather_and_fold(chunk)? } else { self.fold_slices(chunk)? }
        }
        Ok(())
    }

    /// A chunk goes whole to each rank that gets a result.
    fn gather_and_fold(&mut self, chunk: Range<usize>) -> Result<()> {
        let (len, fold_count) = (chunk.len(), self.fold_count_for(self.rank()));
        let send = self.call.send().slice(chunk.start, len);
        let root = self.call.root().filter(|_| self.call.kind() == OpKind::Reduce);
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
            kernel::copy(self.call.recv().slice(chunk.start, len), result);
        }
        Ok(())
    }

    /// Each rank folds its slice of a chunk of all vectors; then the slices go to the ranks that
    /// get results.
    fn fold_slices(&mut self, chunk: Range<usize>) -> Result<()> {
        let (rank, size, element) =
            (self.rank(), self.size(), self.call.operator().element_bytes());
        let count = chunk.len() / element;
        let slice_start = |rank: usize| chunk.start + count * rank / size * element;
        let slice = |rank: usize| slice_start(rank)..slice_start(rank + 1);
        let len = slice(rank).len();
        let stride = RankVectors::aligned_stride(len);
        let mut scratch = self.scratch(stride * size)?;
        let vectors = RankVectors { memory: scratch.view(), stride, len };
        let send = self.call.send();
        let sends = (0..size).map(|to| send.slice(slice(to).start, slice(to).len())).collect();
        self.run_part(&Call::all_to_all_v(sends, vectors.all_ranks(size), BYTE_DTYPE), None)?;
        self.fold(vectors, size);
        let recv = self.call.recv();
        let fold_count = self.fold_count_for(rank);
        let outputs: Vec<Dst<'_>> = (0..size)
            .map(|from| match fold_count {
                0 => Dst::empty(),
                _ => recv.slice(slice(from).start, slice(from).len()),
            })
            .collect();
        let reduced = vectors.vector_of(size - 1).as_src();
        match (self.call.kind(), self.call.root()) {
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

    /// A block for each rank: each gets its block of all ranks, and folds it.
    fn reduce_blocks(&mut self) -> Result<()> {
        let (rank, size, element) =
            (self.rank(), self.size(), self.call.operator().element_bytes());
        let lens: Vec<usize> = (0..size).map(|to| self.call.send_block_for(to).len()).collect();
        let longest = lens.iter().copied().max().unwrap_or(0);
        let chunk_bytes = (CHUNK_BYTES / size / element).max(1) * element;
        for start in (0..longest).step_by(chunk_bytes) {
            let part = |to: usize| {
                let start = start.min(lens[to]);
                start..(start + chunk_bytes).min(lens[to])
            };
            let (own, len) = (part(rank), part(rank).len());
            let stride = RankVectors::aligned_stride(len);
            let mut scratch = self.scratch(stride * size)?;
            let vectors = RankVectors { memory: scratch.view(), stride, len };
            let block =
                |to: usize| self.call.send_block_for(to).slice(part(to).start, part(to).len());
            let sends = (0..size).map(block).collect();
            self.run_part(&Call::all_to_all_v(sends, vectors.all_ranks(size), BYTE_DTYPE), None)?;
            self.fold(vectors, size);
            let result = vectors.vector_of(size - 1).as_src();
            kernel::copy(self.call.recv().slice(own.start, len), result);
        }
        Ok(())
    }
}
