//! One collective on one rank: its buffers, the expected result, and the check of the buffers after
//! the call.
//!
//! After a call has returned with any status, its buffers are filled with canaries. The test checks
//! the canaries before it reuses a buffer and at the end, since the library must no longer write to
//! it. If a peer still had to read from the buffer, the peer's result is wrong, and the peer finds
//! the fault.

use crate::call_buffer::CallBuffer;
use crate::scenario::CollectiveKind;
use std::collections::VecDeque;

/// The canary value; the library must not change it.
const CANARY: i32 = 0x5ca1_ab1e;
/// The content of a receive buffer before the call.
const UNWRITTEN: i32 = 0x0bad_0bad;
/// The number of watched buffers of successful calls.
const MAX_WATCHED: usize = 6;

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
pub(crate) struct WatchedBuffers {
    /// Buffers of successful calls, oldest first; later calls reuse them.
    reusable: VecDeque<CallBuffer>,
    /// Buffers of failed calls.
    retained: Vec<CallBuffer>,
    pub(crate) violations: Vec<String>,
    /// If set, the buffers are in the library's memory.
    pub(crate) arena: bool,
    /// If set, the scenario stops a rank. If the rank was stopped while it wrote to library memory
    /// of a peer, it continues the write when it is resumed. Therefore library memory of failed
    /// calls is freed without a check.
    pub(crate) is_stopped: bool,
}

impl WatchedBuffers {
    /// Returns a buffer that is full of `value`, and reuses an idle one if its length fits.
    fn take_buffer(&mut self, len: usize, value: i32) -> CallBuffer {
        let idle = if self.reusable.len() < MAX_WATCHED { None } else { self.reusable.pop_front() };
        idle.iter().for_each(|buffer| self.check_buffer(buffer));
        match idle {
            Some(mut buffer) if buffer.len() == len => {
                buffer.fill(value);
                buffer
            }
            _ => CallBuffer::filled(len, value, self.arena),
        }
    }

    /// Fills a buffer with canaries and watches it.
    pub(crate) fn watch(&mut self, mut buffer: CallBuffer, succeeded: bool) {
        buffer.fill(CANARY);
        if succeeded {
            self.reusable.push_back(buffer);
        } else if !(buffer.is_arena() && self.is_stopped) {
            self.retained.push(buffer);
        }
    }

    fn check_buffer(&mut self, buffer: &[i32]) {
        if let Some(at) = buffer.iter().position(|&value| value != CANARY) {
            let (len, found) = (buffer.len(), buffer[at]);
            self.violations.push(format!(
                "element {at} of {len} was overwritten with {found:#x} after the call had returned"
            ));
        }
    }

    /// Checks the canaries of all buffers and drops the buffers.
    pub(crate) fn check_all_buffers(&mut self) {
        for buffer in
            std::mem::take(&mut self.reusable).into_iter().chain(std::mem::take(&mut self.retained))
        {
            self.check_buffer(&buffer);
        }
    }
}

/// The arguments and buffers of one call.
#[derive(Debug)]
pub(crate) struct CheckedCollective {
    pub(crate) kind: CollectiveKind,
    pub(crate) count: usize,
    pub(crate) root: usize,
    pub(crate) size: usize,
    rank: usize,
    turn: usize,
    pub(crate) send: CallBuffer,
    pub(crate) recv: CallBuffer,
}

impl CheckedCollective {
    /// Creates the call that every rank of a group of `size` makes in a turn.
    pub(crate) fn new(
        (kind, count): (CollectiveKind, usize),
        turn: usize,
        (rank, size): (usize, usize),
        watched: &mut WatchedBuffers,
    ) -> Self {
        let root = turn % size;
        let all = size * count;
        let (sent, received) = match kind {
            CollectiveKind::AllReduce | CollectiveKind::Reduce => (count, count),
            CollectiveKind::Broadcast => (0, count),
            CollectiveKind::AllGather | CollectiveKind::AllGatherV => (count, all),
            CollectiveKind::Gather | CollectiveKind::GatherV => {
                (count, if rank == root { all } else { 0 })
            }
            CollectiveKind::Scatter | CollectiveKind::ScatterV => {
                (if rank == root { all } else { 0 }, count)
            }
            CollectiveKind::ReduceScatter | CollectiveKind::ReduceScatterV => (all, count),
            CollectiveKind::AllToAll | CollectiveKind::AllToAllV => (all, all),
            CollectiveKind::Barrier | CollectiveKind::MonitoredBarrier => (0, 0),
        };
        let mut send = watched.take_buffer(sent, 0);
        let mut recv = watched.take_buffer(received, UNWRITTEN);
        let own_input =
            if kind == CollectiveKind::Broadcast && rank == root { &mut recv } else { &mut send };
        for (index, value) in own_input.iter_mut().enumerate() {
            *value = element(turn, rank, index);
        }
        Self { kind, count, root, size, rank, turn, send, recv }
    }

    /// Returns the first wrong element of the result of a successful call.
    pub(crate) fn first_wrong_element(&self) -> Option<String> {
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
            CollectiveKind::Reduce if rank != root => UNWRITTEN,
            CollectiveKind::AllReduce | CollectiveKind::Reduce => sum(index),
            CollectiveKind::Broadcast => element(turn, root, index),
            CollectiveKind::AllGather
            | CollectiveKind::AllGatherV
            | CollectiveKind::Gather
            | CollectiveKind::GatherV => element(turn, index / count, index % count),
            CollectiveKind::Scatter | CollectiveKind::ScatterV => {
                element(turn, root, rank * count + index)
            }
            CollectiveKind::ReduceScatter | CollectiveKind::ReduceScatterV => {
                sum(rank * count + index)
            }
            CollectiveKind::AllToAll | CollectiveKind::AllToAllV => {
                element(turn, index / count, rank * count + index % count)
            }
            CollectiveKind::Barrier | CollectiveKind::MonitoredBarrier => 0,
        }
    }

    /// Ends the operation and watches its buffers.
    pub(crate) fn watch_buffers(self, succeeded: bool, watched: &mut WatchedBuffers) {
        watched.watch(self.send, succeeded);
        watched.watch(self.recv, succeeded);
    }
}

/// Returns the message of a rank in a turn.
pub(crate) fn message(turn: usize, from: usize, count: usize) -> Vec<i32> {
    (0..count).map(|index| element(turn, from, index)).collect()
}

/// Returns a receive buffer for a message.
pub(crate) fn receive_buffer(count: usize) -> Vec<i32> {
    vec![UNWRITTEN; count]
}

/// Returns the first wrong element of a received message.
pub(crate) fn message_error(found: &[i32], turn: usize, from: usize) -> Option<String> {
    let at = (0..found.len()).find(|&index| found[index] != element(turn, from, index))?;
    let (len, value) = (found.len(), found[at]);
    Some(format!("message of {len} in turn {turn} from rank {from}: element {at} is {value:#x}"))
}
