//! The members of a file store: the processes that have joined, and which of them are alive.

use super::record::ProcessIdentity;
use crate::sys::{host, process_status};
use std::fmt::Write as _;

/// The largest number of members that an error names.
const MEMBERS_NAMED: usize = 8;

/// Returns the identity of this process, which other processes use to check if this process is
/// alive.
pub(super) fn this_process() -> ProcessIdentity {
    let pid = host::pid();
    ProcessIdentity {
        pid,
        start_ticks: process_status::start_time(pid),
        pid_namespace: host::pid_namespace(),
        host: host::name(),
    }
}

impl ProcessIdentity {
    /// Formats the process for messages: "process 12 on host there".
    pub(super) fn display_name(&self) -> String {
        format!("process {} on host {}", self.pid, self.host)
    }

    /// Returns true if the process has certainly exited. Only a process of its own host and PID
    /// namespace can know this.
    fn has_exited(&self, pid_space: &str) -> bool {
        !pid_space.is_empty()
            && self.pid_namespace == pid_space
            && process_status::is_gone(self.pid, self.start_ticks)
    }
}

/// A process that has joined.
#[derive(Debug)]
struct FileMember {
    process: ProcessIdentity,
    has_left: bool,
}

/// All processes that have joined, in order. The index is the member number.
#[derive(Debug, Default)]
pub(super) struct FileMembers(Vec<FileMember>);

/// The members, classified by liveness. A member that has left is in neither list.
#[derive(Debug, Default)]
pub(super) struct MemberLiveness<'a> {
    /// The members that are alive, and the members of other hosts or PID namespaces, whose state
    /// this process cannot know.
    pub(super) alive: Vec<&'a ProcessIdentity>,
    /// The members that have exited without leaving the store.
    pub(super) dead: Vec<&'a ProcessIdentity>,
}

impl FileMembers {
    pub(super) fn join(&mut self, process: ProcessIdentity) {
        self.0.push(FileMember { process, has_left: false });
    }

    /// Records that a member has left. Returns false if there is no such member.
    pub(super) fn leave(&mut self, member: u32) -> bool {
        let member = usize::try_from(member).ok().and_then(|member| self.0.get_mut(member));
        member.is_some_and(|member| {
            member.has_left = true;
            true
        })
    }

    /// Returns the number of members that have ever joined, which is the number of the next member.
    pub(super) fn joined_count(&self) -> usize {
        self.0.len()
    }

    /// Returns the first member that has left.
    pub(super) fn first_departed(&self) -> Option<&ProcessIdentity> {
        self.0.iter().find(|member| member.has_left).map(|member| &member.process)
    }

    /// Classifies all members except `excluded`.
    pub(super) fn liveness(&self, excluded: Option<u32>) -> MemberLiveness<'_> {
        let pid_space = host::pid_namespace();
        let except = excluded.and_then(|member| usize::try_from(member).ok());
        let mut liveness = MemberLiveness::default();
        for (number, member) in self.0.iter().enumerate() {
            if member.has_left || Some(number) == except {
                continue;
            }
            let list = match member.process.has_exited(&pid_space) {
                true => &mut liveness.dead,
                false => &mut liveness.alive,
            };
            list.push(&member.process);
        }
        liveness
    }

    /// Names the first members and counts the rest.
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for (position, member) in self.0.iter().take(MEMBERS_NAMED).enumerate() {
            let comma = if position > 0 { ", " } else { "" };
            // Writing to a String cannot fail.
            let _infallible = write!(text, "{comma}{}", member.process.display_name());
        }
        if self.0.len() > MEMBERS_NAMED {
            // Writing to a String cannot fail.
            let _infallible = write!(text, " and {} more", self.0.len() - MEMBERS_NAMED);
        }
        text
    }
}
