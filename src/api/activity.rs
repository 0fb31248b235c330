//! What this process is doing, in a few words, for the messages of those that wait for it: what is
//! under way on any of its groups, or since when nothing is. It is read out of the flight recorder,
//! by the service thread.
//!
//! Must not know: who asks, and how words travel.

use super::recorder::{self, Glance};
use crate::base::ids::{GroupId, Rank};

/// How many of the newest operations are looked at: enough to find what is under way, and little
/// for every beat.
const LOOK_BACK: usize = 256;

/// How many operations are named.
const NAMED: usize = 2;

/// What this process does beside the collectives of a group; empty where that is all it does.
pub fn elsewhere(group: GroupId) -> String {
    describe(recorder::short(group), recorder::newest(LOOK_BACK))
}

/// The same of these operations, the newest first.
fn describe(here: u64, operations: impl Iterator<Item = Glance>) -> String {
    let (mut under_way, mut last, mut is_here) = (Vec::<Glance>::new(), None::<Glance>, false);
    for glance in operations {
        if glance.is_collective() && glance.is_under_way() && glance.group == here {
            is_here = true;
        } else if glance.is_under_way() {
            // Of several on one group the one that was issued first is the one that runs.
            under_way.retain(|known| known.queue() != glance.queue());
            under_way.push(glance);
        } else if last.as_ref().is_none_or(|last| last.ended_ns < glance.ended_ns) {
            last = Some(glance);
        }
    }
    under_way.sort_by_key(|glance| (!glance.is_collective(), glance.issued_ns));
    match (under_way.first(), last) {
        (Some(first), _) => {
            let named: Vec<String> = under_way.iter().take(NAMED).map(title).collect();
            let named = named.join(" and ");
            let more = match under_way.len().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!(", and {more} more"),
            };
            match first.is_collective() {
                true => format!("is in {named}{more}"),
                // Those may have been posted for later.
                false => format!("has {named}{more} under way"),
            }
        }
        (None, _) if is_here => String::new(),
        (None, None) => "has been in no operation yet".to_owned(),
        (None, Some(last)) => {
            let idle = last.ended_ago().as_secs_f64();
            let failed = last.failure().map(|kind| format!(", which failed ({kind:?})"));
            let failed = failed.unwrap_or_default();
            format!("has been in no operation for {idle:.1} s, since {}{failed}", title(&last))
        }
    }
}

/// The collective of this rank that those behind it wait for, where one before `sequence` is under
/// way.
pub(super) fn ahead(group: GroupId, rank: Rank, sequence: u64) -> Option<String> {
    let group = recorder::short(group);
    let is_ahead = |glance: &Glance| {
        glance.is_under_way() && glance.is_collective() && glance.sequence() < sequence
    };
    let on_it = |glance: &Glance| (glance.group, glance.rank) == (group, rank as u64);
    let first = recorder::newest(recorder::ENTRIES).filter(|it| on_it(it) && is_ahead(it)).last();
    first.map(|glance| glance.operation())
}

/// For instance `barrier #3 of group pp (rank 1)`.
fn title(glance: &Glance) -> String {
    let name = recorder::name_of(glance.group).unwrap_or_else(|| format!("{:016x}", glance.group));
    format!("{} of group {name} (rank {})", glance.operation(), glance.rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;
    use crate::backend::solo::Solo;
    use crate::base::error::{Error, ErrorKind};
    use crate::base::ids::Nonce;
    use crate::base::label::Label;
    use crate::transport::{Descriptor, Extent, OpKind};
    use std::sync::Arc;

    fn barrier(sequence: u64) -> Descriptor {
        let (kind, extent) = (OpKind::Barrier, Extent::Count(0));
        Descriptor {
            kind,
            dtype: None,
            op: None,
            root: None,
            extent,
            sequence,
            algorithm: 0,
            part: 0,
            label: Label::NONE,
        }
    }

    /// What the operations of some groups that tests alone have say.
    fn of(here: GroupId, groups: &[GroupId]) -> String {
        let known: Vec<u64> = groups.iter().map(|&group| recorder::short(group)).collect();
        let operations = recorder::newest(recorder::ENTRIES);
        describe(recorder::short(here), operations.filter(|it| known.contains(&it.group)))
    }

    #[test]
    fn what_is_under_way_elsewhere_is_named_and_where() {
        let (here, there) = (Nonce(*b"activity-here-00"), Nonce(*b"there-activity-0"));
        let groups = [here, there];
        let backend: Arc<dyn Backend> = Arc::new(Solo::new());
        let membership = recorder::Membership::of(&recorder::New {
            id: there,
            name: "pp",
            rank: 0,
            global_ranks: &[0],
            parent: None,
            backend: &backend,
        });
        assert_eq!(of(here, &groups), "has been in no operation yet");
        let origin = |group, rank| recorder::Origin { group, rank, at_ns: recorder::now_ns() };
        let own = recorder::begin(recorder::Place::take(), origin(here, 3), &barrier(1), true);
        assert_eq!(of(here, &groups), "");
        let others = [7, 8].map(|sequence| {
            recorder::begin(
                recorder::Place::take(),
                origin(there, 1),
                &barrier(sequence),
                sequence == 7,
            )
        });
        assert_eq!(of(here, &groups), "is in barrier #7 of group pp (rank 1)");
        assert!(of(there, &groups).starts_with("is in barrier #1 of group 6163746976697479"));
        assert_eq!(ahead(there, 1, 7), None);
        assert_eq!(ahead(there, 1, 9).as_deref(), Some("barrier #7"));
        for record in others {
            record.end(&Err(Error::new(ErrorKind::Timeout, "late")));
        }
        assert_eq!(of(here, &groups), "");
        own.end(&Ok(()));
        let idle = of(there, &groups);
        assert!(idle.starts_with("has been in no operation for 0."), "{idle}");
        drop(membership);
    }
}
