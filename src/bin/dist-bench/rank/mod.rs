//! A rank of libdist's own engine: dist-bench started once more, which does what the driver orders and waits for the next
//! order without using the processor.

mod calls;
mod memory;

use crate::engine::{ANSWERS, ORDERS, SAMPLE};
use crate::ops::Op;
use crate::order::{DONE, Order, QUIT, Stamps};
use crate::values;
use calls::{Call, World};
use dist::sys::{clock, thread};
use memory::Buffers;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;

/// What the driver says on the command line of a rank, after the word that makes it one.
#[derive(Debug)]
struct Task {
    rank: usize,
    ranks: usize,
    transport: String,
    /// Where orders come from, answers go to and samples lie, but for the endings of the names.
    place: String,
}

impl Task {
    fn parse(words: &[String]) -> Option<Self> {
        let [rank, ranks, transport, place] = words else { return None };
        let (transport, place) = (transport.clone(), place.clone());
        Some(Self { rank: rank.parse().ok()?, ranks: ranks.parse().ok()?, transport, place })
    }

    fn file(&self, ending: &str) -> PathBuf {
        PathBuf::from(format!("{}.{}{ending}", self.place, self.rank))
    }
}

/// The life of a rank.
///
/// # Errors
/// Why it ended early, in words; the driver has been told too, if that was possible.
pub(crate) fn run(words: &[String]) -> Result<(), String> {
    let task = Task::parse(words).ok_or("a rank is started by dist-bench itself")?;
    let told = |what: &'static str| move |cause| format!("{what}: {cause}");
    let orders = File::open(task.file(ORDERS)).map_err(told("the orders"))?;
    let answers = format!("{}{ANSWERS}", task.place);
    let mut answers = File::options().write(true).open(answers).map_err(told("the answers"))?;
    let outcome = serve(&task, &mut BufReader::new(orders), &mut answers);
    if let Err(message) = &outcome {
        // If nobody listens any more, there is nobody to tell.
        drop(answers.write_all(format!("{} error: {message}\n", task.rank).as_bytes()));
    }
    outcome
}

fn serve(task: &Task, orders: &mut BufReader<File>, answers: &mut File) -> Result<(), String> {
    let meeting = format!("file://{}.store", task.place);
    let world = World::meet(&meeting, task.rank, task.ranks, &task.transport)?;
    // Only now: a rank that begins on one core would tell the library that there is only one.
    thread::pin_to(task.rank).map_err(|error| error.to_string())?;
    let mut buffers = None;
    loop {
        let ready = format!("{} {DONE}\n", task.rank);
        answers.write_all(ready.as_bytes()).map_err(|cause| format!("answering: {cause}"))?;
        let mut line = String::new();
        orders.read_line(&mut line).map_err(|cause| format!("reading orders: {cause}"))?;
        // No line at all: the driver has gone.
        if line.is_empty() || line.trim_end() == QUIT {
            drop(buffers);
            return world.leave();
        }
        let order = Order::parse(&line).ok_or_else(|| format!("not an order: {line}"))?;
        let stamps = carry_out(&world, &order, &mut buffers)?;
        fs::write(task.file(SAMPLE), stamps.encode())
            .map_err(|cause| format!("writing the sample: {cause}"))?;
    }
}

/// Buffers, and for which orders they are right.
type Kept = Option<(Order, Buffers)>;

fn carry_out(world: &World, order: &Order, kept: &mut Kept) -> Result<Stamps, String> {
    let (rank, ranks) = (world.rank, world.ranks);
    if order.op == Op::SendRecv && rank > 1 {
        return Ok(Stamps::default());
    }
    if !kept.as_ref().is_some_and(|(before, _)| wants_the_same(before, order)) {
        // First those of before: both may not fit.
        *kept = None;
        *kept = Some((order.clone(), Buffers::new(order, rank, ranks)?));
    }
    let Some((_, buffers)) = kept else { return Err("there are no buffers".to_owned()) };
    let mut stamps = Stamps { wrong: 0, calls: Vec::with_capacity(order.calls) };
    if order.verify {
        buffers.fill(order, rank);
        world.call(&Call::new(order, buffers))?;
        stamps.wrong = values::count_wrong(order, rank, ranks, buffers.result());
    }
    if order.rewrite != 0 {
        buffers.rewrite(order.rewrite);
    }
    // However late the ranks have been told.
    meet(world, order)?;
    for number in 0..order.warm_up + order.calls {
        if order.rewrite != 0 {
            buffers.rewrite(order.rewrite);
        }
        if order.barrier {
            meet(world, order)?;
        }
        let call = Call::new(order, buffers);
        let start = clock::monotonic_ns();
        world.call(&call)?;
        let end = clock::monotonic_ns();
        if number >= order.warm_up {
            stamps.calls.push((start, end));
        }
    }
    // Nobody goes to sleep while another rank may still need it.
    if order.op != Op::SendRecv {
        world.barrier()?;
    }
    Ok(stamps)
}

/// The ranks that take part come together: for a ping-pong the two of it, so that the others need not wait.
fn meet(world: &World, order: &Order) -> Result<(), String> {
    if order.op == Op::SendRecv { world.ready() } else { world.barrier() }
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
        let words = ["3", "4", "shm", "/tmp/x/ours"].map(str::to_owned);
        let task = Task::parse(&words).unwrap();
        assert_eq!((task.rank, task.ranks, task.transport.as_str()), (3, 4, "shm"));
        assert_eq!(task.file(ORDERS), PathBuf::from("/tmp/x/ours.3.orders"));
        assert!(Task::parse(&words[1..]).is_none());
    }
}
