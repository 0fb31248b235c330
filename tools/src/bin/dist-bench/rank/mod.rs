//! A rank of libdist's engine: a dist-bench process that executes the driver's requests, and waits
//! for the next request without using CPU time.

mod driver_link;
mod gpu;
mod memory;
mod op_calls;

use crate::ops::{BenchOp, RankPosition};
use crate::request::{BenchRequest, RankStamps};
use crate::values;
use dist::sys::{clock, thread};
pub(crate) use driver_link::DriverLink;
use gpu::RankGpu;
pub(crate) use memory::RankBuffers;
use op_calls::{AlgorithmOptions, OpCall};
pub(crate) use op_calls::{RankWorld, check};

/// The arguments of a rank after the first one.
#[derive(Debug)]
struct RankArguments {
    rank: usize,
    ranks: usize,
    transport: String,
    /// The path prefix of the request and response pipes and of the stamps file.
    path_prefix: String,
    /// The map of back ends for buffers in memory of GPUs; otherwise empty.
    device: String,
}

impl RankArguments {
    fn parse(words: &[String]) -> Option<Self> {
        let [rank, ranks, transport, path_prefix, device] = words else { return None };
        let (transport, device) = (transport.clone(), device.clone());
        let path_prefix = path_prefix.clone();
        let (rank, ranks) = (rank.parse().ok()?, ranks.parse().ok()?);
        Some(Self { rank, ranks, transport, path_prefix, device })
    }
}

/// Runs a rank until the driver ends it.
///
/// # Errors
/// The reason why it ended early; the driver has received it too, if possible.
pub(crate) fn run_rank(words: &[String]) -> Result<(), String> {
    let task = RankArguments::parse(words)
        .ok_or("only dist-bench itself starts ranks; run dist-bench without this argument")?;
    DriverLink::open(task.rank, &task.path_prefix)?.run_and_report(|link| {
        let store_url = format!("file://{}.store", task.path_prefix);
        let gpu = match &*task.device {
            "" => None,
            _ => Some(RankGpu::for_rank(task.rank)?),
        };
        let position = RankPosition { rank: task.rank, ranks: task.ranks };
        let on_device = gpu.as_ref().map(|gpu| (gpu.device(), &*task.device));
        let world = RankWorld::join(&store_url, position, &task.transport, on_device)?;
        // Pin only after the start: a rank that starts pinned to one core would make the library
        // see only one core.
        thread::pin_to_core(task.rank).map_err(|error| error.to_string())?;
        let mut buffers = None;
        link.serve_requests(&mut |request| execute(&world, gpu.as_ref(), request, &mut buffers))?;
        drop(buffers);
        world.leave()
    })
}

/// The cached buffers, and the request that they fit.
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
    if !cached_buffers.as_ref().is_some_and(|(previous, _)| can_reuse_buffers(previous, request)) {
        // Free the previous buffers first, since both may not fit in memory.
        *cached_buffers = None;
        *cached_buffers = Some((request.clone(), RankBuffers::new(request, rank, ranks, gpu)?));
    }
    let Some((_, buffers)) = cached_buffers else {
        return Err("the request has no buffers".to_owned());
    };
    let algorithm =
        request.algorithm.as_deref().map(AlgorithmOptions::for_algorithm).transpose()?;
    let call = OpCall::new(request, buffers, algorithm.as_ref());
    if algorithm.is_some() && !world.supports_algorithm(&call)? {
        return Ok(None);
    }
    // The ranks that take part. In a ping-pong these are only its two ranks, so that the other
    // ranks need not wait.
    let is_ping_pong = request.op == BenchOp::SendRecv;
    let start_barrier = || if is_ping_pong { world.await_peer() } else { world.barrier() };
    let end_barrier = || if is_ping_pong { Ok(()) } else { world.barrier() };
    measure_calls(
        request,
        buffers,
        RankPosition { rank, ranks },
        start_barrier,
        end_barrier,
        || world.run_call(&call),
    )
    .map(Some)
}

/// Makes the calls of a request: a verified call if requested, then the timed calls.
/// `start_barrier` synchronises the ranks that take part. `end_barrier` synchronises all ranks at
/// the end.
///
/// # Errors
/// The first error of any step.
pub(crate) fn measure_calls(
    request: &BenchRequest,
    buffers: &mut RankBuffers,
    RankPosition { rank, ranks }: RankPosition,
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
    // Synchronise, however late the ranks received the request.
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
    // No rank may sleep while another rank still needs it.
    end_barrier()?;
    Ok(stamps)
}

fn can_reuse_buffers(previous: &BenchRequest, request: &BenchRequest) -> bool {
    let shape = |request: &BenchRequest| {
        let BenchRequest { op, dtype, count, is_in_place: in_place, uses_arena: arena, .. } =
            *request;
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
