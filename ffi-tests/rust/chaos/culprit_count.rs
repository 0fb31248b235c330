//! How often the errors of a run name the right culprit.

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
