//! One collective in rounds. While the host carries one piece, the device brings the next one and
//! takes the one before.

use super::desk::{Desk, Limits};
use super::plan::{Blocks, Plan};
use crate::backend::{Backend, Descriptor, Operation};
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::label::LabelledName;
use crate::base::probe::Probe;
use std::time::{Duration, Instant};

/// A collective that is carried in parts.
pub(super) struct Carriage<'a> {
    pub(super) cpu: &'a dyn Backend,
    pub(super) whole: &'a Operation<'a>,
    pub(super) blocks: Blocks<'a>,
    pub(super) plan: Plan,
    /// The number of the part before the first.
    pub(super) after: u16,
}

/// Hears of the parts what the whole is to tell.
#[derive(Debug)]
struct OfPart<'a>(&'a dyn Probe);

impl Probe for OfPart<'_> {
    fn wants_all(&self) -> bool {
        self.0.wants_all()
    }

    fn begins(&self, algorithm: &'static str) {
        self.0.begins(algorithm);
    }

    // A short part says nothing of the whole, which has waited for the device: `was_short` is not
    // passed on.

    fn waited(&self, rank: Rank, began: Instant, ended: Instant) {
        self.0.waited(rank, began, ended);
    }

    fn late(&self, operation: LabelledName, rank: Rank, by: Duration, alone: Duration) {
        self.0.late(operation, rank, by, alone);
    }

    fn latest(&self) -> Option<(Rank, Duration)> {
        self.0.latest()
    }
}

/// The bytes of a staging area that the pieces of a round lie in, one after another.
fn places(lens: impl Iterator<Item = usize>, width: usize) -> impl Iterator<Item = (usize, usize)> {
    lens.enumerate().map(move |(block, len)| (block * width, len))
}

impl Carriage<'_> {
    /// Carries it.
    pub(super) fn go(&self, desk: &mut Desk, limits: Limits<'_>) -> Result<()> {
        let rounds = self.plan.rounds();
        self.load(desk, 0)?;
        for round in 0..rounds {
            if round + 1 < rounds {
                // The host was done with that half a round ago.
                self.load(desk, round + 1)?;
            }
            desk.inward.settle(round % 2, limits)?;
            desk.outward.settle(round % 2, limits)?;
            self.run(desk, round)?;
            self.unload(desk, round)?;
        }
        // The operation has taken place: another rank's failure changes nothing any more.
        let last = Limits { halted: &|| None, ..limits };
        desk.outward.settle(0, last)?;
        desk.outward.settle(1, last)
    }

    /// The lengths of the pieces that come in, and go out, in a round.
    fn lens_in(&self, round: usize) -> impl Iterator<Item = usize> {
        self.blocks.inputs.iter().map(move |block| self.plan.cut(block.len(), round).1)
    }

    fn lens_out(&self, round: usize) -> impl Iterator<Item = usize> {
        self.blocks.outputs.iter().map(move |block| self.plan.cut(block.len(), round).1)
    }

    fn load(&self, desk: &mut Desk, round: usize) -> Result<()> {
        if self.blocks.inputs.is_empty() {
            return Ok(());
        }
        let (area, width) = (desk.inward.half(round % 2)?, self.plan.width(round));
        let whole = self.whole.send;
        if self.plan.rounds() == 1 && self.whole.sends.is_none() {
            // One copy instead of one for each rank.
            return desk.inward.load(round % 2, &[(whole, area.slice(0, whole.len()))]);
        }
        let pieces = self.blocks.inputs.iter().enumerate().map(|(block, from)| {
            let (start, len) = self.plan.cut(from.len(), round);
            (from.slice(start, len), area.slice(block * width, len))
        });
        desk.inward.load(round % 2, &pieces.collect::<Vec<_>>())
    }

    fn unload(&self, desk: &mut Desk, round: usize) -> Result<()> {
        if self.blocks.outputs.is_empty() {
            return Ok(());
        }
        let (area, width) = (desk.outward.half(round % 2)?.as_src(), self.plan.width(round));
        let whole = self.whole.recv;
        if self.plan.rounds() == 1 && self.whole.recvs.is_none() {
            return desk.outward.unload(round % 2, &[(area.slice(0, whole.len()), whole)]);
        }
        let pieces = self.blocks.outputs.iter().enumerate().map(|(block, into)| {
            let (start, len) = self.plan.cut(into.len(), round);
            (area.slice(block * width, len), into.slice(start, len))
        });
        desk.outward.unload(round % 2, &pieces.collect::<Vec<_>>())
    }

    /// The part of a round, on staging memory.
    fn run(&self, desk: &mut Desk, round: usize) -> Result<()> {
        let (whole, width) = (self.whole, self.plan.width(round));
        let from = match self.blocks.inputs.is_empty() {
            true => Src::empty(),
            false => desk.inward.half(round % 2)?.as_src(),
        };
        let into = match self.blocks.outputs.is_empty() {
            true => Dst::empty(),
            false => desk.outward.half(round % 2)?,
        };
        let sends: Vec<Src<'_>> =
            places(self.lens_in(round), width).map(|(at, len)| from.slice(at, len)).collect();
        let recvs: Vec<Dst<'_>> =
            places(self.lens_out(round), width).map(|(at, len)| into.slice(at, len)).collect();
        // Blocks of one length lie one after another; one block alone may be shorter than another
        // rank's.
        let send_len: usize = self.lens_in(round).sum();
        let recv_len: usize = self.lens_out(round).sum();
        let probe = OfPart(whole.probe);
        let part = self.after + 1 + u16::try_from(round).unwrap_or(u16::MAX);
        let count = match whole.count {
            usize::MAX => usize::MAX,
            _ => width / whole.element(),
        };
        self.cpu.run(&Operation {
            descriptor: Descriptor { part, ..whole.descriptor },
            count,
            send: whole.sends.map_or(from.slice(0, send_len), |_| Src::empty()),
            recv: whole.recvs.map_or(into.slice(0, recv_len), |_| Dst::empty()),
            sends: whole.sends.map(|_| sends.as_slice()),
            recvs: whole.recvs.map(|_| recvs.as_slice()),
            is_fresh: false,
            launch: None,
            probe: &probe,
            ..*whole
        })
    }
}
