//! Who uses a file, and who of them is still there.

use super::record::Process;
use crate::sys::{host, presence};
use std::fmt::Write as _;

/// How many members an error names.
const MEMBERS_NAMED: usize = 8;

/// This process, as others will know it.
pub(super) fn this_process() -> Process {
    let pid = host::pid();
    Process { pid, began: presence::started(pid), pid_space: host::pid_space(), host: host::name() }
}

impl Process {
    /// "process 12 on host there".
    pub(super) fn describe(&self) -> String {
        format!("process {} on host {}", self.pid, self.host)
    }

    /// True where it is certain that it has ended: only its own host can tell.
    fn is_gone(&self, pid_space: &str) -> bool {
        !pid_space.is_empty()
            && self.pid_space == pid_space
            && presence::is_gone(self.pid, self.began)
    }
}

/// One who has joined.
#[derive(Debug)]
struct Member {
    process: Process,
    has_left: bool,
}

/// All who have joined, in order; a member is known by its place.
#[derive(Debug, Default)]
pub(super) struct Members(Vec<Member>);

/// Those who have joined, by what has become of them. One that has left is in neither list.
#[derive(Debug, Default)]
pub(super) struct Presence<'a> {
    /// They are there, or nobody on this host can tell.
    pub(super) living: Vec<&'a Process>,
    /// They have ended without leaving.
    pub(super) dead: Vec<&'a Process>,
}

impl Members {
    pub(super) fn join(&mut self, process: Process) {
        self.0.push(Member { process, has_left: false });
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
    pub(super) fn joined(&self) -> usize {
        self.0.len()
    }

    /// The first one that has left.
    pub(super) fn first_left(&self) -> Option<&Process> {
        self.0.iter().find(|member| member.has_left).map(|member| &member.process)
    }

    /// Looks who is there, `except` one.
    pub(super) fn presence(&self, except: Option<u32>) -> Presence<'_> {
        let pid_space = host::pid_space();
        let except = except.and_then(|member| usize::try_from(member).ok());
        let mut presence = Presence::default();
        for (number, member) in self.0.iter().enumerate() {
            if member.has_left || Some(number) == except {
                continue;
            }
            let list = match member.process.is_gone(&pid_space) {
                true => &mut presence.dead,
                false => &mut presence.living,
            };
            list.push(&member.process);
        }
        presence
    }

    /// The first members by name, and how many others there are.
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for (position, member) in self.0.iter().take(MEMBERS_NAMED).enumerate() {
            let comma = if position > 0 { ", " } else { "" };
            // Writing to a String cannot fail.
            let _infallible = write!(text, "{comma}{}", member.process.describe());
        }
        if self.0.len() > MEMBERS_NAMED {
            // As above.
            let _infallible = write!(text, " and {} more", self.0.len() - MEMBERS_NAMED);
        }
        text
    }
}
