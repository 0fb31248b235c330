//! Who uses a file, and who of them is still there.

use super::record::ProcessIdentity;
use crate::sys::{host, process_status};
use std::fmt::Write as _;

/// How many members an error names.
const MEMBERS_NAMED: usize = 8;

/// This process, as others will know it.
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
    /// "process 12 on host there".
    pub(super) fn display_name(&self) -> String {
        format!("process {} on host {}", self.pid, self.host)
    }

    /// True where it is certain that it has ended: only its own host can tell.
    fn has_exited(&self, pid_space: &str) -> bool {
        !pid_space.is_empty()
            && self.pid_namespace == pid_space
            && process_status::is_gone(self.pid, self.start_ticks)
    }
}

/// One who has joined.
#[derive(Debug)]
struct FileMember {
    process: ProcessIdentity,
    has_left: bool,
}

/// All who have joined, in order; a member is known by its place.
#[derive(Debug, Default)]
pub(super) struct FileMembers(Vec<FileMember>);

/// Those who have joined, by what has become of them. One that has left is in neither list.
#[derive(Debug, Default)]
pub(super) struct MemberLiveness<'a> {
    /// They are there, or nobody on this host can tell.
    pub(super) alive: Vec<&'a ProcessIdentity>,
    /// They have ended without leaving.
    pub(super) dead: Vec<&'a ProcessIdentity>,
}

impl FileMembers {
    pub(super) fn join(&mut self, process: ProcessIdentity) {
        self.0.push(FileMember { process, has_left: false });
    }

    /// False where there is no such member.
    pub(super) fn leave(&mut self, member: u32) -> bool {
        let member = usize::try_from(member).ok().and_then(|member| self.0.get_mut(member));
        member.is_some_and(|member| {
            member.has_left = true;
            true
        })
    }

    /// How many have ever joined: also the number of the next one.
    pub(super) fn joined_count(&self) -> usize {
        self.0.len()
    }

    /// The first one that has left.
    pub(super) fn first_departed(&self) -> Option<&ProcessIdentity> {
        self.0.iter().find(|member| member.has_left).map(|member| &member.process)
    }

    /// Looks who is there, `excluded` one.
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

    /// The first members by name, and how many others there are.
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for (position, member) in self.0.iter().take(MEMBERS_NAMED).enumerate() {
            let comma = if position > 0 { ", " } else { "" };
            // Writing to a String cannot fail.
            let _infallible = write!(text, "{comma}{}", member.process.display_name());
        }
        if self.0.len() > MEMBERS_NAMED {
            // As above.
            let _infallible = write!(text, " and {} more", self.0.len() - MEMBERS_NAMED);
        }
        text
    }
}
