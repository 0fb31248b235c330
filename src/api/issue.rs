//! From a call to a work: operations that are checked first and issued later, and the job that an
//! operation leaves in its group's queue.

use super::bytes::{BytesCall, BytesTask, Deliver};
use super::call::{Call, CallOptions};
use super::debug::loans;
use super::group::Group;
use super::launch;
use super::operator::{OperatorCall, OperatorTask};
use super::placement::OnDevice;
use super::point_to_point::{Memory, Noted};
use super::queue::{Job, Turn};
use super::recorder::{self, Record};
use super::work::{Work, WorkKind};
use crate::base::buffer::Src;
use crate::base::deadline::{Deadline, LateDeadline};
use crate::base::error::{Error, Result};
use crate::base::gpu::{Gpu, Mark};
use crate::transport::Descriptor;
use std::fmt::Debug;
use std::sync::Arc;

/// An operation that has been checked and not been issued. Its buffers are lent from now until its
/// work ends.
#[derive(Debug)]
pub struct Prepared {
    group: Arc<Group>,
    what: What,
    options: CallOptions,
    work: Arc<Work>,
    /// Of a message that has tried to go without a work.
    noted: Option<Noted>,
}

#[derive(Debug)]
enum What {
    Collective(Call<'static>),
    Bytes(BytesCall<'static>, Deliver),
    Operator(OperatorCall<'static>),
    Message(Memory),
    /// One in the memory of a device.
    OnDevice(Memory, Gpu),
}

/// One that is enqueued on a device, with its work.
#[derive(Debug)]
pub(super) enum Enqueued {
    Collective(Call<'static>, CallOptions, Arc<Work>),
    Message(OnDevice),
}

impl Prepared {
    pub(super) fn message(
        group: Arc<Group>,
        (memory, gpu): (Memory, Option<Gpu>),
        options: CallOptions,
        work: Arc<Work>,
    ) -> Self {
        let what = match gpu {
            None => What::Message(memory),
            Some(gpu) => What::OnDevice(memory, gpu),
        };
        Self { group, what, options, work, noted: None }
    }

    /// A message that was noted already.
    #[must_use]
    pub fn with_note(self, noted: Option<Noted>) -> Self {
        Self { noted, ..self }
    }

    pub(super) fn bytes(
        group: Arc<Group>,
        call: BytesCall<'static>,
        options: CallOptions,
        deliver: Deliver,
    ) -> Self {
        let work = Work::new(WorkKind::Collective(call.kind()), Arc::clone(&group.queue));
        Self { group, what: What::Bytes(call, deliver), options, work, noted: None }
    }

    pub(super) fn operator(
        group: Arc<Group>,
        call: OperatorCall<'static>,
        options: CallOptions,
        work: Arc<Work>,
    ) -> Self {
        Self { group, what: What::Operator(call), options, work, noted: None }
    }

    /// Its group.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Its work.
    pub fn work(&self) -> &Arc<Work> {
        &self.work
    }

    /// Where it goes, if its buffers lie on a device.
    pub(super) fn gpu(&self) -> Option<Gpu> {
        match &self.what {
            What::Collective(call) => call.gpu(),
            What::OnDevice(_, gpu) => Some(*gpu),
            What::Bytes(..) | What::Operator(_) | What::Message(_) => None,
        }
    }

    /// Whether it goes to a stream of the library's, which a caller could not wait for.
    pub fn is_on_own_stream(&self) -> bool {
        self.gpu().is_some_and(|gpu| gpu.stream.is_none())
    }

    /// Issues it; its deadline begins.
    ///
    /// # Errors
    /// `OutOfMemory`, `System`; the group's failure, for a message. Then it was not issued.
    pub fn issue(self) -> Result<()> {
        if self.is_enqueued() {
            return self.issue_enqueued();
        }
        self.lend();
        let deadline = self.group.deadline(&self.options);
        let Self { group, what, options, work, noted } = self;
        let issued = match what {
            What::Message(memory) => group.post((memory, None), deadline, (&work, noted), &options),
            What::OnDevice(memory, gpu) => {
                group.post((memory, Some(gpu)), deadline, (&work, noted), &options)
            }
            What::Collective(call) => {
                let works = [Arc::clone(&work)];
                group.mark(&call).and_then(|ready| {
                    enqueue(group, deadline, CollectiveTask { call, options, ready, works })
                })
            }
            What::Bytes(call, deliver) => {
                let task = BytesTask::new(call, options.label, deliver, Arc::clone(&work));
                enqueue(group, deadline, task)
            }
            What::Operator(call) => {
                let task = OperatorTask::new(call, &options, Arc::clone(&work));
                enqueue(group, deadline, task)
            }
        };
        issued.inspect_err(|_| loans::give_back(&work))
    }

    /// Notes its buffers as lent, where debugging wants that; the end of its work gives them back.
    pub(super) fn lend(&self) {
        loans::lend(&self.group, &self.work, |note| self.each_buffer(note));
    }

    /// Ends its work without having issued it.
    pub(super) fn give_up(&self, why: Error) {
        self.work.end(Err(why));
    }

    /// In a batch: receives go before sends, so that nobody's buffer is missing, and both before
    /// collectives, for which one waits longer. What is enqueued does not come here.
    pub(super) fn place_in_batch(&self) -> u8 {
        match &self.what {
            What::Message(
                Memory::In(_) | Memory::Grows { .. } | Memory::Matched(..) | Memory::Exchange(_),
            ) => 0,
            What::OnDevice(Memory::In(_), _) => 0,
            What::Message(Memory::Out(_)) | What::OnDevice(..) => 1,
            What::Collective(_) | What::Bytes(..) | What::Operator(_) => 2,
        }
    }

    /// Whether it is a collective, of whatever kind.
    pub(super) fn is_collective(&self) -> bool {
        !matches!(self.what, What::Message(_) | What::OnDevice(..))
    }

    /// Whether it goes to a device on which operations are enqueued ([`launch`]).
    pub(super) fn is_enqueued(&self) -> bool {
        self.gpu().is_some() && self.group.backend.enqueuer().is_some()
    }

    /// Its deadline, which begins now.
    pub(super) fn own_deadline(&self) -> Deadline {
        self.group.deadline(&self.options)
    }

    /// It, to be enqueued; its work where that cannot be.
    pub(super) fn into_enqueued(self) -> std::result::Result<Enqueued, Arc<Work>> {
        let Self { what, options, work, .. } = self;
        match what {
            What::Collective(call) => Ok(Enqueued::Collective(call, options, work)),
            What::OnDevice(memory, gpu) => Ok(Enqueued::Message(OnDevice { memory, gpu, work })),
            What::Bytes(..) | What::Operator(_) | What::Message(_) => Err(work),
        }
    }

    /// Of a message that is enqueued, what goes wrong is told at once.
    fn issue_enqueued(self) -> Result<()> {
        let work = Arc::clone(&self.work);
        let is_message = !self.is_collective();
        launch::issue(vec![self], false);
        work.outcome().filter(|_| is_message).unwrap_or(Ok(()))
    }

    /// Tells of all memory, and whether it is written.
    pub(super) fn each_buffer(&self, note: &mut dyn FnMut(Src<'_>, bool)) {
        match &self.what {
            What::Collective(call) => call.each_buffer(note),
            What::Operator(call) => call.each_buffer(note),
            What::Bytes(call, _) => call.each_input(&mut |input| note(input, false)),
            What::Message(memory) | What::OnDevice(memory, _) => match memory {
                Memory::Out(bytes) => note(*bytes, false),
                Memory::In(into) => note(into.as_src(), true),
                Memory::Matched(_, into) => note(into.as_src(), true),
                // The one is moved to the other only once that has been sent, where they overlap.
                Memory::Exchange(exchange) => {
                    if !exchange.overlaps() {
                        note(exchange.bytes, false);
                    }
                    note(exchange.into.as_src(), true);
                }
                Memory::Grows { .. } => {}
            },
        }
    }

    /// The collective and its options, if it is one on buffers.
    pub(super) fn collective(&self) -> Option<(&Call<'static>, &CallOptions)> {
        match &self.what {
            What::Collective(call) => Some((call, &self.options)),
            What::Bytes(..) | What::Operator(_) | What::Message(_) | What::OnDevice(..) => None,
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
        mut call: Call<'static>,
        options: CallOptions,
    ) -> Result<Prepared> {
        self.check_call(&mut call, &options)?;
        let work = Work::new(WorkKind::Collective(call.kind()), Arc::clone(&self.queue));
        let group = Arc::clone(self);
        Ok(Prepared { group, what: What::Collective(call), options, work, noted: None })
    }

    /// Issues a collective and returns at once. It runs in its turn, on a thread that waits for it
    /// or for another operation of the group, or on the group's worker.
    ///
    /// # Errors
    /// `InvalidArgument`, `Unsupported`, `OutOfMemory` where too many are outstanding, `System`
    /// where no worker can be started; then nothing has been issued. What happens later is the
    /// work's to tell.
    pub fn issue(self: &Arc<Self>, call: Call<'static>, options: CallOptions) -> Result<Arc<Work>> {
        let prepared = self.prepare(call, options)?;
        let work = Arc::clone(prepared.work());
        prepared.issue()?;
        Ok(work)
    }
}

/// What is done in a turn of the queue.
pub(super) trait Task: Send + Debug + 'static {
    /// The works that end with it.
    fn works(&self) -> &[Arc<Work>];

    /// How many operations of the back end it is.
    fn operations(&self) -> u64 {
        1
    }

    /// What the ranks agree on for the first of them, whose number that is.
    fn descriptor(&self, sequence: u64) -> Descriptor;

    /// What it is called in messages.
    fn title(&self, descriptor: &Descriptor) -> String {
        descriptor.to_string()
    }

    /// Does it.
    fn run(&mut self, group: &Group, first: Descriptor, deadline: &Deadline) -> Result<()>;
}

/// Puts a task into its group's queue.
///
/// # Errors
/// `OutOfMemory` where too many works are outstanding, `System` where no worker can be started;
/// then nothing has happened.
pub(super) fn enqueue<T: Task>(group: Arc<Group>, deadline: Deadline, task: T) -> Result<()> {
    let queue = Arc::clone(&group.queue);
    let works = task.works().len();
    for begun in 0..works {
        if let Err(error) = queue.work_begins() {
            (0..begun).for_each(|_| queue.work_ends());
            return Err(error);
        }
    }
    let enqueued = queue.enqueue_several(task.operations(), |ticket| {
        let descriptor = task.descriptor(ticket.sequence());
        task.works().iter().for_each(|work| work.issued(ticket.sequence(), deadline));
        let record = group.record(&descriptor, deadline.started(), false);
        Box::new(Queued { group, deadline, descriptor, record, task })
    });
    enqueued.inspect_err(|_| (0..works).for_each(|_| queue.work_ends()))
}

/// A task that waits for its turn.
#[derive(Debug)]
struct Queued<T> {
    group: Arc<Group>,
    deadline: Deadline,
    descriptor: Descriptor,
    record: Record,
    task: T,
}

impl<T: Task> Queued<T> {
    fn finish(self, outcome: Result<()>, turn: Option<Turn<'_>>) {
        let Self { group, descriptor, record, task, .. } = self;
        record.end(&outcome);
        let outcome = outcome.map_err(|error| {
            recorder::look_for_failures();
            let error =
                error.context(format_args!("{} on {}", task.title(&descriptor), group.whom()));
            group.identify(error)
        });
        if let Some(turn) = turn {
            turn.end_silently();
        }
        if let Err(error) = &outcome {
            group.note(error);
        }
        // Before the works end: whoever waits for one may count on the group not being kept by it.
        drop(group);
        task.works().iter().for_each(|work| work.end(outcome.clone().map(|()| None)));
    }
}

impl<T: Task> Job for Queued<T> {
    fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    fn failure(&self) -> Option<Error> {
        self.group.failure()
    }

    fn run(mut self: Box<Self>, turn: Turn<'_>) {
        let Self { group, deadline, descriptor, record, task } = &mut *self;
        let group = &*group;
        record.runs();
        let outcome = group.contain(|| task.run(group, *descriptor, deadline));
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

/// A collective on the caller's buffers.
#[derive(Debug)]
struct CollectiveTask {
    call: Call<'static>,
    options: CallOptions,
    /// When its buffers are ready, where that was noted.
    ready: Option<Arc<dyn Mark>>,
    works: [Arc<Work>; 1],
}

impl Task for CollectiveTask {
    fn works(&self) -> &[Arc<Work>] {
        &self.works
    }

    fn descriptor(&self, sequence: u64) -> Descriptor {
        self.call.descriptor(sequence, self.options.label)
    }

    fn run(&mut self, group: &Group, first: Descriptor, deadline: &Deadline) -> Result<()> {
        let deadline = LateDeadline::from(*deadline);
        let of = (group.name(), &deadline);
        let mut operation = self.call.operation(first, &self.options, of, &group.observer);
        operation.launch = self.call.launch(self.works[0].flight(), self.ready.as_deref());
        group.carry_out(&operation, self.options.values)
    }
}
