//! The rounds of a staged collective. The host back end processes the pieces of one round. At the
//! same time, the device copies the inputs of the next round to staging memory and the results of
//! the previous round to device memory.

use super::buffers::{StagingBuffers, StagingWaitLimits};
use super::plan::{StagingBlocks, StagingPlan};
use crate::backend::{Backend, Descriptor, Operation};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::label::LabelledName;
use crate::base::progress_observer::ProgressObserver;
use std::time::{Duration, Instant};

/// A staged collective.
pub(super) struct StagedCollective<'a> {
    pub(super) host: &'a dyn Backend,
    pub(super) whole: &'a Operation<'a>,
    pub(super) blocks: StagingBlocks<'a>,
    pub(super) plan: StagingPlan,
    /// The part number of the first round minus 1. It is the part number of the operation itself,
    /// plus 1 if the next part was the query for the longest block.
    pub(super) part_before_first: u16,
}

/// Forwards the observations of the rounds to the observer of the original operation.
#[derive(Debug)]
struct PartProbe<'a>(&'a dyn ProgressObserver);

impl ProgressObserver for PartProbe<'_> {
    fn is_tracing_waits(&self) -> bool {
        self.0.is_tracing_waits()
    }

    fn record_start(&self, algorithm: &'static str) {
        self.0.record_start(algorithm);
    }

    // `record_short_wait` is not forwarded. If a round was short, the whole operation was not
    // necessarily short, because it also waited for the device.

    fn record_wait(&self, rank: Rank, began: Instant, ended: Instant) {
        self.0.record_wait(rank, began, ended);
    }

    fn record_late_rank(&self, operation: LabelledName, rank: Rank, by: Duration, alone: Duration) {
        self.0.record_late_rank(operation, rank, by, alone);
    }

    fn record_awaited(&self, sequence: u64, ranks: &[Rank]) {
        self.0.record_awaited(sequence, ranks);
    }

    fn latest_rank(&self) -> Option<(Rank, Duration)> {
        self.0.latest_rank()
    }
}

impl StagedCollective<'_> {
    /// Runs all rounds.
    pub(super) fn run_rounds(
        &self,
        buffers: &mut StagingBuffers,
        limits: StagingWaitLimits<'_>,
    ) -> Result<()> {
        let rounds = self.plan.round_count();
        self.load_round(buffers, 0)?;
        for round in 0..rounds {
            if round + 1 < rounds {
                // This half is free, because the host used it in the previous round and has
                // finished that round.
                self.load_round(buffers, round + 1)?;
            }
            buffers.from_device.wait_half(round % 2, limits)?;
            buffers.to_device.wait_half(round % 2, limits)?;
            self.run_round(buffers, round)?;
            self.unload_round(buffers, round)?;
        }
        // The transfers between the ranks are complete. Only copies to the device are left, so a
        // failure of another rank does not end these waits.
        let last = StagingWaitLimits { failure_state: None, ..limits };
        buffers.to_device.wait_half(0, last)?;
        buffers.to_device.wait_half(1, last)
    }

    fn load_round(&self, buffers: &mut StagingBuffers, round: usize) -> Result<()> {
        if self.blocks.inputs.is_empty() {
            return Ok(());
        }
        let (area, width) =
            (buffers.from_device.half_memory(round % 2)?, self.plan.round_bytes(round));
        let whole = self.whole.send;
        if self.plan.round_count() == 1 && self.whole.sends.is_none() {
            // One copy of the contiguous buffer replaces one copy per block.
            return buffers
                .from_device
                .begin_copies(round % 2, &[(whole, area.slice(0, whole.len()))]);
        }
        let pieces = self.blocks.inputs.iter().enumerate().map(|(block, from)| {
            let (start, len) = self.plan.piece_range(from.len(), round);
            (from.slice(start, len), area.slice(block * width, len))
        });
        buffers.from_device.begin_copies(round % 2, &pieces.collect::<Vec<_>>())
    }

    fn unload_round(&self, buffers: &mut StagingBuffers, round: usize) -> Result<()> {
        if self.blocks.outputs.is_empty() {
            return Ok(());
        }
        let (area, width) =
            (buffers.to_device.half_memory(round % 2)?.as_src(), self.plan.round_bytes(round));
        let whole = self.whole.recv;
        if self.plan.round_count() == 1 && self.whole.recvs.is_none() {
            return buffers
                .to_device
                .begin_copies(round % 2, &[(area.slice(0, whole.len()), whole)]);
        }
        let pieces = self.blocks.outputs.iter().enumerate().map(|(block, into)| {
            let (start, len) = self.plan.piece_range(into.len(), round);
            (area.slice(block * width, len), into.slice(start, len))
        });
        buffers.to_device.begin_copies(round % 2, &pieces.collect::<Vec<_>>())
    }

    /// Runs the operation of a round in the host back end, on staging memory.
    fn run_round(&self, buffers: &mut StagingBuffers, round: usize) -> Result<()> {
        let (whole, width) = (self.whole, self.plan.round_bytes(round));
        let from = match self.blocks.inputs.is_empty() {
            true => Src::empty(),
            false => buffers.from_device.half_memory(round % 2)?.as_src(),
        };
        let into = match self.blocks.outputs.is_empty() {
            true => Dst::empty(),
            false => buffers.to_device.half_memory(round % 2)?,
        };
        let piece_len = |len: usize| self.plan.piece_range(len, round).1;
        let inputs = self.blocks.inputs.iter().enumerate();
        let sends: Vec<Src<'_>> =
            inputs.map(|(at, block)| from.slice(at * width, piece_len(block.len()))).collect();
        let outputs = self.blocks.outputs.iter().enumerate();
        let recvs: Vec<Dst<'_>> =
            outputs.map(|(at, block)| into.slice(at * width, piece_len(block.len()))).collect();
        // If there are several blocks, they have equal lengths and are contiguous in staging
        // memory. If there is one block, its piece may be shorter than the piece of another rank.
        // In both cases the data has the sum of the lengths.
        let send_len: usize = sends.iter().map(|piece| piece.len()).sum();
        let recv_len: usize = recvs.iter().map(|piece| piece.len()).sum();
        let probe = PartProbe(whole.observer);
        let part = self.part_before_first + 1 + u16::try_from(round).unwrap_or(u16::MAX);
        let count = match whole.count {
            usize::MAX => usize::MAX,
            _ => width / whole.element_bytes(),
        };
        self.host.run(&Operation {
            descriptor: Descriptor { part, ..whole.descriptor },
            count,
            send: whole.sends.map_or(from.slice(0, send_len), |_| Src::empty()),
            recv: whole.recvs.map_or(into.slice(0, recv_len), |_| Dst::empty()),
            sends: whole.sends.map(|_| sends.as_slice()),
            recvs: whole.recvs.map(|_| recvs.as_slice()),
            has_new_deadline: false,
            enqueue_request: None,
            observer: &probe,
            ..*whole
        })
    }
}
