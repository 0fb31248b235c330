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
use super::terms::{RECORD_BYTES, Terms};
use crate::api::call::{Call, CallOptions};
use crate::api::group::Group;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::LateDeadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::label::Label;
use crate::kernel;
use crate::transport::{Descriptor, Extent, OpKind};
use std::ops::Range;

/// The element type of the collectives that move the vectors.
const BYTES: DataType = DataType::U8;

/// If the vectors of all ranks together are no longer than this, they go to all ranks whole, in one
/// hop.
const SHORT_IN_ALL: usize = 64 << 10;

/// The longest chunk of a vector, or of the blocks of a rank together, unless one element of each
/// is longer.
const CHUNK: usize = 32 << 20;

/// Vectors that an operator gets begin on multiples of this, or on multiples of the element's size
/// from there.
const ALIGNMENT: usize = 64;

/// Private memory.
struct Scratch {
    memory: Vec<u8>,
    skip: usize,
}

impl Scratch {
    fn new(bytes: usize) -> Result<Self> {
        let none = || {
            let message = format!("no memory for {bytes} bytes that the operator is to fold");
            Error::new(ErrorKind::OutOfMemory, message)
        };
        let room = bytes.checked_add(ALIGNMENT).ok_or_else(none)?;
        let mut memory = Vec::new();
        memory.try_reserve_exact(room).map_err(|_| none())?;
        memory.resize(room, 0);
        let skip = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Ok(Self { memory, skip })
    }

    fn view(&mut self) -> Dst<'_> {
        Dst::from(&mut self.memory[self.skip..])
    }
}

/// The vectors of all ranks in private memory, `stride` bytes from each other.
#[derive(Clone, Copy)]
struct Vectors<'m> {
    memory: Dst<'m>,
    stride: usize,
    len: usize,
}

impl<'m> Vectors<'m> {
    /// The bytes that so many vectors of this length need, each on an aligned address.
    fn stride(len: usize) -> usize {
        len.next_multiple_of(ALIGNMENT)
    }

    fn of(self, rank: usize) -> Dst<'m> {
        self.memory.slice(rank * self.stride, self.len)
    }

    /// Where the vectors of all ranks go.
    fn all(self, size: usize) -> Vec<Dst<'m>> {
        (0..size).map(|rank| self.of(rank)).collect()
    }
}

/// One call in its turn.
pub(super) struct Run<'r, 'a> {
    group: &'r Group,
    call: &'r OperatorCall<'a>,
    sequence: u64,
    label: Label,
    deadline: &'r LateDeadline,
    /// The part that was carried last.
    part: u16,
}

impl<'r, 'a> Run<'r, 'a> {
    pub(super) fn new(
        group: &'r Group,
        call: &'r OperatorCall<'a>,
        whole: &Descriptor,
        deadline: &'r LateDeadline,
    ) -> Self {
        let (sequence, label) = (whole.sequence, whole.label);
        Self { group, call, sequence, label, deadline, part: 0 }
    }

    /// All parts.
    pub(super) fn all_parts(mut self) -> Result<()> {
        self.agree()?;
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
    fn carry(&mut self, call: &Call<'_>, extent: Option<Extent>) -> Result<()> {
        self.part = self.part.checked_add(1).ok_or_else(|| {
            let message = "the vectors are so long that their parts have no numbers";
            self.fatal(Error::new(ErrorKind::Unsupported, message))
        })?;
        let of_call = call.descriptor(self.sequence, self.label);
        let extent = extent.unwrap_or(of_call.extent);
        let descriptor = Descriptor { part: self.part, extent, ..of_call };
        let (group, options) = (self.group, CallOptions::PLAIN);
        let of = (group.name(), self.deadline);
        group.backend.run(&call.operation(descriptor, &options, of, &group.observer))
    }

    /// Other ranks count on this one: what keeps it from going on fails the group.
    fn fatal(&self, error: Error) -> Error {
        self.group.fail_here(error)
    }

    fn scratch(&self, bytes: usize) -> Result<Scratch> {
        Scratch::new(bytes).map_err(|error| self.fatal(error))
    }

    /// Compares the operator and the arguments of all ranks.
    fn agree(&mut self) -> Result<()> {
        let mine = Terms::of(self.call);
        let record = mine.encode();
        let mut records = vec![0; self.size() * RECORD_BYTES];
        let (send, recv) = (Src::from(&record[..]), Dst::from(records.as_mut_slice()));
        self.carry(&Call::all_gather(send, recv, BYTES), Some(Extent::Operator))?;
        let (records, _) = records.as_chunks::<RECORD_BYTES>();
        let Some(other) = records.iter().position(|theirs| *theirs != record) else {
            return Ok(());
        };
        let theirs = Terms::decode(&records[other]).map_or_else(
            || "something that this version of libdist does not know".to_owned(),
            |terms| terms.to_string(),
        );
        let message = format!(
            "{} called {theirs}, and rank {} called {mine}; give the same operator and arguments on all ranks",
            self.group.backend.places()[other].name,
            self.rank(),
        );
        let error = Error::new(ErrorKind::Mismatch, message).with_culprit(other);
        self.group.fail(&error);
        Err(error)
    }

    /// Folds the first vectors in rank order: each becomes the fold of those up to it.
    fn fold(&self, vectors: Vectors<'_>, number: usize) {
        let count = vectors.len / self.call.operator().element();
        if count == 0 {
            return;
        }
        for rank in 1..number {
            let (lower, inout) = (vectors.of(rank - 1).as_src(), vectors.of(rank));
            self.call.operator().function.combine(lower, inout, count);
        }
    }

    /// Of the vectors of all ranks, how many the result of a rank folds; 0 where it gets none.
    fn folded_by(&self, rank: usize) -> usize {
        let kind = self.call.kind();
        match kind {
            OpKind::Reduce if self.call.root() != Some(rank) => 0,
            _ if kind.is_prefix() => kind.prefix_len(rank),
            _ => self.size(),
        }
    }

    fn reduce_vectors(&mut self) -> Result<()> {
        let element = self.call.operator().element();
        let (count, most) = (self.call.count(), (CHUNK / element).max(1));
        let is_short = (count * element).saturating_mul(self.size()) <= SHORT_IN_ALL;
        for start in (0..count).step_by(most) {
            let chunk = start * element..(start + most.min(count - start)) * element;
            if is_short { self.gather_whole(chunk)? } else { self.fold_slices(chunk)? }
        }
        Ok(())
    }

    /// A chunk goes whole to each rank that gets a result.
    fn gather_whole(&mut self, chunk: Range<usize>) -> Result<()> {
        let (len, number) = (chunk.len(), self.folded_by(self.rank()));
        let send = self.call.send().slice(chunk.start, len);
        let root = self.call.root().filter(|_| self.call.kind() == OpKind::Reduce);
        let gets_all = root.is_none_or(|root| root == self.rank());
        let mut scratch = self.scratch(if gets_all { len * self.size() } else { 0 })?;
        let memory = scratch.view();
        let recv = memory.slice(0, if gets_all { len * self.size() } else { 0 });
        let call = match root {
            Some(root) => Call::gather(send, recv, BYTES, root),
            None => Call::all_gather(send, recv, BYTES),
        };
        self.carry(&call, None)?;
        if number > 0 {
            let vectors = Vectors { memory, stride: len, len };
            self.fold(vectors, number);
            let result = vectors.of(number - 1).as_src();
            kernel::copy(self.call.recv().slice(chunk.start, len), result);
        }
        Ok(())
    }

    /// Each rank folds its slice of a chunk of all vectors; then the slices go to the ranks that
    /// get results.
    fn fold_slices(&mut self, chunk: Range<usize>) -> Result<()> {
        let (rank, size, element) = (self.rank(), self.size(), self.call.operator().element());
        let count = chunk.len() / element;
        let cut = |rank: usize| chunk.start + count * rank / size * element;
        let slice = |rank: usize| cut(rank)..cut(rank + 1);
        let len = slice(rank).len();
        let stride = Vectors::stride(len);
        let mut scratch = self.scratch(stride * size)?;
        let vectors = Vectors { memory: scratch.view(), stride, len };
        let send = self.call.send();
        let sends = (0..size).map(|to| send.slice(slice(to).start, slice(to).len())).collect();
        self.carry(&Call::all_to_all_v(sends, vectors.all(size), BYTES), None)?;
        self.fold(vectors, size);
        let recv = self.call.recv();
        let number = self.folded_by(rank);
        let places: Vec<Dst<'_>> = (0..size)
            .map(|from| match number {
                0 => Dst::empty(),
                _ => recv.slice(slice(from).start, slice(from).len()),
            })
            .collect();
        let whole = vectors.of(size - 1).as_src();
        match (self.call.kind(), self.call.root()) {
            (OpKind::Reduce, Some(root)) => {
                let places = (rank == root).then_some(places);
                self.carry(&Call::gather_v(whole, places, BYTES, root), None)
            }
            (kind, _) if kind.is_prefix() => {
                let prefix = |to: usize| match kind.prefix_len(to) {
                    0 => Src::empty(),
                    number => vectors.of(number - 1).as_src(),
                };
                let sends = (0..size).map(prefix).collect();
                self.carry(&Call::all_to_all_v(sends, places, BYTES), None)
            }
            _ => {
                kernel::copy(places[rank], whole);
                self.carry(&Call::all_gather_v(places[rank].as_src(), places, BYTES), None)
            }
        }
    }

    /// A block for each rank: each gets its block of all ranks, and folds it.
    fn reduce_blocks(&mut self) -> Result<()> {
        let (rank, size, element) = (self.rank(), self.size(), self.call.operator().element());
        let lens: Vec<usize> = (0..size).map(|to| self.call.send_block(to).len()).collect();
        let longest = lens.iter().copied().max().unwrap_or(0);
        let most = (CHUNK / size / element).max(1) * element;
        for start in (0..longest).step_by(most) {
            let part = |to: usize| {
                let start = start.min(lens[to]);
                start..(start + most).min(lens[to])
            };
            let (own, len) = (part(rank), part(rank).len());
            let stride = Vectors::stride(len);
            let mut scratch = self.scratch(stride * size)?;
            let vectors = Vectors { memory: scratch.view(), stride, len };
            let block = |to: usize| self.call.send_block(to).slice(part(to).start, part(to).len());
            let sends = (0..size).map(block).collect();
            self.carry(&Call::all_to_all_v(sends, vectors.all(size), BYTES), None)?;
            self.fold(vectors, size);
            let result = vectors.of(size - 1).as_src();
            kernel::copy(self.call.recv().slice(own.start, len), result);
        }
        Ok(())
    }
}
