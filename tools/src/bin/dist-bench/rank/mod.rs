//! A rank of libdist's engine. A rank is a dist-bench process that another dist-bench process, the
//! driver, starts. It executes the driver's requests. While it waits for the next request, it uses
//! no CPU time.

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

/// The command line arguments of a rank, without the first argument, which selects the kind of
/// process.
#[derive(Debug)]
struct RankArguments {
    rank: usize,
    ranks: usize,
    transport: String,
    /// The beginning of the paths of the pipes to and from the driver, and of the file for the
    /// stamps (the start and end times of the calls).
    path_prefix: String,
    /// The map of back ends for a group with buffers on GPUs (the option `backend` of `dist_init`).
    /// Empty if the buffers are in host memory.
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
/// The reason why the rank ended early. The rank has sent it to the driver too, if possible.
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
        // Pin the rank to its core only after the library has started. If the rank were already
        // pinned, the library would see a machine with one core.
        thread::pin_to_core(task.rank).map_err(|error| error.to_string())?;
        let mut buffers = None;
        link.serve_requests(&mut |request| execute(&world, gpu.as_ref(), request, &mut buffers))?;
        drop(buffers);
        world.leave()
    })
}

/// The buffers of the previous request, and this request. The next request can use the same buffers
/// if it needs the same layout.
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
        // Free the previous buffers before the allocation, because both may not fit in memory.
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
    // A ping-pong has only two ranks, so the barriers must not wait for the other ranks.
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

/// Makes the calls of a request: one call whose result is verified, if requested, and then the
/// timed calls. `start_barrier` synchronises the participating ranks before the calls.
/// `end_barrier` synchronises them after the last call.
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
    // The ranks may have received the request at different times, so synchronise them.
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
    // After this function, a rank sleeps until the next request. It must not sleep while another
    // rank still needs it to complete its last call.
    end_barrier()?;
    Ok(stamps)
}

fn can_reuse_buffers(previous: &BenchRequest, request: &BenchRequest) -> bool {
    let shape = |request: &BenchRequest| {
        let BenchRequest { op, dtype, count, is_in_place, uses_arena, offsets, .. } = *request;
        (op, dtype, count, is_in_place, uses_arena, offsets)
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
