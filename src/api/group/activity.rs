//! Describes what this process does, for the log and error texts of ranks that wait for this
//! process. The description names the running operations in all groups of the process. If no
//! operation runs, it names the time since the last operation ended. The service thread creates the
//! description from the flight recorder (the list of the last operations).
//!
//! This module does not depend on who requests the description or how it is transported.

use crate::api::observe::recorder::{self, EntryKind, EntrySnapshot};
use crate::base::ids::{GroupId, Rank};
use crate::base::sort::sort_by_key;
use crate::transport::heartbeat::{IDLE_ACTIVITY, NO_OPERATION_ACTIVITY};

/// The number of newest operations to scan. This is enough to find the running operations, and
/// cheap enough for every heartbeat.
const MAX_SCANNED_ENTRIES: usize = 256;

/// The maximum number of operations that a description names.
const MAX_NAMED_OPERATIONS: usize = 2;

/// Describes what this process does, without the collectives of one group, whose state the
/// requester knows. Empty if the process runs only a collective of this group.
pub fn describe_other_activity(group: GroupId) -> String {
    describe_operations(
        recorder::short_group_id(group),
        recorder::newest_entries(MAX_SCANNED_ENTRIES),
    )
}

/// Creates the description from a list of operations, which is ordered newest first.
fn describe_operations(group_id: u64, operations: impl Iterator<Item = EntrySnapshot>) -> String {
    let (mut under_way, mut last, mut is_in_group_collective) =
        (Vec::<EntrySnapshot>::new(), None::<EntrySnapshot>, false);
    for entry in operations {
        if entry.is_collective() && entry.is_under_way() && entry.group == group_id {
            is_in_group_collective = true;
        } else if entry.is_under_way() {
            // Collectives of one group run in the order of issue. So the oldest operation of each
            // queue is kept, because it is the running operation.
            under_way.retain(|known| known.queue_key() != entry.queue_key());
            under_way.push(entry);
        } else if last.as_ref().is_none_or(|last| last.ended_ns < entry.ended_ns) {
            last = Some(entry);
        }
    }
    sort_by_key(&mut under_way, |entry| (is_message(entry), entry.issued_ns));
    match (under_way.first(), last) {
        (Some(first), _) => {
            let named: Vec<String> =
                under_way.iter().take(MAX_NAMED_OPERATIONS).map(describe_operation).collect();
            let named = named.join(" and ");
            let more = match under_way.len().saturating_sub(MAX_NAMED_OPERATIONS) {
                0 => String::new(),
                more => format!(", and {more} more"),
            };
            match is_message(first) {
                false => format!("is in {named}{more}"),
                // A posted message does not mean that the process waits for it, so the text is
                // weaker.
                true => format!("has {named}{more} in progress"),
            }
        }
        (None, _) if is_in_group_collective => String::new(),
        (None, None) => NO_OPERATION_ACTIVITY.to_owned(),
        (None, Some(last)) => {
            let idle = last.ended_ago().as_secs_f64();
            let failed = last.failure().map(|kind| format!(", which failed ({kind:?})"));
            let failed = failed.unwrap_or_default();
            format!("{IDLE_ACTIVITY}{idle:.1} s, since {}{failed}", describe_operation(&last))
        }
    }
}

fn is_message(entry: &EntrySnapshot) -> bool {
    entry.kind() == EntryKind::Message
}

/// Returns a description of the oldest collective of this rank that is waiting or running and has a
/// sequence number below `sequence`. This collective blocks all later collectives of the group.
pub(super) fn find_earlier_running_collective(
    group: GroupId,
    rank: Rank,
    sequence: u64,
) -> Option<String> {
    let group = recorder::short_group_id(group);
    let is_earlier = |entry: &EntrySnapshot| {
        entry.is_under_way() && entry.is_collective() && entry.sequence() < sequence
    };
    let is_of_rank = |entry: &EntrySnapshot| (entry.group, entry.rank) == (group, rank as u64);
    let first = recorder::newest_entries(recorder::MAX_ENTRIES)
        .filter(|it| is_of_rank(it) && is_earlier(it))
        .last();
    first.map(|entry| entry.describe_operation())
}

/// Returns the name of an operation, for instance `barrier #3 of group pp (rank 1)`.
fn describe_operation(entry: &EntrySnapshot) -> String {
    let name = recorder::group_name(entry.group).unwrap_or_else(|| format!("{:016x}", entry.group));
    format!("{} of group {name} (rank {})", entry.describe_operation(), entry.rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::work::queue::RunQueue;
    use crate::backend::Backend;
    use crate::backend::solo::SingleRankBackend;
    use crate::base::error::{Error, ErrorKind};
    use crate::base::ids::Nonce;
    use crate::base::label::Label;
    use crate::store::HashStore;
    use crate::transport::{CountSpec, Descriptor, OpKind};
    use std::sync::Arc;

    fn barrier(sequence: u64) -> Descriptor {
        let (kind, extent) = (OpKind::Barrier, CountSpec::Count(0));
        Descriptor {
            kind,
            dtype: None,
            op: None,
            root: None,
            count_spec: extent,
            sequence,
            algorithm: 0,
            part: 0,
            label: Label::NONE,
        }
    }

    /// Describes the operations of the given groups, which only this test uses.
    fn describe_known_groups(here: GroupId, groups: &[GroupId]) -> String {
        let known: Vec<u64> = groups.iter().map(|&group| recorder::short_group_id(group)).collect();
        let operations = recorder::newest_entries(recorder::MAX_ENTRIES);
        describe_operations(
            recorder::short_group_id(here),
            operations.filter(|it| known.contains(&it.group)),
        )
    }

    #[test]
    fn running_operations_of_other_groups_are_named() {
        let (here, there) = (Nonce(*b"activity-here-00"), Nonce(*b"there-activity-0"));
        let groups = [here, there];
        let backend: Arc<dyn Backend> = Arc::new(SingleRankBackend::new());
        let membership = recorder::RecorderMembership::register(&recorder::NewGroup {
            id: there,
            name: "pp",
            rank: 0,
            global_ranks: &Arc::from([0]),
            parent: None,
            backend: &backend,
            history: &Arc::default(),
            queue: std::sync::Weak::<RunQueue>::new(),
            store: std::sync::Weak::<HashStore>::new(),
        });
        assert_eq!(describe_known_groups(here, &groups), "has started no operation yet");
        let origin = |group, rank| recorder::OperationOrigin {
            group,
            rank,
            issued_ns: recorder::recorder_now_ns(),
        };
        let own = recorder::begin_collective(
            recorder::RecorderSlot::reserve(),
            origin(here, 3),
            &barrier(1),
            true,
        );
        assert_eq!(describe_known_groups(here, &groups), "");
        let others = [7, 8].map(|sequence| {
            recorder::begin_collective(
                recorder::RecorderSlot::reserve(),
                origin(there, 1),
                &barrier(sequence),
                sequence == 7,
            )
        });
        assert_eq!(describe_known_groups(here, &groups), "is in barrier #7 of group pp (rank 1)");
        assert!(
            describe_known_groups(there, &groups)
                .starts_with("is in barrier #1 of group 6163746976697479")
        );
        assert_eq!(find_earlier_running_collective(there, 1, 7), None);
        assert_eq!(find_earlier_running_collective(there, 1, 9).as_deref(), Some("barrier #7"));
        for record in others {
            record.end(&Err(Error::new(ErrorKind::Timeout, "late")));
        }
        assert_eq!(describe_known_groups(here, &groups), "");
        own.end(&Ok(()));
        let idle = describe_known_groups(there, &groups);
        assert!(idle.starts_with("has been idle for 0."), "{idle}");
        let origin = origin(there, 1);
        let monitored = recorder::begin_monitored_barrier(origin, 2, 100);
        let text = "is in monitored_barrier #2 of group pp (rank 1)";
        assert_eq!(describe_known_groups(there, &groups), text);
        assert_eq!(find_earlier_running_collective(there, 1, 9), None);
        monitored.end(&Ok(()));
        drop(membership);
    }
}
