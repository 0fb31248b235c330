//! How often the errors of a run name the right culprit.

use dist::ffi::types::{
    DIST_CULPRIT_DIED, DIST_CULPRIT_LATE, DIST_CULPRIT_LEFT, DIST_CULPRIT_STOPPED,
    DIST_CULPRIT_UNREACHABLE,
};

/// The kinds of culprits that blame a rank for a fault.
pub(crate) const BLAMING_KINDS: [i32; 5] = [
    DIST_CULPRIT_DIED,
    DIST_CULPRIT_LEFT,
    DIST_CULPRIT_UNREACHABLE,
    DIST_CULPRIT_STOPPED,
    DIST_CULPRIT_LATE,
];

/// The number of reports about a single fault that name a rank at fault.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CulpritCount {
    /// The first errors of ranks that are not at fault, in steps that do not need the store.
    pub(crate) reports: u64,
    pub(crate) right: u64,
}

impl CulpritCount {
    pub(crate) fn add(&mut self, more: Self) {
        self.reports += more.reports;
        self.right += more.right;
    }
}
