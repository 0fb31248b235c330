//! Collective calls: what is checked before anybody else is told, and in what order they run.

use super::callbacks;
use super::group::Group;
use super::recorder;
use crate::algo::Operation;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Context as _, Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::op::ReduceOp;
use crate::transport::{Descriptor, OpKind};
use crate::wait::Interrupt;

/// What a single call may choose.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    /// The deadline in milliseconds; 0 for the group's, `u64::MAX` for none.
    pub timeout_ms: u64,
    /// The factor of `PREMUL_SUM`; 0 is refused there, since it is what was not set.
    pub premul_scale: f64,
    /// An algorithm by name.
    pub algorithm: Option<String>,
}

/// One collective, before it has a sequence number: which, and with what.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    kind: OpKind,
    dtype: Option<DataType>,
    op: Option<ReduceOp>,
    root: Option<Rank>,
    count: usize,
    send: Src<'a>,
    recv: Dst<'a>,
}

/// The bytes of `blocks` times `count` elements.
///
/// # Errors
/// `InvalidArgument` where no memory could hold them.
pub fn buffer_bytes(count: usize, dtype: DataType, blocks: usize) -> Result<usize> {
    let bytes = count.checked_mul(dtype.size()).and_then(|bytes| bytes.checked_mul(blocks));
    bytes.filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or_else(|| {
        let message =
            format!("{blocks} x {count} elements of {dtype} do not fit the address space");
        Error::invalid(message)
    })
}

impl<'a> Call<'a> {
    /// Reduces `send` of all ranks into `recv` of all ranks.
    pub fn all_reduce(send: Src<'a>, recv: Dst<'a>, dtype: DataType, op: ReduceOp) -> Self {
        let count = send.len() / dtype.size();
        let (dtype, op) = (Some(dtype), Some(op));
        Self { kind: OpKind::AllReduce, dtype, op, root: None, count, send, recv }
    }

    /// Reduces `send` of all ranks into `recv` of the root; `recv` is empty elsewhere.
    pub fn reduce(send: Src<'a>, recv: Dst<'a>, dtype: DataType, op: ReduceOp, root: Rank) -> Self {
        let count = send.len() / dtype.size();
        let (dtype, op, root) = (Some(dtype), Some(op), Some(root));
        Self { kind: OpKind::Reduce, dtype, op, root, count, send, recv }
    }

    /// Copies `buf` of the root into `buf` of all ranks; `rank` is the caller's.
    pub fn broadcast(buf: Dst<'a>, dtype: DataType, root: Rank, rank: Rank) -> Self {
        let count = buf.len() / dtype.size();
        let (send, recv) =
            if root == rank { (buf.as_src(), Dst::empty()) } else { (Src::empty(), buf) };
        let (dtype, root) = (Some(dtype), Some(root));
        Self { kind: OpKind::Broadcast, dtype, op: None, root, count, send, recv }
    }

    /// Puts `send` of every rank into `recv` of all ranks, in rank order.
    pub fn all_gather(send: Src<'a>, recv: Dst<'a>, dtype: DataType) -> Self {
        let count = send.len() / dtype.size();
        let dtype = Some(dtype);
        Self { kind: OpKind::AllGather, dtype, op: None, root: None, count, send, recv }
    }

    /// Reduces `send` of all ranks, one block per rank, and gives each rank its block in `recv`.
    pub fn reduce_scatter(send: Src<'a>, recv: Dst<'a>, dtype: DataType, op: ReduceOp) -> Self {
        let count = recv.len() / dtype.size();
        let (dtype, op) = (Some(dtype), Some(op));
        Self { kind: OpKind::ReduceScatter, dtype, op, root: None, count, send, recv }
    }

    /// Ends when all ranks have called it.
    pub fn barrier() -> Self {
        let (send, recv) = (Src::empty(), Dst::empty());
        Self { kind: OpKind::Barrier, dtype: None, op: None, root: None, count: 0, send, recv }
    }

    /// Which operation.
    pub fn kind(&self) -> OpKind {
        self.kind
    }

    pub(super) fn send(&self) -> Src<'a> {
        self.send
    }

    pub(super) fn recv(&self) -> Dst<'a> {
        self.recv
    }

    /// What the ranks must agree on.
    pub(super) fn descriptor(&self, sequence: u64) -> Descriptor {
        let Self { kind, dtype, op, root, count, .. } = *self;
        Descriptor { kind, dtype, op, root, count: count as u64, sequence, algorithm: 0 }
    }
}

impl Group {
    /// Checks a call, takes its place in the order, and runs it on the calling thread.
    ///
    /// # Errors
    /// `InvalidArgument` and `Unsupported` before anything has happened; afterwards `Timeout`, `PeerFailed`,
    /// `Mismatch` or `Aborted`, all of which fail the group.
    pub fn run(&self, call: Call<'_>, options: &CallOptions) -> Result<()> {
        callbacks::refuse_to_block("a blocking call")?;
        self.check_call(&call, options)?;
        let deadline = self.deadline(options);
        let ticket = self.queue.issue();
        let descriptor = call.descriptor(ticket.sequence());
        let operation = Operation {
            descriptor,
            send: call.send,
            recv: call.recv,
            factor: options.premul_scale,
            algorithm: options.algorithm.as_deref(),
            deadline: &deadline,
        };
        let record = recorder::begin(self.id(), self.rank(), &descriptor);
        let outcome = match self.queue.wait_turn(&ticket, &deadline, || self.failure()) {
            Ok(_turn) => self.backend.run(&operation),
            Err(Interrupt::Halted(error)) => Err(error),
            Err(Interrupt::Deadline) => Err(self.overtaken(&descriptor, &deadline)),
        };
        record.end(&outcome);
        outcome.context(|| format!("{descriptor} on {}", self.whom()))
    }

    /// What can be checked alone.
    pub(super) fn check_call(&self, call: &Call<'_>, options: &CallOptions) -> Result<()> {
        self.check(call, options).context(|| call.kind.name())
    }

    fn check(&self, call: &Call<'_>, options: &CallOptions) -> Result<()> {
        if let (Some(op), Some(dtype)) = (call.op, call.dtype) {
            op.check_defined_for(dtype, self.backend_name())?;
        }
        if call.op == Some(ReduceOp::PremulSum) && options.premul_scale == 0.0 {
            let message = "PREMUL_SUM needs premul_scale in the call's options, and not 0";
            return Err(Error::invalid(message));
        }
        if let Some(root) = call.root
            && root >= self.size()
        {
            let message = format!("root {root} does not exist in a group of {}", self.size());
            return Err(Error::invalid(message));
        }
        if let Some(name) = &options.algorithm {
            let bytes = call.count * call.dtype.map_or(1, DataType::size);
            self.backend.check_algorithm(call.kind, bytes, name)?;
        }
        check_overlap(call, self.rank())
    }

    pub(super) fn deadline(&self, options: &CallOptions) -> Deadline {
        let ms = if options.timeout_ms == 0 { self.timeout_ms() } else { options.timeout_ms };
        Deadline::after_ms(ms)
    }

    /// The operations before this one took too long. On other ranks it may run all the same, so that
    /// the group cannot go on.
    pub(super) fn overtaken(&self, descriptor: &Descriptor, deadline: &Deadline) -> Error {
        let message = format!(
            "{descriptor} of rank {} timed out after {} ms behind earlier operations of this rank",
            self.rank(),
            deadline.elapsed().as_millis()
        );
        let error = Error::new(ErrorKind::Timeout, message).with_culprit(self.rank());
        self.fail(&error);
        error
    }
}

/// Input and output are the same place, or have nothing in common.
fn check_overlap(call: &Call<'_>, rank: Rank) -> Result<()> {
    let Call { kind, send, recv, .. } = call;
    if send.is_empty() || recv.is_empty() {
        return Ok(());
    }
    let (from, to) = (send.as_ptr().addr(), recv.as_mut_ptr().addr());
    let disjoint = from + send.len() <= to || to + recv.len() <= from;
    let in_place = match kind {
        OpKind::AllGather => from == to + rank * send.len(),
        OpKind::ReduceScatter => to == from + rank * recv.len(),
        _ => from == to,
    };
    if disjoint || in_place {
        return Ok(());
    }
    let rule = match kind {
        OpKind::AllGather => "send == recv + rank * count",
        OpKind::ReduceScatter => "recv == send + rank * count",
        _ => "send == recv",
    };
    let message = format!("the buffers overlap; they may be apart, or in place ({rule})");
    Err(Error::invalid(message))
}
