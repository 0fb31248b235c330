//! Blocks that go round, segment by segment: what all-reduce and all-gather in a ring have in
//! common.

use super::{Call, POSTED, SEGMENT, Team};
use crate::algo::fold::Fold;
use crate::algo::pattern::ring::{next, previous, received, sent};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::transport::MAX_LANES;
use std::collections::VecDeque;

/// How many segments may be on their way in, and go out ahead.
pub(super) const WINDOW: usize = 3;

/// All segments of the window but the one that has come may be on their way in, and must not keep
/// the next one from being posted.
const _: () = assert!((WINDOW - 1) * MAX_LANES <= POSTED);

/// Blocks up to this size go in one piece.
const WHOLE: usize = 16 << 10;

/// One block for each member.
pub(super) struct Ring<'f, 'd> {
    size: usize,
    block: &'f dyn Fn(usize) -> Dst<'d>,
    segment: usize,
    /// The segments of the longest block; shorter ones have as many, some of them empty.
    segments: usize,
}

impl<'f, 'd> Ring<'f, 'd> {
    pub(super) fn new(size: usize, block: &'f dyn Fn(usize) -> Dst<'d>) -> Self {
        let longest = (0..size).map(|member| block(member).len()).max().unwrap_or(0);
        let half = longest.div_ceil(2).next_multiple_of(64);
        let segment = if longest <= WHOLE { longest } else { half.min(SEGMENT) }.max(1);
        Self { size, block, segment, segments: longest.div_ceil(segment).max(1) }
    }

    /// The bytes of a segment.
    pub(super) fn segment(&self) -> usize {
        self.segment
    }

    fn piece(&self, block: usize, segment: usize) -> Dst<'d> {
        let block = (self.block)(block);
        let start = (segment * self.segment).min(block.len());
        block.slice(start, self.segment.min(block.len() - start))
    }

    /// Goes `steps` steps; with a fold and memory for [`WINDOW`] segments, what comes in the first
    /// `size - 1` is folded into the block, and afterwards takes its place.
    pub(super) fn run(
        &self,
        call: &mut Call<'_>,
        team: Team<'_>,
        steps: usize,
        fold: Option<(Fold, Dst<'_>)>,
    ) -> Result<()> {
        let (size, me, segments) = (self.size, team.me(), self.segments);
        let total = steps * segments;
        let folding = |item: usize| fold.filter(|_| item / segments < size - 1);
        let incoming =
            |item: usize| self.piece(received(size, me, item / segments), item % segments);
        let outgoing = |item: usize| self.piece(sent(size, me, item / segments), item % segments);
        let landing = |item: usize| match folding(item) {
            None => incoming(item),
            Some((_, memory)) => memory.slice(item % WINDOW * self.segment, incoming(item).len()),
        };
        let mut exchange = call.exchange(team);
        let mut arriving = VecDeque::new();
        let (mut posted, mut gone) = (0, 0);
        for item in 0..total {
            while posted < total.min(item + WINDOW) {
                // A block that is gathered comes back only after all of what was sent of it has
                // been received.
                arriving.push_back(exchange.receive(previous(size, me), landing(posted)));
                posted += 1;
            }
            // What is sent came one step before.
            while gone < total.min(item + WINDOW.min(segments)) {
                exchange.send(next(size, me), outgoing(gone).as_src());
                gone += 1;
            }
            if let Some(token) = arriving.pop_front() {
                exchange.wait(token)?;
            }
            if let Some((fold, _)) = folding(item) {
                let own = incoming(item);
                fold.two(own, landing(item).as_src(), own.as_src());
            }
            exchange.wait_few(POSTED)?;
        }
        exchange.finish()
    }
}
