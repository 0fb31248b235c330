//! A batch of operations that are enqueued, some of which have others of their group before them:
//! each part is a job of its group's queue, and keeps its turn until all have theirs. Then one of
//! the threads enqueues for all.
//!
//! Whoever runs such a job waits with it, so that the group's failure and the deadline end it as
//! they end any other. No two batches wait for each other (see [`super`]), and each queue has a
//! worker of its own, so that no job waits for a thread.

use super::part::{Part, give_up};
use super::{enqueue, take_places};
use crate::api::group::Group;
use crate::api::queue::{Job, Turn};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::process::thread;
use crate::wait::bell::Bell;
use crate::wait::{Interrupt, Pace, until};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a thread whose part has failed waits for the one that is enqueueing it, which looks at
/// the same failure.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where a part is.
#[derive(Debug)]
enum Place {
    /// Its turn has not come.
    Coming,
    /// Here, with its turn.
    Here(Part),
    /// With the thread that enqueues.
    Away,
    /// Enqueued, or not, with the reason.
    Back(Part, Result<()>),
    /// It is none of it any more.
    Gone,
}

/// All parts.
#[derive(Debug)]
struct Joint {
    places: Mutex<Vec<Place>>,
    bell: Bell,
}

/// A part in its queue. It has the part until its turn comes.
#[derive(Debug)]
struct JointJob {
    joint: Arc<Joint>,
    place: usize,
    part: Part,
}

/// What a thread with a part finds.
enum Found {
    /// All have come, and it is to enqueue these.
    Lead(Vec<(usize, Part)>),
    Back(Part, Result<()>),
}

/// Leaves the parts in their queues. What cannot be left there ends its works with the reason.
pub(super) fn issue(parts: Vec<Part>) {
    let places = parts.iter().map(|_| Place::Coming).collect();
    let joint = Arc::new(Joint { places: Mutex::new(places), bell: Bell::default() });
    let (mut queued, mut idle) = (Vec::with_capacity(parts.len()), Vec::new());
    for (place, part) in parts.into_iter().enumerate() {
        if part.turns() > 0 { queued.push((place, part)) } else { idle.push((place, part)) }
    }
    // First, so that whoever leaves last finds them.
    for (place, mut part) in idle {
        // Messages wait for nothing of their own; whoever enqueues ends their works.
        part.issued(0);
        joint.put(place, Place::Here(part));
    }
    take_places(queued.len() > 1, || {
        queued.into_iter().for_each(|(place, part)| joint.enqueue(place, part));
    });
}

impl Joint {
    fn enqueue(self: &Arc<Self>, place: usize, mut part: Part) {
        let (group, works) = (Arc::clone(part.group()), part.works());
        let joint = Arc::clone(self);
        let enqueued = group.queue.enqueue_several(part.turns(), move |ticket| {
            part.issued(ticket.sequence());
            Box::new(JointJob { joint, place, part })
        });
        if let Err(error) = enqueued {
            self.leave(place);
            give_up(&group, &works, works.len(), &error);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, place: usize, what: Place) {
        self.lock()[place] = what;
        self.bell.ring();
    }

    /// A part will not come, or not any more. Those that wait for nothing are enqueued where nobody
    /// else is left to do it, by a thread of their own: this one may be anybody's.
    fn leave(self: &Arc<Self>, place: usize) {
        let mut places = self.lock();
        places[place] = Place::Gone;
        let is_left = |place: &Place| match place {
            Place::Gone => true,
            Place::Here(part) => part.turns() == 0,
            _ => false,
        };
        let left = match places.iter().all(is_left) {
            true => take_all(&mut places),
            false => Vec::new(),
        };
        drop(places);
        self.bell.ring();
        if left.is_empty() {
            return;
        }
        let joint = Arc::clone(self);
        let parts: Vec<_> =
            left.iter().map(|(_, part)| (Arc::clone(part.group()), part.works())).collect();
        if let Err(error) = thread::start("dist-launch", move || joint.lead(left)) {
            for (group, works) in parts {
                group.fail(&error);
                works.iter().for_each(|work| work.end(Err(error.clone())));
            }
        }
    }

    /// What is to be done for a part that is here, if anything.
    fn look(&self, mine: usize, may_lead: bool) -> Option<Found> {
        let mut places = self.lock();
        if let Place::Back(..) = places[mine]
            && let Place::Back(part, outcome) = std::mem::replace(&mut places[mine], Place::Gone)
        {
            return Some(Found::Back(part, outcome));
        }
        let is_ready = |place: &Place| matches!(place, Place::Here(_) | Place::Gone);
        let is_here = may_lead && matches!(places[mine], Place::Here(_));
        if !is_here || !places.iter().all(is_ready) {
            return None;
        }
        Some(Found::Lead(take_all(&mut places)))
    }

    /// Takes a part back that nobody has begun to enqueue.
    fn withdraw(self: &Arc<Self>, mine: usize) -> Option<Part> {
        let mut places = self.lock();
        let taken = std::mem::replace(&mut places[mine], Place::Gone);
        let Place::Here(part) = taken else {
            places[mine] = taken;
            return None;
        };
        drop(places);
        self.leave(mine);
        Some(part)
    }

    /// Enqueues for all, and gives each thread its part back.
    fn lead(&self, parts: Vec<(usize, Part)>) {
        let parts = self.give_back_failed(parts);
        let outcomes = enqueue(&parts.iter().map(|(_, part)| part).collect::<Vec<_>>());
        let mut messages = Vec::new();
        let mut places = self.lock();
        for ((place, part), outcome) in parts.into_iter().zip(outcomes) {
            if part.turns() == 0 {
                places[place] = Place::Gone;
                messages.push((part, outcome));
            } else {
                places[place] = Place::Back(part, outcome);
            }
        }
        drop(places);
        self.bell.ring();
        messages.into_iter().for_each(|(part, outcome)| part.finish(&outcome, None));
    }

    /// Gives the parts of groups that have failed back to their threads, before anything is waited
    /// for.
    fn give_back_failed(&self, parts: Vec<(usize, Part)>) -> Vec<(usize, Part)> {
        let mut left = Vec::with_capacity(parts.len());
        let mut places = self.lock();
        for (place, part) in parts {
            match part.group().failure().filter(|_| part.turns() > 0) {
                Some(failure) => places[place] = Place::Back(part, Err(failure)),
                None => left.push((place, part)),
            }
        }
        drop(places);
        self.bell.ring();
        left
    }

    /// Waits, with a part that is here, until it has been enqueued.
    fn carry_out(
        self: &Arc<Self>,
        mine: usize,
        group: &Group,
        deadline: &Deadline,
    ) -> (Part, Result<()>) {
        loop {
            // What enqueues may wait for other ranks, for which the works of a group that has
            // failed do not.
            let look = || self.look(mine, group.failure().is_none());
            let interrupt =
                match until(&self.bell, Pace::PATIENT, deadline, || group.failure(), look) {
                    Ok(Found::Lead(parts)) => {
                        self.lead(parts);
                        continue;
                    }
                    Ok(Found::Back(part, outcome)) => return (part, outcome),
                    Err(interrupt) => interrupt,
                };
            if let Some(part) = self.withdraw(mine) {
                let error = match interrupt {
                    Interrupt::Halted(error) => error,
                    Interrupt::Deadline => part.overtaken(),
                };
                return (part, Err(error));
            }
            // It is being enqueued, which ends by the same failure or deadline.
            let limit = Deadline::after(PATIENCE);
            let is_back = || matches!(self.lock()[mine], Place::Back(..)).then_some(());
            if until(&self.bell, Pace::PATIENT, &limit, || None, is_back).is_err() {
                crate::log!(
                    crate::base::log::Level::Error,
                    "operations of {} are still being enqueued after its failure",
                    group.whom()
                );
            }
        }
    }
}

/// All parts that are here; they are away then.
fn take_all(places: &mut [Place]) -> Vec<(usize, Part)> {
    let mut all = Vec::with_capacity(places.len());
    for (place, slot) in places.iter_mut().enumerate() {
        match std::mem::replace(slot, Place::Away) {
            Place::Here(part) => all.push((place, part)),
            other => *slot = other,
        }
    }
    all
}

impl Job for JointJob {
    fn deadline(&self) -> &Deadline {
        self.part.deadline()
    }

    fn failure(&self) -> Option<Error> {
        self.part.group().failure()
    }

    fn run(self: Box<Self>, turn: Turn<'_>) {
        let Self { joint, place, part } = *self;
        let (group, deadline) = (Arc::clone(part.group()), *part.deadline());
        joint.put(place, Place::Here(part));
        let (part, outcome) = joint.carry_out(place, &group, &deadline);
        drop(group);
        part.finish(&outcome, Some(turn));
    }

    fn overtaken(self: Box<Self>) {
        let error = self.part.overtaken();
        self.fail(&error);
    }

    fn fail(self: Box<Self>, cause: &Error) {
        let Self { joint, place, part } = *self;
        joint.leave(place);
        part.finish(&Err(cause.clone()), None);
    }
}
