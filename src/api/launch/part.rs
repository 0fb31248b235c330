//! What one group has in a batch of operations that are enqueued: its collectives, which take a
//! turn of its queue, and its messages.

use crate::api::call::{Call, CallOptions};
use crate::api::group::Group;
use crate::api::issue::{Enqueued, Prepared};
use crate::api::placement::OnDevice;
use crate::api::queue::Turn;
use crate::api::recorder::{self, Record};
use crate::api::work::{Held, Work};
use crate::backend::{DeviceMessage, Enqueuer, Operation};
use crate::base::deadline::{Deadline, LateDeadline};
use crate::base::error::{Error, Result};
use crate::base::gpu::Launch;
use crate::transport::{Completion, Delivery, Descriptor};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A collective, with its entry in the recorder once it has a number.
#[derive(Debug)]
struct Collective {
    call: Call<'static>,
    options: CallOptions,
    work: Arc<Work>,
    record: Option<Record>,
}

/// What one group has. Its works end once, by [`Part::finish`] or [`give_up`].
#[derive(Debug)]
pub(super) struct Part {
    group: Arc<Group>,
    collectives: Vec<Collective>,
    messages: Vec<OnDevice>,
    /// The shortest of its calls'.
    deadline: Deadline,
    /// The number of the first collective.
    first: u64,
}

impl Part {
    pub(super) fn of(group: &Arc<Group>) -> Self {
        let (collectives, messages) = (Vec::new(), Vec::new());
        Self {
            group: Arc::clone(group),
            collectives,
            messages,
            deadline: Deadline::never(),
            first: 0,
        }
    }

    /// Adds a call of its group that is enqueued; another one ends with an error.
    pub(super) fn add(&mut self, call: Prepared) {
        call.lend();
        let deadline = call.own_deadline();
        if deadline.allowed() < self.deadline.allowed() {
            self.deadline = deadline;
        }
        match call.into_enqueued() {
            Ok(Enqueued::Collective(call, options, work)) => {
                self.collectives.push(Collective { call, options, work, record: None });
            }
            Ok(Enqueued::Message(message)) => self.messages.push(message),
            Err(work) => work.end(Err(Error::internal("a call that is not enqueued was to be"))),
        }
    }

    /// Counts its works as begun; where there are too many, they have ended with that.
    pub(super) fn begin(self) -> Option<Self> {
        let works = self.works();
        for begun in 0..works.len() {
            if let Err(error) = self.group.queue.work_begins() {
                give_up(&self.group, &works, begun, &error);
                return None;
            }
        }
        Some(self)
    }

    pub(super) fn works(&self) -> Vec<Arc<Work>> {
        let collectives = self.collectives.iter().map(|it| &it.work);
        collectives.chain(self.messages.iter().map(|it| &it.work)).map(Arc::clone).collect()
    }

    /// How many numbers of its queue it needs; none without collectives.
    pub(super) fn turns(&self) -> u64 {
        self.collectives.len() as u64
    }

    pub(super) fn group(&self) -> &Arc<Group> {
        &self.group
    }

    pub(super) fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    pub(super) fn enqueuer(&self) -> Option<Enqueuer<'_>> {
        self.group.backend.enqueuer()
    }

    /// It has its place in the queue: the number of its first collective.
    pub(super) fn issued(&mut self, first: u64) {
        let Self { group, collectives, messages, deadline, .. } = self;
        self.first = first;
        for (collective, sequence) in collectives.iter_mut().zip(first..) {
            let descriptor = collective.call.descriptor(sequence, collective.options.label);
            collective.work.issued(sequence, *deadline);
            collective.record = Some(group.record(&descriptor, deadline.started(), false));
        }
        for message in messages {
            let sequence = group.messages_issued.fetch_add(1, Ordering::Relaxed) + 1;
            if let Ok(about) = message.message() {
                let record =
                    group.record_message(&about, sequence, recorder::at_ns(deadline.started()));
                message.work.hold(Held { group: Arc::clone(group), record });
            }
            message.work.issued(sequence, *deadline);
        }
    }

    /// Looks whether all ranks have come to each of its collectives, where its group does so.
    pub(super) fn presence(&self) -> Option<impl FnOnce() -> Result<()> + Send + 'static> {
        if !self.group.looks_who_is_there {
            return None;
        }
        let (group, deadline) = (Arc::clone(&self.group), self.deadline);
        let descriptors: Vec<Descriptor> = self.numbered().map(|(_, it)| it).collect();
        Some(move || descriptors.iter().try_for_each(|it| group.await_presence(it, &deadline)))
    }

    /// Its collectives as its back end sees them; they begin.
    pub(super) fn operations<'p>(&'p self, deadline: &'p LateDeadline) -> Vec<Operation<'p>> {
        let operation = |(of, descriptor): (&'p Collective, Descriptor)| {
            of.record.iter().for_each(Record::runs);
            let called = (self.group.name(), deadline);
            let mut operation =
                of.call.operation(descriptor, &of.options, called, &self.group.observer);
            operation.launch = of.call.launch(of.work.flight(), None);
            operation
        };
        self.numbered().map(operation).collect()
    }

    /// Its messages as its back end sees them.
    pub(super) fn messages(&self) -> Result<Vec<(DeviceMessage<'static>, Launch<'_>)>> {
        let launched = self.messages.iter().map(|it| {
            let launch = Launch { gpu: it.gpu, flight: it.work.flight(), ready: None };
            Ok((it.describe()?, launch))
        });
        launched.collect()
    }

    /// Its deadline has passed before its turn, or before that of another part: fails its group.
    pub(super) fn overtaken(&self) -> Error {
        match self.numbered().next() {
            Some((_, descriptor)) => self.group.overtaken(&descriptor, &self.deadline),
            None => Error::internal("messages have no turn to wait for"),
        }
    }

    /// Ends its works, and the turn that it has had.
    pub(super) fn finish(mut self, outcome: &Result<()>, turn: Option<Turn<'_>>) {
        if let Err(error) = outcome {
            recorder::look_for_failures();
            self.group.note(error);
        }
        let mut ended = Vec::with_capacity(self.collectives.len());
        for (place, collective) in std::mem::take(&mut self.collectives).into_iter().enumerate() {
            let Collective { call, options, work, record, .. } = collective;
            record.into_iter().for_each(|record| record.end(outcome));
            let title = call.descriptor(self.first + place as u64, options.label);
            let context = || format!("{title} on {}", self.group.whom());
            let explain = |error: Error| self.group.identify(error.context(context()));
            ended.push((work, outcome.clone().map_err(explain)));
        }
        for message in std::mem::take(&mut self.messages) {
            let peer = message.message().ok().and_then(|it| it.peer).unwrap_or(0);
            let delivery = Delivery { peer, tag: 0, bytes: message.bytes().len() };
            message.work.complete(outcome.clone().map(|()| delivery));
        }
        turn.into_iter().for_each(Turn::end_silently);
        // Before the works end: whoever waits for one may count on the group not being kept by it.
        drop(self.group);
        ended.into_iter().for_each(|(work, outcome)| work.end(outcome.map(|()| None)));
    }

    fn numbered(&self) -> impl Iterator<Item = (&Collective, Descriptor)> {
        let numbered = self.collectives.iter().zip(self.first..);
        let descriptor = |of: &Collective, number| of.call.descriptor(number, of.options.label);
        numbered.map(move |(collective, number)| (collective, descriptor(collective, number)))
    }
}

/// Ends works that were not issued, of which so many were counted as begun.
pub(super) fn give_up(group: &Group, works: &[Arc<Work>], begun: usize, why: &Error) {
    (0..begun).for_each(|_| group.queue.work_ends());
    works.iter().for_each(|work| work.end(Err(why.clone())));
}
