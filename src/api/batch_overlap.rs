//! The collectives of a batch must not depend on each other: none uses memory that another one
//! writes.
//!
//! A batch has no order that a caller may count on: small collectives become one, which reads all
//! inputs before it writes any output, and different groups do not wait for each other. So the rule
//! is for all of them, whatever their size, and not only for those that happen to become one.
//!
//! Where memory overlaps is each rank's own, and not even the same call uses the same memory
//! everywhere (only the root of a reduction writes). A rank that finds a clash can therefore not
//! leave out calls, which others would wait for, nor can what becomes one depend on it, which the
//! others could not know: it fails the groups of the two calls, so that all ranks are told, and
//! nobody waits. Calls that several ranks would see alike are seen so: the buffer of a broadcast
//! counts as written on its root too.
//!
//! Must not know: how a batch is collected, which of its calls become one.

use super::issue::PreparedCall;
use crate::base::error::Error;

/// Memory of a call, and which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CallBufferRange {
    start: usize,
    end: usize,
    call: usize,
}

/// Fails the groups of two collectives of which one uses what the other one writes.
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
        "of {} collectives of a batch, the {}. and the {}. use memory that one of them writes: end the batch \
         between them",
        collectives.len(),
        one.min(other) + 1,
        one.max(other) + 1
    );
    for call in [collectives[one], collectives[other]] {
        let group = call.group();
        let error = Error::invalid(message.as_str()).with_culprit(group.rank());
        // Of one group, the second time does nothing.
        group.fail(&error.context(group.describe_rank()));
    }
}

/// Two calls of which one writes what the other one reads or writes.
fn find_overlapping_calls(
    reads: &[CallBufferRange],
    mut writes: Vec<CallBufferRange>,
) -> Option<(usize, usize)> {
    writes.retain(|span| span.start < span.end);
    writes.sort_unstable();
    // Those of one call are apart, or it would have been refused.
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
        // Twice written, in a part and inside.
        for (from, end) in [(19, 20), (0, 11), (12, 13), (0, 50)] {
            let mut writes = written();
            writes.push(range(3, from, end));
            assert!(find_overlapping_calls(&[], writes).is_some(), "{from}..{end}");
        }
        // Read by itself, read by another, and beside.
        assert_eq!(find_overlapping_calls(&[range(0, 10, 20)], written()), None);
        assert_eq!(find_overlapping_calls(&[range(0, 5, 21)], written()), Some((2, 0)));
        assert_eq!(find_overlapping_calls(&[range(3, 39, 90)], written()), Some((1, 3)));
        assert_eq!(find_overlapping_calls(&[range(3, 0, 10), range(3, 40, 50)], written()), None);
        // What is only read may be so by several.
        assert_eq!(find_overlapping_calls(&[range(0, 50, 60), range(1, 50, 60)], written()), None);
    }

    #[test]
    fn empty_buffers_never_overlap() {
        let writes = vec![range(0, 10, 20), range(1, 15, 15)];
        assert_eq!(find_overlapping_calls(&[range(1, 12, 12)], writes), None);
        assert_eq!(find_overlapping_calls(&[range(0, 1, 9)], Vec::new()), None);
    }
}
