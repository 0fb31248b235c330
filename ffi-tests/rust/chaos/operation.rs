//! One collective on one rank: its buffers, the expected result, and the check of the buffers after
//! the call.
//!
//! After a call has returned with any status, its buffers are filled with canaries. The test checks
//! the canaries before it reuses a buffer and at the end, since the library must no longer write to
//! it. If a peer still had to read from the buffer, the peer's result is wrong, and the peer finds
//! the fault.

use crate::buffer::Buffer;
use crate::scenario::Kind;
use std::collections::VecDeque;

/// The canary value; the library must not change it.
const CANARY: i32 = 0x5ca1_ab1e;
/// The content of a receive buffer before the call.
const RUBBISH: i32 = 0x0bad_0bad;
/// The number of watched buffers of successful calls.
const WATCHED: usize = 6;

/// Returns the element that a rank contributes; sums wrap.
fn element(turn: usize, rank: usize, index: usize) -> i32 {
    let number = |number: usize| i32::try_from(number).unwrap();
    number(index)
        .wrapping_mul(0x1e37_79b1)
        .wrapping_add(number(turn).wrapping_mul(0x05eb_ca6b))
        .wrapping_add(number(rank).wrapping_mul(0x42b2_ae35))
}

/// Buffers that the library must no longer write to.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// Buffers of successful calls, oldest first; later calls reuse them.
    idle: VecDeque<Buffer>,
    /// Buffers of failed calls.
    kept: Vec<Buffer>,
    pub(crate) touched: Vec<String>,
    /// If set, the buffers are in the library's memory.
    pub(crate) arena: bool,
    /// If set, the scenario stops a rank. If the rank was stopped while it wrote to library memory
    /// of a peer, it continues the write when it is resumed. Therefore library memory of failed
    /// calls is freed without a check.
    pub(crate) is_stopped: bool,
}

impl Watched {
    /// Returns a buffer that is full of `value`, and reuses an idle one if its length fits.
    fn take(&mut self, len: usize, value: i32) -> Buffer {
        let idle = if self.idle.len() < WATCHED { None } else { self.idle.pop_front() };
        idle.iter().for_each(|buffer| self.look_at(buffer));
        match idle {
            Some(mut buffer) if buffer.len() == len => {
                buffer.fill(value);
                buffer
            }
            _ => Buffer::full(len, value, self.arena),
        }
    }

    /// Fills a buffer with canaries and watches it.
    pub(crate) fn watch(&mut self, mut buffer: Buffer, succeeded: bool) {
        buffer.fill(CANARY);
        if succeeded {
            self.idle.push_back(buffer);
        } else if !(buffer.is_arena() && self.is_stopped) {
            self.kept.push(buffer);
        }
    }

    fn look_at(&mut self, buffer: &[i32]) {
        if let Some(at) = buffer.iter().position(|&value| value != CANARY) {
            let (len, found) = (buffer.len(), buffer[at]);
            self.touched.push(format!(
                "element {at} of {len} was overwritten with {found:#x} after the call had returned"
            ));
        }
    }

    /// Checks the canaries of all buffers and drops the buffers.
    pub(crate) fn look_at_all(&mut self) {
        for buffer in
            std::mem::take(&mut self.idle).into_iter().chain(std::mem::take(&mut self.kept))
        {
            self.look_at(&buffer);
        }
    }
}

/// The arguments and buffers of one call.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    pub(crate) count: usize,
    pub(crate) root: usize,
    pub(crate) size: usize,
    rank: usize,
    turn: usize,
    pub(crate) send: Buffer,
    pub(crate) recv: Buffer,
}

impl Operation {
    /// Creates the call that every rank of a group of `size` makes in a turn.
    pub(crate) fn new(
        (kind, count): (Kind, usize),
        turn: usize,
        (rank, size): (usize, usize),
        watched: &mut Watched,
    ) -> Self {
        let root = turn % size;
        let all = size * count;
        let (sent, received) = match kind {
            Kind::AllReduce | Kind::Reduce => (count, count),
            Kind::Broadcast => (0, count),
            Kind::AllGather | Kind::AllGatherV => (count, all),
            Kind::Gather | Kind::GatherV => (count, if rank == root { all } else { 0 }),
            Kind::Scatter | Kind::ScatterV => (if rank == root { all } else { 0 }, count),
            Kind::ReduceScatter | Kind::ReduceScatterV => (all, count),
            Kind::AllToAll | Kind::AllToAllV => (all, all),
            Kind::Barrier | Kind::MonitoredBarrier => (0, 0),
        };
        let mut send = watched.take(sent, 0);
        let mut recv = watched.take(received, RUBBISH);
        let mine = if kind == Kind::Broadcast && rank == root { &mut recv } else { &mut send };
        for (index, value) in mine.iter_mut().enumerate() {
            *value = element(turn, rank, index);
        }
        Self { kind, count, root, size, rank, turn, send, recv }
    }

    /// Returns the first wrong element of the result of a successful call.
    pub(crate) fn wrong(&self) -> Option<String> {
        let at = (0..self.recv.len()).find(|&index| self.recv[index] != self.expected(index))?;
        Some(format!(
            "{:?} of {} in turn {}, root {}: element {at} is {:#x}, not {:#x}",
            self.kind,
            self.count,
            self.turn,
            self.root,
            self.recv[at],
            self.expected(at)
        ))
    }

    fn expected(&self, index: usize) -> i32 {
        let Self { turn, rank, root, count, size, .. } = *self;
        let sum =
            |index| (0..size).fold(0_i32, |sum, rank| sum.wrapping_add(element(turn, rank, index)));
        match self.kind {
            Kind::Reduce if rank != root => RUBBISH,
            Kind::AllReduce | Kind::Reduce => sum(index),
            Kind::Broadcast => element(turn, root, index),
            Kind::AllGather | Kind::AllGatherV | Kind::Gather | Kind::GatherV => {
                element(turn, index / count, index % count)
            }
            Kind::Scatter | Kind::ScatterV => element(turn, root, rank * count + index),
            Kind::ReduceScatter | Kind::ReduceScatterV => sum(rank * count + index),
            Kind::AllToAll | Kind::AllToAllV => {
                element(turn, index / count, rank * count + index % count)
            }
            Kind::Barrier | Kind::MonitoredBarrier => 0,
        }
    }

    /// Ends the operation and watches its buffers.
    pub(crate) fn retire(self, succeeded: bool, watched: &mut Watched) {
        watched.watch(self.send, succeeded);
        watched.watch(self.recv, succeeded);
    }
}

/// Returns the message of a rank in a turn.
pub(crate) fn message(turn: usize, from: usize, count: usize) -> Vec<i32> {
    (0..count).map(|index| element(turn, from, index)).collect()
}

/// Returns a receive buffer for a message.
pub(crate) fn room(count: usize) -> Vec<i32> {
    vec![RUBBISH; count]
}

/// Returns the first wrong element of a received message.
pub(crate) fn wrong_message(found: &[i32], turn: usize, from: usize) -> Option<String> {
    let at = (0..found.len()).find(|&index| found[index] != element(turn, from, index))?;
    let (len, value) = (found.len(), found[at]);
    Some(format!("message of {len} in turn {turn} from rank {from}: element {at} is {value:#x}"))
}
