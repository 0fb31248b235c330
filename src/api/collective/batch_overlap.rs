//! Detects collectives of a batch that depend on each other. The rule: no collective may use a
//! buffer that another collective of the batch writes.
//!
//! A batch has no order that a caller may rely on. Small collectives are fused, and a fused
//! operation reads all inputs before it writes any output. Collectives of different groups do not
//! wait for each other. Therefore the rule applies to all collectives of a batch, not only to fused
//! collectives.
//!
//! An overlap may exist on a single rank only, because buffers are local to a rank. For example,
//! only the root of a reduction writes its output buffer. Therefore a rank that finds an overlap
//! cannot solve it alone:
//! * The rank cannot omit calls, because other ranks would wait for them.
//! * The rank cannot change the fusion plan, because the other ranks do not see the overlap and
//!   would use another plan.
//!
//! Therefore the rank fails the groups of the two calls. All ranks get the error, and no rank
//! waits. The buffer of a broadcast counts as written on all ranks including the root, which only
//! reads it. So if all ranks use their buffers in the same way, all ranks detect an overlap.
//!
//! This module does not depend on how a batch collects its calls or on the fusion plan.

use crate::api::collective::prepared_call::PreparedCall;
use crate::base::error::Error;

/// The address range of a buffer, and the index of the call that uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CallBufferRange {
    start: usize,
    end: usize,
    call: usize,
}

/// Searches for two collectives of the batch that conflict: one uses a buffer that the other
/// writes. If there is such a pair, fails the groups of both.
pub(super) fn fail_overlapping_calls(calls: &[PreparedCall]) {
    let collectives: Vec<&PreparedCall> =
        calls.iter().filter(|call| call.is_collective()).collect();
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for (index, call) in collectives.iter().enumerate() {
        call.visit_buffers(&mut |buffer, is_written| {
            let from = buffer.as_ptr().addr();
            let ranges = if is_written { &mut writes } else { &mut reads };
            ranges.push(CallBufferRange { start: from, end: from + buffer.len(), call: index });
        });
    }
    let Some((one, other)) = find_overlapping_calls(&reads, writes) else { return };
    let message = format!(
        "of {} collectives in the batch, numbers {} and {} share memory that one of them writes: \
         end the batch between them",
        collectives.len(),
        one.min(other) + 1,
        one.max(other) + 1
    );
    for call in [collectives[one], collectives[other]] {
        let group = call.group();
        let error = Error::invalid(message.as_str()).with_culprit(group.rank());
        // If both calls are of one group, the second failure has no effect.
        group.fail(&error.context(group.describe_rank()));
    }
}

/// Returns the index of a call that writes a buffer, and the index of another call that reads or
/// writes an overlapping buffer.
fn find_overlapping_calls(
    reads: &[CallBufferRange],
    mut writes: Vec<CallBufferRange>,
) -> Option<(usize, usize)> {
    writes.retain(|span| span.start < span.end);
    writes.sort_unstable();
    // The output buffers of a single call do not overlap: the check of the call has made sure of
    // this. So the two buffers of a pair belong to different calls.
    let overlap = writes.windows(2).find(|pair| pair[0].end > pair[1].start);
    if let Some(pair) = overlap {
        return Some((pair[0].call, pair[1].call));
    }
    reads.iter().filter(|read| read.start < read.end).find_map(|read| {
        let first = writes.partition_point(|written| written.end <= read.start);
        let candidates = writes[first..].iter().take_while(|written| written.start < read.end);
        let other = candidates.map(|written| written.call).find(|&call| call != read.call)?;
        Some((other, read.call))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(call: usize, from: usize, end: usize) -> CallBufferRange {
        CallBufferRange { start: from, end, call }
    }

    #[test]
    fn memory_written_by_one_call_is_used_by_no_other() {
        let written = || vec![range(1, 30, 40), range(0, 10, 20), range(2, 20, 30)];
        assert_eq!(find_overlapping_calls(&[], written()), None);
        // The range is written twice, partly or fully.
        for (from, end) in [(19, 20), (0, 11), (12, 13), (0, 50)] {
            let mut writes = written();
            writes.push(range(3, from, end));
            assert!(find_overlapping_calls(&[], writes).is_some(), "{from}..{end}");
        }
        // The range is read by the writing call, by another call, or next to the written range.
        assert_eq!(find_overlapping_calls(&[range(0, 10, 20)], written()), None);
        assert_eq!(find_overlapping_calls(&[range(0, 5, 21)], written()), Some((2, 0)));
        assert_eq!(find_overlapping_calls(&[range(3, 39, 90)], written()), Some((1, 3)));
        assert_eq!(find_overlapping_calls(&[range(3, 0, 10), range(3, 40, 50)], written()), None);
        // Several calls may read the same range.
        assert_eq!(find_overlapping_calls(&[range(0, 50, 60), range(1, 50, 60)], written()), None);
    }

    #[test]
    fn empty_buffers_never_overlap() {
        let writes = vec![range(0, 10, 20), range(1, 15, 15)];
        assert_eq!(find_overlapping_calls(&[range(1, 12, 12)], writes), None);
        assert_eq!(find_overlapping_calls(&[range(0, 1, 9)], Vec::new()), None);
    }
}
