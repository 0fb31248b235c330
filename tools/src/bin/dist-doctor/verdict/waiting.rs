//! Finds the ranks that are behind: builds the graph of waits, and follows it to ranks that do not
//! wait.
//!
//! A rank in a collective waits for every rank that has not entered it. An awaited rank that does
//! not wait itself is the culprit: it is elsewhere, or it has no dump. If all ranks wait for each
//! other, they called operations on different groups in different orders (a deadlock). Messages
//! count only if no collective waits, because receives are posted long before their data is needed.

use super::{Finding, FindingClass};
use crate::job::{JobDumps, JobGroup, RankTimeline};
use crate::recorder_dump::OperationRecord;
use crate::text;
use dist_tools::count_text;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The shortest wait that counts: the dumps of a running job are not taken simultaneously.
const MIN_WAIT_NS: u64 = 1_000_000_000;

/// The time in one operation after which the operation counts as stalled.
const STALLED_NS: u64 = 5_000_000_000;

/// One process waits for another.
#[derive(Debug)]
struct WaitEdge<'a> {
    from: usize,
    to: usize,
    group: usize,
    /// The ranks of both processes in the group.
    waiter: usize,
    awaited: usize,
    entry: &'a OperationRecord,
    /// The start of the wait on the wall clock.
    since: u64,
}

/// The graph of waits. Its first nodes are the job's dumps, the other nodes are processes without a
/// dump.
#[derive(Debug)]
struct WaitGraph<'a> {
    job: &'a JobDumps,
    edges: Vec<WaitEdge<'a>>,
    processes_without_dump: HashMap<(String, u64), usize>,
}

/// Returns the causes of the waits in groups that no other finding explains.
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

/// Returns true if a rank has entered an operation before a failure of the group.
fn has_entered(timeline: &RankTimeline, sequence: u64) -> bool {
    // An operation may have several sequence numbers; the first one is recorded.
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
        // For each operation, the time at which the first rank entered it.
        let mut first_entry_by_sequence: BTreeMap<u64, u64> = BTreeMap::new();
        for &(_, sequence, _, since) in &ranks_in_calls {
            let first = first_entry_by_sequence.entry(sequence).or_insert(since);
            *first = since.min(*first);
        }
        for (waiter, sequence, entry, since) in ranks_in_calls {
            let min_wait = if entry.has_failed() { 0 } else { MIN_WAIT_NS };
            // A dump from before the wait cannot show whether its rank entered later.
            let min_dump_time = first_entry_by_sequence[&sequence].saturating_add(min_wait);
            let is_dump_recent =
                |it: &RankTimeline| job.dumps[it.dump_index].taken_unix_ns() >= min_dump_time;
            let absent = |(_, it): &(&usize, &RankTimeline)| {
                !has_entered(it, sequence) && is_dump_recent(it)
            };
            let mut awaited: Vec<usize> =
                group.timelines.iter().filter(absent).map(|(&rank, _)| rank).collect();
            // Consider ranks without dumps only if no other rank is known to be absent.
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

    /// Adds the waits for messages in a group by ranks without a pending collective.
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
        // Several ranks may be threads of one process.
        if from != to {
            self.edges.push(WaitEdge { from, to, group, waiter, awaited, entry, since });
        }
    }

    /// Returns the node of a rank's process.
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

    /// Builds the finding for a process that is elsewhere.
    fn behind_finding(&self, edges: &[&WaitEdge<'_>]) -> Finding {
        let job = self.job;
        // The first operation that the process has missed; it may be awaited in several groups.
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

    /// Returns the cycle of waits, if every process waits.
    fn deadlock_finding(&self) -> Option<Finding> {
        let mut path: Vec<&WaitEdge<'_>> = vec![self.edges.first()?];
        // Each step leads to another node, until a node repeats.
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

/// Describes one rank with its process, or several ranks by their numbers.
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
