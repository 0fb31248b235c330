//! The worker processes of the tests. A worker is the test binary, which runs again with a list of
//! commands in its environment. It executes the commands in order through the C ABI. For each it
//! reports the status, the message and the duration.
//!
//! A command is one line; `on=NAME` selects a group other than the world group. The "message" is
//! the message of the command's report.
//!
//! | command | meaning |
//! |---|---|
//! | `init`, `finalize` | see [`library::init`]; `store=yes`: through its own store |
//! | `all_reduce f32 SUM 10` etc. | see [`library::CollectiveCall::new`] |
//! | `send BYTES PEER TAG`, `recv BYTES PEER TAG` | see [`messages::MessageCall`] |
//! | such a call with `async=yes` | issues the call as a work |
//! | `settle` | waits for all works; see [`outstanding_works::OutstandingWorks`] |
//! | `culprit` | message: the culprit of the group's failure |
//! | `work_culprit` | waits for the last issued work; message: its culprit |
//! | `monitored_barrier TIMEOUT_MS` | waits for all ranks; message: lists all absent ranks |
//! | `describe` | message: the description of the group |
//! | `debug LEVEL` | sets the debug level, a number |
//! | `loop COMMAND` | repeats until an error; reports the third success as `ready` |
//! | `times N NAP_MS COMMAND` | repeats N times, with a sleep before each |
//! | `trace PATH`, `untrace` | starts and stops a trace |
//! | `nap MS` | sleeps |
//! | `memory`, `time` | message: the usage of the process; see [`process_usage`] |
//! | `gate NAME` | waits until the test opens the gate |
//! | `if ATTEMPT RANK COMMAND` | only in this attempt of a launcher and on this rank; `*`: any |
//! | `abort REASON` | aborts the group |
//! | `abort_at GATE REASON` | aborts from another thread when the gate opens |
//! | `store`, `unstore` | a client of the job's store; `server=yes`: also its server |
//! | `set KEY VALUE`, `get KEY VALUE`, `add KEY` | store calls; `get` compares the value |
//! | `wait KEY`, `pop QUEUE`, `meet KEY SIZE` | store calls that wait |
//! | `file_store PATH` | uses a file store instead; see [`library::open_file`] |
//! | `fill KEY BYTES` | sets values until an error; reports the third success as `ready` |
//! | `count KEY TIMES THREADS` | adds 1 TIMES times from each thread |
//! | `limit_file_size BYTES` | limits the size of files that the process writes |
//! | `group NAME`, `release NAME` | creates and releases a group through that store |
//! | `many COUNT RANKS` | creates COUNT subgroups of the world group and keeps them |
//! | `new NAME RANKS` (`members=yes`) | creates a subgroup; message: its global ranks |
//! | `shrink NAME` (`timeout_ms=`) | creates a group of survivors; message: its global ranks |
//! | `shell SCRIPT` | executes a shell; message: its output |
//! | `fork_sleeper` | forks a child that sleeps |
//! | `clone_sleeper` | the same by the system call: the child holds every descriptor |
//! | `listen ADDRESS`, `echo`, `exchange ADDRESS BYTES TIMES` | TCP; see [`RawTraffic`] |
//! | `bind ADDRESS`, `datagrams ADDRESS COUNT`, `receive COUNT` | UDP; see there |
//! | `knock ADDRESS BYTES TIMES` | garbage connections; see there |
//! | `leaks` | fails if the process has new descriptors, threads or mappings |
//! | `exit CODE` | ends the process immediately |

mod command_words;
mod derived_groups;
mod library;
mod messages;
mod outstanding_works;
mod process_usage;
mod raw_traffic;
#[path = "../resource_snapshot.rs"]
pub(crate) mod resource_snapshot;

use command_words::CommandWords;
use library::{CollectiveCall, CommandOutcome, GroupHandle, StoreHandle, WRONG_RESULT, world};
use messages::MessageCall;
use outstanding_works::OutstandingWorks;
use raw_traffic::RawTraffic;
use resource_snapshot::ResourceSnapshot;
use serde_json::json;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Environment variable with the job's folder; its presence makes a process a worker.
pub(crate) const FOLDER_VARIABLE: &str = "DIST_TEST_FOLDER";
/// Environment variable with the commands.
pub(crate) const PROGRAM_VARIABLE: &str = "DIST_TEST_PROGRAM";
/// Environment variable with the worker's name; the default is the rank from the launcher.
pub(crate) const NAME_VARIABLE: &str = "DIST_TEST_NAME";

/// The time limit of a gate and of a loop; it is longer than any test.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// The number of successes after which a loop reports `ready`.
const READY_SUCCESSES: u32 = 3;

/// Returns the microseconds of the clock that all processes of the host share.
#[allow(unsafe_code, reason = "the standard library's clock cannot be compared between processes")]
pub(crate) fn now_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the result.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    assert_eq!(status, 0);
    u64::try_from(time.tv_sec * 1_000_000 + time.tv_nsec / 1000).unwrap()
}

#[test]
#[ignore = "the body of the processes that the other tests start"]
fn entry() {
    let Some(folder) = variable(FOLDER_VARIABLE) else { return };
    let name =
        [NAME_VARIABLE, "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"].into_iter().find_map(variable);
    let mut worker = Worker::new(Path::new(&folder), &name.expect("a rank"));
    // Issued operations refer to their commands as long as the process lives.
    let program: &'static str = variable(PROGRAM_VARIABLE).unwrap().leak();
    for line in program.lines().filter(|line| !line.trim().is_empty()) {
        worker.run_command(&CommandWords::parse(line));
    }
}

#[allow(clippy::disallowed_methods, reason = "a worker is told by its environment what to do")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Writes reports, from any thread of the worker.
#[derive(Debug)]
struct Reporter(File);

impl Reporter {
    fn report(&self, command: &str, started: Instant, outcome: &CommandOutcome) {
        let took_us = u64::try_from(started.elapsed().as_micros()).unwrap();
        let (status, message) = outcome;
        let line = json!({
            "what": command, "status": status, "message": message,
            "took_us": took_us, "at_us": now_us(), "pid": std::process::id(),
        });
        // One write to a file in append mode, so that lines of several threads do not interleave.
        (&self.0).write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

struct Worker {
    folder: PathBuf,
    reporter: Reporter,
    resources_at_start: ResourceSnapshot,
    store: Option<StoreHandle>,
    groups: HashMap<String, GroupHandle>,
    many_groups: Vec<GroupHandle>,
    traffic: RawTraffic,
    outstanding_works: OutstandingWorks,
}

impl Worker {
    fn new(folder: &Path, name: &str) -> Self {
        let path = folder.join(format!("{name}.reports"));
        let file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        let worker = Self {
            folder: folder.to_owned(),
            reporter: Reporter(file),
            resources_at_start: ResourceSnapshot::take(),
            store: None,
            groups: HashMap::new(),
            many_groups: Vec::new(),
            traffic: RawTraffic::default(),
            outstanding_works: OutstandingWorks::default(),
        };
        worker.reporter.report("start", Instant::now(), &success());
        worker
    }

    fn run_command(&mut self, words: &CommandWords<'static>) {
        if words.verb() == "if" {
            return self.run_if_attempt_and_rank(words);
        }
        let started = Instant::now();
        let outcome = match words.verb() {
            "init" => self.init(words),
            "finalize" => library::finalize(),
            "loop" => self.repeat_until_failure(&CommandWords::parse(words.rest())),
            "times" => self.repeat_times(words),
            "trace" => library::start_trace(words.at(0)),
            "untrace" => library::stop_trace(),
            "gate" => {
                self.reporter.report(&format!("at {}", words.rest()), started, &success());
                wait_for_gate(&self.folder, words.at(0))
            }
            "abort" => library::abort(self.group(words), words.rest()),
            "abort_at" => self.abort_at(words),
            "store" => {
                let client = self.connect_store(words);
                self.keep_store(client)
            }
            "file_store" => self.keep_store(library::open_file(words)),
            "fill" => self.fill_store(words),
            "count" => self.count_in_store(words),
            "limit_file_size" => limit_file_size(words.at(0).parse().unwrap()),
            "set" => library::store_set(self.store.unwrap(), words.at(0), words.at(1)),
            "get" => library::store_get(self.store.unwrap(), words.at(0), words.at(1)),
            "add" => library::store_add(self.store.unwrap(), words.at(0)),
            "wait" => library::store_wait(self.store.unwrap(), words.at(0)),
            "pop" => library::store_pop(self.store.unwrap(), words.at(0)),
            "meet" => {
                let size = words.at(1).parse().unwrap();
                library::store_barrier(self.store.unwrap(), words.at(0), size)
            }
            "unstore" => library::release_store(self.store.take().unwrap()),
            "group" => self.create_group(words),
            "new" | "shrink" => self.derive_group(words),
            "many" => self.create_many_groups(words),
            "release" => library::release_group(self.groups.remove(words.at(0)).unwrap()),
            "listen" | "echo" | "exchange" | "bind" | "datagrams" | "receive" | "knock" => {
                self.traffic.run_command(words)
            }
            "describe" => library::describe(self.group(words)),
            "monitored_barrier" => library::monitored_barrier(words, self.group(words)),
            "settle" => self.outstanding_works.wait_for_all(),
            "culprit" => library::culprit(self.group(words)),
            "work_culprit" => self.outstanding_works.last_work_culprit(),
            _ if words.text("async").is_some() => {
                let group = self.group(words);
                self.outstanding_works.issue(words, group)
            }
            "send" | "recv" | "probe" | "sendrecv" => {
                MessageCall::new(words.clone(), self.group(words)).call_and_check()
            }
            "fork_sleeper" => start_sleeper(fork),
            "clone_sleeper" => start_sleeper(clone_without_handlers),
            "shell" => run_shell(words.rest()),
            "debug" => library::set_debug_level(words.at(0).parse().unwrap()),
            "leaks" => self.check_leaks(),
            "nap" => sleep_ms(words.at(0).parse().unwrap()),
            "memory" => process_usage::report_memory(),
            "time" => process_usage::report_cpu_time(),
            "exit" => exit(words.at(0).parse().unwrap()),
            _ => CollectiveCall::new(words.clone(), self.group(words)).call_and_check(),
        };
        self.reporter.report(words.line(), started, &outcome);
    }

    /// Executes the command after `if ATTEMPT RANK` only in that attempt and on that rank; `*`
    /// matches any.
    fn run_if_attempt_and_rank(&mut self, words: &CommandWords<'static>) {
        let is_at = |index, name| {
            let expected = words.at(index);
            expected == "*" || variable(name).as_deref() == Some(expected)
        };
        if is_at(0, "TORCHELASTIC_RESTART_COUNT") && is_at(1, "RANK") {
            let mut rest = words.rest().splitn(3, ' ');
            self.run_command(&CommandWords::parse(rest.nth(2).unwrap()));
        }
    }

    fn check_leaks(&self) -> CommandOutcome {
        let more = self.resources_at_start.leaked_since(COMMAND_TIMEOUT / 12);
        match more.is_empty() {
            true => success(),
            false => (WRONG_RESULT, format!("not given back: {}", more.join("; "))),
        }
    }

    fn group(&self, words: &CommandWords<'_>) -> GroupHandle {
        // For an unknown group name it returns a handle that every call rejects.
        let known = |name| self.groups.get(name).copied().unwrap_or(library::INVALID_GROUP);
        words.text("on").map_or_else(world, known)
    }

    fn init(&mut self, words: &CommandWords<'_>) -> CommandOutcome {
        if words.text("store").is_none() {
            return library::init(words, None);
        }
        let store = match self.connect_store(words) {
            Ok(store) => store,
            Err(outcome) => return outcome,
        };
        let outcome = library::init(words, Some(store));
        assert_eq!(library::release_store(store).0, 0);
        outcome
    }

    /// Creates a client of the store at the address in the environment.
    fn connect_store(&self, words: &CommandWords<'_>) -> Result<StoreHandle, CommandOutcome> {
        let host = variable("MASTER_ADDR").unwrap_or_else(|| "127.0.0.1".to_owned());
        let port = variable("MASTER_PORT").unwrap().parse().unwrap();
        let is_server = words.text("server").is_some();
        library::connect(&host, port, is_server, words.number("timeout_ms").unwrap_or(20_000))
    }

    fn keep_store(&mut self, store: Result<StoreHandle, CommandOutcome>) -> CommandOutcome {
        match store {
            Ok(store) => {
                self.store = Some(store);
                success()
            }
            Err(outcome) => outcome,
        }
    }

    fn create_group(&mut self, words: &CommandWords<'_>) -> CommandOutcome {
        match library::create_group(words, self.store.unwrap()) {
            Ok(group) => {
                self.groups.insert(words.at(0).to_owned(), group);
                success()
            }
            Err(outcome) => outcome,
        }
    }

    fn derive_group(&mut self, words: &CommandWords<'_>) -> CommandOutcome {
        match derived_groups::derive_group(words, self.group(words)) {
            Ok(Some(group)) => {
                self.groups.insert(words.at(0).to_owned(), group);
                (0, derived_groups::world_ranks_text(group))
            }
            Ok(None) => success(),
            Err(outcome) => outcome,
        }
    }

    fn create_many_groups(&mut self, words: &CommandWords<'_>) -> CommandOutcome {
        let count = words.at(0).parse().unwrap();
        for _ in 0..count {
            match derived_groups::derive_group(words, world()) {
                Ok(group) => self.many_groups.extend(group),
                Err(outcome) => return outcome,
            }
        }
        success()
    }

    fn repeat_until_failure(&self, words: &CommandWords<'_>) -> CommandOutcome {
        let mut call = CollectiveCall::new(words.clone(), self.group(words));
        let began = Instant::now();
        for turn in 1_u32.. {
            let started = Instant::now();
            let outcome =
                if turn <= READY_SUCCESSES { call.call_and_check() } else { call.call_blocking() };
            if outcome.0 != 0 {
                // The report has the duration of the failing call.
                self.reporter.report(words.line(), started, &outcome);
                return outcome;
            }
            if turn == READY_SUCCESSES {
                self.reporter.report("ready", began, &outcome);
            }
            assert!(began.elapsed() < COMMAND_TIMEOUT, "nobody has ended the loop");
        }
        success()
    }

    fn repeat_times(&self, words: &CommandWords<'_>) -> CommandOutcome {
        let mut parts = words.rest().splitn(3, ' ');
        let mut number = || parts.next().unwrap().parse().unwrap();
        let (times, nap): (u64, u64) = (number(), number());
        let words = CommandWords::parse(parts.next().unwrap());
        let mut call = CollectiveCall::new(words.clone(), self.group(&words));
        let outcomes = (0..times).map(|_| {
            std::thread::sleep(Duration::from_millis(nap));
            call.call_and_check()
        });
        outcomes.into_iter().find(|outcome| outcome.0 != 0).unwrap_or_else(success)
    }

    /// Sets values that each repeat one letter; consecutive values differ.
    fn fill_store(&self, words: &CommandWords<'_>) -> CommandOutcome {
        let (began, length) = (Instant::now(), words.at(1).parse().unwrap());
        for (turn, letter) in (1_u32..).zip(('a'..='z').cycle()) {
            let value = letter.to_string().repeat(length);
            let outcome = library::store_set(self.store.unwrap(), words.at(0), &value);
            if outcome.0 != 0 {
                return outcome;
            }
            if turn == READY_SUCCESSES {
                self.reporter.report("ready", began, &outcome);
            }
            assert!(began.elapsed() < COMMAND_TIMEOUT, "nothing has ended the filling");
        }
        success()
    }

    fn count_in_store(&self, words: &CommandWords<'_>) -> CommandOutcome {
        let (times, threads): (usize, usize) =
            (words.at(1).parse().unwrap(), words.at(2).parse().unwrap());
        let threads = (0..threads).map(|_| {
            let (store, key) = (self.store.unwrap(), words.at(0).to_owned());
            let add = move || {
                // Binding the whole value makes the closure capture it, since only the whole value
                // is `Send`.
                let store: StoreHandle = store;
                let outcomes = (0..times).map(|_| library::store_add(store, &key));
                outcomes.into_iter().find(|outcome| outcome.0 != 0).unwrap_or_else(success)
            };
            std::thread::Builder::new().spawn(add).unwrap()
        });
        let threads: Vec<_> = threads.collect();
        let mut outcomes = threads.into_iter().map(|thread| thread.join().unwrap());
        outcomes.find(|outcome| outcome.0 != 0).unwrap_or_else(success)
    }

    fn abort_at(&self, words: &CommandWords<'_>) -> CommandOutcome {
        let (folder, group) = (self.folder.clone(), self.group(words));
        let reporter = Reporter(self.reporter.0.try_clone().unwrap());
        let (gate, reason) = words.rest().split_once(' ').unwrap();
        let (gate, reason) = (gate.to_owned(), reason.to_owned());
        let abort = move || {
            // Binding the whole value makes the closure capture it, since only the whole value is
            // `Send`.
            let group: GroupHandle = group;
            let opened = wait_for_gate(&folder, &gate);
            let outcome = if opened.0 == 0 { library::abort(group, &reason) } else { opened };
            reporter.report("aborted", Instant::now(), &outcome);
        };
        drop(std::thread::Builder::new().spawn(abort).unwrap());
        success()
    }
}

fn success() -> CommandOutcome {
    (0, String::new())
}

fn sleep_ms(ms: u64) -> CommandOutcome {
    std::thread::sleep(Duration::from_millis(ms));
    success()
}

/// Waits until the test has created the file of the gate.
fn wait_for_gate(folder: &Path, name: &str) -> CommandOutcome {
    let began = Instant::now();
    while !folder.join(name).exists() {
        assert!(began.elapsed() < COMMAND_TIMEOUT, "nobody has opened gate {name}");
        std::thread::sleep(Duration::from_millis(1));
    }
    success()
}

#[allow(unsafe_code, reason = "the standard library cannot limit a process")]
fn limit_file_size(bytes: u64) -> CommandOutcome {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: the call reads one structure, which is on this stack.
    let status = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
    (status, String::new())
}

/// Executes a shell with a script, and returns its output.
fn run_shell(script: &str) -> CommandOutcome {
    let output = Command::new("sh").args(["-c", script]).output().unwrap();
    (0, String::from_utf8_lossy(&output.stdout).into_owned())
}

#[allow(unsafe_code, reason = "the standard library cannot fork without exec")]
fn fork() -> i64 {
    // SAFETY: the child only makes async-signal-safe calls.
    i64::from(unsafe { libc::fork() })
}

/// As [`fork`], but no fork handler runs, so the child keeps every descriptor.
#[allow(unsafe_code, reason = "the standard library has no such call")]
fn clone_without_handlers() -> i64 {
    // SAFETY: as above; the only flag is the signal at the end of the child.
    unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) }
}

/// Starts a child that sleeps until it is killed; it does not exec. `fork` returns 0 in the child.
#[allow(unsafe_code, reason = "the standard library cannot fork without exec")]
fn start_sleeper(fork: fn() -> i64) -> CommandOutcome {
    let pid = fork();
    assert!(pid >= 0);
    if pid == 0 {
        loop {
            // SAFETY: the call takes no arguments and returns when a signal arrives.
            unsafe { libc::pause() };
        }
    }
    success()
}

#[allow(clippy::exit, reason = "the command is to end without another word")]
fn exit(code: i32) -> CommandOutcome {
    std::process::exit(code)
}
