//! Finds the ranks that are behind. The module builds a graph in which an edge from A to B means
//! that A waits for B. It follows the edges to the ranks that do not wait.
//!
//! A rank in a collective waits for every rank that has not entered it. If a rank is awaited and
//! does not wait itself, it is the culprit: it is not in an operation, or it has no dump. If every
//! awaited rank waits itself, the ranks called operations on different groups in different orders,
//! which is a deadlock. For example, if rank 0 waits for rank 1, rank 1 waits for rank 2, and rank
//! 2 does not wait, then rank 2 is the culprit.
//!
//! Waits for messages count only if no rank waits in a collective, because programs often post
//! receives long before they need the data.

use super::{Finding, FindingClass};
use crate::job::{JobDumps, JobGroup, RankTimeline};
use crate::recorder_dump::OperationRecord;
use crate::text;
use dist_tools::count_text;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The shortest wait that counts, in nanoseconds. The dumps of a running job are not taken
/// simultaneously, so a short wait is normal.
const MIN_WAIT_NS: u64 = 1_000_000_000;

/// If all ranks have been in one operation for this time in nanoseconds, the operation counts as
/// stalled.
const STALLED_NS: u64 = 5_000_000_000;

/// An edge of the graph: the process `from` waits for the process `to`.
#[derive(Debug)]
struct WaitEdge<'a> {
    from: usize,
    to: usize,
    group: usize,
    /// The rank of `from` in the group.
    waiter: usize,
    /// The rank of `to` in the group.
    awaited: usize,
    entry: &'a OperationRecord,
    /// The start of the wait on the wall clock.
    since: u64,
}

/// The graph of waits. A node is the index of a process. The first nodes are the processes with a
/// dump, in the order of the job's dumps. The other nodes are processes without a dump.
#[derive(Debug)]
struct WaitGraph<'a> {
    job: &'a JobDumps,
    edges: Vec<WaitEdge<'a>>,
    processes_without_dump: HashMap<(String, u64), usize>,
}

/// Returns the causes of the waits. `explained` is true for each group that another finding
/// explains; such a group is skipped.
pub(super) fn find_wait_causes(job: &JobDumps, explained: &[bool]) -> Vec<Finding> {
    let mut graph = WaitGraph { job, edges: Vec::new(), processes_without_dump: HashMap::new() };
    let mut stalled = Vec::new();
    for number in (0..job.groups.len()).filter(|&number| !explained[number]) {
        stalled.extend(graph.add_collectives(number));
    }
    if graph.edges.is_empty() && stalled.is_empty() {
        for number in (0..job.groups.len()).filter(|&number| !explained[number]) {
            graph.add_messages(number);
        }
    }
    let mut findings = graph.root_findings();
    if findings.is_empty() {
        findings.extend(graph.deadlock_finding());
    }
    findings.extend(stalled);
    findings
}

/// A rank that waits for other ranks in an operation.
#[derive(Debug)]
pub(super) struct RankWait {
    /// The index of the group in the job.
    pub(super) group: usize,
    pub(super) waiter: usize,
    pub(super) awaited: BTreeSet<usize>,
    pub(super) operation: String,
    /// The start of the wait on the wall clock.
    pub(super) since: u64,
}

/// Returns the waits of all ranks, in the order of their starts.
pub(super) fn rank_waits(job: &JobDumps) -> Vec<RankWait> {
    let mut graph = WaitGraph { job, edges: Vec::new(), processes_without_dump: HashMap::new() };
    for number in 0..job.groups.len() {
        graph.add_collectives(number);
    }
    if graph.edges.is_empty() {
        (0..job.groups.len()).for_each(|number| graph.add_messages(number));
    }
    let mut waits: Vec<RankWait> = Vec::new();
    for WaitEdge { group, waiter, awaited, entry, since, .. } in graph.edges {
        let operation = entry.name();
        let known = waits.iter_mut().find(|wait| {
            (wait.group, wait.waiter) == (group, waiter) && wait.operation == operation
        });
        match known {
            Some(wait) => _ = wait.awaited.insert(awaited),
            None => {
                waits.push(RankWait { group, waiter, awaited: [awaited].into(), operation, since })
            }
        }
    }
    waits.sort_by_key(|wait| (wait.since, wait.group, wait.waiter));
    waits
}

/// Returns the operation that a rank has entered and that has not completed successfully.
fn unfinished_call<'a>(
    job: &'a JobDumps,
    timeline: &'a RankTimeline,
) -> Option<(u64, &'a OperationRecord)> {
    let unfinished = |entry: &OperationRecord| entry.is_under_way() || entry.has_failed();
    job.calls(timeline)
        .find(|(_, entry)| unfinished(entry))
        .filter(|_| !timeline.is_last_call_after_failure)
}

/// Returns true if a rank entered an operation before the group failed, if it failed at all.
fn has_entered(timeline: &RankTimeline, sequence: u64) -> bool {
    // An operation may take several sequence numbers, but the recorder only stores the first one.
    // So compare with the last entry.
    let last = timeline.entry_by_sequence.keys().next_back();
    last.is_some_and(|&last| {
        last > sequence || last == sequence && !timeline.is_last_call_after_failure
    })
}

impl<'a> WaitGraph<'a> {
    /// Adds the waits in the collectives of a group. Returns a finding if all ranks have entered an
    /// operation that does not complete.
    fn add_collectives(&mut self, number: usize) -> Option<Finding> {
        let job = self.job;
        let group = &job.groups[number];
        let before = self.edges.len();
        let mut stalled_ranks: Vec<(usize, &OperationRecord, u64)> = Vec::new();
        let ranks_in_calls: Vec<(usize, u64, &OperationRecord, u64)> = group
            .timelines
            .iter()
            .filter_map(|(&rank, timeline)| {
                let (sequence, entry) = unfinished_call(job, timeline)?;
                Some((
                    rank,
                    sequence,
                    entry,
                    job.dumps[timeline.dump_index].to_unix_ns(entry.issued_ns),
                ))
            })
            .collect();
        // For each operation, the time at which its first rank entered.
        let mut first_entry_by_sequence: BTreeMap<u64, u64> = BTreeMap::new();
        for &(_, sequence, _, since) in &ranks_in_calls {
            let first = first_entry_by_sequence.entry(sequence).or_insert(since);
            *first = since.min(*first);
        }
        for (waiter, sequence, entry, since) in ranks_in_calls {
            let min_wait = if entry.has_failed() { 0 } else { MIN_WAIT_NS };
            // If a dump was taken before the wait was long enough, its rank may have entered the
            // operation after the dump. Such a dump does not count.
            let min_dump_time = first_entry_by_sequence[&sequence].saturating_add(min_wait);
            let is_dump_recent =
                |it: &RankTimeline| job.dumps[it.dump_index].taken_unix_ns() >= min_dump_time;
            let absent = |(_, it): &(&usize, &RankTimeline)| {
                !has_entered(it, sequence) && is_dump_recent(it)
            };
            let mut awaited: Vec<usize> =
                group.timelines.iter().filter(absent).map(|(&rank, _)| rank).collect();
            // Only if no rank with a dump is absent, blame the ranks without a dump.
            if awaited.is_empty() && is_dump_recent(&group.timelines[&waiter]) {
                awaited = group.ranks_without_dump();
                if awaited.is_empty() {
                    stalled_ranks.push((waiter, entry, since));
                }
            }
            for awaited in awaited {
                self.add_edge(number, (waiter, awaited), entry, since);
            }
        }
        if self.edges.len() > before {
            return None;
        }
        stalled_finding(job, number, &stalled_ranks)
    }

    /// Adds the waits for messages in a group. Only ranks that are not in a collective count.
    fn add_messages(&mut self, number: usize) {
        let job = self.job;
        let group = &job.groups[number];
        for (&waiter, timeline) in &group.timelines {
            let dump = &job.dumps[timeline.dump_index];
            let latest = dump.entries.iter().map(|entry| entry.ended_ns.max(Some(entry.issued_ns)));
            let latest = latest.max().flatten().unwrap_or(0);
            let is_idle = dump.taken_ns.saturating_sub(latest) >= MIN_WAIT_NS;
            let waits = |entry: &&OperationRecord| {
                let is_late = entry.state
                    == crate::recorder_dump::OperationState::Failed("Timeout".to_owned());
                (entry.group, entry.rank) == (group.id, waiter)
                    && (entry.is_under_way() && is_idle || is_late)
            };
            for entry in dump.entries.iter().filter(waits) {
                let peer = entry.message.and_then(|message| message.peer);
                let Some(peer) = peer.filter(|&peer| peer < group.size) else { continue };
                self.add_edge(number, (waiter, peer), entry, dump.to_unix_ns(entry.issued_ns));
            }
        }
    }

    fn add_edge(
        &mut self,
        group: usize,
        ranks: (usize, usize),
        entry: &'a OperationRecord,
        since: u64,
    ) {
        let (waiter, awaited) = ranks;
        let (from, to) = (self.process_node(group, waiter), self.process_node(group, awaited));
        // If the ranks are threads of one process, there is no edge.
        if from != to {
            self.edges.push(WaitEdge { from, to, group, waiter, awaited, entry, since });
        }
    }

    /// Returns the node of the process that a rank belongs to.
    fn process_node(&mut self, number: usize, rank: usize) -> usize {
        let group = &self.job.groups[number];
        if let Some(timeline) = group.timelines.get(&rank) {
            return timeline.dump_index;
        }
        let key = match group.members.get(rank) {
            Some(member) => (member.host.clone(), member.pid),
            None => (format!("group {number}"), rank as u64),
        };
        let next = self.job.dumps.len() + self.processes_without_dump.len();
        *self.processes_without_dump.entry(key).or_insert(next)
    }

    /// Returns a finding for each awaited process that does not wait itself.
    fn root_findings(&self) -> Vec<Finding> {
        let waiting: BTreeSet<usize> = self.edges.iter().map(|edge| edge.from).collect();
        let mut awaited: BTreeMap<usize, Vec<&WaitEdge<'_>>> = BTreeMap::new();
        for edge in self.edges.iter().filter(|edge| !waiting.contains(&edge.to)) {
            awaited.entry(edge.to).or_default().push(edge);
        }
        let (known, silent): (Vec<_>, Vec<_>) =
            awaited.into_values().partition(|edges| edges[0].to < self.job.dumps.len());
        let mut findings: Vec<Finding> =
            known.iter().map(|edges| self.behind_finding(edges)).collect();
        findings.extend(self.silent_findings(silent.into_iter().flatten().collect()));
        findings
    }

    /// Builds the finding for a process that has a dump but has not entered the awaited operation.
    fn behind_finding(&self, edges: &[&WaitEdge<'_>]) -> Finding {
        let job = self.job;
        // Other processes may wait for this process in operations of several groups. Take the first
        // of these operations.
        let first = edges.iter().min_by_key(|edge| (edge.entry.sequence, edge.since));
        let WaitEdge { group: number, awaited, entry, .. } = **first.unwrap_or(&edges[0]);
        let group = &job.groups[number];
        let timeline = &group.timelines[&awaited];
        let same = edges.iter().filter(|edge| edge.group == number);
        let since = same.clone().map(|edge| edge.since).min().unwrap_or(0);
        let rank_description = group.describe_rank(awaited);
        let late_call =
            job.entry(timeline, entry.sequence).filter(|_| timeline.is_last_call_after_failure);
        let cause = match (entry.message, late_call) {
            (Some(_), _) => {
                let waiter = group.describe_rank(first.map_or(0, |edge| edge.waiter));
                format!(
                    "{rank_description} has not matched the {} of {waiter} in group {}",
                    entry.description, group.name
                )
            }
            (None, Some(late)) => {
                let after =
                    job.dumps[timeline.dump_index].to_unix_ns(late.issued_ns).saturating_sub(since);
                format!(
                    "{rank_description} entered {} of group {} only {} after the first rank that waited for it",
                    late.description,
                    group.name,
                    text::span_text(after)
                )
            }
            (None, None) => {
                format!(
                    "{rank_description} never entered {} of group {}",
                    entry.description, group.name
                )
            }
        };
        let now = job.current_activity(timeline.dump_index);
        let waiters: BTreeSet<usize> = same.clone().map(|edge| edge.waiter).collect();
        let verb = match waiters.len() {
            _ if same.clone().all(|edge| edge.entry.has_failed()) => "waited for it and failed",
            1 => "waits for it",
            _ => "wait for it",
        };
        let text = format!("{cause}; {now}; {} {verb}", count_text(waiters.len(), "rank"));
        Finding { class: FindingClass::Behind, group: number, text, culprits: vec![awaited], since }
    }

    /// Builds one finding per group for processes without a dump.
    fn silent_findings(&self, edges: Vec<&WaitEdge<'_>>) -> Vec<Finding> {
        let mut groups: BTreeMap<usize, Vec<&WaitEdge<'_>>> = BTreeMap::new();
        edges.into_iter().for_each(|edge| groups.entry(edge.group).or_default().push(edge));
        let findings = groups.into_iter().map(|(number, edges)| {
            let group = &self.job.groups[number];
            let awaited: BTreeSet<usize> = edges.iter().map(|edge| edge.awaited).collect();
            let waiters: BTreeSet<usize> = edges.iter().map(|edge| edge.waiter).collect();
            let culprits: Vec<usize> = awaited.into_iter().collect();
            let waiters: Vec<usize> = waiters.into_iter().collect();
            let culprit_ranks = ranks_description(group, &culprits);
            let text = format!(
                "there is no dump of {culprit_ranks}: dead, stopped, or the dump is not among these files; in group {} {} \
                 in {}, which all ranks with a dump have entered",
                group.name,
                if waiters.len() == 1 { format!("{} waits", ranks_description(group, &waiters)) } else { format!("{} wait", text::ranks_text(&waiters)) },
                edges[0].entry.description
            );
            let since = edges.iter().map(|edge| edge.since).min().unwrap_or(0);
            Finding { class: FindingClass::Silent, group: number, text, culprits, since }
        });
        findings.collect()
    }

    /// Returns a finding with a cycle of waits. The caller has checked that every awaited process
    /// waits itself.
    fn deadlock_finding(&self) -> Option<Finding> {
        let mut path: Vec<&WaitEdge<'_>> = vec![self.edges.first()?];
        // Each step follows an edge to the next node, until a node repeats.
        let cycle = loop {
            let last = path[path.len() - 1];
            if let Some(at) = path.iter().position(|edge| edge.from == last.to) {
                break &path[at..];
            }
            path.push(self.edges.iter().find(|edge| edge.from == last.to)?);
        };
        let step = |edge: &&WaitEdge<'_>| {
            let group = &self.job.groups[edge.group];
            let (waiter, awaited) =
                (group.describe_rank(edge.waiter), group.describe_rank(edge.awaited));
            format!("{waiter} waits in {} of group {} for {awaited}", edge.entry.name(), group.name)
        };
        let steps: Vec<String> = cycle.iter().map(step).collect();
        let text = format!("deadlock, each rank waits for the next: {}", steps.join("; "));
        let first = cycle.first()?;
        let culprits =
            cycle.iter().filter(|edge| edge.group == first.group).map(|edge| edge.waiter);
        let since = cycle.iter().map(|edge| edge.since).max().unwrap_or(0);
        Some(Finding {
            class: FindingClass::Deadlock,
            group: first.group,
            text,
            culprits: culprits.collect(),
            since,
        })
    }
}

/// Describes a single rank with its process, and several ranks only by their numbers.
fn ranks_description(group: &JobGroup, ranks: &[usize]) -> String {
    match ranks {
        [rank] => group.describe_rank(*rank),
        _ => text::ranks_text(ranks),
    }
}

/// Returns a finding if all ranks have been in an operation for a long time.
fn stalled_finding(
    job: &JobDumps,
    number: usize,
    stalled_ranks: &[(usize, &OperationRecord, u64)],
) -> Option<Finding> {
    let group = &job.groups[number];
    let running = |timeline: &RankTimeline| {
        unfinished_call(job, timeline).is_some_and(|(_, entry)| entry.is_under_way())
    };
    let (_, entry, since) = stalled_ranks.iter().min_by_key(|(_, entry, _)| entry.sequence)?;
    let age = group
        .timelines
        .values()
        .map(|timeline| job.dumps[timeline.dump_index].taken_unix_ns().saturating_sub(*since))
        .min()?;
    if age < STALLED_NS || !group.timelines.values().all(running) {
        return None;
    }
    let text = format!(
        "all {} ranks of group {} are in {}, the first for {}, and it makes no progress",
        group.size,
        group.name,
        entry.description,
        text::span_text(age)
    );
    Some(Finding {
        class: FindingClass::Stalled,
        group: number,
        text,
        culprits: Vec::new(),
        since: *since,
    })
}
