//! From a call to a work: operations that are checked first and issued later, and the job that a collective leaves in
//! its group's queue.

use super::call::{Call, CallOptions};
use super::group::Group;
use super::point_to_point::Memory;
use super::queue::{Job, Turn};
use super::recorder::{self, Record};
use super::work::{Work, WorkKind};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::transport::Descriptor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// An operation that has been checked and not been issued. Its buffers are lent from now until its work ends.
#[derive(Debug)]
pub struct Prepared {
    group: Arc<Group>,
    what: What,
    options: CallOptions,
    work: Arc<Work>,
}

#[derive(Debug)]
enum What {
    Collective(Call<'static>),
    Message(Memory),
}

impl Prepared {
    pub(super) fn message(
        group: Arc<Group>,
        memory: Memory,
        options: CallOptions,
        work: Arc<Work>,
    ) -> Self {
        Self { group, what: What::Message(memory), options, work }
    }

    /// Its group.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Its work.
    pub fn work(&self) -> &Arc<Work> {
        &self.work
    }

    /// Issues it; its deadline begins.
    ///
    /// # Errors
    /// `OutOfMemory`, `System`; the group's failure, for a message. Then it was not issued.
    pub fn issue(self) -> Result<()> {
        let deadline = self.group.deadline(&self.options);
        match self.what {
            What::Message(memory) => self.group.post(memory, deadline, &self.work),
            What::Collective(call) => {
                let Self { group, options, work, .. } = self;
                issue_collective(group, call, options, deadline, work)
            }
        }
    }

    /// Ends its work without having issued it.
    pub(super) fn give_up(&self, why: Error) {
        self.work.end(Err(why));
    }

    /// In a batch: receives go before sends, so that nobody's buffer is missing, and both before collectives, for
    /// which one waits longer.
    pub(super) fn place_in_batch(&self) -> u8 {
        match self.what {
            What::Message(Memory::In(_)) => 0,
            What::Message(Memory::Out(_)) => 1,
            What::Collective(_) => 2,
        }
    }
}

impl Group {
    /// Checks a collective that will be issued.
    ///
    /// # Errors
    /// `InvalidArgument`, `Unsupported`.
    pub fn prepare(
        self: &Arc<Self>,
        call: Call<'static>,
        options: CallOptions,
    ) -> Result<Prepared> {
        self.check_call(&call, &options)?;
        let work = Work::new(WorkKind::Collective(call.kind()), Arc::clone(&self.queue));
        let group = Arc::clone(self);
        Ok(Prepared { group, what: What::Collective(call), options, work })
    }

    /// Issues a collective and returns at once. It runs in its turn, on a thread that waits for it or for another
    /// operation of the group, or on the group's worker.
    ///
    /// # Errors
    /// `InvalidArgument`, `Unsupported`, `OutOfMemory` where too many are outstanding, `System` where no worker can be
    /// started; then nothing has been issued. What happens later is the work's to tell.
    pub fn issue(self: &Arc<Self>, call: Call<'static>, options: CallOptions) -> Result<Arc<Work>> {
        let prepared = self.prepare(call, options)?;
        let work = Arc::clone(prepared.work());
        prepared.issue()?;
        Ok(work)
    }
}

fn issue_collective(
    group: Arc<Group>,
    call: Call<'static>,
    options: CallOptions,
    deadline: Deadline,
    work: Arc<Work>,
) -> Result<()> {
    let queue = Arc::clone(&group.queue);
    queue.work_begins()?;
    let enqueued = queue.enqueue(|ticket| {
        let descriptor = call.descriptor(ticket.sequence());
        work.issued(ticket.sequence(), deadline);
        let record = recorder::begin(group.id(), group.rank(), &descriptor);
        Box::new(Collective { group, call, options, deadline, descriptor, record, work })
    });
    enqueued.inspect_err(|_| queue.work_ends())
}

/// A collective that waits for its turn.
#[derive(Debug)]
struct Collective {
    group: Arc<Group>,
    call: Call<'static>,
    options: CallOptions,
    deadline: Deadline,
    descriptor: Descriptor,
    record: Record,
    work: Arc<Work>,
}

impl Collective {
    fn finish(self, outcome: Result<()>, turn: Option<Turn<'_>>) {
        let Self { group, descriptor, record, work, .. } = self;
        record.end(&outcome);
        let outcome = outcome
            .map_err(|error| error.context(format_args!("{descriptor} on {}", group.whom())));
        if let Some(turn) = turn {
            turn.end_silently();
        }
        // Before the work ends: whoever waits for that may count on the group not being kept by it.
        drop(group);
        work.end(outcome.map(|()| None));
    }
}

impl Job for Collective {
    fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    fn failure(&self) -> Option<Error> {
        self.group.failure()
    }

    fn run(self: Box<Self>, turn: Turn<'_>) {
        let operation = self.call.operation(self.descriptor, &self.options, &self.deadline);
        let backend = &self.group.backend;
        let outcome = catch_unwind(AssertUnwindSafe(|| backend.run(&operation)));
        let outcome = outcome.unwrap_or_else(|_| {
            let error =
                Error::internal("a defect in libdist, please report it: a panic in the operation");
            self.group.fail(&error);
            Err(error)
        });
        self.finish(outcome, Some(turn));
    }

    fn overtaken(self: Box<Self>) {
        let error = self.group.overtaken(&self.descriptor, &self.deadline);
        self.finish(Err(error), None);
    }

    fn fail(self: Box<Self>, cause: &Error) {
        self.finish(Err(cause.clone()), None);
    }
}
