//! Small collectives of one batch become one operation: their vectors side by side in a staging
//! buffer, carried over the group once.
//!
//! Which calls become one is a pure function ([`plan`]) of what all ranks agree on anyway, so that
//! ranks that put the same collectives into a batch fuse them alike. What they agree on for the
//! whole is the list of counts, so that ranks that did not get `Mismatch` and never each other's
//! data. For that reason nothing that is a rank's own counts: not its time-outs (the whole has the
//! shortest, which is when the first of these calls would have failed the group), and `PREMUL_SUM`,
//! where each rank has factors of its own, is left as it is; so is a call that names an algorithm,
//! since that would be for another size.
//!
//! All inputs are read before any output is written. Calls of which one uses what another writes
//! would so get another result than one after the other; a batch has none
//! ([`super::independence`]).
//!
//! Must not know: threads, how a batch is collected.

use super::call::{Call, CallOptions};
use super::group::Group;
use super::issue::{Prepared, Task, enqueue};
use super::work::Work;
use crate::algo::Operation;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::{Deadline, LateDeadline};
use crate::base::debug::{self, Values};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Rank};
use crate::base::label::Label;
use crate::base::op::ReduceOp;
use crate::kernel;
use crate::transport::{Descriptor, Extent, OpKind};
use std::collections::HashMap;
use std::sync::Arc;

/// The longest call that is fused: beyond it, what is saved is less than what the two copies cost.
/// The bytes are those of its longer buffer.
pub(super) const MOST_OF_ONE: usize = 16 << 10;

/// The longest whole.
pub(super) const MOST_OF_ALL: usize = 256 << 10;

/// How many labels of the calls of a whole its errors name.
const NAMED: usize = 8;

/// What calls that become one have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Likeness {
    kind: OpKind,
    dtype: DataType,
    op: Option<ReduceOp>,
    root: Option<Rank>,
    canonical: bool,
}

/// A call as the plan sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sketch {
    /// Which group, and which rank of it: one thread may have several.
    pub(super) group: (GroupId, Rank),
    /// What it may be fused by, and its bytes; `None` for one that is left as it is.
    pub(super) like: Option<(Likeness, usize)>,
}

impl Sketch {
    /// Of a call that was prepared.
    pub(super) fn of(prepared: &Prepared) -> Self {
        let group = prepared.group();
        let like =
            prepared.collective().and_then(|(call, options)| sketch(call, options, group.size()));
        Self { group: (group.id(), group.rank()), like }
    }
}

fn sketch(call: &Call<'_>, options: &CallOptions, size: usize) -> Option<(Likeness, usize)> {
    let kind = call.kind();
    let blocks = match kind {
        OpKind::AllReduce | OpKind::Reduce | OpKind::Broadcast => 1,
        OpKind::AllGather | OpKind::ReduceScatter => size,
        _ => return None,
    };
    // Nor is what lies on a device, where nobody copies.
    let is_apart = options.algorithm.is_some() || call.gpu().is_some();
    if call.op() == Some(ReduceOp::PremulSum) || is_apart {
        return None;
    }
    let (op, root, canonical) = (call.op(), call.root(), options.canonical);
    let like = Likeness { kind, dtype: call.dtype()?, op, root, canonical };
    Some((like, call.bytes().saturating_mul(blocks)))
}

/// Which calls become one: lists of their places, each in the order of the calls, the lists in that
/// of their first.
///
/// On each group, calls in a row that are alike and small, as many as stay within the bound. Calls
/// on other groups in between do not matter, since each group has an order of its own.
pub(super) fn plan(calls: &[Sketch]) -> Vec<Vec<usize>> {
    let mut runs: Vec<Vec<usize>> = Vec::new();
    // For each group the run that may go on, what it is of, and its bytes.
    let mut open: HashMap<(GroupId, Rank), (usize, Likeness, usize)> = HashMap::new();
    for (place, &Sketch { group, like }) in calls.iter().enumerate() {
        let Some((like, bytes)) = like.filter(|&(_, bytes)| bytes <= MOST_OF_ONE) else {
            open.remove(&group);
            runs.push(vec![place]);
            continue;
        };
        match open.get_mut(&group) {
            Some((run, of, sum)) if *of == like && *sum + bytes <= MOST_OF_ALL => {
                runs[*run].push(place);
                *sum += bytes;
            }
            _ => {
                open.insert(group, (runs.len(), like, bytes));
                runs.push(vec![place]);
            }
        }
    }
    runs
}

/// Issues calls that become one. What cannot be issued ends all works with the reason.
pub(super) fn issue(calls: Vec<Prepared>) {
    let works: Vec<Arc<Work>> = calls.iter().map(|call| Arc::clone(call.work())).collect();
    let outcome = match calls.len() {
        1 => calls.into_iter().try_for_each(Prepared::issue),
        _ => issue_fused(calls),
    };
    if let Err(error) = outcome {
        works.iter().for_each(|work| work.end(Err(error.clone())));
    }
}

fn issue_fused(calls: Vec<Prepared>) -> Result<()> {
    let Some(group) = calls.first().map(|call| Arc::clone(call.group())) else { return Ok(()) };
    let deadlines = calls.iter().filter_map(|call| Some(group.deadline(call.collective()?.1)));
    let deadline = deadlines.min_by_key(Deadline::allowed).unwrap_or_else(Deadline::never);
    let works = calls.iter().map(|call| Arc::clone(call.work())).collect();
    let parts = calls.iter().filter_map(|call| call.collective().map(|(call, _)| call.clone()));
    let options = || calls.iter().filter_map(|call| Some(call.collective()?.1));
    let canonical = options().any(|options| options.canonical);
    let values = options().map(|options| options.values).max().unwrap_or_default();
    calls.iter().for_each(Prepared::lend);
    let mut labels: Vec<Label> = options().map(|options| options.label).collect();
    let label = Label::of_calls(&labels);
    if label.is_none() {
        labels.clear();
    }
    let task = FusedTask { parts: parts.collect(), works, canonical, values, label, labels };
    enqueue(group, deadline, task)
}

/// Several calls in one turn.
#[derive(Debug)]
struct FusedTask {
    parts: Vec<Call<'static>>,
    works: Vec<Arc<Work>>,
    canonical: bool,
    values: Values,
    /// What the ranks compare.
    label: Label,
    /// The labels of the calls; empty if none has one.
    labels: Vec<Label>,
}

impl Task for FusedTask {
    fn works(&self) -> &[Arc<Work>] {
        &self.works
    }

    fn descriptor(&self, sequence: u64) -> Descriptor {
        let of_one = self.parts[0].descriptor(sequence, self.label);
        let extent = Extent::of_counts(self.parts.iter().map(Call::count));
        Descriptor { extent, ..of_one }
    }

    fn title(&self, descriptor: &Descriptor) -> String {
        let calls = format!("{descriptor} for {} calls of a batch", self.parts.len());
        if self.labels.is_empty() {
            return calls;
        }
        let named: Vec<String> = self.labels.iter().take(NAMED).map(Label::to_string).collect();
        let more = if self.labels.len() > NAMED { ", ..." } else { "" };
        format!("{calls} ({}{more})", named.join(", "))
    }

    fn run(&mut self, group: &Group, first: Descriptor, deadline: &Deadline) -> Result<()> {
        group.await_presence(&first, deadline)?;
        let values = self.values.max(debug::values());
        self.inspect(group, &first, values, "input", |part| part.send())?;
        let of_all = |bytes: fn(&Call<'_>) -> usize| self.parts.iter().map(bytes).sum();
        let staged = staging(of_all(|part| part.send().len()))
            .and_then(|send| Ok((send, staging(of_all(|part| part.recv().len()))?)));
        // Others count on this rank.
        let (mut send, mut recv) = staged.inspect_err(|error| group.fail(error))?;
        let (into, from) = (Dst::from(send.as_mut_slice()), Dst::from(recv.as_mut_slice()));
        let blocks = |wanted: OpKind| if first.kind == wanted { group.size() } else { 1 };
        let sends = self.parts.iter().map(|part| part.send());
        for (offset, part) in blocks_of(sends, blocks(OpKind::ReduceScatter)) {
            kernel::copy(into.slice(offset, part.len()), part);
        }
        let options = CallOptions { canonical: self.canonical, ..CallOptions::default() };
        let whole = self.parts[0].with_buffers(into.as_src(), from, group.size());
        let deadline = LateDeadline::from(*deadline);
        let of = (group.name(), &deadline);
        let operation = whole.operation(first, &options, of, &group.observer);
        group.backend.run(&Operation { labels: &self.labels, ..operation })?;
        let recvs: Vec<Dst<'_>> = self.parts.iter().map(|part| part.recv()).collect();
        let places = recvs.iter().map(|recv| recv.as_src());
        let blocks = blocks(OpKind::AllGather);
        // The same walk over what is written: by place, since a view to read is no leave to write.
        for (index, (offset, part)) in blocks_of(places, blocks).enumerate() {
            let (block, recv) = (index / recvs.len(), recvs[index % recvs.len()]);
            let to = recv.slice(block * part.len(), part.len());
            kernel::copy(to, from.as_src().slice(offset, part.len()));
        }
        self.inspect(group, &first, values, "result", |part| part.recv().as_src())
    }
}

impl FusedTask {
    /// Looks for unwanted elements in a buffer of each call.
    fn inspect(
        &self,
        group: &Group,
        first: &Descriptor,
        values: Values,
        what: &str,
        buffer: fn(&Call<'static>) -> Src<'static>,
    ) -> Result<()> {
        let dtype = first.dtype.unwrap_or(DataType::U8);
        group.inspect(dtype, values, self.parts.iter().map(buffer), |place| {
            format!("{}: call {place} of these: its {what}", self.title(first))
        })
    }
}

/// The pieces of buffers that have so many blocks each, block by block, with where each lies in the
/// staging buffer.
fn blocks_of<'a>(
    buffers: impl Iterator<Item = Src<'a>> + Clone,
    blocks: usize,
) -> impl Iterator<Item = (usize, Src<'a>)> {
    let piece = move |(block, buffer): (usize, Src<'a>)| {
        let len = buffer.len() / blocks;
        buffer.slice(block * len, len)
    };
    let pieces = (0..blocks).flat_map(move |block| buffers.clone().map(move |it| (block, it)));
    pieces.map(piece).scan(0, |end, piece| {
        let offset = *end;
        *end += piece.len();
        Some((offset, piece))
    })
}

/// Zeroed memory.
fn staging(bytes: usize) -> Result<Vec<u8>> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(bytes).map_err(|_| {
        let message = format!("no memory for {bytes} bytes in which small collectives become one");
        Error::new(ErrorKind::OutOfMemory, message)
    })?;
    memory.resize(bytes, 0);
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::Nonce;

    const ONE: (GroupId, Rank) = (Nonce([1; 16]), 0);
    const TWO: (GroupId, Rank) = (Nonce([2; 16]), 0);
    const OTHER_RANK: (GroupId, Rank) = (Nonce([1; 16]), 1);

    fn like(kind: OpKind, op: Option<ReduceOp>, bytes: usize) -> Option<(Likeness, usize)> {
        let (dtype, root, canonical) = (DataType::F32, None, false);
        Some((Likeness { kind, dtype, op, root, canonical }, bytes))
    }

    fn sum(group: (GroupId, Rank), bytes: usize) -> Sketch {
        Sketch { group, like: like(OpKind::AllReduce, Some(ReduceOp::Sum), bytes) }
    }

    #[test]
    fn calls_in_a_row_that_are_alike_become_one() {
        let max = Sketch { group: ONE, like: like(OpKind::AllReduce, Some(ReduceOp::Max), 4) };
        let alone = Sketch { group: ONE, like: None };
        let calls = [sum(ONE, 4), sum(ONE, 0), max, sum(ONE, 8), alone, sum(ONE, 8), sum(ONE, 12)];
        assert_eq!(plan(&calls), [vec![0, 1], vec![2], vec![3], vec![4], vec![5, 6]]);
        assert_eq!(plan(&[]), Vec::<Vec<usize>>::new());
    }

    #[test]
    fn each_group_has_an_order_of_its_own() {
        let alone = Sketch { group: TWO, like: None };
        let calls = [sum(ONE, 4), sum(TWO, 4), sum(ONE, 4), alone, sum(ONE, 4), sum(TWO, 4)];
        assert_eq!(plan(&calls), [vec![0, 2, 4], vec![1], vec![3], vec![5]]);
        // Also where one thread has several ranks of a group.
        let calls = [sum(ONE, 4), sum(OTHER_RANK, 4), sum(ONE, 4), sum(OTHER_RANK, 4)];
        assert_eq!(plan(&calls), [vec![0, 2], vec![1, 3]]);
    }

    #[test]
    fn large_calls_stay_and_the_whole_is_bounded() {
        let calls = [sum(ONE, 4), sum(ONE, MOST_OF_ONE + 1), sum(ONE, 4), sum(ONE, 4)];
        assert_eq!(plan(&calls), [vec![0], vec![1], vec![2, 3]]);
        let fit = MOST_OF_ALL / MOST_OF_ONE;
        let runs = plan(&vec![sum(ONE, MOST_OF_ONE); fit + 2]);
        assert_eq!(runs.iter().map(Vec::len).collect::<Vec<_>>(), [fit, 2]);
    }

    #[test]
    fn what_a_rank_has_of_its_own_keeps_a_call_as_it_is() {
        let empty = || (Src::empty(), Dst::empty());
        let call = |op| Call::all_reduce(empty().0, empty().1, DataType::F32, op);
        let options = CallOptions::default();
        assert!(sketch(&call(ReduceOp::Sum), &options, 2).is_some());
        assert!(sketch(&call(ReduceOp::PremulSum), &options, 2).is_none());
        let late = CallOptions { timeout_ms: 1, ..CallOptions::default() };
        assert_eq!(
            sketch(&call(ReduceOp::Sum), &late, 2),
            sketch(&call(ReduceOp::Sum), &options, 2)
        );
        let named = CallOptions { algorithm: Some("ring".into()), ..CallOptions::default() };
        assert!(sketch(&call(ReduceOp::Sum), &named, 2).is_none());
        let canonical = CallOptions { canonical: true, ..CallOptions::default() };
        assert_ne!(
            sketch(&call(ReduceOp::Sum), &canonical, 2),
            sketch(&call(ReduceOp::Sum), &late, 2)
        );
        assert!(sketch(&Call::barrier(), &late, 2).is_none());
    }

    #[test]
    fn blocks_lie_by_rank_and_then_by_call() {
        let (a, b) = ([1, 2, 3, 4], [5, 6]);
        let buffers = [Src::from(&a[..]), Src::from(&b[..]), Src::empty()];
        let found: Vec<(usize, usize)> = blocks_of(buffers.into_iter(), 2)
            .map(|(offset, piece)| (offset, piece.len()))
            .collect();
        assert_eq!(found, [(0, 2), (2, 1), (3, 0), (3, 2), (5, 1), (6, 0)]);
    }
}
