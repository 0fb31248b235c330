//! A rank of libdist's own engine: dist-bench started once more, which does what the driver orders
//! and waits for the next order without using the processor.

mod driver_link;
mod gpu;
mod memory;
mod op_calls;

use crate::ops::BenchOp;
use crate::request::{BenchRequest, RankStamps};
use crate::values;
use dist::sys::{clock, thread};
pub(crate) use driver_link::DriverLink;
use gpu::RankGpu;
pub(crate) use memory::RankBuffers;
use op_calls::{AlgorithmOptions, OpCall};
pub(crate) use op_calls::{RankWorld, check};

/// What the driver says on the command line of a rank, after the word that makes it one.
#[derive(Debug)]
struct RankArguments {
    rank: usize,
    ranks: usize,
    transport: String,
    /// Where orders come from, answers go to and samples lie, but for the endings of the names.
    path_prefix: String,
    /// The map of back ends where buffers are in the memory of GPUs; empty where they are not.
    device: String,
}

impl RankArguments {
    fn parse(words: &[String]) -> Option<Self> {
        let [rank, ranks, transport, place, device] = words else { return None };
        let (transport, place, device) = (transport.clone(), place.clone(), device.clone());
        let (rank, ranks) = (rank.parse().ok()?, ranks.parse().ok()?);
        Some(Self { rank, ranks, transport, path_prefix: place, device })
    }
}

/// The life of a rank.
///
/// # Errors
/// Why it ended early, in words; the driver has been told too, if that was possible.
pub(crate) fn run_rank(words: &[String]) -> Result<(), String> {
    let task = RankArguments::parse(words).ok_or("a rank is started by dist-bench itself")?;
    DriverLink::open(task.rank, &task.path_prefix)?.run_and_report(|post| {
        let store_url = format!("file://{}.store", task.path_prefix);
        let gpu = match &*task.device {
            "" => None,
            _ => Some(RankGpu::for_rank(task.rank)?),
        };
        let on_device = gpu.as_ref().map(|gpu| (gpu.device(), &*task.device));
        let world =
            RankWorld::join(&store_url, (task.rank, task.ranks), &task.transport, on_device)?;
        // Only now: a rank that begins on one core would tell the library that there is only one.
        thread::pin_to_core(task.rank).map_err(|error| error.to_string())?;
        let mut buffers = None;
        post.serve_requests(&mut |order| execute(&world, gpu.as_ref(), order, &mut buffers))?;
        drop(buffers);
        world.leave()
    })
}

/// Buffers, and for which orders they are right.
type CachedBuffers = Option<(BenchRequest, RankBuffers)>;

fn execute(
    world: &RankWorld,
    gpu: Option<&RankGpu>,
    request: &BenchRequest,
    cached_buffers: &mut CachedBuffers,
) -> Result<Option<RankStamps>, String> {
    let (rank, ranks) = (world.rank, world.ranks);
    if request.op == BenchOp::SendRecv && rank > 1 {
        return Ok(Some(RankStamps::default()));
    }
    if !cached_buffers.as_ref().is_some_and(|(before, _)| can_reuse_buffers(before, request)) {
        // First those of before: both may not fit.
        *cached_buffers = None;
        *cached_buffers = Some((request.clone(), RankBuffers::new(request, rank, ranks, gpu)?));
    }
    let Some((_, buffers)) = cached_buffers else { return Err("there are no buffers".to_owned()) };
    let algorithm =
        request.algorithm.as_deref().map(AlgorithmOptions::for_algorithm).transpose()?;
    let call = OpCall::new(request, buffers, algorithm.as_ref());
    if algorithm.is_some() && !world.supports_algorithm(&call)? {
        return Ok(None);
    }
    // The ranks that take part: for a ping-pong the two of it, so that the others need not wait.
    let is_ping_pong = request.op == BenchOp::SendRecv;
    let start_barrier = || if is_ping_pong { world.await_peer() } else { world.barrier() };
    let end_barrier = || if is_ping_pong { Ok(()) } else { world.barrier() };
    measure_calls(request, buffers, (rank, ranks), start_barrier, end_barrier, || {
        world.run_call(&call)
    })
    .map(Some)
}

/// Makes the calls of an order: one that is checked, if that is wanted, and those that are timed.
/// `start_barrier` has the ranks come together that take part, and `end_barrier` all of them at the
/// end.
///
/// # Errors
/// That of whatever fails first.
pub(crate) fn measure_calls(
    request: &BenchRequest,
    buffers: &mut RankBuffers,
    (rank, ranks): (usize, usize),
    start_barrier: impl Fn() -> Result<(), String>,
    end_barrier: impl Fn() -> Result<(), String>,
    call: impl Fn() -> Result<(), String>,
) -> Result<RankStamps, String> {
    let mut stamps =
        RankStamps { wrong_elements: 0, call_times: Vec::with_capacity(request.calls) };
    if request.is_verified {
        buffers.fill(request, rank)?;
        call()?;
        buffers.download()?;
        stamps.wrong_elements = values::count_wrong(request, rank, ranks, buffers.result());
    }
    if request.rewrite_word != 0 {
        buffers.rewrite(request.rewrite_word);
    }
    // However late the ranks have been told.
    start_barrier()?;
    for number in 0..request.warm_up + request.calls {
        if request.rewrite_word != 0 {
            buffers.rewrite(request.rewrite_word);
        }
        if request.has_barrier {
            start_barrier()?;
        }
        let start = clock::monotonic_ns();
        call()?;
        let end = clock::monotonic_ns();
        if number >= request.warm_up {
            stamps.call_times.push((start, end));
        }
    }
    // Nobody goes to sleep while another rank may still need it.
    end_barrier()?;
    Ok(stamps)
}

fn can_reuse_buffers(previous: &BenchRequest, request: &BenchRequest) -> bool {
    let shape = |order: &BenchRequest| {
        let BenchRequest { op, dtype, count, is_in_place: in_place, uses_arena: arena, .. } =
            *order;
        (op, dtype, count, in_place, arena)
    };
    shape(previous) == shape(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_arguments_are_parsed() {
        let words = ["3", "4", "shm", "/tmp/x/ours", ""].map(str::to_owned);
        let task = RankArguments::parse(&words).unwrap();
        assert_eq!((task.rank, task.ranks, task.transport.as_str()), (3, 4, "shm"));
        assert_eq!(task.path_prefix, "/tmp/x/ours");
        assert!(RankArguments::parse(&words[1..]).is_none());
    }
}
