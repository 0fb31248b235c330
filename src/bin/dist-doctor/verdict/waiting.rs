//! Who is behind: who waits for whom, followed to those who wait for nobody.
//!
//! A rank that is in a collective waits for every rank that has not entered it. Who waits for
//! nobody, and is waited for, is to blame: it is elsewhere, or nobody knows where it is. Where all
//! wait for each other, they have called on different groups in different orders. Messages count
//! where no collective waits, since receives are posted long before they are needed.

use super::{Class, Finding};
use crate::dump::Entry;
use crate::job::{Group, Job, Line};
use crate::text;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// How long an operation must have waited before that means anything: the dumps of a job that runs
/// are not taken at the same moment.
const PATIENCE_NS: u64 = 1_000_000_000;

/// How long all may be in one operation before it counts as one that does not get on.
const STALLED_NS: u64 = 5_000_000_000;

/// Somebody waits for somebody.
#[derive(Debug)]
struct Edge<'a> {
    from: usize,
    to: usize,
    group: usize,
    /// Their ranks in the group.
    waiter: usize,
    awaited: usize,
    entry: &'a Entry,
    /// When the waiting began, on the clock on the wall.
    since: u64,
}

/// Who waits for whom. The first nodes are the job's dumps, the others are processes without one.
#[derive(Debug)]
struct Graph<'a> {
    job: &'a Job,
    edges: Vec<Edge<'a>>,
    silent: HashMap<(String, u64), usize>,
}

/// The cause of the waits that nothing else explains.
pub(super) fn find(job: &Job, explained: &[bool]) -> Vec<Finding> {
    let mut graph = Graph { job, edges: Vec::new(), silent: HashMap::new() };
    let mut stalled = Vec::new();
    for number in (0..job.groups.len()).filter(|&number| !explained[number]) {
        stalled.extend(graph.add_collectives(number));
    }
    if graph.edges.is_empty() && stalled.is_empty() {
        for number in (0..job.groups.len()).filter(|&number| !explained[number]) {
            graph.add_messages(number);
        }
    }
    let mut findings = graph.roots();
    if findings.is_empty() {
        findings.extend(graph.circle());
    }
    findings.extend(stalled);
    findings
}

/// The operation that a rank has entered, and that has neither ended well nor been refused.
fn stuck<'a>(job: &'a Job, line: &'a Line) -> Option<(u64, &'a Entry)> {
    let unfinished = |entry: &Entry| entry.is_under_way() || entry.has_failed();
    job.calls(line).find(|(_, entry)| unfinished(entry)).filter(|_| !line.is_late)
}

/// Whether a rank has entered an operation, in time.
fn has_entered(line: &Line, sequence: u64) -> bool {
    // An operation may have several numbers, of which the first is noted.
    let last = line.calls.keys().next_back();
    last.is_some_and(|&last| last > sequence || last == sequence && !line.is_late)
}

impl<'a> Graph<'a> {
    /// Who waits in the collectives of a group; a finding where all have entered one and none gets
    /// on.
    fn add_collectives(&mut self, number: usize) -> Option<Finding> {
        let job = self.job;
        let group = &job.groups[number];
        let before = self.edges.len();
        let mut inside: Vec<(usize, &Entry, u64)> = Vec::new();
        let inside_of_any: Vec<(usize, u64, &Entry, u64)> = group
            .lines
            .iter()
            .filter_map(|(&rank, line)| {
                let (sequence, entry) = stuck(job, line)?;
                Some((rank, sequence, entry, job.dumps[line.dump].on_the_wall(entry.issued_ns)))
            })
            .collect();
        // When the first of those who are in an operation has entered it.
        let mut entered: BTreeMap<u64, u64> = BTreeMap::new();
        for &(_, sequence, _, since) in &inside_of_any {
            let first = entered.entry(sequence).or_insert(since);
            *first = since.min(*first);
        }
        for (waiter, sequence, entry, since) in inside_of_any {
            let patience = if entry.has_failed() { 0 } else { PATIENCE_NS };
            // A dump that is older than the waiting knows nothing of it.
            let enough = entered[&sequence].saturating_add(patience);
            let knows = |it: &Line| job.dumps[it.dump].taken() >= enough;
            let absent = |(_, it): &(&usize, &Line)| !has_entered(it, sequence) && knows(it);
            let mut awaited: Vec<usize> =
                group.lines.iter().filter(absent).map(|(&rank, _)| rank).collect();
            // Only then: those who are known to be elsewhere are to blame first.
            if awaited.is_empty() && knows(&group.lines[&waiter]) {
                awaited = group.missing();
                if awaited.is_empty() {
                    inside.push((waiter, entry, since));
                }
            }
            for awaited in awaited {
                self.add(number, (waiter, awaited), entry, since);
            }
        }
        if self.edges.len() > before {
            return None;
        }
        stalled(job, number, &inside)
    }

    /// Who waits for messages in a group, and does nothing else.
    fn add_messages(&mut self, number: usize) {
        let job = self.job;
        let group = &job.groups[number];
        for (&waiter, line) in &group.lines {
            let dump = &job.dumps[line.dump];
            let latest = dump.entries.iter().map(|entry| entry.ended_ns.max(Some(entry.issued_ns)));
            let latest = latest.max().flatten().unwrap_or(0);
            let is_idle = dump.taken_ns.saturating_sub(latest) >= PATIENCE_NS;
            let waits = |entry: &&Entry| {
                let is_late = entry.state == crate::dump::State::Failed("Timeout".to_owned());
                (entry.group, entry.rank) == (group.id, waiter)
                    && (entry.is_under_way() && is_idle || is_late)
            };
            for entry in dump.entries.iter().filter(waits) {
                let peer = entry.message.and_then(|message| message.peer);
                let Some(peer) = peer.filter(|&peer| peer < group.size) else { continue };
                self.add(number, (waiter, peer), entry, dump.on_the_wall(entry.issued_ns));
            }
        }
    }

    fn add(&mut self, group: usize, ranks: (usize, usize), entry: &'a Entry, since: u64) {
        let (waiter, awaited) = ranks;
        let (from, to) = (self.node(group, waiter), self.node(group, awaited));
        // Several ranks may be threads of one process.
        if from != to {
            self.edges.push(Edge { from, to, group, waiter, awaited, entry, since });
        }
    }

    /// The process of a rank.
    fn node(&mut self, number: usize, rank: usize) -> usize {
        let group = &self.job.groups[number];
        if let Some(line) = group.lines.get(&rank) {
            return line.dump;
        }
        let key = match group.members.get(rank) {
            Some(member) => (member.host.clone(), member.pid),
            None => (format!("group {number}"), rank as u64),
        };
        let next = self.job.dumps.len() + self.silent.len();
        *self.silent.entry(key).or_insert(next)
    }

    /// A finding for each process that is waited for and waits for nobody.
    fn roots(&self) -> Vec<Finding> {
        let waiting: BTreeSet<usize> = self.edges.iter().map(|edge| edge.from).collect();
        let mut awaited: BTreeMap<usize, Vec<&Edge<'_>>> = BTreeMap::new();
        for edge in self.edges.iter().filter(|edge| !waiting.contains(&edge.to)) {
            awaited.entry(edge.to).or_default().push(edge);
        }
        let (known, silent): (Vec<_>, Vec<_>) =
            awaited.into_values().partition(|edges| edges[0].to < self.job.dumps.len());
        let mut findings: Vec<Finding> = known.iter().map(|edges| self.behind(edges)).collect();
        findings.extend(self.silent(silent.into_iter().flatten().collect()));
        findings
    }

    /// Of a process that is elsewhere.
    fn behind(&self, edges: &[&Edge<'_>]) -> Finding {
        let job = self.job;
        // The first thing that it has missed; it may be waited for in several groups.
        let first = edges.iter().min_by_key(|edge| (edge.entry.sequence, edge.since));
        let Edge { group: number, awaited, entry, .. } = **first.unwrap_or(&edges[0]);
        let group = &job.groups[number];
        let line = &group.lines[&awaited];
        let same = edges.iter().filter(|edge| edge.group == number);
        let since = same.clone().map(|edge| edge.since).min().unwrap_or(0);
        let who = group.who(awaited);
        let late = job.entry(line, entry.sequence).filter(|_| line.is_late);
        let missed = match (entry.message, late) {
            (Some(_), _) => {
                let waiter = group.who(first.map_or(0, |edge| edge.waiter));
                format!(
                    "{who} has not answered the {} of {waiter} in group {}",
                    entry.description, group.name
                )
            }
            (None, Some(late)) => {
                let after = job.dumps[line.dump].on_the_wall(late.issued_ns).saturating_sub(since);
                format!(
                    "{who} entered {} of group {} only {} after the first of those who waited for it",
                    late.description,
                    group.name,
                    text::span(after)
                )
            }
            (None, None) => {
                format!("{who} never entered {} of group {}", entry.description, group.name)
            }
        };
        let now = job.whereabouts(line.dump);
        let waiters: BTreeSet<usize> = same.clone().map(|edge| edge.waiter).collect();
        let verb = match waiters.len() {
            _ if same.clone().all(|edge| edge.entry.has_failed()) => "waited for it, and failed",
            1 => "waits for it",
            _ => "wait for it",
        };
        let text = format!("{missed}; {now}; {} {verb}", text::count(waiters.len(), "rank"));
        Finding { class: Class::Behind, group: number, text, culprits: vec![awaited], since }
    }

    /// Of processes of which there is no dump: one finding for each group.
    fn silent(&self, edges: Vec<&Edge<'_>>) -> Vec<Finding> {
        let mut groups: BTreeMap<usize, Vec<&Edge<'_>>> = BTreeMap::new();
        edges.into_iter().for_each(|edge| groups.entry(edge.group).or_default().push(edge));
        let told = groups.into_iter().map(|(number, edges)| {
            let group = &self.job.groups[number];
            let awaited: BTreeSet<usize> = edges.iter().map(|edge| edge.awaited).collect();
            let waiters: BTreeSet<usize> = edges.iter().map(|edge| edge.waiter).collect();
            let culprits: Vec<usize> = awaited.into_iter().collect();
            let waiters: Vec<usize> = waiters.into_iter().collect();
            let who = whom(group, &culprits);
            let text = format!(
                "there is no dump of {who}: dead, stopped, or its dump is not among these files; in group {} {} \
                 in {}, and all of whom there are dumps have entered it",
                group.name,
                if waiters.len() == 1 { format!("{} waits", whom(group, &waiters)) } else { format!("{} wait", text::ranks(&waiters)) },
                edges[0].entry.description
            );
            let since = edges.iter().map(|edge| edge.since).min().unwrap_or(0);
            Finding { class: Class::Silent, group: number, text, culprits, since }
        });
        told.collect()
    }

    /// Where everybody waits for somebody who waits, a circle.
    fn circle(&self) -> Option<Finding> {
        let mut path: Vec<&Edge<'_>> = vec![self.edges.first()?];
        // Each step leads to another node, until one comes again.
        let circle = loop {
            let last = path[path.len() - 1];
            if let Some(at) = path.iter().position(|edge| edge.from == last.to) {
                break &path[at..];
            }
            path.push(self.edges.iter().find(|edge| edge.from == last.to)?);
        };
        let step = |edge: &&Edge<'_>| {
            let group = &self.job.groups[edge.group];
            let (waiter, awaited) = (group.who(edge.waiter), group.who(edge.awaited));
            format!("{waiter} waits in {} of group {} for {awaited}", edge.entry.name(), group.name)
        };
        let steps: Vec<String> = circle.iter().map(step).collect();
        let text = format!("deadlock, each waits for the next: {}", steps.join("; "));
        let first = circle.first()?;
        let culprits =
            circle.iter().filter(|edge| edge.group == first.group).map(|edge| edge.waiter);
        let since = circle.iter().map(|edge| edge.since).max().unwrap_or(0);
        Some(Finding {
            class: Class::Deadlock,
            group: first.group,
            text,
            culprits: culprits.collect(),
            since,
        })
    }
}

/// One rank with its process, or several by their numbers.
fn whom(group: &Group, ranks: &[usize]) -> String {
    match ranks {
        [rank] => group.who(*rank),
        _ => text::ranks(ranks),
    }
}

/// All ranks are in it, for long.
fn stalled(job: &Job, number: usize, inside: &[(usize, &Entry, u64)]) -> Option<Finding> {
    let group = &job.groups[number];
    let running = |line: &Line| stuck(job, line).is_some_and(|(_, entry)| entry.is_under_way());
    let (_, entry, since) = inside.iter().min_by_key(|(_, entry, _)| entry.sequence)?;
    let age = group
        .lines
        .values()
        .map(|line| job.dumps[line.dump].taken().saturating_sub(*since))
        .min()?;
    if age < STALLED_NS || !group.lines.values().all(running) {
        return None;
    }
    let text = format!(
        "all {} ranks of group {} are in {}, the first since {}, and it does not get on",
        group.size,
        group.name,
        entry.description,
        text::span(age)
    );
    Some(Finding {
        class: Class::Stalled,
        group: number,
        text,
        culprits: Vec::new(),
        since: *since,
    })
}
