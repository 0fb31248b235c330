//! Main function of a rank process of a scenario: the test binary runs again and reads the
//! scenario's origin from its environment. The rank executes the steps until one fails. It then
//! makes the calls that a program would make after an error, finalizes, and reports each event on
//! standard output, one line each, after a mark.
//!
//! The rank checks results and memory itself. The driver checks which rank reports which error, and
//! when.
#![allow(unsafe_code, reason = "limits of a process have no safe interface")]

use crate::buffer::Buffer;
use crate::library::{self, Failure, Group, Join, Message, Outcome, Role, Store, world};
use crate::operation::{Operation, Watched, message, room, wrong_message};
use crate::scenario::{Injection, Kind, Scenario, Step};
use crate::worker::now_us;
use crate::worker::resource_snapshot::ResourceSnapshot;
use dist::ffi::types::DIST_ERR_INTERNAL;
use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

/// Environment variable with the scenario's origin. Its presence makes a process a rank.
pub(crate) const ORIGIN: &str = "CHAOS_SCENARIO";
/// Environment variable with the rank, or with [`KEEPER`].
pub(crate) const NAME: &str = "CHAOS_NAME";
/// Environment variable with the location of the store: `HOST PORT`, or the path of a file.
pub(crate) const STORE: &str = "CHAOS_STORE";
/// Environment variable of the process that hosts the store: the descriptor of the inherited
/// listening socket, or any other text if the process creates its own socket.
pub(crate) const LISTEN: &str = "CHAOS_LISTEN";
/// The name of the store host process, which runs no rank.
pub(crate) const KEEPER: &str = "keeper";
/// The prefix of each report line.
pub(crate) const MARK: &str = "@@";

/// The maximum duration of `finalize`, after any failure.
const LEAVING_MS: i64 = 6000;
/// The maximum time until the process has released its resources.
const PATIENCE: Duration = Duration::from_secs(5);

#[allow(clippy::disallowed_methods, reason = "a rank is told by its environment what to do")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[test]
#[ignore = "the body of the processes that the other tests start"]
fn entry() {
    let Some(origin) = variable(ORIGIN) else { return };
    let name = variable(NAME).unwrap();
    let mut out = OpenOptions::new().write(true).open("/proc/self/fd/1").unwrap();
    let prefix = format!("{MARK}{name} ");
    // One write per line, so that lines of several processes do not interleave.
    let say = |what: &str| drop(out.write_all(format!("{prefix}{what}\n").as_bytes()));
    let scenario = Scenario::parse(&origin);
    let before = ResourceSnapshot::take();
    let mut say = Reports(Box::new(say));
    say.line(&format!("start {}", std::process::id()));
    let role =
        variable(LISTEN).map_or(Role::Client, |text| text.parse().map_or(Role::Server, Role::Heir));
    let place = variable(STORE).unwrap();
    let store = match place.split_once(' ') {
        Some((host, port)) => Store::tcp(host, port.parse().unwrap(), role, scenario.connect_ms),
        None => Store::file(&place, scenario.size, scenario.connect_ms),
    };
    let is_stopped = scenario.injection == Injection::Stop;
    let mut watched = Watched::default();
    (watched.arena, watched.is_stopped) = (scenario.arena, is_stopped);
    match store {
        Ok(store) => {
            store.limit(scenario.store_ms).unwrap();
            if name == KEEPER {
                say.line("left");
                pass_gate();
            } else {
                let rank = name.parse().unwrap();
                let mut runner = Runner::new(&scenario, rank, store, &mut say, &mut watched);
                runner.run();
                say.line("left");
                pass_gate();
                watched.look_at_all();
            }
            drop(store.release());
        }
        // The driver handles a failure here as a failure of step 0.
        Err(failure) => {
            say.ended(0, &Ended { outcome: Err(failure), over_ms: 0 });
            say.line("left");
            pass_gate();
        }
    }
    watched.touched.iter().for_each(|what| say.line(&format!("wrong {what}")));
    let more = before.leaked_since(PATIENCE);
    if !more.is_empty() {
        say.line(&format!("wrong not given back: {}", more.join("; ")));
    }
    say.line("done");
}

/// Waits until the driver closes its end of standard input.
fn pass_gate() {
    drop(std::io::stdin().read_to_end(&mut Vec::new()));
}

/// The sink for report lines.
pub(crate) struct Reports<'a>(pub(crate) Box<dyn FnMut(&str) + 'a>);

impl Reports<'_> {
    fn line(&mut self, what: &str) {
        (self.0)(what);
    }

    fn ended(&mut self, step: usize, ended: &Ended) {
        let (status, text) = match &ended.outcome {
            Ok(()) => (0, String::new()),
            Err(failure) => (failure.status, failure.message.replace('\n', " ")),
        };
        let text: String = text.chars().take(2500).collect();
        self.line(&format!("end {step} {status} {} {} {text}", ended.over_ms, now_us()));
    }
}

/// The result of a step.
struct Ended {
    outcome: Outcome,
    /// The largest excess of a call over its allowed time.
    over_ms: i64,
}

/// The state of one rank while it executes the scenario.
pub(crate) struct Runner<'a, 'b> {
    scenario: &'a Scenario,
    rank: usize,
    store: Store,
    say: &'a mut Reports<'b>,
    watched: &'a mut Watched,
    over_ms: i64,
}

impl<'a, 'b> Runner<'a, 'b> {
    pub(crate) fn new(
        scenario: &'a Scenario,
        rank: usize,
        store: Store,
        say: &'a mut Reports<'b>,
        watched: &'a mut Watched,
    ) -> Self {
        Self { scenario, rank, store, say, watched, over_ms: 0 }
    }

    /// Executes the steps in order until one fails, then runs [`Self::aftermath`] if the group
    /// exists.
    pub(crate) fn run(&mut self) {
        let scenario = self.scenario;
        for (number, step) in scenario.steps.iter().enumerate() {
            let outcome = self.report(number, |rank| rank.step(number, step));
            if let Err(failure) = outcome {
                if number > 0 && !matches!(step, Step::Finalize) {
                    self.aftermath(number, &failure);
                }
                return;
            }
        }
    }

    fn report(&mut self, number: usize, body: impl FnOnce(&mut Self) -> Outcome) -> Outcome {
        self.say.line(&format!("begin {number}"));
        self.over_ms = 0;
        let ended = Ended { outcome: body(self), over_ms: self.over_ms };
        self.say.ended(number, &ended);
        ended.outcome
    }

    /// Aborts the group, since this rank no longer executes the same steps as its peers. Then makes
    /// the calls of a program that ignores the error, and finalizes.
    fn aftermath(&mut self, number: usize, failure: &Failure) {
        let last = self.scenario.steps.len();
        drop(world().abort(&failure.message));
        drop(self.report(last, |rank| rank.calls((Kind::Barrier, 0), 1, 1, last * 1_000_000)));
        // The store must return the stored value, or an error.
        let (key, value) = (format!("after{}", self.rank), format!("step {number}"));
        drop(self.report(last + 1, |rank| {
            let limit = rank.scenario.store_ms;
            rank.timed(limit, |rank| rank.store.set(&key, &value))?;
            let found = rank.timed(limit, |rank| rank.store.get(&key))?;
            rank.expect(found == value, || format!("{key} is \"{found}\", not \"{value}\""));
            Ok(())
        }));
        drop(self.report(last - 1, |rank| rank.timed(LEAVING_MS, |_| library::finalize())));
    }

    fn expect(&mut self, right: bool, what: impl FnOnce() -> String) {
        if !right {
            self.say.line(&format!("wrong {}", what()));
        }
    }

    /// Makes a call and records by how much it exceeds `allowed_ms`.
    fn timed<T>(&mut self, allowed_ms: i64, call: impl FnOnce(&Self) -> T) -> T {
        let began = Instant::now();
        let done = call(self);
        let took_ms = i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.over_ms = self.over_ms.max(took_ms - allowed_ms);
        done
    }

    fn step(&mut self, number: usize, step: &Step) -> Outcome {
        let limit = self.scenario.timeout_ms;
        if number == self.scenario.watched.1 && self.rank == self.scenario.victim {
            self.be_the_victim();
        }
        let turn = number * 1_000_000;
        match *step {
            Step::Init => self.init(),
            Step::Calls { kind, count, times, ahead } => {
                self.calls((kind, count), times, ahead, turn)
            }
            Step::Ring { count, times } => {
                (turn..turn + times).try_for_each(|turn| self.ring(count, turn))
            }
            Step::Pairs { count, times } => {
                (turn..turn + times).try_for_each(|turn| self.pair(count, turn))
            }
            Step::Store { setter, after_ms } => self.meet_in_store(number, setter, after_ms),
            Step::Groups { split } => self.groups(split, turn),
            Step::Shrink { aborter, after_ms } => self.shrink(aborter, after_ms, turn),
            Step::Finalize => self.timed(limit.max(LEAVING_MS), |_| library::finalize()),
        }
    }

    /// Injects the faults that the victim causes in its own process.
    fn be_the_victim(&self) {
        match self.scenario.injection {
            Injection::Delay { ms, .. } => std::thread::sleep(Duration::from_millis(ms)),
            Injection::MemoryLimit { kib } => limit_memory(kib),
            _ => {}
        }
    }

    fn init(&mut self) -> Outcome {
        let scenario = self.scenario;
        let join = Join {
            store: self.store,
            name: &format!("chaos {}", scenario.origin),
            rank: self.rank,
            size: scenario.size,
            timeout_ms: scenario.timeout_ms,
            connect_ms: scenario.connect_ms,
            backend_options: &format!(
                "transport={};host_id=h{}",
                scenario.transport, scenario.hosts[self.rank]
            ),
        };
        self.timed(scenario.connect_ms, |_| library::init(&join))
    }

    fn calls(&mut self, call: (Kind, usize), times: usize, ahead: usize, turn: usize) -> Outcome {
        self.calls_of(world(), call, times, ahead, turn)
    }

    fn calls_of(
        &mut self,
        group: Group,
        call: (Kind, usize),
        times: usize,
        ahead: usize,
        turn: usize,
    ) -> Outcome {
        let limit = self.scenario.timeout_ms;
        let place = (group.rank(), group.size());
        let mut done = 0;
        while done < times {
            if ahead == 1 {
                let mut operation = Operation::new(call, turn + done, place, self.watched);
                let outcome = self.timed(limit, |_| group.run(&mut operation));
                self.close(operation, &outcome);
                outcome?;
            } else {
                let turns = turn + done..turn + done + ahead;
                let operations = turns.map(|turn| Operation::new(call, turn, place, self.watched));
                let operations: Vec<Operation> = operations.collect();
                self.issue_all(group, operations)?;
            }
            done += ahead;
        }
        Ok(())
    }

    /// Issues all operations, then waits for them in reverse order.
    fn issue_all(&mut self, group: Group, mut operations: Vec<Operation>) -> Outcome {
        let limit = self.scenario.timeout_ms * i64::try_from(operations.len()).unwrap();
        let began = Instant::now();
        let works: Vec<_> = operations
            .iter_mut()
            .map(|operation| match operation.kind {
                // A monitored barrier has no work handle.
                Kind::MonitoredBarrier => group.run(operation).map(|()| None),
                _ => group.issue(operation).map(Some),
            })
            .collect();
        let waited = works.iter().rev().map(|work| match work {
            Ok(Some(work)) => work.wait(),
            Ok(None) => Ok(()),
            Err(failure) => Err(failure.clone()),
        });
        let mut outcomes: Vec<Outcome> = waited.collect();
        outcomes.reverse();
        let took_ms = i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.over_ms = self.over_ms.max(took_ms - limit);
        let mut first = Ok(());
        for (operation, outcome) in operations.into_iter().zip(outcomes) {
            self.close(operation, &outcome);
            first = first.and(outcome);
        }
        first
    }

    /// Checks the result and the memory of a completed call.
    fn close(&mut self, operation: Operation, outcome: &Outcome) {
        if outcome.is_ok() {
            let wrong = operation.wrong();
            self.expect(wrong.is_none(), || wrong.unwrap_or_default());
        }
        operation.retire(outcome.is_ok(), self.watched);
    }

    fn ring(&mut self, count: usize, turn: usize) -> Outcome {
        let (rank, size, limit) = (self.rank, self.scenario.size, self.scenario.timeout_ms);
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        let (sent, mut came) = (message(turn, rank, count), room(count));
        let outcome = self.timed(limit, |_| {
            let from = Message { peer: before, tag: 7 };
            let incoming = world().receive(from, &mut came, false)?;
            let outgoing = world().send(Message { peer: next, tag: 7 }, &sent, false);
            // The rank waits for both works, since both hold buffers of this function.
            let outgoing = outgoing.and_then(|work| work.map_or(Ok(()), |work| work.wait()));
            let incoming = incoming.map_or(Ok(()), |work| work.wait());
            incoming.and(outgoing)
        });
        self.close_message(sent, came, (turn, before), &outcome);
        outcome
    }

    fn pair(&mut self, count: usize, turn: usize) -> Outcome {
        let limit = self.scenario.timeout_ms;
        let peer = self.rank ^ 1;
        if peer >= self.scenario.size {
            return Ok(());
        }
        let (sent, mut came) = (message(turn, self.rank, count), room(count));
        let other = Message { peer, tag: 9 };
        let outcome = if self.rank < peer {
            self.timed(limit, |_| world().send(other, &sent, true))
                .and_then(|_| self.timed(limit, |_| world().receive(other, &mut came, true)))
        } else {
            self.timed(limit, |_| world().receive(other, &mut came, true))
                .and_then(|_| self.timed(limit, |_| world().send(other, &sent, true)))
        };
        let outcome = outcome.map(drop);
        self.close_message(sent, came, (turn, peer), &outcome);
        outcome
    }

    fn close_message(
        &mut self,
        sent: Vec<i32>,
        came: Vec<i32>,
        (turn, from): (usize, usize),
        outcome: &Outcome,
    ) {
        if outcome.is_ok() {
            let wrong = wrong_message(&came, turn, from);
            self.expect(wrong.is_none(), || wrong.unwrap_or_default());
        }
        self.watched.watch(Buffer::Own(sent), outcome.is_ok());
        self.watched.watch(Buffer::Own(came), outcome.is_ok());
    }

    fn meet_in_store(&mut self, number: usize, setter: usize, after_ms: u64) -> Outcome {
        let (store, limit) = (self.store, self.scenario.timeout_ms);
        let (key, value) = (format!("step{number}"), format!("value {number}"));
        if self.rank == setter {
            std::thread::sleep(Duration::from_millis(after_ms));
            return self.timed(self.scenario.store_ms, |_| store.set(&key, &value));
        }
        self.timed(limit, |_| store.wait(&key, limit))?;
        let found = self.timed(self.scenario.store_ms, |_| store.get(&key))?;
        self.expect(found == value, || format!("{key} is \"{found}\", not \"{value}\""));
        Ok(())
    }

    fn groups(&mut self, split: bool, turn: usize) -> Outcome {
        let Scenario { size, timeout_ms, connect_ms, .. } = *self.scenario;
        let limit = timeout_ms + connect_ms;
        let group = if split {
            Some(self.timed(limit, |rank| world().split(rank.rank % 2, connect_ms))?)
        } else {
            let members: Vec<usize> = (0..size.max(3) - 1).collect();
            self.timed(limit, |_| world().some(&members, connect_ms))?
        };
        let Some(group) = group else { return Ok(()) };
        self.use_up(group, turn)
    }

    fn shrink(&mut self, aborter: usize, after_ms: u64, turn: usize) -> Outcome {
        // A rank that leaves this barrier knows that all ranks have finished the earlier steps.
        let entered = self.calls((Kind::Barrier, 0), 1, 1, turn);
        if self.rank == aborter {
            std::thread::sleep(Duration::from_millis(after_ms));
            drop(world().abort(&format!("rank {aborter} goes on with the rest")));
        }
        // The calls end with the abort, or with an injected fault that occurred before it.
        let ended =
            entered.and_then(|()| self.calls((Kind::AllReduce, 1000), usize::MAX / 2, 1, turn + 1));
        let is_panic = ended.is_err_and(|failure| failure.status == DIST_ERR_INTERNAL);
        self.expect(!is_panic, || "there was a panic".to_owned());
        let (window_ms, connect_ms) = (self.scenario.window_ms(), self.scenario.connect_ms);
        let group = self.timed(connect_ms, |_| world().shrink(window_ms, connect_ms))?;
        self.use_up(group, turn + 500_000)
    }

    /// Makes several calls in a group and releases the group.
    fn use_up(&mut self, group: Group, turn: usize) -> Outcome {
        let outcome = self.calls_of(group, (Kind::AllReduce, 1000), 5, 1, turn);
        let released = self.timed(LEAVING_MS, |_| group.release());
        outcome.and(released)
    }
}

/// Limits the address space of the process to its present size plus `kib`.
fn limit_memory(kib: u64) {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = pages.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0);
    let bytes = pages * 4096 + kib * 1024;
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: the call reads one structure, which is on this stack.
    let status = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) };
    assert_eq!(status, 0);
}
