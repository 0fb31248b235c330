//! The dumps (flight recorder contents of one process each) of the ranks of one job. The module
//! combines them by group.
//!
//! Every attempt of a job creates its groups with new ids. So if the folder contains dumps of an
//! earlier attempt, these have no group in common with the newest dumps. They are skipped, and a
//! remark names them.
//!
//! This module does not diagnose faults.

use crate::recorder_dump::{Dump, GroupFailure, GroupMember, OperationRecord};
use crate::text;
use std::collections::{BTreeMap, HashMap};

/// The largest difference between the clocks of two hosts that the diagnosis allows for.
const MAX_CLOCK_SKEW_NS: u64 = 100_000_000;

/// The newest job among the dumps.
#[derive(Debug)]
pub(crate) struct JobDumps {
    pub(crate) dumps: Vec<Dump>,
    pub(crate) groups: Vec<JobGroup>,
    /// The skipped dumps with the reasons.
    pub(crate) remarks: Vec<String>,
}

/// A group, as the dumps of its ranks describe it.
#[derive(Debug)]
pub(crate) struct JobGroup {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) size: usize,
    /// The members in order of their ranks. Empty if no dump lists them.
    pub(crate) members: Vec<GroupMember>,
    /// The timeline of each rank that has a dump.
    pub(crate) timelines: BTreeMap<usize, RankTimeline>,
}

/// The operations of one rank in a group.
#[derive(Debug)]
pub(crate) struct RankTimeline {
    /// The index of the rank's dump in the job.
    pub(crate) dump_index: usize,
    /// For each collective of the rank, its sequence number and its index in the dump's entries.
    /// The timeline ends with the first collective that failed, because later calls in a failed
    /// group do not show why it failed.
    pub(crate) entry_by_sequence: BTreeMap<u64, usize>,
    /// True if the last collective of the timeline was issued after the group had failed.
    pub(crate) is_last_call_after_failure: bool,
    pub(crate) failure: Option<GroupFailure>,
}

impl JobDumps {
    /// Combines dumps into a job.
    pub(crate) fn from_dumps(dumps: Vec<Dump>) -> Self {
        let mut notes = Vec::new();
        let dumps = newest_of_each_process(dumps, &mut notes);
        let dumps = newest_job(dumps, &mut notes);
        let mut job = Self { dumps, groups: Vec::new(), remarks: notes };
        let mut index_by_group_id: HashMap<u64, usize> = HashMap::new();
        for (number, dump) in job.dumps.iter().enumerate() {
            for membership in &dump.groups {
                let group_index = *index_by_group_id.entry(membership.id).or_insert_with(|| {
                    job.groups.push(JobGroup {
                        id: membership.id,
                        name: membership.name.clone(),
                        size: membership.size,
                        members: Vec::new(),
                        timelines: BTreeMap::new(),
                    });
                    job.groups.len() - 1
                });
                let group = &mut job.groups[group_index];
                if group.size != membership.size {
                    let remark = format!(
                        "{}: ignored group {}, whose size differs from that in another dump",
                        dump.file, group.name
                    );
                    job.remarks.push(remark);
                    continue;
                }
                if group.members.is_empty() {
                    group.members.clone_from(&membership.members);
                }
                let failure = membership.failure.clone();
                let calls = BTreeMap::new();
                let timeline = RankTimeline {
                    dump_index: number,
                    entry_by_sequence: calls,
                    is_last_call_after_failure: false,
                    failure,
                };
                group.timelines.insert(membership.rank, timeline);
            }
            for (entry_index, entry) in dump.entries.iter().enumerate() {
                let group = index_by_group_id.get(&entry.group).map(|&at| &mut job.groups[at]);
                let timeline = group.and_then(|group| group.timelines.get_mut(&entry.rank));
                // If the dump does not contain the group of an entry, there is no timeline for the
                // entry.
                if let Some(timeline) = timeline
                    .filter(|timeline| timeline.dump_index == number && entry.is_collective())
                {
                    timeline.entry_by_sequence.insert(entry.sequence, entry_index);
                }
            }
        }
        let Self { dumps, groups, .. } = &mut job;
        groups.iter_mut().for_each(|group| group.drop_calls_after_failure(dumps));
        job
    }

    /// Returns the record of an operation of a rank.
    pub(crate) fn entry(&self, timeline: &RankTimeline, sequence: u64) -> Option<&OperationRecord> {
        self.dumps[timeline.dump_index].entries.get(*timeline.entry_by_sequence.get(&sequence)?)
    }

    /// Returns the collectives of a rank by sequence number.
    pub(crate) fn calls<'a>(
        &'a self,
        timeline: &'a RankTimeline,
    ) -> impl Iterator<Item = (u64, &'a OperationRecord)> {
        let dump = &self.dumps[timeline.dump_index];
        timeline.entry_by_sequence.iter().map(|(&sequence, &at)| (sequence, &dump.entries[at]))
    }

    /// Returns the group of an entry.
    pub(crate) fn group_of(&self, entry: &OperationRecord) -> Option<&JobGroup> {
        self.groups.iter().find(|group| group.id == entry.group)
    }

    /// Describes the current activity of a process, as a text that begins with "it has been in".
    pub(crate) fn current_activity(&self, dump: usize) -> String {
        let dump = &self.dumps[dump];
        let describe = |entry: &OperationRecord| match self.group_of(entry) {
            Some(group) => format!("{} of group {}", entry.name(), group.name),
            None => entry.name(),
        };
        let collectives = dump.entries.iter().filter(|entry| entry.message.is_none());
        let current =
            collectives.filter(|entry| entry.is_under_way()).min_by_key(|it| it.issued_ns);
        if let Some(entry) = current {
            let since = text::span_text(dump.taken_ns.saturating_sub(entry.issued_ns));
            return format!("it has been in {} for {since}", describe(entry));
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
        let since = text::span_text(since);
        let finished = ended.filter(|it| !it.has_failed()).max_by_key(|entry| entry.ended_ns);
        let finished = finished.map_or_else(
            || "it has finished no operation".into(),
            |it| format!("it last finished {}", describe(it)),
        );
        format!("it has been in no operation for {since}; {finished}{messages}")
    }
}

impl OperationRecord {
    /// Returns the operation's name without arguments: `all_reduce #57`, or with a label
    /// `all_reduce #57 "layer3.weight"`.
    pub(crate) fn name(&self) -> String {
        match (&self.message, &self.label) {
            (None, None) => format!("{} #{}", self.operation, self.sequence),
            (None, Some(label)) => format!("{} #{} \"{label}\"", self.operation, self.sequence),
            (Some(_), _) => self.description.clone(),
        }
    }
}

impl JobGroup {
    fn drop_calls_after_failure(&mut self, dumps: &[Dump]) {
        // The time at which the first failed call ended, and its host.
        let mut first_failure: Option<(u64, &str)> = None;
        for timeline in self.timelines.values_mut() {
            let dump = &dumps[timeline.dump_index];
            let mut calls = timeline.entry_by_sequence.iter();
            let Some((&failed, &at)) = calls.find(|&(_, &at)| dump.entries[at].has_failed()) else {
                continue;
            };
            timeline.entry_by_sequence.retain(|&sequence, _| sequence <= failed);
            let ended = dump.to_unix_ns(dump.entries[at].ended_ns.unwrap_or(dump.taken_ns));
            if first_failure.is_none_or(|(earliest, _)| ended < earliest) {
                first_failure = Some((ended, &dump.host));
            }
        }
        let Some((failed_at, host)) = first_failure else { return };
        for timeline in self.timelines.values_mut() {
            let dump = &dumps[timeline.dump_index];
            let last =
                timeline.entry_by_sequence.last_key_value().map(|(_, &at)| &dump.entries[at]);
            // The clocks of two hosts may differ.
            let clock_skew = if dump.host == host { 0 } else { MAX_CLOCK_SKEW_NS };
            timeline.is_last_call_after_failure = last.is_some_and(|entry| {
                entry.has_failed()
                    && dump.to_unix_ns(entry.issued_ns) > failed_at.saturating_add(clock_skew)
            });
        }
    }

    /// Describes a rank: "rank 3 (pid 812, host a)".
    pub(crate) fn describe_rank(&self, rank: usize) -> String {
        match self.members.get(rank) {
            Some(GroupMember { pid, host, global_rank }) if *global_rank == rank => {
                format!("rank {rank} (pid {pid}, host {host})")
            }
            Some(GroupMember { pid, host, global_rank }) => {
                format!("rank {rank} (rank {global_rank} of the job, pid {pid}, host {host})")
            }
            None => format!("rank {rank}"),
        }
    }

    /// Returns the ranks that have no dump.
    pub(crate) fn ranks_without_dump(&self) -> Vec<usize> {
        (0..self.size).filter(|rank| !self.timelines.contains_key(rank)).collect()
    }
}

/// Keeps only the newest dump of each process. A process may have written several dumps under
/// different names.
fn newest_of_each_process(mut dumps: Vec<Dump>, remarks: &mut Vec<String>) -> Vec<Dump> {
    dumps.sort_by_key(|dump| std::cmp::Reverse(dump.taken_unix_ns()));
    let mut file_by_process: HashMap<(String, u64), String> = HashMap::new();
    dumps.retain(|dump| {
        let newer = file_by_process
            .entry((dump.host.clone(), dump.pid))
            .or_insert_with(|| dump.file.clone());
        let is_newest = *newer == dump.file;
        if !is_newest {
            remarks.push(format!(
                "{} is skipped: {newer} is a newer dump of the same process",
                dump.file
            ));
        }
        is_newest
    });
    dumps
}

/// Keeps only the dumps of the newest job. These are the newest dump and all dumps that have a
/// group in common with it, directly or through other dumps.
fn newest_job(dumps: Vec<Dump>, remarks: &mut Vec<String>) -> Vec<Dump> {
    let mut of_group: HashMap<u64, Vec<usize>> = HashMap::new();
    for (number, dump) in dumps.iter().enumerate() {
        dump.groups.iter().for_each(|group| of_group.entry(group.id).or_default().push(number));
    }
    let mut is_in_newest_job = vec![false; dumps.len()];
    // The dumps are sorted by time, the newest first.
    let mut pending: Vec<usize> = if dumps.is_empty() { Vec::new() } else { vec![0] };
    while let Some(number) = pending.pop() {
        if !std::mem::replace(&mut is_in_newest_job[number], true) {
            // `remove` ensures that each group is followed only once.
            let groups = dumps[number].groups.iter();
            pending.extend(groups.filter_map(|group| of_group.remove(&group.id)).flatten());
        }
    }
    let mut newest_dumps = Vec::new();
    for (dump, is_ours) in dumps.into_iter().zip(is_in_newest_job) {
        if is_ours {
            newest_dumps.push(dump);
        } else {
            remarks.push(format!("{} is skipped: it belongs to another job or attempt", dump.file));
        }
    }
    newest_dumps.sort_by_key(|dump| (dump.rank, dump.pid));
    newest_dumps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_dumps;

    #[test]
    fn dumps_of_an_earlier_attempt_are_skipped_and_named() {
        let mut early = sample_dumps::sample_dump(1, 2, 4);
        early.set_group_and_pid(9, 777);
        let mut early = early.to_dump();
        early.file = "old".to_owned();
        early.taken_ns -= 1_000_000_000;
        let job = JobDumps::from_dumps(vec![early, sample_dumps::sample_dump(0, 2, 3).to_dump()]);
        assert_eq!((job.dumps.len(), job.groups.len()), (1, 1));
        assert_eq!(job.remarks, ["old is skipped: it belongs to another job or attempt"]);
        assert_eq!(job.groups[0].ranks_without_dump(), [1]);
        assert_eq!(job.groups[0].describe_rank(1), "rank 1 (pid 101, host a)");
    }

    #[test]
    fn newest_dump_of_a_process_is_used() {
        let mut old = sample_dumps::sample_dump(0, 1, 3).to_dump();
        old.taken_ns -= 1;
        old.file = "old".to_owned();
        let job = JobDumps::from_dumps(vec![old, sample_dumps::sample_dump(0, 1, 4).to_dump()]);
        assert_eq!(job.groups[0].timelines[&0].entry_by_sequence.len(), 4);
        assert!(
            job.remarks[0].starts_with("old is skipped: sample is a newer dump"),
            "{:?}",
            job.remarks
        );
    }

    #[test]
    fn monitored_barrier_is_no_collective_of_the_timeline() {
        let mut dump = sample_dumps::sample_dump(0, 2, 2);
        dump.add_monitored_barrier(1, 0, 2);
        let job = JobDumps::from_dumps(vec![dump.to_dump()]);
        let timeline = &job.groups[0].timelines[&0];
        let operations: Vec<&str> =
            job.calls(timeline).map(|(_, entry)| entry.operation.as_str()).collect();
        assert_eq!(operations, ["all_reduce"; 2]);
        let current = job.current_activity(0);
        assert_eq!(current, "it has been in monitored_barrier #2 of group world for 15.0 s");
    }

    #[test]
    fn current_activity_of_a_process() {
        let mut dump = sample_dumps::sample_dump(0, 2, 0);
        let current_activity = |dump: &sample_dumps::SampleDump| {
            JobDumps::from_dumps(vec![dump.to_dump()]).current_activity(0)
        };
        assert_eq!(current_activity(&dump), "it has finished no operation");
        dump.add_collective(1, 0, 1, "barrier", "");
        assert_eq!(current_activity(&dump), "it has been in barrier #1 of group world for 15.0 s");
        dump.set_label("phase 2");
        assert_eq!(
            current_activity(&dump),
            "it has been in barrier #1 \"phase 2\" of group world for 15.0 s"
        );
        dump.set_label("");
        dump.set_outcome("done", 7000, Some(8000));
        dump.add_receive(1, 0, 1);
        assert_eq!(
            current_activity(&dump),
            "it has been in no operation for 12.0 s; it last finished barrier #1 of group world; it has posted a \
             receive from rank 1, tag 7 (f32, count 10)"
        );
    }
}
