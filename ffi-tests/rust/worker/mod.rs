//! The processes that the tests start: each is the test program itself, run again with a list of
//! commands in its environment. It carries them out one after another, through the C ABI, and
//! reports each with its status, its message and the time it took.
//!
//! Commands, one per line; `on=NAME` chooses a group other than the world:
//!
//! | command | meaning |
//! |---|---|
//! | `init`, `finalize` | see [`library::init`]; with `store=yes` through a store of its own |
//! | `all_reduce f32 SUM 10` and so on | see [`library::Call::new`] |
//! | `send BYTES PEER TAG`, `recv BYTES PEER TAG` | see [`messages::Message`] |
//! | the same with `async=yes`, `settle` | issues it with a work; waits for all works, see [`works::Outstanding`] |
//! | `culprit`, `work_culprit` | of the group's failure, or of the work issued last, once that is done, as the report's message |
//! | `monitored_barrier TIMEOUT_MS` | which names all who are missing, and lists them in the report's message |
//! | `describe` | what there is to know of the group, as the report's message |
//! | `debug LEVEL` | sets the debug level, by its number |
//! | `loop COMMAND` | until it fails; the third success is reported as `ready` |
//! | `times N NAP_MS COMMAND` | so many times, after a nap each time |
//! | `trace PATH`, `untrace` | begins and ends a trace |
//! | `nap MS` | does nothing for so long |
//! | `memory`, `time` | what the process has used so far, as the report's message; see [`costs`] |
//! | `gate NAME` | waits until the test opens it |
//! | `if ATTEMPT RANK COMMAND` | under a launcher, in that attempt and on that rank only; `*` for any |
//! | `abort REASON`, `abort_at GATE REASON` | now, or from another thread once the gate is open |
//! | `store` (`server=yes`: and its server), `unstore` | a client of the job's store |
//! | `set KEY VALUE`, `get KEY VALUE`, `add KEY`, `wait KEY`, `pop QUEUE`, `meet KEY SIZE` | what it does there |
//! | `file_store PATH` | a store in a file in its place; see [`library::open_file`] |
//! | `fill KEY BYTES` | sets values of so many bytes until that fails; the third success is reported as `ready` |
//! | `count KEY TIMES THREADS` | adds 1 so many times from each of so many threads |
//! | `limit_file_size BYTES` | no file may grow beyond |
//! | `group NAME`, `release NAME` | another group, through that store |
//! | `many COUNT RANKS` | so many groups made from the world, which are kept |
//! | `new NAME RANKS` (`members=yes`), `shrink NAME` (`timeout_ms=`) | one made from another; the report's message is which global ranks it has |
//! | `fork_sleeper` | forks a child that holds every descriptor and sleeps |
//! | `listen ADDRESS`, `echo`, `exchange ADDRESS BYTES TIMES` | TCP without the library; see [`traffic::Traffic`] |
//! | `bind ADDRESS`, `datagrams ADDRESS COUNT`, `receive COUNT` | UDP likewise |
//! | `knock ADDRESS BYTES TIMES` | connections that mean nothing; see there |
//! | `leaks` | fails if the process has descriptors, threads or maps that it did not start with |
//! | `exit CODE` | ends the process at once |

#[path = "../belongings.rs"]
pub(crate) mod belongings;
mod costs;
mod families;
mod library;
mod messages;
mod traffic;
mod words;
mod works;

use belongings::Belongings;
use library::{Call, Group, Outcome, Store, WRONG_RESULT, world};
use messages::Message;
use serde_json::json;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use traffic::Traffic;
use words::Words;
use works::Outstanding;

/// The folder that a job shares; its presence in the environment is what makes a process a worker.
pub(crate) const FOLDER: &str = "DIST_TEST_FOLDER";
/// The commands.
pub(crate) const PROGRAM: &str = "DIST_TEST_PROGRAM";
/// The name under which it reports; without it, the rank that the launcher gives.
pub(crate) const NAME: &str = "DIST_TEST_NAME";

/// How long a worker waits for a gate, and how long it repeats a command: longer than any test.
const LIMIT: Duration = Duration::from_secs(120);

/// The successes after which a loop is reported to be ready.
const READY_AFTER: u32 = 3;

/// Microseconds of the clock that all processes of the host share.
#[allow(unsafe_code, reason = "the standard library's clock cannot be compared between processes")]
pub(crate) fn now_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` takes the result.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    assert_eq!(status, 0);
    u64::try_from(time.tv_sec * 1_000_000 + time.tv_nsec / 1000).unwrap()
}

#[test]
#[ignore = "the body of the processes that the other tests start"]
fn entry() {
    let Some(folder) = variable(FOLDER) else { return };
    let name = [NAME, "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"].into_iter().find_map(variable);
    let mut worker = Worker::new(Path::new(&folder), &name.expect("a rank"));
    // Operations that were issued keep their commands for as long as the process lives.
    let program: &'static str = variable(PROGRAM).unwrap().leak();
    for line in program.lines().filter(|line| !line.trim().is_empty()) {
        worker.carry_out(&Words::parse(line));
    }
}

#[allow(clippy::disallowed_methods, reason = "a worker is told by its environment what to do")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Reports, from any thread of the worker.
#[derive(Debug)]
struct Reporter(File);

impl Reporter {
    fn report(&self, what: &str, started: Instant, outcome: &Outcome) {
        let took_us = u64::try_from(started.elapsed().as_micros()).unwrap();
        let (status, message) = outcome;
        let line = json!({
            "what": what, "status": status, "message": message,
            "took_us": took_us, "at_us": now_us(), "pid": std::process::id(),
        });
        // One write to a file in append mode: lines of several threads stay whole.
        (&self.0).write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

struct Worker {
    folder: PathBuf,
    reporter: Reporter,
    belongings: Belongings,
    store: Option<Store>,
    groups: HashMap<String, Group>,
    many: Vec<Group>,
    traffic: Traffic,
    outstanding: Outstanding,
}

impl Worker {
    fn new(folder: &Path, name: &str) -> Self {
        let path = folder.join(format!("{name}.reports"));
        let file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        let worker = Self {
            folder: folder.to_owned(),
            reporter: Reporter(file),
            belongings: Belongings::now(),
            store: None,
            groups: HashMap::new(),
            many: Vec::new(),
            traffic: Traffic::default(),
            outstanding: Outstanding::default(),
        };
        worker.reporter.report("start", Instant::now(), &success());
        worker
    }

    fn carry_out(&mut self, words: &Words<'static>) {
        if words.verb() == "if" {
            return self.carry_out_if(words);
        }
        let started = Instant::now();
        let outcome = match words.verb() {
            "init" => self.init(words),
            "finalize" => library::finalize(),
            "loop" => self.repeat(&Words::parse(words.rest())),
            "times" => self.times(words),
            "trace" => library::trace(words.at(0)),
            "untrace" => library::untrace(),
            "gate" => {
                self.reporter.report(&format!("at {}", words.rest()), started, &success());
                pass_gate(&self.folder, words.at(0))
            }
            "abort" => library::abort(self.group(words), words.rest()),
            "abort_at" => self.abort_at(words),
            "store" => {
                let client = self.client(words);
                self.keep(client)
            }
            "file_store" => self.keep(library::open_file(words)),
            "fill" => self.fill(words),
            "count" => self.count(words),
            "limit_file_size" => limit_file_size(words.at(0).parse().unwrap()),
            "set" => library::store_set(self.store.unwrap(), words.at(0), words.at(1)),
            "get" => library::store_get(self.store.unwrap(), words.at(0), words.at(1)),
            "add" => library::store_add(self.store.unwrap(), words.at(0)),
            "wait" => library::store_wait(self.store.unwrap(), words.at(0)),
            "pop" => library::store_pop(self.store.unwrap(), words.at(0)),
            "meet" => {
                let size = words.at(1).parse().unwrap();
                library::store_meet(self.store.unwrap(), words.at(0), size)
            }
            "unstore" => library::release_store(self.store.take().unwrap()),
            "group" => self.create_group(words),
            "new" | "shrink" => self.derive_group(words),
            "many" => self.many(words),
            "release" => library::release_group(self.groups.remove(words.at(0)).unwrap()),
            "listen" | "echo" | "exchange" | "bind" | "datagrams" | "receive" | "knock" => {
                self.traffic.carry_out(words)
            }
            "describe" => library::describe(self.group(words)),
            "monitored_barrier" => library::monitored_barrier(words, self.group(words)),
            "settle" => self.outstanding.settle(),
            "culprit" => library::culprit(self.group(words)),
            "work_culprit" => self.outstanding.culprit(),
            _ if words.text("async").is_some() => {
                let group = self.group(words);
                self.outstanding.issue(words, group)
            }
            "send" | "recv" | "probe" | "sendrecv" => {
                Message::new(words.clone(), self.group(words)).make()
            }
            "fork_sleeper" => fork_sleeper(),
            "debug" => library::set_debug_level(words.at(0).parse().unwrap()),
            "leaks" => self.leaks(),
            "nap" => nap(words.at(0).parse().unwrap()),
            "memory" => costs::memory(),
            "time" => costs::time(),
            "exit" => exit(words.at(0).parse().unwrap()),
            _ => Call::new(words.clone(), self.group(words)).make(),
        };
        self.reporter.report(words.line(), started, &outcome);
    }

    /// Carries out the words behind `if ATTEMPT RANK`, on that attempt and rank only; `*` is any.
    fn carry_out_if(&mut self, words: &Words<'static>) {
        let is_at = |index, name| {
            let wanted = words.at(index);
            wanted == "*" || variable(name).as_deref() == Some(wanted)
        };
        if is_at(0, "TORCHELASTIC_RESTART_COUNT") && is_at(1, "RANK") {
            let mut rest = words.rest().splitn(3, ' ');
            self.carry_out(&Words::parse(rest.nth(2).unwrap()));
        }
    }

    fn leaks(&self) -> Outcome {
        let more = self.belongings.more(LIMIT / 12);
        match more.is_empty() {
            true => success(),
            false => (WRONG_RESULT, format!("not given back: {}", more.join("; "))),
        }
    }

    fn group(&self, words: &Words<'_>) -> Group {
        // A group that was not made is one that no call accepts.
        let known = |name| self.groups.get(name).copied().unwrap_or(library::NOBODY);
        words.text("on").map_or_else(world, known)
    }

    fn init(&mut self, words: &Words<'_>) -> Outcome {
        if words.text("store").is_none() {
            return library::init(words, None);
        }
        let store = match self.client(words) {
            Ok(store) => store,
            Err(outcome) => return outcome,
        };
        let outcome = library::init(words, Some(store));
        assert_eq!(library::release_store(store).0, 0);
        outcome
    }

    /// A client of the store whose address is in the environment.
    fn client(&self, words: &Words<'_>) -> Result<Store, Outcome> {
        let host = variable("MASTER_ADDR").unwrap_or_else(|| "127.0.0.1".to_owned());
        let port = variable("MASTER_PORT").unwrap().parse().unwrap();
        let is_server = words.text("server").is_some();
        library::connect(&host, port, is_server, words.number("timeout_ms").unwrap_or(20_000))
    }

    fn keep(&mut self, store: Result<Store, Outcome>) -> Outcome {
        match store {
            Ok(store) => {
                self.store = Some(store);
                success()
            }
            Err(outcome) => outcome,
        }
    }

    fn create_group(&mut self, words: &Words<'_>) -> Outcome {
        match library::create_group(words, self.store.unwrap()) {
            Ok(group) => {
                self.groups.insert(words.at(0).to_owned(), group);
                success()
            }
            Err(outcome) => outcome,
        }
    }

    fn derive_group(&mut self, words: &Words<'_>) -> Outcome {
        match families::derive(words, self.group(words)) {
            Ok(Some(group)) => {
                self.groups.insert(words.at(0).to_owned(), group);
                (0, families::ranks(group))
            }
            Ok(None) => success(),
            Err(outcome) => outcome,
        }
    }

    fn many(&mut self, words: &Words<'_>) -> Outcome {
        let count = words.at(0).parse().unwrap();
        for _ in 0..count {
            match families::derive(words, world()) {
                Ok(group) => self.many.extend(group),
                Err(outcome) => return outcome,
            }
        }
        success()
    }

    fn repeat(&self, words: &Words<'_>) -> Outcome {
        let mut call = Call::new(words.clone(), self.group(words));
        let began = Instant::now();
        for turn in 1_u32.. {
            let started = Instant::now();
            let outcome = if turn <= READY_AFTER { call.make() } else { call.enter() };
            if outcome.0 != 0 {
                // What counts is how long the failing call has taken.
                self.reporter.report(words.line(), started, &outcome);
                return outcome;
            }
            if turn == READY_AFTER {
                self.reporter.report("ready", began, &outcome);
            }
            assert!(began.elapsed() < LIMIT, "nobody has ended the loop");
        }
        success()
    }

    fn times(&self, words: &Words<'_>) -> Outcome {
        let mut parts = words.rest().splitn(3, ' ');
        let mut number = || parts.next().unwrap().parse().unwrap();
        let (times, nap): (u64, u64) = (number(), number());
        let words = Words::parse(parts.next().unwrap());
        let mut call = Call::new(words.clone(), self.group(&words));
        let outcomes = (0..times).map(|_| {
            std::thread::sleep(Duration::from_millis(nap));
            call.make()
        });
        outcomes.into_iter().find(|outcome| outcome.0 != 0).unwrap_or_else(success)
    }

    /// The values differ from one to the next, and each consists of one letter.
    fn fill(&self, words: &Words<'_>) -> Outcome {
        let (began, length) = (Instant::now(), words.at(1).parse().unwrap());
        for (turn, letter) in (1_u32..).zip(('a'..='z').cycle()) {
            let value = letter.to_string().repeat(length);
            let outcome = library::store_set(self.store.unwrap(), words.at(0), &value);
            if outcome.0 != 0 {
                return outcome;
            }
            if turn == READY_AFTER {
                self.reporter.report("ready", began, &outcome);
            }
            assert!(began.elapsed() < LIMIT, "nothing has ended the filling");
        }
        success()
    }

    fn count(&self, words: &Words<'_>) -> Outcome {
        let (times, threads): (usize, usize) =
            (words.at(1).parse().unwrap(), words.at(2).parse().unwrap());
        let threads = (0..threads).map(|_| {
            let (store, key) = (self.store.unwrap(), words.at(0).to_owned());
            let add = move || {
                // The whole of it, so that the closure takes the part that may move to a thread.
                let store: Store = store;
                let outcomes = (0..times).map(|_| library::store_add(store, &key));
                outcomes.into_iter().find(|outcome| outcome.0 != 0).unwrap_or_else(success)
            };
            std::thread::Builder::new().spawn(add).unwrap()
        });
        let threads: Vec<_> = threads.collect();
        let mut outcomes = threads.into_iter().map(|thread| thread.join().unwrap());
        outcomes.find(|outcome| outcome.0 != 0).unwrap_or_else(success)
    }

    fn abort_at(&self, words: &Words<'_>) -> Outcome {
        let (folder, group) = (self.folder.clone(), self.group(words));
        let reporter = Reporter(self.reporter.0.try_clone().unwrap());
        let (gate, reason) = words.rest().split_once(' ').unwrap();
        let (gate, reason) = (gate.to_owned(), reason.to_owned());
        let abort = move || {
            // The whole of it, so that the closure takes the part that may move to a thread.
            let group: Group = group;
            let opened = pass_gate(&folder, &gate);
            let outcome = if opened.0 == 0 { library::abort(group, &reason) } else { opened };
            reporter.report("aborted", Instant::now(), &outcome);
        };
        drop(std::thread::Builder::new().spawn(abort).unwrap());
        success()
    }
}

fn success() -> Outcome {
    (0, String::new())
}

fn nap(ms: u64) -> Outcome {
    std::thread::sleep(Duration::from_millis(ms));
    success()
}

/// Waits until the test has made the file that opens the gate.
fn pass_gate(folder: &Path, name: &str) -> Outcome {
    let began = Instant::now();
    while !folder.join(name).exists() {
        assert!(began.elapsed() < LIMIT, "nobody has opened gate {name}");
        std::thread::sleep(Duration::from_millis(1));
    }
    success()
}

#[allow(unsafe_code, reason = "the standard library cannot limit a process")]
fn limit_file_size(bytes: u64) -> Outcome {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: reads one structure, which lives on this stack.
    let status = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
    (status, String::new())
}

/// Forks a child that execs nothing, keeps every descriptor, and sleeps until it is killed.
#[allow(unsafe_code, reason = "the standard library cannot fork without exec")]
fn fork_sleeper() -> Outcome {
    // SAFETY: the child makes no call but the one below, which is safe after a fork.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        loop {
            // SAFETY: takes nothing; returns when a signal comes.
            unsafe { libc::pause() };
        }
    }
    success()
}

#[allow(clippy::exit, reason = "the command is to end without another word")]
fn exit(code: i32) -> Outcome {
    std::process::exit(code)
}
