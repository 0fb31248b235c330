//! The ear of one blocking call: hears of its operation for the group's observer, and keeps its
//! entry in the recorder.
//!
//! The entry is made when the operation begins. A back end may say that only once the others have
//! what they wait for of this rank, so that it is made while theirs is on its way; whatever waits
//! for long has begun.

use super::group::Group;
use super::recorder::{Place, Record};
use crate::base::deadline::LateDeadline;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::label::LabelledName;
use crate::base::probe::Probe;
use crate::transport::Descriptor;
use std::cell::{Cell, OnceCell};
use std::time::{Duration, Instant};

/// The entry of a call, once it has begun, and the place that is its own.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) place: Place,
    pub(super) record: Option<Record>,
}

/// The ear of one call.
#[derive(Debug)]
pub(super) struct Ear<'a> {
    group: &'a Group,
    descriptor: &'a Descriptor,
    deadline: &'a LateDeadline,
    place: Place,
    record: OnceCell<Record>,
    /// It has had its turn at once, and has not waited for long in it.
    was_short: Cell<bool>,
    has_waited: Cell<bool>,
}

impl<'a> Ear<'a> {
    /// Of a call that is issued now.
    pub(super) fn new(
        group: &'a Group,
        descriptor: &'a Descriptor,
        deadline: &'a LateDeadline,
    ) -> Self {
        Self::with(group, descriptor, deadline, Entry { place: Place::take(), record: None })
    }

    /// Of one that has an entry, or a place for it.
    pub(super) fn with(
        group: &'a Group,
        descriptor: &'a Descriptor,
        deadline: &'a LateDeadline,
        Entry { place, record }: Entry,
    ) -> Self {
        let record = record.map_or_else(OnceCell::new, OnceCell::from);
        let (was_short, has_waited) = (Cell::new(false), Cell::new(false));
        Self { group, descriptor, deadline, place, record, was_short, has_waited }
    }

    fn record(&self) -> &Record {
        self.record.get_or_init(|| {
            let (issued, runs) = (self.deadline.begun().started(), !self.has_waited.get());
            let record = self.group.record_at(self.place, self.descriptor, issued, runs);
            if runs {
                record.runs();
            }
            record
        })
    }

    /// Its turn has not come yet.
    #[cold]
    pub(super) fn waits_for_turn(&self) {
        self.has_waited.set(true);
        self.record();
    }

    /// Its turn has come. It is noted at once where something is waited for before the back end has
    /// it.
    pub(super) fn runs(&self, is_noted: bool) {
        if is_noted {
            self.record();
        }
        if let Some(record) = self.record.get() {
            record.runs();
        }
    }

    /// The operation has ended.
    pub(super) fn end(self, outcome: &Result<()>) {
        self.record();
        let Some(record) = self.record.into_inner() else { return };
        match self.was_short.get() && !self.has_waited.get() {
            true => record.end_at_once(outcome),
            false => record.end(outcome),
        }
    }
}

impl Probe for Ear<'_> {
    fn wants_all(&self) -> bool {
        self.group.observer.wants_all()
    }

    fn begins(&self, algorithm: &'static str) {
        self.record();
        self.group.observer.begins(algorithm);
    }

    fn was_short(&self) {
        self.was_short.set(true);
    }

    fn waited(&self, rank: Rank, began: Instant, ended: Instant) {
        self.group.observer.waited(rank, began, ended);
    }

    fn late(&self, operation: LabelledName, rank: Rank, by: Duration, alone: Duration) {
        self.group.observer.late(operation, rank, by, alone);
    }

    fn latest(&self) -> Option<(Rank, Duration)> {
        self.group.observer.latest()
    }
}
