//! A ring that passes blocks around segment by segment. Ring all-reduce and ring all-gather use it.

use super::{MAX_POSTED_STRIPES, MessageOperation, SEGMENT_BYTES, Team};
use crate::algo::fold::Fold;
use crate::algo::pattern::ring::{next_member, previous_member, received_block, sent_block};
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::transport::MAX_COLLECTIVE_STREAMS;
use std::collections::VecDeque;

/// The window: the maximum number of segments with a posted receive. It is also the maximum number
/// of segments that a member sends before it waits.
pub(super) const SEGMENT_WINDOW: usize = 3;

/// All segments of the window except the segment that has arrived may be in flight. Their stripes
/// must not reach the limit of posted stripes, because a member could then not post the next
/// segment.
const _: () = assert!((SEGMENT_WINDOW - 1) * MAX_COLLECTIVE_STREAMS <= MAX_POSTED_STRIPES);

/// The maximum size of a block that is sent in one piece.
const MAX_UNSEGMENTED_BLOCK: usize = 16 << 10;

/// A ring with one block for each member.
pub(super) struct SegmentedRing<'f, 'd> {
    size: usize,
    block: &'f dyn Fn(usize) -> Dst<'d>,
    segment_bytes: usize,
    /// The number of segments of the longest block. A shorter block has the same number of
    /// segments, but some of them are shorter or empty.
    segment_count: usize,
}

impl<'f, 'd> SegmentedRing<'f, 'd> {
    pub(super) fn new(size: usize, block: &'f dyn Fn(usize) -> Dst<'d>) -> Self {
        let longest = (0..size).map(|member| block(member).len()).max().unwrap_or(0);
        let half = longest.div_ceil(2).next_multiple_of(64);
        let segment =
            if longest <= MAX_UNSEGMENTED_BLOCK { longest } else { half.min(SEGMENT_BYTES) }.max(1);
        Self {
            size,
            block,
            segment_bytes: segment,
            segment_count: longest.div_ceil(segment).max(1),
        }
    }

    /// Returns the size of a segment in bytes.
    pub(super) fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    fn block_segment(&self, block: usize, segment: usize) -> Dst<'d> {
        let block = (self.block)(block);
        let start = (segment * self.segment_bytes).min(block.len());
        block.slice(start, self.segment_bytes.min(block.len() - start))
    }

    /// Runs `steps` steps. In each step, each member receives one block, segment by segment.
    ///
    /// - Without `fold`, an arriving block replaces the local block.
    /// - With `fold`, which contains a fold and memory for [`SEGMENT_WINDOW`] segments, a block
    ///   that arrives in the first `size - 1` steps is folded into the local block. A block that
    ///   arrives in a later step replaces the local block.
    pub(super) fn run(
        &self,
        call: &mut MessageOperation<'_>,
        team: Team<'_>,
        steps: usize,
        fold: Option<(Fold, Dst<'_>)>,
    ) -> Result<()> {
        let (size, me, segments) = (self.size, team.own_position(), self.segment_count);
        let total = steps * segments;
        let fold_of_item = |item: usize| fold.filter(|_| item / segments < size - 1);
        let incoming = |item: usize| {
            self.block_segment(received_block(size, me, item / segments), item % segments)
        };
        let outgoing = |item: usize| {
            self.block_segment(sent_block(size, me, item / segments), item % segments)
        };
        let receive_dst = |item: usize| match fold_of_item(item) {
            None => incoming(item),
            Some((_, memory)) => {
                memory.slice(item % SEGMENT_WINDOW * self.segment_bytes, incoming(item).len())
            }
        };
        let mut exchange = call.exchange(team);
        let mut arriving = VecDeque::new();
        let (mut posted, mut sent_items) = (0, 0);
        for item in 0..total {
            while posted < total.min(item + SEGMENT_WINDOW) {
                // This receive may overwrite a block that this member has sent. This is safe: the
                // result of that block comes back around the ring only after the next member has
                // received everything that this member sent of it.
                arriving
                    .push_back(exchange.receive(previous_member(size, me), receive_dst(posted)));
                posted += 1;
            }
            // Each segment that this member sends arrived one step earlier, or belongs to its own
            // block.
            while sent_items < total.min(item + SEGMENT_WINDOW.min(segments)) {
                exchange.send(next_member(size, me), outgoing(sent_items).as_src());
                sent_items += 1;
            }
            if let Some(token) = arriving.pop_front() {
                exchange.wait(token)?;
            }
            if let Some((fold, _)) = fold_of_item(item) {
                let own = incoming(item);
                fold.fold_two(own, receive_dst(item).as_src(), own.as_src());
            }
            exchange.wait_until_at_most(MAX_POSTED_STRIPES)?;
        }
        exchange.finish()
    }
}
