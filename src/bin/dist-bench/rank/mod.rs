//! A rank of libdist's own engine: dist-bench started once more, which does what the driver orders
//! and waits for the next order without using the processor.

mod calls;
mod gpu;
mod memory;
mod post;

use crate::ops::Op;
use crate::order::{Order, Stamps};
use crate::values;
use calls::{Call, Choice};
pub(crate) use calls::{World, check};
use dist::sys::{clock, thread};
use gpu::Gpu;
pub(crate) use memory::Buffers;
pub(crate) use post::Post;

/// What the driver says on the command line of a rank, after the word that makes it one.
#[derive(Debug)]
struct Task {
    rank: usize,
    ranks: usize,
    transport: String,
    /// Where orders come from, answers go to and samples lie, but for the endings of the names.
    place: String,
    /// The map of back ends where buffers are in the memory of GPUs; empty where they are not.
    device: String,
}

impl Task {
    fn parse(words: &[String]) -> Option<Self> {
        let [rank, ranks, transport, place, device] = words else { return None };
        let (transport, place, device) = (transport.clone(), place.clone(), device.clone());
        let (rank, ranks) = (rank.parse().ok()?, ranks.parse().ok()?);
        Some(Self { rank, ranks, transport, place, device })
    }
}

/// The life of a rank.
///
/// # Errors
/// Why it ended early, in words; the driver has been told too, if that was possible.
pub(crate) fn run(words: &[String]) -> Result<(), String> {
    let task = Task::parse(words).ok_or("a rank is started by dist-bench itself")?;
    Post::open(task.rank, &task.place)?.tell(|post| {
        let meeting = format!("file://{}.store", task.place);
        let gpu = match &*task.device {
            "" => None,
            _ => Some(Gpu::of(task.rank)?),
        };
        let on_device = gpu.as_ref().map(|gpu| (gpu.device(), &*task.device));
        let world = World::meet(&meeting, (task.rank, task.ranks), &task.transport, on_device)?;
        // Only now: a rank that begins on one core would tell the library that there is only one.
        thread::pin_to(task.rank).map_err(|error| error.to_string())?;
        let mut buffers = None;
        post.obey(&mut |order| carry_out(&world, gpu.as_ref(), order, &mut buffers))?;
        drop(buffers);
        world.leave()
    })
}

/// Buffers, and for which orders they are right.
type Kept = Option<(Order, Buffers)>;

fn carry_out(
    world: &World,
    gpu: Option<&Gpu>,
    order: &Order,
    kept: &mut Kept,
) -> Result<Option<Stamps>, String> {
    let (rank, ranks) = (world.rank, world.ranks);
    if order.op == Op::SendRecv && rank > 1 {
        return Ok(Some(Stamps::default()));
    }
    if !kept.as_ref().is_some_and(|(before, _)| wants_the_same(before, order)) {
        // First those of before: both may not fit.
        *kept = None;
        *kept = Some((order.clone(), Buffers::new(order, rank, ranks, gpu)?));
    }
    let Some((_, buffers)) = kept else { return Err("there are no buffers".to_owned()) };
    let choice = order.algorithm.as_deref().map(Choice::of).transpose()?;
    let call = Call::new(order, buffers, choice.as_ref());
    if choice.is_some() && !world.can(&call)? {
        return Ok(None);
    }
    // The ranks that take part: for a ping-pong the two of it, so that the others need not wait.
    let is_ping_pong = order.op == Op::SendRecv;
    let meet = || if is_ping_pong { world.ready() } else { world.barrier() };
    let settle = || if is_ping_pong { Ok(()) } else { world.barrier() };
    measure(order, buffers, (rank, ranks), meet, settle, || world.call(&call)).map(Some)
}

/// Makes the calls of an order: one that is checked, if that is wanted, and those that are timed.
/// `meet` has the ranks come together that take part, and `settle` all of them at the end.
///
/// # Errors
/// That of whatever fails first.
pub(crate) fn measure(
    order: &Order,
    buffers: &mut Buffers,
    (rank, ranks): (usize, usize),
    meet: impl Fn() -> Result<(), String>,
    settle: impl Fn() -> Result<(), String>,
    call: impl Fn() -> Result<(), String>,
) -> Result<Stamps, String> {
    let mut stamps = Stamps { wrong: 0, calls: Vec::with_capacity(order.calls) };
    if order.verify {
        buffers.fill(order, rank)?;
        call()?;
        buffers.fetch()?;
        stamps.wrong = values::count_wrong(order, rank, ranks, buffers.result());
    }
    if order.rewrite != 0 {
        buffers.rewrite(order.rewrite);
    }
    // However late the ranks have been told.
    meet()?;
    for number in 0..order.warm_up + order.calls {
        if order.rewrite != 0 {
            buffers.rewrite(order.rewrite);
        }
        if order.barrier {
            meet()?;
        }
        let start = clock::monotonic_ns();
        call()?;
        let end = clock::monotonic_ns();
        if number >= order.warm_up {
            stamps.calls.push((start, end));
        }
    }
    // Nobody goes to sleep while another rank may still need it.
    settle()?;
    Ok(stamps)
}

fn wants_the_same(before: &Order, order: &Order) -> bool {
    let shape = |order: &Order| {
        let Order { op, dtype, count, in_place, arena, .. } = *order;
        (op, dtype, count, in_place, arena)
    };
    shape(before) == shape(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_what_the_driver_says() {
        let words = ["3", "4", "shm", "/tmp/x/ours", ""].map(str::to_owned);
        let task = Task::parse(&words).unwrap();
        assert_eq!((task.rank, task.ranks, task.transport.as_str()), (3, 4, "shm"));
        assert_eq!(task.place, "/tmp/x/ours");
        assert!(Task::parse(&words[1..]).is_none());
    }
}
