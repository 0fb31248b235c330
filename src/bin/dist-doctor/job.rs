//! The dumps of the ranks of one job, brought together by group.
//!
//! A group's id is different in every attempt of a job, so that dumps which an earlier one has left
//! in the same folder have no group in common with the others. They are left out, and named.
//!
//! Must not know: what is wrong with the job.

use crate::dump::{Dump, Entry, Fault, Member};
use crate::text;
use std::collections::{BTreeMap, HashMap};

/// How far the clocks of two hosts may be apart.
const CLOCK_SLACK_NS: u64 = 100_000_000;

/// The newest job among the dumps.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) dumps: Vec<Dump>,
    pub(crate) groups: Vec<Group>,
    /// What was left out, and why.
    pub(crate) notes: Vec<String>,
}

/// A group, as all its ranks tell it.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) size: usize,
    /// By rank; none where no dump says.
    pub(crate) members: Vec<Member>,
    /// What each rank has done of which there is a dump.
    pub(crate) lines: BTreeMap<usize, Line>,
}

/// What one rank has done in a group.
#[derive(Debug)]
pub(crate) struct Line {
    /// Which of the job's dumps says so.
    pub(crate) dump: usize,
    /// Its collectives by their numbers, up to the first that failed: which of the dump's entries.
    /// What a program does in a group that has failed says nothing about why.
    pub(crate) calls: BTreeMap<u64, usize>,
    /// The last of them was issued only when the group had failed already.
    pub(crate) is_late: bool,
    pub(crate) failure: Option<Fault>,
}

impl Job {
    /// Brings dumps together.
    pub(crate) fn of(dumps: Vec<Dump>) -> Self {
        let mut notes = Vec::new();
        let dumps = newest_of_each_process(dumps, &mut notes);
        let dumps = newest_job(dumps, &mut notes);
        let mut job = Self { dumps, groups: Vec::new(), notes };
        let mut known: HashMap<u64, usize> = HashMap::new();
        for (number, dump) in job.dumps.iter().enumerate() {
            for membership in &dump.groups {
                let at = *known.entry(membership.id).or_insert_with(|| {
                    job.groups.push(Group {
                        id: membership.id,
                        name: membership.name.clone(),
                        size: membership.size,
                        members: Vec::new(),
                        lines: BTreeMap::new(),
                    });
                    job.groups.len() - 1
                });
                let group = &mut job.groups[at];
                if group.size != membership.size {
                    let note = format!("{} gives group {} another size", dump.file, group.name);
                    job.notes.push(note);
                    continue;
                }
                if group.members.is_empty() {
                    group.members.clone_from(&membership.members);
                }
                let failure = membership.failure.clone();
                let calls = BTreeMap::new();
                let line = Line { dump: number, calls, is_late: false, failure };
                group.lines.insert(membership.rank, line);
            }
            for (at, entry) in dump.entries.iter().enumerate() {
                let group = known.get(&entry.group).map(|&at| &mut job.groups[at]);
                let line = group.and_then(|group| group.lines.get_mut(&entry.rank));
                // One that is in no group of the dump says nothing about anybody else.
                if let Some(line) =
                    line.filter(|line| line.dump == number && entry.message.is_none())
                {
                    line.calls.insert(entry.sequence, at);
                }
            }
        }
        let Self { dumps, groups, .. } = &mut job;
        groups.iter_mut().for_each(|group| group.leave_out_what_came_after(dumps));
        job
    }

    /// An operation of a rank.
    pub(crate) fn entry(&self, line: &Line, sequence: u64) -> Option<&Entry> {
        self.dumps[line.dump].entries.get(*line.calls.get(&sequence)?)
    }

    /// The collectives of a rank, by number.
    pub(crate) fn calls<'a>(&'a self, line: &'a Line) -> impl Iterator<Item = (u64, &'a Entry)> {
        let dump = &self.dumps[line.dump];
        line.calls.iter().map(|(&sequence, &at)| (sequence, &dump.entries[at]))
    }

    /// The group of an entry.
    pub(crate) fn group_of(&self, entry: &Entry) -> Option<&Group> {
        self.groups.iter().find(|group| group.id == entry.group)
    }

    /// Where a process is now, as "it is in ...".
    pub(crate) fn whereabouts(&self, dump: usize) -> String {
        let dump = &self.dumps[dump];
        let of = |entry: &Entry| match self.group_of(entry) {
            Some(group) => format!("{} of group {}", entry.name(), group.name),
            None => entry.name(),
        };
        let collectives = dump.entries.iter().filter(|entry| entry.message.is_none());
        let current =
            collectives.filter(|entry| entry.is_under_way()).min_by_key(|it| it.issued_ns);
        if let Some(entry) = current {
            let since = text::span(dump.taken_ns.saturating_sub(entry.issued_ns));
            return format!("it is in {} since {since}", of(entry));
        }
        let ended = dump.entries.iter().filter(|entry| entry.ended_ns.is_some());
        let last = ended.clone().max_by_key(|entry| entry.ended_ns);
        let pending = dump.entries.iter().filter(|entry| entry.is_under_way());
        let oldest = pending.clone().min_by_key(|entry| entry.issued_ns);
        let messages = match (oldest, pending.count()) {
            (Some(oldest), 1) => format!("; it has posted a {}", oldest.description),
            (Some(oldest), count) => {
                format!("; it has posted {count} messages, the oldest a {}", oldest.description)
            }
            (None, _) => String::new(),
        };
        let Some(last) = last else { return format!("it has finished no operation{messages}") };
        let since = dump.taken_ns.saturating_sub(last.ended_ns.unwrap_or(0));
        let since = text::span(since);
        let finished = ended.filter(|it| !it.has_failed()).max_by_key(|entry| entry.ended_ns);
        let finished = finished
            .map_or_else(|| "has finished none".into(), |it| format!("last finished {}", of(it)));
        format!("it is in no operation since {since}, {finished}{messages}")
    }
}

impl Entry {
    /// Without its arguments: "all_reduce #57", or with a label "all_reduce #57 "layer3.weight"".
    pub(crate) fn name(&self) -> String {
        match (&self.message, &self.label) {
            (None, None) => format!("{} #{}", self.operation, self.sequence),
            (None, Some(label)) => format!("{} #{} \"{label}\"", self.operation, self.sequence),
            (Some(_), _) => self.description.clone(),
        }
    }
}

impl Group {
    fn leave_out_what_came_after(&mut self, dumps: &[Dump]) {
        // Where and when a call failed for the first time.
        let mut first: Option<(u64, &str)> = None;
        for line in self.lines.values_mut() {
            let dump = &dumps[line.dump];
            let mut calls = line.calls.iter();
            let Some((&failed, &at)) = calls.find(|&(_, &at)| dump.entries[at].has_failed()) else {
                continue;
            };
            line.calls.retain(|&sequence, _| sequence <= failed);
            let ended = dump.on_the_wall(dump.entries[at].ended_ns.unwrap_or(dump.taken_ns));
            if first.is_none_or(|(earliest, _)| ended < earliest) {
                first = Some((ended, &dump.host));
            }
        }
        let Some((failed_at, host)) = first else { return };
        for line in self.lines.values_mut() {
            let dump = &dumps[line.dump];
            let last = line.calls.last_key_value().map(|(_, &at)| &dump.entries[at]);
            // The clocks of two hosts differ.
            let slack = if dump.host == host { 0 } else { CLOCK_SLACK_NS };
            line.is_late = last.is_some_and(|entry| {
                entry.has_failed()
                    && dump.on_the_wall(entry.issued_ns) > failed_at.saturating_add(slack)
            });
        }
    }

    /// Who a rank is: "rank 3 (pid 812, host a)".
    pub(crate) fn who(&self, rank: usize) -> String {
        match self.members.get(rank) {
            Some(Member { pid, host, global_rank }) if *global_rank == rank => {
                format!("rank {rank} (pid {pid}, host {host})")
            }
            Some(Member { pid, host, global_rank }) => {
                format!("rank {rank} (rank {global_rank} of the job, pid {pid}, host {host})")
            }
            None => format!("rank {rank}"),
        }
    }

    /// The ranks of which there is no dump.
    pub(crate) fn missing(&self) -> Vec<usize> {
        (0..self.size).filter(|rank| !self.lines.contains_key(rank)).collect()
    }
}

/// A process may have written several dumps under different names.
fn newest_of_each_process(mut dumps: Vec<Dump>, notes: &mut Vec<String>) -> Vec<Dump> {
    dumps.sort_by_key(|dump| std::cmp::Reverse(dump.taken()));
    let mut known: HashMap<(String, u64), String> = HashMap::new();
    dumps.retain(|dump| {
        let newer = known.entry((dump.host.clone(), dump.pid)).or_insert_with(|| dump.file.clone());
        let is_newest = *newer == dump.file;
        if !is_newest {
            notes.push(format!("{} is left out: {newer} is newer, of the same process", dump.file));
        }
        is_newest
    });
    dumps
}

/// Those that have a group in common with the newest dump, or with one that has, and so on.
fn newest_job(dumps: Vec<Dump>, notes: &mut Vec<String>) -> Vec<Dump> {
    let mut of_group: HashMap<u64, Vec<usize>> = HashMap::new();
    for (number, dump) in dumps.iter().enumerate() {
        dump.groups.iter().for_each(|group| of_group.entry(group.id).or_default().push(number));
    }
    let mut is_ours = vec![false; dumps.len()];
    // The newest comes first.
    let mut found: Vec<usize> = if dumps.is_empty() { Vec::new() } else { vec![0] };
    while let Some(number) = found.pop() {
        if !std::mem::replace(&mut is_ours[number], true) {
            // Each group is followed once.
            let groups = dumps[number].groups.iter();
            found.extend(groups.filter_map(|group| of_group.remove(&group.id)).flatten());
        }
    }
    let mut ours = Vec::new();
    for (dump, is_ours) in dumps.into_iter().zip(is_ours) {
        if is_ours {
            ours.push(dump);
        } else {
            notes.push(format!("{} is left out: it is of another job or attempt", dump.file));
        }
    }
    ours.sort_by_key(|dump| (dump.rank, dump.pid));
    ours
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made_up;

    #[test]
    fn dumps_of_an_earlier_attempt_are_left_out_and_named() {
        let mut early = made_up::dump(1, 2, 4);
        early.is_of(9, 777);
        let mut early = early.read();
        early.file = "old".to_owned();
        early.taken_ns -= 1_000_000_000;
        let job = Job::of(vec![early, made_up::dump(0, 2, 3).read()]);
        assert_eq!((job.dumps.len(), job.groups.len()), (1, 1));
        assert_eq!(job.notes, ["old is left out: it is of another job or attempt"]);
        assert_eq!(job.groups[0].missing(), [1]);
        assert_eq!(job.groups[0].who(1), "rank 1 (pid 101, host a)");
    }

    #[test]
    fn of_one_process_the_newest_dump_counts() {
        let mut old = made_up::dump(0, 1, 3).read();
        old.taken_ns -= 1;
        old.file = "old".to_owned();
        let job = Job::of(vec![old, made_up::dump(0, 1, 4).read()]);
        assert_eq!(job.groups[0].lines[&0].calls.len(), 4);
        assert!(job.notes[0].starts_with("old is left out: made up is newer"), "{:?}", job.notes);
    }

    #[test]
    fn where_a_process_is() {
        let mut dump = made_up::dump(0, 2, 0);
        let said = |dump: &made_up::MadeUp| Job::of(vec![dump.read()]).whereabouts(0);
        assert_eq!(said(&dump), "it has finished no operation");
        dump.collective(1, 0, 1, "barrier", "");
        assert_eq!(said(&dump), "it is in barrier #1 of group world since 15.0 s");
        dump.labelled("phase 2");
        assert_eq!(said(&dump), "it is in barrier #1 \"phase 2\" of group world since 15.0 s");
        dump.labelled("");
        dump.ends("done", 7000, Some(8000));
        dump.receive(1, 0, 1);
        assert_eq!(
            said(&dump),
            "it is in no operation since 12.0 s, last finished barrier #1 of group world; it has posted a \
             receive from rank 1, tag 7 (f32, count 10)"
        );
    }
}
