//! The departure of this process from its groups when the process ends without `dist_finalize` and
//! `dist_group_release`, but in order: `main` has returned, or the program has called `exit`.
//!
//! The other ranks then see a rank that has left, and not one that has died: the data that it has
//! sent stays valid, and only calls that need it fail. The departure takes some milliseconds, and
//! [`TIME_LIMIT`] at most. It calls no function of the program, whose objects may be destroyed.

use crate::api::group::process_group::Group;
use crate::api::runtime;
use crate::backend;
use crate::base::deadline::Deadline;
use crate::base::log;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

/// The time that pending works have to end, and the time limit of the requests to the store.
const TIME_LIMIT: Duration = Duration::from_millis(100);

/// Returns whether this process is in a group that it must leave when it ends. Takes no lock.
pub fn has_groups_to_leave() -> bool {
    backend::has_open_domains()
}

/// Leaves all groups of this process. `groups` has the groups whose handles the program has not
/// released; the world may be among them.
///
/// A group that another thread still uses cannot be released. This rank only leaves the memory that
/// it shares with the ranks of its host in that group. Calls of these ranks that need this rank
/// then fail.
pub fn leave_all_groups(groups: Vec<Arc<Group>>) {
    log::disable_sink();
    let deadline = Deadline::after(TIME_LIMIT);
    // Messages and results of works that end at once still reach the other ranks.
    groups.iter().filter(|group| group.failure().is_none()).for_each(|group| {
        group.wait_for_works(&deadline);
    });
    runtime::leave_world_at_exit(&Deadline::after(TIME_LIMIT));
    let (releasable, others): (Vec<_>, Vec<_>) =
        groups.into_iter().partition(|group| group.backend.properties().is_releasable_at_exit);
    // The libraries of the other back ends may be unusable now, so their groups are not released.
    let _kept = ManuallyDrop::new(others);
    drop(releasable);
    backend::leave_shared_memory();
}
