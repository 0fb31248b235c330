//! The memory of one rank for one call: all blocks between guard bytes, and a copy with the
//! expected content after the call.
//!
//! One comparison of the whole memory finds wrong results, writes outside of a block, changed
//! inputs, and changes of output bytes that receive no data.

use crate::expected_results::{PeriodicBlock, RankBlocks};
use crate::matrix::CallScene;
use dist::base::buffer::{Dst, Src};
use std::ops::Range;

/// The guard value before and after every block or contiguous list, and the minimum number of guard
/// bytes.
const GUARD: u8 = 0xa5;
const GUARD_BYTES: usize = 32;
/// The content of an output before the call.
const OUTPUT_FILL_BYTE: u8 = 0x77;

/// The alignment of the first block of a contiguous list, and of each block of other lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockAlignment {
    /// An odd address without alignment.
    Unaligned,
    /// A multiple of [`GUARD_BYTES`].
    Aligned,
}

/// The memory of one rank for one call: its content before the call, the expected content, and the
/// working copy.
#[derive(Debug)]
pub(crate) struct GuardedMemory {
    before: Vec<u8>,
    after: Vec<u8>,
    /// The working copy; it has additional bytes so that its start can be aligned.
    current: Vec<u8>,
    start: usize,
    inputs: Vec<Range<usize>>,
    outputs: Vec<Range<usize>>,
}

impl GuardedMemory {
    pub(crate) fn new(scene: &CallScene, part: &RankBlocks, in_place: bool) -> Self {
        let width = scene.dtype.size();
        let sides = &part.block_layout;
        let bytes = |counts: &[usize]| counts.iter().map(|count| count * width).collect::<Vec<_>>();
        let (sends, recvs) = (bytes(&sides.inputs), bytes(&sides.outputs));
        let mut end = GUARD_BYTES;
        let mut place = |lens: &[usize]| place_blocks(lens, sides.is_contiguous, &mut end);
        // If the call is in place, the longer list determines the address of the other list's only
        // block.
        let (inputs, outputs) = match sides.shared.filter(|_| in_place) {
            Some((_, output)) if recvs.len() >= sends.len() => {
                let outputs = place(&recvs);
                (outputs[output..=output].to_vec(), outputs)
            }
            Some((input, _)) => {
                let inputs = place(&sends);
                let outputs = inputs[input..=input].to_vec();
                (inputs, outputs)
            }
            None => (place(&sends), place(&recvs)),
        };
        let mut before = vec![GUARD; end];
        outputs.iter().for_each(|range| before[range.clone()].fill(OUTPUT_FILL_BYTE));
        write(&part.inputs, &inputs, &mut before);
        let mut after = before.clone();
        write(&part.outputs, &outputs, &mut after);
        let work = vec![0; end + 2 * GUARD_BYTES];
        Self { before, after, current: work, start: 0, inputs, outputs }
    }

    /// Restores the content before the call at the given alignment.
    pub(crate) fn reset(&mut self, address: BlockAlignment) {
        let unaligned_offset = usize::from(address == BlockAlignment::Unaligned);
        let base = self.current.as_ptr().addr();
        self.start = base.next_multiple_of(GUARD_BYTES) - base + unaligned_offset;
        self.current[self.start..][..self.before.len()].copy_from_slice(&self.before);
    }

    /// Returns the blocks for a call.
    pub(crate) fn views(&mut self) -> (Vec<Src<'_>>, Vec<Dst<'_>>) {
        let whole = Dst::from(&mut self.current[self.start..][..self.before.len()]);
        let view = |range: &Range<usize>| whole.slice(range.start, range.len());
        let inputs = self.inputs.iter().map(|range| view(range).as_src()).collect();
        (inputs, self.outputs.iter().map(view).collect())
    }

    /// Returns the content of an output block after the call.
    pub(crate) fn output(&self, block: usize) -> &[u8] {
        &self.image()[self.outputs[block].clone()]
    }

    /// Takes the present outputs as the expected ones. All other bytes must still be as before the
    /// call.
    pub(crate) fn expect_current_outputs(&mut self) {
        for range in &self.outputs {
            let got = &self.current[self.start..][range.clone()];
            self.after[range.clone()].copy_from_slice(got);
        }
    }

    /// Returns a description of the first unexpected byte, if any.
    pub(crate) fn find_fault(&self) -> Option<String> {
        let image = self.image();
        if image == self.after {
            return None;
        }
        let at = image.iter().zip(&self.after).position(|(got, wanted)| got != wanted)?;
        let (got, wanted) = (image[at], self.after[at]);
        let find = |ranges: &[Range<usize>]| ranges.iter().position(|range| range.contains(&at));
        let (place, ranges) = match (find(&self.outputs), find(&self.inputs)) {
            (Some(block), _) => (format!("output block {block}"), &self.outputs[block]),
            (None, Some(block)) => (format!("input block {block}"), &self.inputs[block]),
            (None, None) => return Some(format!("wrote outside the buffers, at {at}")),
        };
        let offset = at - ranges.start;
        let len = ranges.len();
        Some(format!("byte {offset} of {len} in {place} is {got:#04x} and not {wanted:#04x}"))
    }

    fn image(&self) -> &[u8] {
        &self.current[self.start..][..self.before.len()]
    }
}

/// Assigns addresses to the blocks from `end` on: contiguous, or each with its own guard bytes.
fn place_blocks(lens: &[usize], is_contiguous: bool, end: &mut usize) -> Vec<Range<usize>> {
    let guard = |end: usize| (end + GUARD_BYTES).next_multiple_of(GUARD_BYTES);
    let mut ranges = Vec::with_capacity(lens.len());
    for &len in lens {
        ranges.push(*end..*end + len);
        *end += len;
        if !is_contiguous {
            *end = guard(*end);
        }
    }
    *end = guard(*end);
    ranges
}

fn write(blocks: &[PeriodicBlock], ranges: &[Range<usize>], memory: &mut [u8]) {
    blocks.iter().zip(ranges).for_each(|(block, place)| block.write(&mut memory[place.clone()]));
}
