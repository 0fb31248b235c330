//! Collectives on byte strings whose lengths differ between ranks. The ranks exchange the lengths
//! first, then allocate the memory for the strings, and then exchange the bytes. This file also has
//! the handler that takes the received strings, which a receive of any length uses as well.
//!
//! # One turn, two operations
//! A collective on byte strings takes one turn of the group's queue and two sequence numbers, for
//! example 7 and 8:
//! 1. Operation #7: the ranks exchange their lengths, one 64-bit word each.
//! 2. Each rank allocates its memory.
//! 3. Operation #8: the ranks transfer the bytes.
//!
//! Two numbers are necessary because the ranks compare the descriptors of operations with the same
//! number. With a single number, a rank that is already in the transfer would get a mismatch with
//! the ranks that are still in the exchange of lengths. The exchange of lengths has a descriptor
//! that no other call has ([`CountSpec::Lengths`]). If another rank calls a different collective,
//! the ranks get a mismatch.
//!
//! In the flight recorder, the trace and the log, the call is one operation with the first number.
//! It lasts until the end of the second operation.
//!
//! # Out of memory
//! If a rank cannot allocate the memory, the other ranks already wait for it in the second
//! operation. The rank fails the group. All ranks get `OutOfMemory` with this rank as the culprit.
//! The alternative is an agreement of all ranks after the allocation, so that only the call fails.
//! It would cost each call one more round, only to save a group whose host has run out of memory.
//!
//! This module does not depend on handles of the C interface or on how the caller uses the received
//! bytes.

use crate::api::collective::call::{Call, CallOptions};
use crate::api::group::process_group::Group;
use crate::api::observe::operation_details::{CallSizes, flat_sizes};
use crate::api::observe::recorder::OperationRecord;
use crate::api::work::callbacks;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::LazyDeadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::label::{Label, LabelSuffix};
use crate::kernel;
use crate::process::this_process;
use crate::transport::{CountSpec, Descriptor, OpKind};
use std::fmt;

/// The size of an encoded length in bytes.
const LENGTH_BYTES: usize = 8;

/// The number of operations, and so of sequence numbers, in one call.
pub(super) const OPERATIONS_PER_CALL: u64 = 2;

/// If the strings have at least this total size in bytes, the available memory is checked before
/// the allocation.
const MEMORY_CHECK_THRESHOLD: u128 = 64 << 20;

/// The byte strings that a rank receives. `None` if the rank receives no strings, as on a rank of a
/// gather that is not the root.
pub type ByteStrings = Option<Vec<Vec<u8>>>;

/// A function to which the library passes the received byte strings, before the work of the call
/// ends.
pub struct BytesHandler(Box<dyn FnOnce(Vec<Vec<u8>>) -> Result<()> + Send>);

impl BytesHandler {
    /// Wraps a handler, which must not block.
    pub fn new(handler: impl FnOnce(Vec<Vec<u8>>) -> Result<()> + Send + 'static) -> Self {
        Self(Box::new(handler))
    }

    /// Passes the received strings to the handler.
    pub(in crate::api) fn deliver(self, strings: Vec<Vec<u8>>) -> Result<()> {
        (self.0)(strings)
    }
}

impl fmt::Debug for BytesHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deliver")
    }
}

/// The arguments of a collective on byte strings.
#[derive(Clone, Debug)]
pub struct BytesCall<'a> {
    kind: OpKind,
    root: Option<Rank>,
    bytes: Src<'a>,
    blocks: Option<Vec<Src<'a>>>,
}

impl<'a> BytesCall<'a> {
    /// Creates a broadcast: the root's bytes go to all ranks. `bytes` is ignored on the other
    /// ranks.
    pub fn broadcast(bytes: Src<'a>, root: Rank) -> Self {
        Self { kind: OpKind::Broadcast, root: Some(root), bytes, blocks: None }
    }

    /// Creates an all-gather: every rank's bytes go to all ranks.
    pub fn all_gather(bytes: Src<'a>) -> Self {
        Self { kind: OpKind::AllGather, root: None, bytes, blocks: None }
    }

    /// Creates a gather: every rank's bytes go to the root.
    pub fn gather(bytes: Src<'a>, root: Rank) -> Self {
        Self { kind: OpKind::Gather, root: Some(root), bytes, blocks: None }
    }

    /// Creates a scatter: each rank gets one string from the root. The root passes one string for
    /// each rank, and the other ranks pass `None`.
    pub fn scatter(blocks: Option<Vec<Src<'a>>>, root: Rank) -> Self {
        Self { kind: OpKind::Scatter, root: Some(root), bytes: Src::empty(), blocks }
    }

    /// Returns the kind of the collective.
    pub(in crate::api) fn kind(&self) -> OpKind {
        self.kind
    }

    /// Calls `visit` for each buffer that the call reads.
    pub(super) fn visit_inputs(&self, visit: &mut dyn FnMut(Src<'_>)) {
        visit(self.bytes);
        self.blocks.iter().flatten().for_each(|&block| visit(block));
    }

    /// Returns the name of the call with its first sequence number and its label, for instance
    /// `broadcast_bytes #7 "checkpoint"`.
    pub(super) fn title(&self, first: &Descriptor) -> String {
        let Descriptor { sequence, label, .. } = first;
        format!("{} #{sequence}{}", self.kind.bytes_name(), LabelSuffix(*label))
    }

    /// Returns the descriptor of the length exchange.
    pub(in crate::api) fn length_descriptor(&self, sequence: u64, label: Label) -> Descriptor {
        Descriptor {
            kind: self.kind,
            dtype: Some(DataType::U64),
            op: None,
            root: self.root,
            count_spec: CountSpec::Lengths,
            sequence,
            algorithm: 0,
            part: 0,
            label,
        }
    }

    fn check(&self, group: &Group, options: &CallOptions) -> Result<()> {
        let size = group.size();
        if let Some(root) = self.root
            && root >= size
        {
            return Err(Error::invalid(format!("root {root} does not exist in a group of {size}")));
        }
        if let Some(wrong) = self.blocks.as_ref().map(Vec::len).filter(|&blocks| blocks != size) {
            let message = format!(
                "{wrong} strings were given in a group of {size}: pass one string for each rank"
            );
            return Err(Error::invalid(message));
        }
        if let Some(name) = &options.algorithm {
            let message =
                format!("algorithm \"{name}\": calls on byte strings have no choice of algorithms");
            return Err(Error::invalid(message));
        }
        Ok(())
    }

    /// Runs both operations. The caller has the turn of the group's queue. `first` is the
    /// descriptor of the first operation. `record` is the record of the call.
    pub(super) fn run(
        &self,
        group: &Group,
        first: Descriptor,
        deadline: &LazyDeadline,
        record: &OperationRecord,
    ) -> Result<ByteStrings> {
        group.await_all_arrivals(&first, deadline.get_or_start())?;
        let lengths = self.exchange_lengths(group, first, deadline)?;
        let outputs = lengths.iter().flatten().map(|&length| vec![length]).collect();
        record.add_sizes(&CallSizes { inputs: None, outputs: Some(outputs) });
        if let Some(total_bytes) = self.total_bytes(group.rank(), lengths.as_deref()) {
            record.set_total_bytes(total_bytes);
        }
        let allocated = lengths.map(|lengths| allocate_strings(&lengths)).transpose();
        let mut strings = allocated.map_err(|error| {
            let what = format!("{} of rank {}", self.title(&first), group.rank());
            group.fail_with_local_blame(error.context(what))
        })?;
        let list = strings.as_deref_mut().unwrap_or_default();
        let call = self.payload_call(group.rank(), list)?;
        let descriptor = call.descriptor(first.sequence + 1, first.label);
        group.run_part(&call, descriptor, deadline)?;
        Ok(strings)
    }

    /// Returns the sizes of this rank's inputs. The outputs are known only after the exchange of
    /// lengths.
    pub(super) fn input_sizes(&self, rank: Rank) -> CallSizes {
        let is_root = self.root == Some(rank);
        let own = [self.bytes];
        let inputs: &[Src<'_>] = match (self.kind, &self.blocks) {
            (OpKind::Scatter, Some(blocks)) if is_root => blocks,
            (OpKind::Scatter, _) => &[],
            (OpKind::Broadcast, _) if !is_root => &[],
            _ => &own,
        };
        let inputs = Some(flat_sizes(inputs.iter().map(|input| input.len())));
        CallSizes { inputs, outputs: None }
    }

    /// Returns the total size of all strings of the call. `received` has the lengths of the strings
    /// that this rank receives. Returns `None` if only the root knows all strings, and this rank is
    /// not the root.
    fn total_bytes(&self, rank: Rank, received: Option<&[u64]>) -> Option<u64> {
        let is_root = self.root == Some(rank);
        match self.kind {
            OpKind::Scatter if is_root => {
                Some(self.blocks.iter().flatten().map(|block| block.len() as u64).sum())
            }
            OpKind::Scatter => None,
            _ => Some(received?.iter().fold(0, |total, &length| total.saturating_add(length))),
        }
    }

    /// Exchanges the lengths. Returns the lengths of the strings that this rank receives, or `None`
    /// if this rank receives no strings.
    fn exchange_lengths(
        &self,
        group: &Group,
        descriptor: Descriptor,
        deadline: &LazyDeadline,
    ) -> Result<Option<Vec<u64>>> {
        let (rank, size) = (group.rank(), group.size());
        let gets_all = self.kind == OpKind::AllGather || self.root == Some(rank);
        let dtype = DataType::U64;
        let mut own_length = encode_length(self.bytes);
        let mut all_lengths = Vec::new();
        let call = match (self.kind, self.root) {
            (OpKind::AllGather, _) => {
                all_lengths.resize(size * LENGTH_BYTES, 0);
                let into = Dst::from(all_lengths.as_mut_slice());
                Call::all_gather(Src::from(&own_length[..]), into, dtype)
            }
            (OpKind::Gather, Some(root)) => {
                all_lengths.resize(if gets_all { size * LENGTH_BYTES } else { 0 }, 0);
                let into = Dst::from(all_lengths.as_mut_slice());
                Call::gather(Src::from(&own_length[..]), into, dtype, root)
            }
            (OpKind::Scatter, Some(root)) => {
                let blocks = self.blocks.iter().flatten().filter(|_| gets_all);
                all_lengths = blocks.flat_map(|&block| encode_length(block)).collect();
                let into = Dst::from(own_length.as_mut_slice());
                Call::scatter(Src::from(all_lengths.as_slice()), into, dtype, root)
            }
            (_, Some(root)) => {
                Call::broadcast(Dst::from(own_length.as_mut_slice()), dtype, root, rank)
            }
            (_, None) => return Err(missing_root_error()),
        };
        group.run_part(&call, descriptor, deadline)?;
        let lengths = match self.kind {
            OpKind::AllGather => &all_lengths,
            OpKind::Gather if gets_all => &all_lengths,
            OpKind::Gather => return Ok(None),
            _ => &own_length[..],
        };
        let (lengths, _) = lengths.as_chunks::<LENGTH_BYTES>();
        Ok(Some(lengths.iter().map(|&word| u64::from_le_bytes(word)).collect()))
    }

    /// Returns the operation that transfers the bytes into the allocated strings.
    fn payload_call<'c>(&'c self, rank: Rank, strings: &'c mut [Vec<u8>]) -> Result<Call<'c>> {
        let dtype = DataType::U8;
        let mut blocks = strings.iter_mut().map(|string| Dst::from(string.as_mut_slice()));
        Ok(match (self.kind, self.root) {
            (OpKind::AllGather, _) => Call::all_gather_v(self.bytes, blocks.collect(), dtype),
            (OpKind::Gather, Some(root)) => {
                let blocks = (rank == root).then(|| blocks.collect());
                Call::gather_v(self.bytes, blocks, dtype, root)
            }
            (OpKind::Scatter, Some(root)) => {
                let sends = self.blocks.clone().filter(|_| rank == root);
                Call::scatter_v(sends, blocks.next().unwrap_or(Dst::empty()), dtype, root)
            }
            (_, Some(root)) => {
                let whole = blocks.next().unwrap_or(Dst::empty());
                if rank == root {
                    kernel::copy(whole, self.bytes);
                }
                Call::broadcast(whole, dtype, root, rank)
            }
            (_, None) => return Err(missing_root_error()),
        })
    }
}

fn missing_root_error() -> Error {
    Error::internal("a call on byte strings without a root")
}

/// Encodes the length of a string, little endian.
fn encode_length(bytes: Src<'_>) -> [u8; LENGTH_BYTES] {
    (bytes.len() as u64).to_le_bytes()
}

/// Allocates zeroed strings of these lengths. Each has capacity for one more byte, so that a
/// terminating zero can be appended.
fn allocate_strings(lengths: &[u64]) -> Result<Vec<Vec<u8>>> {
    let total = lengths.iter().fold(0_u128, |total, &length| total + u128::from(length));
    let out_of_memory = || {
        let message = format!(
            "cannot allocate {total} bytes for {} strings; the group cannot continue",
            lengths.len()
        );
        Error::new(ErrorKind::OutOfMemory, message)
    };
    if isize::try_from(total).is_err() {
        return Err(out_of_memory());
    }
    // The kernel overcommits memory: an allocation of too much memory succeeds, and later the
    // kernel kills a process. Therefore the available memory is checked before.
    if total >= MEMORY_CHECK_THRESHOLD
        && let Some(available) = this_process::memory_available()
        && total > u128::from(available)
    {
        return Err(out_of_memory().context(format_args!("only {available} bytes are available")));
    }
    let string = |&length: &u64| {
        let length = usize::try_from(length).map_err(|_| out_of_memory())?;
        let mut string = Vec::new();
        string.try_reserve_exact(length.saturating_add(1)).map_err(|_| out_of_memory())?;
        string.resize(length, 0);
        Ok(string)
    };
    lengths.iter().map(string).collect()
}

impl Group {
    /// Runs a collective on byte strings on the calling thread and returns the strings that this
    /// rank receives.
    ///
    /// # Errors
    /// `InvalidArgument`, before the call has had any effect. All later errors fail the group: the
    /// errors of [`Group::run`], and `OutOfMemory`.
    pub fn run_bytes(&self, call: &BytesCall<'_>, options: &CallOptions) -> Result<ByteStrings> {
        callbacks::reject_blocking_in_callback("a blocking call")?;
        self.check_bytes(call, options)?;
        let describe = |sequence| call.length_descriptor(sequence, options.label);
        let title = |first: &Descriptor| call.title(first);
        let run = |first: &Descriptor, deadline: &LazyDeadline, record: &OperationRecord| {
            call.run(self, *first, deadline, record)
        };
        let sizes = call.input_sizes(self.rank());
        self.run_in_turn(OPERATIONS_PER_CALL, options, describe, &sizes, title, run)
    }

    /// Checks a collective on byte strings.
    pub(super) fn check_bytes(&self, call: &BytesCall<'_>, options: &CallOptions) -> Result<()> {
        call.check(self, options).context(|| call.kind.bytes_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_beyond_available_memory_are_refused() {
        let strings = allocate_strings(&[3, 0]).unwrap();
        assert_eq!(strings, [vec![0; 3], vec![]]);
        let available = this_process::memory_available().unwrap();
        // The second case exceeds the available memory only in total.
        for lengths in [vec![available * 2], vec![available; 2]] {
            let error = allocate_strings(&lengths).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
            assert!(error.message().contains("bytes are available"), "{error}");
        }
    }
}
