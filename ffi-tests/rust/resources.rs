//! Compares the table of sockets, files, segments and descriptors in `docs/security.md` with the
//! open ones of running jobs.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the harness tells of a job that failed")]

mod harness;
mod program_paths;
mod worker;

use harness::{TestHost, TestJob};
use program_paths::DISTRUN;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The heading of the table.
const HEADING: &str = "## Sockets, files, segments and descriptors";

/// The program of a rank. The gate `before` is open before the library creates anything.
const PROGRAM: &str = "gate before\ninit\nall_reduce f32 SUM 300000\nsend 70000 PEER 4 async=yes\n\
                       recv 70000 PEER 4\nsettle\ngate inside\nfinalize\nleaks\n";

/// A row of the table.
#[derive(Debug)]
struct ListedResource {
    kind: String,
    /// The time in which the resource is open; `always`: in the jobs of this test.
    open: String,
    /// The last column, with the names of tests in code style.
    tests: String,
}

fn repository() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().find(|folder| folder.join("docs/security.md").is_file()).unwrap().into()
}

fn listed_resources() -> Vec<ListedResource> {
    let page = fs::read_to_string(repository().join("docs/security.md")).unwrap();
    let section = page.split(HEADING).nth(1).expect("the section does not exist");
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let parse = |row: &str| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [kind, open, _, _, tests] = cells[..] else { panic!("{row}: not five cells") };
        let kind = kind.trim_matches('`').to_owned();
        ListedResource { kind, open: open.to_owned(), tests: tests.to_owned() }
    };
    rows.map(parse).collect()
}

/// The kinds of the sockets of this network namespace, by their inodes.
fn socket_kinds() -> BTreeMap<u64, String> {
    let mut kinds = BTreeMap::new();
    for (table, inode_column, state_column) in [("unix", 6, 5), ("tcp", 9, 3), ("tcp6", 9, 3)] {
        let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some(inode) = words.get(inode_column).and_then(|word| word.parse().ok()) else {
                continue;
            };
            let kind = match (table, words.get(7).and_then(|name| name.strip_prefix('@'))) {
                ("unix", Some(name)) => abstract_kind(name),
                ("unix", None) => "Unix, connected".to_owned(),
                _ if words[state_column] == "0A" => "TCP, listening".to_owned(),
                _ => "TCP, connected".to_owned(),
            };
            kinds.insert(inode, kind);
        }
    }
    kinds
}

/// Returns the form of an abstract name. A connection that a listener has accepted has its name.
fn abstract_kind(name: &str) -> String {
    let forms = [("job", "HASH"), ("store", "ADDRESS-PORT"), ("request", "NAMESPACE-PID")];
    let form = forms.iter().find(|(kind, _)| name.starts_with(&format!("libdist-{kind}-")));
    match form {
        Some((kind, variable)) => format!("@libdist-{kind}-{variable}"),
        None if name.len() == "libdist-".len() + 32 => "@libdist-NONCE".to_owned(),
        None => format!("@{name}"),
    }
}

/// Returns the kind of a descriptor by the target of its link in `/proc`.
fn descriptor_kind(target: &str, sockets: &BTreeMap<u64, String>) -> String {
    if let Some(inode) = target.strip_prefix("socket:[").and_then(|it| it.strip_suffix(']')) {
        let known = inode.parse().ok().and_then(|inode: u64| sockets.get(&inode));
        return known.cloned().unwrap_or_else(|| format!("unknown {target}"));
    }
    if target.starts_with("pipe:[") {
        return "pipe".to_owned();
    }
    mapping_kind(target).unwrap_or_else(|| target.to_owned())
}

/// Returns the kind of a memory file, or `None` for another file.
fn mapping_kind(path: &str) -> Option<String> {
    let name = path.strip_prefix("/memfd:")?;
    Some(format!("memfd:{}", name.trim_end_matches(" (deleted)")))
}

/// Returns the descriptors of a process, except the standard streams.
fn descriptors(pid: u32) -> BTreeMap<u32, String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let number = |entry: &fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let target = |entry: &fs::DirEntry| fs::read_link(entry.path()).ok();
    entries
        .filter_map(|entry| Some((number(&entry)?, target(&entry)?.to_string_lossy().into_owned())))
        .filter(|(number, _)| *number > 2)
        .collect()
}

/// Returns the kinds of resources that a process has open, except the descriptors in `earlier`.
fn open_kinds(pid: u32, earlier: &BTreeMap<u32, String>) -> BTreeSet<String> {
    let sockets = socket_kinds();
    let is_new = |(number, target): &(u32, String)| earlier.get(number) != Some(target);
    let new = descriptors(pid).into_iter().filter(is_new);
    let mut kinds: BTreeSet<_> =
        new.map(|(_, target)| descriptor_kind(&target, &sockets)).collect();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    kinds.extend(maps.lines().filter_map(|line| mapping_kind(line.splitn(6, ' ').nth(5)?.trim())));
    kinds
}

/// Collects the kinds of a job with the ranks "0" and "1". `launcher` is the launcher, if any.
fn kinds_of_job(mut job: TestJob, launcher: Option<&str>) -> BTreeSet<String> {
    let ranks = ["0", "1"];
    job.await_reports(&ranks, "at before");
    let pids = ranks.map(|rank| job.pid(rank));
    let before = pids.map(descriptors);
    job.open_gate("before");
    job.await_reports(&ranks, "at inside");
    let mut kinds = BTreeSet::new();
    for (pid, before) in pids.into_iter().zip(&before) {
        kinds.extend(open_kinds(pid, before));
    }
    if launcher.is_some() {
        let status = fs::read_to_string(format!("/proc/{}/stat", pids[0])).unwrap();
        let parent = status.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap();
        // The processes of the job inherit these descriptors from the runner of the tests.
        let of_runner = descriptors(std::process::id());
        kinds.extend(open_kinds(parent.parse().unwrap(), &of_runner));
        // The secret is in a descriptor that the ranks inherit from distrun.
        kinds.extend(open_kinds(pids[0], &of_runner));
    }
    job.open_gate("inside");
    let ended = job.finish();
    for rank in ranks {
        ended.assert_all_succeeded(rank, 12);
    }
    kinds
}

fn program(rank: usize) -> String {
    PROGRAM.replace("PEER", &(1 - rank).to_string())
}

/// Returns the kinds of a job under distrun on one host.
fn kinds_under_distrun() -> BTreeSet<String> {
    let mut job = TestJob::new();
    let mut launcher = Command::new(DISTRUN);
    launcher.args(["--nproc-per-node", "2"]);
    let program = program(0)
        .lines()
        .map(|line| match line.contains("70000") {
            true => "barrier".to_owned(),
            false => line.to_owned(),
        })
        .collect::<Vec<_>>();
    job.start_under("distrun", launcher, &program.join("\n"));
    kinds_of_job(job, Some("distrun"))
}

/// Returns the kinds of a job on two pretended hosts, whose rank 0 hosts the store.
fn kinds_between_hosts() -> BTreeSet<String> {
    let mut job = TestJob::new();
    let secret = job.file("secret");
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(&secret).unwrap();
    fs::write(&secret, "correct horse battery staple").unwrap();
    for rank in 0..2 {
        let mut environment = job.environment(rank, 2);
        environment.push(("DIST_STORE_SECRET_FILE", secret.to_str().unwrap().to_owned()));
        let host = TestHost::on_this_network(&format!("host-{rank}"));
        job.start_on_host(&host, &rank.to_string(), &environment, &program(rank));
    }
    kinds_of_job(job, None)
}

#[test]
fn security_page_lists_the_resources_of_running_jobs() {
    let listed = listed_resources();
    let mut open = kinds_under_distrun();
    open.extend(kinds_between_hosts());
    // The reports of the workers, and what the test runner lets them inherit.
    open.retain(|kind| !kind.ends_with(".reports"));
    for kind in &open {
        assert!(listed.iter().any(|row| row.kind == *kind), "not in the table: {kind}");
    }
    for row in listed.iter().filter(|row| row.open == "always") {
        assert!(open.contains(&row.kind), "no job has it open: {}", row.kind);
    }
}

/// Returns whether a file below a folder contains a text.
fn contains_text(folder: &Path, text: &str) -> bool {
    let entries = fs::read_dir(folder).unwrap().flatten();
    entries.map(|entry| entry.path()).any(|path| match path.is_dir() {
        true => contains_text(&path, text),
        false => fs::read_to_string(&path).is_ok_and(|content| content.contains(text)),
    })
}

#[test]
fn tests_of_the_security_page_exist() {
    for row in listed_resources() {
        let names: Vec<&str> = row.tests.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{} has no test", row.kind);
        for name in names {
            let function = format!("fn {name}(");
            let root = repository();
            let exists = ["src", "ffi-tests/rust"]
                .iter()
                .any(|folder| contains_text(&root.join(folder), &function));
            assert!(exists, "{}: there is no test {name}", row.kind);
        }
    }
}
