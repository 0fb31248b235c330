//! The dumps of running processes (`--pid`). The processes need no preparation: each process that
//! is in a group gives the dump of its flight recorder to programs of the same user.

use crate::input_files::LoadedDumps;
use crate::recorder_dump::Dump;
use crate::report_error;
use dist::base::config;
use dist::base::{Deadline, ErrorKind};
use dist::process::request_socket::request_text;
use dist_terminal::Progress;
use dist_tools::Failure;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

/// The time limit for the answer of one process.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest number of processes that are asked.
const MAX_PROCESSES: usize = 1 << 16;

/// Asks the processes for their dumps. If a process has no dump, for example a launcher, asks its
/// children, and then their children.
///
/// # Errors
/// The message if no process answers.
pub(crate) fn request_dumps(pids: &[u32]) -> Result<LoadedDumps, Failure> {
    let children = children_of_processes();
    let mut loaded = LoadedDumps::default();
    let mut asked = Vec::new();
    let mut seen = BTreeSet::new();
    let mut left: Vec<u32> = pids.iter().rev().copied().collect();
    let progress = Progress::of_wait("");
    while let Some(pid) = left.pop() {
        if !seen.insert(pid) || seen.len() > MAX_PROCESSES {
            continue;
        }
        progress.set_text(format!("asking process {pid}, {} dumps so far", loaded.dumps.len()));
        let text = match request_text(pid, &Deadline::after(ANSWER_TIMEOUT)) {
            Ok(text) => {
                asked.push(pid);
                text
            }
            Err(error) => {
                let started = children.get(&pid).map_or(&[][..], Vec::as_slice);
                left.extend(started.iter().rev());
                let is_missing = error.kind() == ErrorKind::NotFound;
                // A process without a group is no problem if it is a launcher or a helper.
                if !is_missing || pids.contains(&pid) && started.is_empty() {
                    progress.suspend(|| report_problem(&mut loaded, error.message()));
                }
                continue;
            }
        };
        match Dump::parse(&format!("process {pid}"), &text) {
            Ok(dump) => loaded.dumps.push(dump),
            Err(problem) => {
                let problem = format!("process {pid}: {problem}");
                progress.suspend(|| report_problem(&mut loaded, &problem));
            }
        }
    }
    if loaded.dumps.is_empty() {
        let message = "no process has a dump: name the processes of the ranks or their launcher, \
                       as the same user, in the same container";
        return Err(Failure::usage(message));
    }
    loaded.notes.extend(missing_variable_notes(&asked));
    Ok(loaded)
}

fn report_problem(loaded: &mut LoadedDumps, problem: &str) {
    let problem = format!("{problem}; the process is skipped");
    report_error(&problem);
    loaded.notes.push(problem);
}

/// Returns the processes that each process has started.
fn children_of_processes() -> BTreeMap<u32, Vec<u32>> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let Ok(entries) = fs::read_dir("/proc") else { return children };
    for entry in entries.flatten().take(MAX_PROCESSES) {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid else { continue };
        if let Some(parent) = parent_of(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    children.values_mut().for_each(|pids| pids.sort_unstable());
    children
}

/// Returns the parent of a process. The name of the program, in parentheses, may contain any
/// characters.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The variables that would have helped to explain the fault without this program, each with a
/// value and its effect.
const HELPFUL_VARIABLES: [(&str, &str); 3] = [
    (config::LOG_LEVEL.name, "WARN, which logs each long wait with the ranks that are awaited"),
    (config::RECORDER_FILE.name, "PREFIX, which writes a dump when a group fails"),
    (config::RECORDER_TRIGGER.name, "PATH, which writes a dump after \"touch PATH\""),
];

/// Returns a note for each helpful variable with which none of these processes was started.
fn missing_variable_notes(pids: &[u32]) -> Vec<String> {
    let environments: Vec<_> = pids.iter().filter_map(|&pid| variable_names(pid)).collect();
    let is_missing = |name: &str| {
        !environments.is_empty() && !environments.iter().any(|names| names.contains(name))
    };
    let missing = HELPFUL_VARIABLES.iter().filter(|(name, _)| is_missing(name));
    missing.map(|(name, effect)| format!("for the next run: {name}={effect}")).collect()
}

/// Returns the names of the variables with which a process was started.
fn variable_names(pid: u32) -> Option<BTreeSet<String>> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let names = bytes.split(|&byte| byte == 0).filter_map(|variable| {
        let name = variable.split(|&byte| byte == b'=').next()?;
        String::from_utf8(name.to_vec()).ok()
    });
    Some(names.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_is_found_and_process_without_a_group_is_reported() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let children = children_of_processes();
        assert!(children[&std::process::id()].contains(&child.id()), "{children:?}");
        let failure = request_dumps(&[child.id()]).unwrap_err();
        assert!(failure.message.contains("no process has a dump"), "{failure:?}");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn every_helpful_variable_of_this_process_is_noted() {
        // The test has none of the variables.
        let notes = missing_variable_notes(&[std::process::id()]);
        assert_eq!(notes.len(), HELPFUL_VARIABLES.len(), "{notes:?}");
        assert!(missing_variable_notes(&[]).is_empty());
    }
}
