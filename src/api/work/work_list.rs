//! Waits for several works (asynchronous operations).
//!
//! [`wait_all`] waits for the works one after the other. [`wait_any`] waits for all works at the
//! same time until one of them ends. It selects a method for the whole list:
//! * If all works are collectives of one group, the thread waits in the group's queue and runs jobs
//!   of the queue while it waits.
//! * If all works are messages of one group, the thread runs the group's messaging engine.
//! * In all other cases, the thread sleeps on a doorbell (a futex word), which each work notifies
//!   when it ends. Other threads run the operations: the workers of the queues, and the service
//!   thread.
//!
//! This module does not depend on how a collective runs or how a message travels.

use crate::api::group::process_group::Group;
use crate::api::observe::deadlock::{BlockedCallGuard, ListedWork};
use crate::api::observe::recorder;
use crate::api::work::callbacks;
use crate::api::work::handle::{IssueInfo, Work, WorkKind};
use crate::api::work::progress::WorkProgress;
use crate::api::work::queue::RunQueue;
use crate::api::work::work_outcome::CompletionAction;
use crate::base::deadline::Deadline;
use crate::base::error::{ErrorContext as _, Result};
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, wait_until};
use std::sync::Arc;

/// The maximum number of works of a wait that the search for deadlocks examines.
const MAX_EXAMINED_WORKS: usize = 256;

/// The caller's list of works. An entry may be missing, so that indices stay the same.
pub type WorkList = [Option<Arc<Work>>];

/// The result of a test or a wait for any work of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnyWorkDone {
    /// The work at this index is done, with this outcome.
    Done(usize, Result<()>),
    /// All works are pending.
    Pending,
    /// The list has no works.
    NoWorks,
}

/// Waits until all works of a list are done.
///
/// # Errors
/// * If operations have failed: the error of the first failed work in the list. It is returned when
///   all works are done.
/// * The errors of [`Work::wait`] for a wait that is not permitted.
pub fn wait_all(works: &WorkList, limit: &Deadline) -> Result<WorkProgress> {
    let mut first: Result<()> = Ok(());
    for (index, work) in works_of(works) {
        match work.wait(limit) {
            Ok(WorkProgress::Done) => {}
            Ok(WorkProgress::Pending) => return Ok(WorkProgress::Pending),
            // The wait for this work is not permitted.
            Err(error) if !work.is_done() => return Err(error.context(list_position(index))),
            Err(error) => first = first.and(Err(error.context(list_position(index)))),
        }
    }
    first.map(|()| WorkProgress::Done)
}

/// Returns the first work in the list that is done, without waiting.
pub fn test_any(works: &WorkList) -> AnyWorkDone {
    let done = works_of(works).find_map(|(index, work)| Some((index, work.outcome()?)));
    match done {
        Some((index, outcome)) => {
            AnyWorkDone::Done(index, outcome.context(|| list_position(index)))
        }
        None if works.iter().any(Option::is_some) => AnyWorkDone::Pending,
        None => AnyWorkDone::NoWorks,
    }
}

/// Waits until a work of the list is done, and returns it. If several are done, returns the first
/// of them in the list.
///
/// # Errors
/// `InvalidArgument` if a work belongs to a batch that has not been issued, or inside a completion
/// callback.
pub fn wait_any(works: &WorkList, limit: &Deadline) -> Result<AnyWorkDone> {
    let found = test_any(works);
    if found != AnyWorkDone::Pending || limit.has_passed() {
        return Ok(found);
    }
    callbacks::reject_blocking_in_callback("waiting for pending works")?;
    for (index, work) in works_of(works) {
        work.check_issued().context(|| list_position(index))?;
    }
    let pending: Vec<&Arc<Work>> = works.iter().flatten().collect();
    let _guard = list_works(works, limit).map(|listed| BlockedCallGuard::any_work(&listed));
    AnyWaitMethod::select(&pending).until_any(&pending, limit);
    let found = test_any(works);
    if matches!(found, AnyWorkDone::Done(_, Err(_))) {
        recorder::dump_failures_and_wait();
    }
    Ok(found)
}

/// Waits as [`wait_any`] for one slice of a longer wait of this thread. The search for deadlocks
/// regards the slices as one wait, which ends at the limit `whole`.
///
/// # Errors
/// As [`wait_any`].
pub fn wait_any_slice(works: &WorkList, slice: &Deadline, whole: &Deadline) -> Result<AnyWorkDone> {
    let listed = list_works(works, whole);
    let id = works.iter().flatten().fold(0, |id: usize, work| id.rotate_left(5) ^ work.id());
    let guard =
        listed.map(|listed| BlockedCallGuard::slice(id, || BlockedCallGuard::any_work(&listed)));
    let found = wait_any(works, slice);
    if let Some(guard) = guard {
        guard.end_slice(matches!(found, Ok(AnyWorkDone::Pending)) && !whole.has_passed());
    }
    found
}

/// Returns the works as the search for deadlocks needs them; `None` if it does not know all of
/// them, or if there are too many.
fn list_works(works: &WorkList, limit: &Deadline) -> Option<Vec<Vec<ListedWork>>> {
    let works: Vec<&Arc<Work>> = works.iter().flatten().collect();
    if works.len() > MAX_EXAMINED_WORKS {
        return None;
    }
    works
        .iter()
        .map(|work| match work.kind() {
            WorkKind::Batch => {
                let members = work.pending_members();
                let listed = members.iter().map(|member| member.listed_work(limit));
                listed.collect::<Option<Vec<_>>>().filter(|members| !members.is_empty())
            }
            WorkKind::Collective(_) | WorkKind::Message(_) => Some(vec![work.listed_work(limit)?]),
        })
        .collect()
}

fn works_of(works: &WorkList) -> impl Iterator<Item = (usize, &Arc<Work>)> {
    works.iter().enumerate().filter_map(|(index, work)| Some((index, work.as_ref()?)))
}

fn list_position(index: usize) -> String {
    format!("works[{index}]")
}

/// The method by which a thread waits for any of several works.
enum AnyWaitMethod<'a> {
    /// All works are collectives of this queue.
    InQueue(&'a RunQueue),
    /// All works are messages of one group. The field is one of these works.
    InEngine(&'a Work),
    /// The works have different kinds or groups.
    OnDoorbell,
}

impl<'a> AnyWaitMethod<'a> {
    /// Selects the method for these works. `works` must not be empty.
    fn select(works: &[&'a Arc<Work>]) -> Self {
        let first = works[0];
        let is_alike = |work: &&Arc<Work>| {
            let same_kind = matches!(
                (work.kind(), first.kind()),
                (WorkKind::Collective(_), WorkKind::Collective(_))
                    | (WorkKind::Message(_), WorkKind::Message(_))
            );
            same_kind && Arc::ptr_eq(&work.queue, &first.queue)
        };
        match first.kind() {
            _ if !works.iter().all(is_alike) => Self::OnDoorbell,
            WorkKind::Collective(_) => Self::InQueue(&first.queue),
            WorkKind::Message(_) => Self::InEngine(first),
            WorkKind::Batch => Self::OnDoorbell,
        }
    }

    fn until_any(self, works: &[&Arc<Work>], limit: &Deadline) {
        match self {
            Self::InQueue(queue) => wait_in_queue(queue, works, limit),
            Self::InEngine(first) => wait_in_engine(first, works, limit),
            Self::OnDoorbell => wait_on_doorbell(works, limit),
        }
    }
}

fn is_any_done(works: &[&Arc<Work>]) -> bool {
    works.iter().any(|work| work.is_done())
}

/// A collective whose deadline the wait must watch: if the deadline passes before the collective's
/// turn, the collective expires and its group fails.
struct DeadlineWatch {
    queue: Arc<RunQueue>,
    sequence: u64,
    deadline: Deadline,
}

/// Returns the collectives among the works and among the members of batches. They are sorted by
/// deadline, the earliest last.
fn deadlines_to_watch(works: &[&Arc<Work>]) -> Vec<DeadlineWatch> {
    let mut found = Vec::with_capacity(works.len());
    let mut add = |work: &Work| {
        if let (WorkKind::Collective(_), Some(&issue)) = (work.kind, work.issue_info.get()) {
            let IssueInfo { sequence, deadline } = issue;
            found.push(DeadlineWatch { queue: Arc::clone(&work.queue), sequence, deadline });
        }
    };
    for work in works {
        add(work);
        work.pending_members().iter().for_each(|member| add(member));
    }
    found.sort_by_key(|it| std::cmp::Reverse(it.deadline.remaining()));
    found
}

fn wait_in_queue(queue: &RunQueue, works: &[&Arc<Work>], limit: &Deadline) {
    let mut watched = deadlines_to_watch(works);
    while !is_any_done(works) && !limit.has_passed() {
        let mine = watched.pop().map(|it| (it.sequence, it.deadline));
        // `wait_for` watches only one collective. So each wait ends at the deadline of the next
        // collective, which the next wait then watches.
        let slice = watched.last().map_or(*limit, |after| limit.capped(after.deadline.remaining()));
        queue.wait_for(|| is_any_done(works), &slice, mine);
    }
}

fn wait_in_engine(first: &Work, works: &[&Arc<Work>], limit: &Deadline) {
    // A message that is done has released its group, so the group comes from any message that is
    // pending.
    let Some(group) = works.iter().find_map(|work| work.message_group()) else { return };
    match group.backend.point_to_point() {
        Some(engine) => first.progress_until(engine, &|| is_any_done(works), limit),
        None => wait_on_doorbell(works, limit),
    }
    Group::release(group);
}

fn wait_on_doorbell(works: &[&Arc<Work>], limit: &Deadline) {
    let doorbell = Arc::new(Doorbell::default());
    let ids: Vec<u64> = works
        .iter()
        .map(|work| {
            let work_doorbell = Arc::clone(&doorbell);
            work.add_hook(move |_| work_doorbell.notify())
        })
        .collect();
    let mut watched = deadlines_to_watch(works);
    let ready = || is_any_done(works).then_some(());
    loop {
        let slice = watched.last().map_or(*limit, |next| limit.capped(next.deadline.remaining()));
        if wait_until(&doorbell, WaitPolicy::SLEEP_SOON, &slice, || None, ready).is_ok()
            || limit.has_passed()
        {
            break;
        }
        while let Some(late) = watched.pop_if(|next| next.deadline.has_passed()) {
            late.queue.expire_job(late.sequence);
        }
    }
    works.iter().zip(ids).for_each(|(work, id)| work.remove_hook(id));
}

impl Work {
    /// Registers a function (a hook), which the thread that ends the work calls. If the work has
    /// already ended, calls the function immediately. Returns the number with which the hook can be
    /// removed.
    fn add_hook(&self, function: impl FnOnce(&Result<()>) + Send + 'static) -> u64 {
        let id = CompletionAction::next_id();
        self.add_completion_action(CompletionAction::Hook(id, Box::new(function)));
        id
    }
}
