//! Collectives and receives of byte strings whose lengths differ between ranks. The collectives
//! exchange the lengths first and the bytes afterwards. A receive allocates the memory for its
//! message.
//!
//! # One turn, two operations
//! A collective takes one turn of the group's queue and two sequence numbers. Under the first
//! number the ranks exchange their lengths, one 64-bit word each. Then each rank allocates its
//! memory. Under the second number the ranks transfer the bytes.
//!
//! Two numbers are necessary because the protocol distinguishes operations by number: otherwise a
//! rank in the second operation would appear to mismatch the ranks in the first. The lengths travel
//! with a descriptor that no caller can request ([`CountSpec::Lengths`]). If another rank calls a
//! different collective, it gets a mismatch.
//!
//! # Out of memory
//! A rank that cannot allocate memory finds out between the two operations, when other ranks
//! already wait for it. The rank fails the group, as every operation does that cannot continue. All
//! ranks get `OutOfMemory` with this rank as culprit. A further agreement would cost each call one
//! round, only to save a group whose host has run out of memory.
//!
//! This module does not depend on handles or on the caller's use of the received bytes.

use super::call::{Call, CallOptions};
use super::callbacks;
use super::group::Group;
use super::issue::{OperationTask, PreparedCall};
use super::work::Work;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::label::{Label, LabelSuffix};
use crate::base::sync::lock;
use crate::kernel;
use crate::process::this_process;
use crate::transport::{Completion, CountSpec, Delivery, Descriptor, OpKind};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The size of an encoded length in bytes.
const LENGTH_BYTES: usize = 8;

/// The number of operations in one call.
const OPERATIONS_PER_CALL: u64 = 2;

/// From this allocation size on, in bytes, the available memory is checked first.
const MEMORY_CHECK_THRESHOLD: u128 = 64 << 20;

/// The byte strings that a rank receives; `None` if the rank receives none.
pub type ByteStrings = Option<Vec<Vec<u8>>>;

/// A function that takes the received byte strings before the work of the call ends.
pub struct BytesHandler(Box<dyn FnOnce(Vec<Vec<u8>>) -> Result<()> + Send>);

impl BytesHandler {
    /// Wraps a handler, which must not block.
    pub fn new(handler: impl FnOnce(Vec<Vec<u8>>) -> Result<()> + Send + 'static) -> Self {
        Self(Box::new(handler))
    }
}

impl fmt::Debug for BytesHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deliver")
    }
}

/// A collective on byte strings, before it has sequence numbers.
#[derive(Clone, Debug)]
pub struct BytesCall<'a> {
    kind: OpKind,
    root: Option<Rank>,
    bytes: Src<'a>,
    blocks: Option<Vec<Src<'a>>>,
}

impl<'a> BytesCall<'a> {
    /// Creates a broadcast: the root's bytes go to all ranks. The bytes of the other ranks are
    /// ignored.
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

    /// Creates a scatter: the root passes one string for each rank, and each rank gets its own. The
    /// other ranks pass `None`.
    pub fn scatter(blocks: Option<Vec<Src<'a>>>, root: Rank) -> Self {
        Self { kind: OpKind::Scatter, root: Some(root), bytes: Src::empty(), blocks }
    }

    /// Returns the kind of the collective.
    pub(super) fn kind(&self) -> OpKind {
        self.kind
    }

    /// Calls `visit` for each buffer that the call reads.
    pub(super) fn visit_inputs(&self, visit: &mut dyn FnMut(Src<'_>)) {
        visit(self.bytes);
        self.blocks.iter().flatten().for_each(|&block| visit(block));
    }

    /// Returns the name of the call, for instance `broadcast_bytes #7 "checkpoint"`.
    fn title(&self, first: &Descriptor) -> String {
        let Descriptor { sequence, label, .. } = first;
        format!("{}_bytes #{sequence}{}", self.kind.name(), LabelSuffix(*label))
    }

    /// Returns the descriptor of the length exchange.
    pub(super) fn length_descriptor(&self, sequence: u64, label: Label) -> Descriptor {
        let (kind, dtype, op) = (self.kind, Some(DataType::U64), None);
        let (root, extent) = (self.root, CountSpec::Lengths);
        Descriptor {
            kind,
            dtype,
            op,
            root,
            count_spec: extent,
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

    /// Runs both operations in the caller's turn.
    fn run(
        &self,
        group: &Group,
        first: Descriptor,
        deadline: &LazyDeadline,
    ) -> Result<ByteStrings> {
        group.await_all_arrivals(&first, deadline.get_or_start())?;
        let lengths = self.exchange_lengths(group, first, deadline)?;
        let allocated = lengths.map(|lengths| allocate_strings(&lengths)).transpose();
        let mut strings = allocated.map_err(|error| {
            let what = format!("{} of rank {}", self.title(&first), group.rank());
            group.fail_with_local_blame(error.context(what))
        })?;
        let list = strings.as_deref_mut().unwrap_or_default();
        let call = self.payload_call(group.rank(), list)?;
        let descriptor = call.descriptor(first.sequence + 1, first.label);
        let record = group.record_collective(&descriptor, Instant::now(), true);
        let options = CallOptions::default();
        let outcome = group.backend.run(&call.operation(
            descriptor,
            &options,
            (group.name(), deadline),
            &group.observer,
        ));
        record.end(&outcome);
        outcome.map(|()| strings)
    }

    /// Exchanges the lengths. Returns the lengths of the strings that this rank receives, or `None`
    /// if it receives none.
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
                Call::all_gather(
                    Src::from(&own_length[..]),
                    Dst::from(all_lengths.as_mut_slice()),
                    dtype,
                )
            }
            (OpKind::Gather, Some(root)) => {
                all_lengths.resize(if gets_all { size * LENGTH_BYTES } else { 0 }, 0);
                Call::gather(
                    Src::from(&own_length[..]),
                    Dst::from(all_lengths.as_mut_slice()),
                    dtype,
                    root,
                )
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
        let options = CallOptions::default();
        group.backend.run(&call.operation(
            descriptor,
            &options,
            (group.name(), deadline),
            &group.observer,
        ))?;
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

/// Allocates zeroed strings of these lengths, each with capacity for one more byte (a terminator).
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
    // The check comes before the allocation: the kernel overcommits memory and would later kill a
    // process.
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
    /// `InvalidArgument` before the call has had any effect; afterwards the errors of
    /// [`Group::run`] and `OutOfMemory`. The latter errors fail the group.
    pub fn run_bytes(&self, call: &BytesCall<'_>, options: &CallOptions) -> Result<ByteStrings> {
        callbacks::reject_blocking_in_callback("a blocking call")?;
        self.check_bytes(call, options)?;
        let deadline = LazyDeadline::from(self.deadline(options));
        let ticket = self.queue.issue_several(OPERATIONS_PER_CALL);
        let descriptor = call.length_descriptor(ticket.sequence(), options.label);
        let run = || call.run(self, descriptor, &deadline);
        let outcome = self.run_in_turn(&ticket, &descriptor, &deadline, run);
        let outcome =
            outcome.context(|| format!("{} on {}", call.title(&descriptor), self.describe_rank()));
        outcome.inspect_err(|error| self.report_to_caller(error))
    }

    /// Checks a collective on byte strings that is issued later. If this rank receives strings,
    /// `handler` is called with them.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn prepare_bytes(
        self: &Arc<Self>,
        call: BytesCall<'static>,
        options: CallOptions,
        handler: BytesHandler,
    ) -> Result<PreparedCall> {
        self.check_bytes(&call, &options)?;
        Ok(PreparedCall::bytes(Arc::clone(self), call, options, handler))
    }

    fn check_bytes(&self, call: &BytesCall<'_>, options: &CallOptions) -> Result<()> {
        call.check(self, options).context(|| format!("{}_bytes", call.kind.name()))
    }
}

/// A collective on byte strings in the queue.
#[derive(Debug)]
pub(super) struct BytesTask {
    call: BytesCall<'static>,
    label: Label,
    handler: Option<BytesHandler>,
    works: [Arc<Work>; 1],
}

impl BytesTask {
    pub(super) fn new(
        call: BytesCall<'static>,
        label: Label,
        handler: BytesHandler,
        work: Arc<Work>,
    ) -> Self {
        Self { call, label, handler: Some(handler), works: [work] }
    }
}

impl OperationTask for BytesTask {
    fn works(&self) -> &[Arc<Work>] {
        &self.works
    }

    fn operation_count(&self) -> u64 {
        OPERATIONS_PER_CALL
    }

    fn descriptor(&self, sequence: u64) -> Descriptor {
        self.call.length_descriptor(sequence, self.label)
    }

    fn title(&self, descriptor: &Descriptor) -> String {
        self.call.title(descriptor)
    }

    fn run(&mut self, group: &Group, first: Descriptor, deadline: &Deadline) -> Result<()> {
        match (self.call.run(group, first, &(*deadline).into())?, self.handler.take()) {
            (Some(strings), Some(BytesHandler(take))) => take(strings),
            _ => Ok(()),
        }
    }
}

/// The completion of a receive into memory that the engine allocates. It passes the message to the
/// handler, and then ends the work.
#[derive(Debug)]
pub(super) struct BytesReceiveCompletion {
    work: Arc<Work>,
    handler: Mutex<Option<BytesHandler>>,
}

impl BytesReceiveCompletion {
    pub(super) fn new(work: Arc<Work>, handler: BytesHandler) -> Self {
        Self { work, handler: Mutex::new(Some(handler)) }
    }
}

impl Completion for BytesReceiveCompletion {
    fn complete(&self, outcome: Result<Delivery>) {
        self.work.complete(outcome);
    }

    fn complete_allocated(&self, delivery: Delivery, bytes: Vec<u8>) {
        let handler = lock(&self.handler).take();
        let delivered = handler.map_or(Ok(()), |BytesHandler(take)| take(vec![bytes]));
        self.work.complete(delivered.map(|()| delivery));
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
