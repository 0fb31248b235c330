//! A debug check that detects conflicting buffer uses. A table has the in-flight buffers: the
//! buffers of operations that have not ended. A call conflicts with an operation in the table if
//! the call writes a buffer that the operation uses, or uses a buffer that the operation writes.
//!
//! Collectives of one group run one after the other in the order of issue, so they may share
//! buffers. All other outstanding operations have no order. The other ranks cannot detect a
//! conflict, because memory is local to a rank. Therefore a conflict fails the groups of both
//! operations. A conflict inside a batch also fails the group (`batch_overlap`).
//!
//! Buffers are registered only at debug level DETAIL. They are unregistered at any level, because
//! the level may change while an operation runs.

use crate::api::group::process_group::Group;
use crate::base::buffer::Src;
use crate::base::debug::{self, DebugLevel};
use crate::base::error::Error;
use crate::base::ids::GroupId;
use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The address range of a buffer, and whether the operation writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InFlightSpan {
    start: usize,
    end: usize,
    is_written: bool,
}

impl InFlightSpan {
    fn overlaps(&self, other: &Self) -> bool {
        (self.is_written || other.is_written) && self.start < other.end && other.start < self.end
    }
}

/// The buffers of an operation, and the properties that determine whether it conflicts with another
/// operation.
#[derive(Debug)]
struct InFlightUse {
    group: GroupId,
    is_collective: bool,
    spans: Vec<InFlightSpan>,
}

/// The methods of a work (the handle of an asynchronous operation) that this module needs.
pub(in crate::api) trait InFlightWork: Send + Sync {
    /// Returns a description of the operation, and whether the operation is a collective. Returns
    /// `None` for a work without buffers of its own.
    fn operation(&self) -> Option<(String, bool)>;

    /// Returns the sequence number of the operation, or `None` before the operation is issued.
    fn sequence(&self) -> Option<u64>;
}

crate::base::trait_object_debug::impl_debug_of_objects!(InFlightWork);

/// An operation that has not ended.
#[derive(Clone, Debug)]
struct InFlightOperation {
    description: String,
    group: Weak<Group>,
    work: Weak<dyn InFlightWork>,
}

/// The in-flight operations. The key is the address of the operation's work, which is unique while
/// the work lives.
type InFlightTable = BTreeMap<usize, (InFlightUse, InFlightOperation)>;

static IN_FLIGHT: Mutex<InFlightTable> = Mutex::new(BTreeMap::new());
/// The number of entries in the table. If it is 0, a check needs no lock.
static IN_FLIGHT_COUNT: AtomicUsize = AtomicUsize::new(0);

fn lock() -> MutexGuard<'static, InFlightTable> {
    crate::base::sync::lock(&IN_FLIGHT)
}

/// A callback that is called for each buffer of an operation. The second argument is true if the
/// operation writes the buffer.
type BufferVisitor<'n> = &'n mut dyn FnMut(Src<'_>, bool);

/// Checks the buffers of a blocking collective for conflicts.
pub(in crate::api) fn check_blocking_call(
    group: &Group,
    description: &dyn Display,
    each_buffer: impl FnOnce(BufferVisitor<'_>),
) {
    if debug::level() < DebugLevel::Detail || IN_FLIGHT_COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let in_use = InFlightUse::new(group, true, each_buffer);
    let conflict = in_use.find_conflict(&lock());
    conflict.into_iter().for_each(|in_flight| fail_both_groups(group, description, &in_flight));
}

/// Registers the buffers of an operation until its work ends.
pub(in crate::api) fn register_work<W: InFlightWork + 'static>(
    group: &Arc<Group>,
    work: &Arc<W>,
    each_buffer: impl FnOnce(BufferVisitor<'_>),
) {
    if debug::level() < DebugLevel::Detail {
        return;
    }
    let Some((description, is_collective)) = work.operation() else { return };
    let in_use = InFlightUse::new(group, is_collective, each_buffer);
    if in_use.spans.is_empty() {
        return;
    }
    let weak_work: Weak<W> = Arc::downgrade(work);
    let in_flight = InFlightOperation {
        description: description.clone(),
        group: Arc::downgrade(group),
        work: weak_work,
    };
    let conflict = {
        let mut table = lock();
        let conflict = in_use.find_conflict(&table);
        table.insert(Arc::as_ptr(work).addr(), (in_use, in_flight));
        IN_FLIGHT_COUNT.store(table.len(), Ordering::Relaxed);
        conflict
    };
    conflict.into_iter().for_each(|in_flight| fail_both_groups(group, &description, &in_flight));
}

/// Unregisters the buffers of an operation that has ended or was not issued. Called before the
/// caller can see the end, so that the caller may then use the buffers again.
pub(in crate::api) fn unregister_work<W: InFlightWork>(work: &W) {
    if IN_FLIGHT_COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut table = lock();
    table.remove(&std::ptr::from_ref(work).addr());
    IN_FLIGHT_COUNT.store(table.len(), Ordering::Relaxed);
}

impl InFlightUse {
    fn new(
        group: &Group,
        is_collective: bool,
        each_buffer: impl FnOnce(BufferVisitor<'_>),
    ) -> Self {
        let mut spans = Vec::new();
        each_buffer(&mut |buffer, is_written| {
            let start = buffer.as_ptr().addr();
            if !buffer.is_empty() {
                spans.push(InFlightSpan { start, end: start + buffer.len(), is_written });
            }
        });
        Self { group: group.id(), is_collective, spans }
    }

    fn find_conflict(&self, table: &InFlightTable) -> Option<InFlightOperation> {
        let found = table.values().find(|(other, _)| self.conflicts_with(other));
        found.map(|(_, holder)| holder.clone())
    }

    fn conflicts_with(&self, other: &Self) -> bool {
        let is_ordered = self.group == other.group && self.is_collective && other.is_collective;
        let clashes = |span: &InFlightSpan| other.spans.iter().any(|old| span.overlaps(old));
        !is_ordered && self.spans.iter().any(clashes)
    }
}

/// Fails the groups of two conflicting operations. The caller holds no lock.
fn fail_both_groups(group: &Group, description: &dyn Display, in_flight: &InFlightOperation) {
    let other_group = in_flight.group.upgrade();
    let sequence = in_flight.work.upgrade().and_then(|work| work.sequence());
    let number = sequence.map(|number| format!(" (operation #{number})")).unwrap_or_default();
    let group_label =
        other_group.as_ref().map_or_else(|| "a group".to_owned(), |other| other.describe_rank());
    let message = format!(
        "{description} on {} shares memory with {} on {group_label}{number}, which has not \
         completed, and one of the two writes it: wait for the earlier operation first",
        group.describe_rank(),
        in_flight.description
    );
    let fail = |group: &Group| {
        let error = Error::invalid(message.as_str()).with_culprit(group.rank());
        group.fail(&error);
    };
    fail(group);
    if let Some(other) = other_group {
        // If both operations are of one group, the second failure has no effect.
        fail(&other);
        // Some threads must not drop the last reference to a group, and this may be one of them.
        Group::release(other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::Nonce;

    fn in_flight_use(group: u8, is_collective: bool, from: usize, is_written: bool) -> InFlightUse {
        let spans = vec![InFlightSpan { start: from, end: from + 10, is_written }];
        InFlightUse { group: Nonce([group; 16]), is_collective, spans }
    }

    #[test]
    fn overlapping_writes_conflict_unless_ordered() {
        let outstanding = in_flight_use(1, true, 100, true);
        // The new operation is a collective of another group, or a message. It writes or only
        // reads. It overlaps partly, fully, or not.
        for (group, is_collective) in [(2, true), (1, false), (2, false)] {
            for is_written in [true, false] {
                for from in [91, 100, 109] {
                    let new = in_flight_use(group, is_collective, from, is_written);
                    assert!(
                        new.conflicts_with(&outstanding) && outstanding.conflicts_with(&new),
                        "{from}"
                    );
                }
                for from in [90, 110] {
                    assert!(
                        !in_flight_use(group, is_collective, from, is_written)
                            .conflicts_with(&outstanding)
                    );
                }
            }
        }
        assert!(!in_flight_use(1, true, 100, true).conflicts_with(&outstanding));
        // Several operations may read the same buffer.
        assert!(
            !in_flight_use(2, false, 100, false)
                .conflicts_with(&in_flight_use(1, true, 100, false))
        );
    }
}
