//! Main function of a rank process of a scenario: the test binary runs again and reads the
//! scenario's origin from its environment. The rank executes the steps until one fails. It then
//! makes the calls that a program would make after an error, finalizes, and reports each event on
//! standard output, one line each, after a mark.
//!
//! The rank checks results and memory itself. The driver checks which rank reports which error, and
//! when.

use crate::call_buffer::CallBuffer;
use crate::checked_collective::{
    CheckedCollective, WatchedBuffers, message, message_error, receive_buffer,
};
use crate::library::{
    self, CallError, CallResult, GroupHandle, JoinOptions, MessageAddress, StoreHandle, StoreRole,
    world,
};
use crate::scenario::{CollectiveKind, GroupCreation, Injection, Scenario, ScenarioStep};
use crate::self_injection;
use crate::worker::now_us;
use crate::worker::resource_snapshot::ResourceSnapshot;
use dist::ffi::types::DIST_ERR_INTERNAL;
use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

/// Environment variable with the scenario's origin. Its presence makes a process a rank.
pub(crate) const SCENARIO_VARIABLE: &str = "CHAOS_SCENARIO";
/// Environment variable with the rank, or with [`STORE_HOST_NAME`].
pub(crate) const NAME_VARIABLE: &str = "CHAOS_NAME";
/// Environment variable with the location of the store: `HOST PORT`, or the path of a file.
pub(crate) const STORE_VARIABLE: &str = "CHAOS_STORE";
/// Environment variable of the process that hosts the store: the descriptor of the inherited
/// listening socket, or any other text if the process creates its own socket.
pub(crate) const LISTEN_VARIABLE: &str = "CHAOS_LISTEN";
/// The name of the store host process, which runs no rank.
pub(crate) const STORE_HOST_NAME: &str = "keeper";
/// The prefix of each report line.
pub(crate) const REPORT_PREFIX: &str = "@@";

/// The maximum duration of `finalize`, after any failure.
const FINALIZE_TIMEOUT_MS: i64 = 6000;
/// The maximum time until the process has released its resources.
const LEAK_GRACE: Duration = Duration::from_secs(5);

#[allow(clippy::disallowed_methods, reason = "a rank is told by its environment what to do")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[test]
#[ignore = "the body of the processes that the other tests start"]
fn entry() {
    let Some(origin) = variable(SCENARIO_VARIABLE) else { return };
    let name = variable(NAME_VARIABLE).unwrap();
    let mut out = OpenOptions::new().write(true).open("/proc/self/fd/1").unwrap();
    let prefix = format!("{REPORT_PREFIX}{name} ");
    // One write per line, so that lines of several processes do not interleave.
    let write_line = |what: &str| drop(out.write_all(format!("{prefix}{what}\n").as_bytes()));
    let scenario = Scenario::parse(&origin);
    let before = ResourceSnapshot::take();
    let mut reports = ReportWriter(Box::new(write_line));
    reports.line(&format!("start {}", std::process::id()));
    let role = variable(LISTEN_VARIABLE).map_or(StoreRole::Client, |text| {
        text.parse().map_or(StoreRole::Server, StoreRole::InheritedServer)
    });
    let store_address = variable(STORE_VARIABLE).unwrap();
    let store = match store_address.split_once(' ') {
        Some((host, port)) => {
            StoreHandle::tcp(host, port.parse().unwrap(), role, scenario.connect_ms)
        }
        None => StoreHandle::file(&store_address, scenario.size, scenario.connect_ms),
    };
    let is_stopped = scenario.injection == Injection::Stop;
    let mut watched = WatchedBuffers::default();
    (watched.arena, watched.is_stopped) = (scenario.arena, is_stopped);
    match store {
        Ok(store) => {
            store.set_timeout(scenario.store_ms).unwrap();
            if name == STORE_HOST_NAME {
                reports.line("left");
                wait_for_gate();
            } else {
                let rank = name.parse().unwrap();
                let mut runner =
                    ScenarioRank::new(&scenario, rank, store, &mut reports, &mut watched);
                runner.run();
                reports.line("left");
                wait_for_gate();
                watched.check_all_buffers();
            }
            drop(store.release());
        }
        // The driver handles a failure here as a failure of step 0.
        Err(failure) => {
            reports.step_ended(0, &StepOutcome { outcome: Err(failure), over_ms: 0 });
            reports.line("left");
            wait_for_gate();
        }
    }
    watched.violations.iter().for_each(|what| reports.line(&format!("wrong {what}")));
    let more = before.leaked_since(LEAK_GRACE);
    if !more.is_empty() {
        reports.line(&format!("wrong not given back: {}", more.join("; ")));
    }
    reports.line("done");
}

/// Waits until the driver closes its end of standard input.
fn wait_for_gate() {
    drop(std::io::stdin().read_to_end(&mut Vec::new()));
}

/// The sink for report lines.
pub(crate) struct ReportWriter<'a>(pub(crate) Box<dyn FnMut(&str) + 'a>);

impl ReportWriter<'_> {
    fn line(&mut self, what: &str) {
        (self.0)(what);
    }

    fn step_ended(&mut self, step: usize, ended: &StepOutcome) {
        let (status, text) = match &ended.outcome {
            Ok(()) => (0, String::new()),
            Err(failure) => (failure.status, failure.message.replace('\n', " ")),
        };
        let text: String = text.chars().take(2500).collect();
        self.line(&format!("end {step} {status} {} {} {text}", ended.over_ms, now_us()));
    }
}

/// The result of a step.
struct StepOutcome {
    outcome: CallResult,
    /// The largest excess of a call over its allowed time.
    over_ms: i64,
}

/// The state of one rank while it executes the scenario.
pub(crate) struct ScenarioRank<'a, 'b> {
    scenario: &'a Scenario,
    rank: usize,
    store: StoreHandle,
    reports: &'a mut ReportWriter<'b>,
    watched_buffers: &'a mut WatchedBuffers,
    over_ms: i64,
}

impl<'a, 'b> ScenarioRank<'a, 'b> {
    pub(crate) fn new(
        scenario: &'a Scenario,
        rank: usize,
        store: StoreHandle,
        reports: &'a mut ReportWriter<'b>,
        watched: &'a mut WatchedBuffers,
    ) -> Self {
        Self { scenario, rank, store, reports, watched_buffers: watched, over_ms: 0 }
    }

    /// Executes the steps in order until one fails, then runs [`Self::act_after_failure`] if the
    /// group exists.
    pub(crate) fn run(&mut self) {
        let scenario = self.scenario;
        for (number, step) in scenario.steps.iter().enumerate() {
            let is_trigger = number == scenario.trigger.1 && self.rank == scenario.victim;
            if is_trigger && scenario.injection == Injection::Leave && number > 0 {
                let last = scenario.steps.len() - 1;
                drop(self.report(last, |rank| rank.step(last, &ScenarioStep::Finalize)));
                return;
            }
            if is_trigger {
                self_injection::inject_before_step(scenario);
            }
            let outcome = self.report(number, |rank| rank.step(number, step));
            if let Err(failure) = outcome {
                self.report_culprit(number);
                self_injection::end_after_error(scenario);
                if number > 0 && !matches!(step, ScenarioStep::Finalize) {
                    self.act_after_failure(number, &failure);
                }
                return;
            }
        }
    }

    fn report(&mut self, number: usize, body: impl FnOnce(&mut Self) -> CallResult) -> CallResult {
        self.reports.line(&format!("begin {number}"));
        self.over_ms = 0;
        let ended = StepOutcome { outcome: body(self), over_ms: self.over_ms };
        self.reports.step_ended(number, &ended);
        ended.outcome
    }

    /// Aborts the group, since this rank no longer executes the same steps as its peers. Then makes
    /// the calls of a program that ignores the error, and finalizes.
    fn act_after_failure(&mut self, number: usize, failure: &CallError) {
        let last = self.scenario.steps.len();
        drop(world().abort(&failure.message));
        drop(self.report(last, |rank| {
            rank.run_calls((CollectiveKind::Barrier, 0), 1, 1, last * 1_000_000)
        }));
        // The store must return the stored value, or an error.
        let (key, value) = (format!("after{}", self.rank), format!("step {number}"));
        drop(self.report(last + 1, |rank| {
            let limit = rank.scenario.store_ms;
            rank.timed(limit, |rank| rank.store.set(&key, &value))?;
            let stored_value = rank.timed(limit, |rank| rank.store.get(&key))?;
            rank.report_unless(stored_value == value, || {
                format!("{key} is \"{stored_value}\", not \"{value}\"")
            });
            Ok(())
        }));
        drop(
            self.report(last - 1, |rank| rank.timed(FINALIZE_TIMEOUT_MS, |_| library::finalize())),
        );
    }

    fn report_unless(&mut self, right: bool, what: impl FnOnce() -> String) {
        if !right {
            self.reports.line(&format!("wrong {}", what()));
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

    fn step(&mut self, number: usize, step: &ScenarioStep) -> CallResult {
        let limit = self.scenario.timeout_ms;
        let turn = number * 1_000_000;
        match *step {
            ScenarioStep::Init => self.init(),
            ScenarioStep::Calls { kind, count, times, ahead } => {
                self.run_calls((kind, count), times, ahead, turn)
            }
            ScenarioStep::Ring { count, times } => {
                (turn..turn + times).try_for_each(|turn| self.exchange_in_ring(count, turn))
            }
            ScenarioStep::Pairs { count, times } => {
                (turn..turn + times).try_for_each(|turn| self.exchange_in_pairs(count, turn))
            }
            ScenarioStep::Store { setter, after_ms } => {
                self.synchronise_in_store(number, setter, after_ms)
            }
            ScenarioStep::Groups { way, times } => {
                (turn..turn + 10 * times).step_by(10).try_for_each(|turn| self.use_group(way, turn))
            }
            ScenarioStep::Shrink { aborter, after_ms } => {
                self.abort_and_shrink(number, aborter, after_ms)
            }
            ScenarioStep::Finalize => {
                self.timed(limit.max(FINALIZE_TIMEOUT_MS), |_| library::finalize())
            }
        }
    }

    fn init(&mut self) -> CallResult {
        let join = self.join_options(format!("chaos {}", self.scenario.origin));
        self.timed(self.scenario.connect_ms, |_| library::init(&join))?;
        if self.scenario.injection == Injection::KillParent && self.rank == self.scenario.victim {
            let child = self_injection::fork_child();
            self.reports.line(&format!("forked {child}"));
        }
        Ok(())
    }

    fn join_options(&self, name: String) -> JoinOptions {
        let scenario = self.scenario;
        JoinOptions {
            store: self.store,
            name,
            rank: self.rank,
            size: scenario.size,
            timeout_ms: scenario.timeout_ms,
            connect_ms: scenario.connect_ms,
            backend_options: format!(
                "transport={};host_id=h{}",
                scenario.transport, scenario.hosts[self.rank]
            ),
        }
    }

    /// Reports which rank the library calls the culprit of the world's failure.
    fn report_culprit(&mut self, step: usize) {
        if let Some((rank, kind)) = world().culprit() {
            self.reports.line(&format!("culprit {step} {rank} {kind}"));
        }
    }

    fn run_calls(
        &mut self,
        call: (CollectiveKind, usize),
        times: usize,
        ahead: usize,
        turn: usize,
    ) -> CallResult {
        self.run_calls_in(world(), call, times, ahead, turn)
    }

    fn run_calls_in(
        &mut self,
        group: GroupHandle,
        call: (CollectiveKind, usize),
        times: usize,
        ahead: usize,
        turn: usize,
    ) -> CallResult {
        let limit = self.scenario.timeout_ms;
        let rank_and_size = (group.rank(), group.size());
        let mut done = 0;
        while done < times {
            if ahead == 1 {
                let mut operation =
                    CheckedCollective::new(call, turn + done, rank_and_size, self.watched_buffers);
                let outcome = self.timed(limit, |_| group.run(&mut operation));
                self.finish_call(operation, &outcome);
                outcome?;
            } else {
                let turns = turn + done..turn + done + ahead;
                let operations = turns.map(|turn| {
                    CheckedCollective::new(call, turn, rank_and_size, self.watched_buffers)
                });
                let operations: Vec<CheckedCollective> = operations.collect();
                self.issue_all(group, operations)?;
            }
            done += ahead;
        }
        Ok(())
    }

    /// Issues all operations, then waits for them in reverse order.
    fn issue_all(
        &mut self,
        group: GroupHandle,
        mut operations: Vec<CheckedCollective>,
    ) -> CallResult {
        let limit = self.scenario.timeout_ms * i64::try_from(operations.len()).unwrap();
        let began = Instant::now();
        let works: Vec<_> = operations
            .iter_mut()
            .map(|operation| match operation.kind {
                // A monitored barrier has no work handle.
                CollectiveKind::MonitoredBarrier => group.run(operation).map(|()| None),
                _ => group.issue(operation).map(Some),
            })
            .collect();
        let waited = works.iter().rev().map(|work| match work {
            Ok(Some(work)) => work.wait(),
            Ok(None) => Ok(()),
            Err(failure) => Err(failure.clone()),
        });
        let mut outcomes: Vec<CallResult> = waited.collect();
        outcomes.reverse();
        let took_ms = i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.over_ms = self.over_ms.max(took_ms - limit);
        let mut first = Ok(());
        for (operation, outcome) in operations.into_iter().zip(outcomes) {
            self.finish_call(operation, &outcome);
            first = first.and(outcome);
        }
        first
    }

    /// Checks the result and the memory of a completed call.
    fn finish_call(&mut self, operation: CheckedCollective, outcome: &CallResult) {
        if outcome.is_ok() {
            let wrong = operation.first_wrong_element();
            self.report_unless(wrong.is_none(), || wrong.unwrap_or_default());
        }
        operation.watch_buffers(outcome.is_ok(), self.watched_buffers);
    }

    fn exchange_in_ring(&mut self, count: usize, turn: usize) -> CallResult {
        let (rank, size, limit) = (self.rank, self.scenario.size, self.scenario.timeout_ms);
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        let (sent, mut came) = (message(turn, rank, count), receive_buffer(count));
        let outcome = self.timed(limit, |_| {
            let from = MessageAddress { peer: before, tag: 7 };
            let incoming = world().receive(from, &mut came, false)?;
            let outgoing = world().send(MessageAddress { peer: next, tag: 7 }, &sent, false);
            // The rank waits for both works, since both hold buffers of this function.
            let outgoing = outgoing.and_then(|work| work.map_or(Ok(()), |work| work.wait()));
            let incoming = incoming.map_or(Ok(()), |work| work.wait());
            incoming.and(outgoing)
        });
        self.finish_message(sent, came, (turn, before), &outcome);
        outcome
    }

    fn exchange_in_pairs(&mut self, count: usize, turn: usize) -> CallResult {
        let limit = self.scenario.timeout_ms;
        let peer = self.rank ^ 1;
        if peer >= self.scenario.size {
            return Ok(());
        }
        let (sent, mut came) = (message(turn, self.rank, count), receive_buffer(count));
        let other = MessageAddress { peer, tag: 9 };
        let outcome = if self.rank < peer {
            self.timed(limit, |_| world().send(other, &sent, true))
                .and_then(|_| self.timed(limit, |_| world().receive(other, &mut came, true)))
        } else {
            self.timed(limit, |_| world().receive(other, &mut came, true))
                .and_then(|_| self.timed(limit, |_| world().send(other, &sent, true)))
        };
        let outcome = outcome.map(drop);
        self.finish_message(sent, came, (turn, peer), &outcome);
        outcome
    }

    fn finish_message(
        &mut self,
        sent: Vec<i32>,
        came: Vec<i32>,
        (turn, from): (usize, usize),
        outcome: &CallResult,
    ) {
        if outcome.is_ok() {
            let wrong = message_error(&came, turn, from);
            self.report_unless(wrong.is_none(), || wrong.unwrap_or_default());
        }
        self.watched_buffers.watch(CallBuffer::Own(sent), outcome.is_ok());
        self.watched_buffers.watch(CallBuffer::Own(came), outcome.is_ok());
    }

    fn synchronise_in_store(&mut self, number: usize, setter: usize, after_ms: u64) -> CallResult {
        let (store, limit) = (self.store, self.scenario.timeout_ms);
        let (key, value) = (format!("step{number}"), format!("value {number}"));
        if self.rank == setter {
            std::thread::sleep(Duration::from_millis(after_ms));
            return self.timed(self.scenario.store_ms, |_| store.set(&key, &value));
        }
        self.timed(limit, |_| store.wait(&key, limit))?;
        let stored_value = self.timed(self.scenario.store_ms, |_| store.get(&key))?;
        self.report_unless(stored_value == value, || {
            format!("{key} is \"{stored_value}\", not \"{value}\"")
        });
        Ok(())
    }

    fn use_group(&mut self, way: GroupCreation, turn: usize) -> CallResult {
        let Scenario { size, timeout_ms, connect_ms, .. } = *self.scenario;
        let limit = timeout_ms + connect_ms;
        let group = match way {
            GroupCreation::Split => {
                Some(self.timed(limit, |rank| world().split(rank.rank % 2, connect_ms))?)
            }
            GroupCreation::New => {
                let members: Vec<usize> = (0..size.max(3) - 1).collect();
                self.timed(limit, |_| world().subgroup(&members, connect_ms))?
            }
            GroupCreation::Create => {
                let join = self.join_options(format!("chaos group {turn}"));
                Some(self.timed(limit, |_| GroupHandle::create(&join))?)
            }
        };
        let Some(group) = group else { return Ok(()) };
        self.use_and_release(group, turn)
    }

    fn abort_and_shrink(&mut self, number: usize, aborter: usize, after_ms: u64) -> CallResult {
        let turn = number * 1_000_000;
        // A rank that leaves this barrier knows that all ranks have finished the earlier steps.
        let entered = self.run_calls((CollectiveKind::Barrier, 0), 1, 1, turn);
        if self.rank == aborter {
            std::thread::sleep(Duration::from_millis(after_ms));
            drop(world().abort(&format!("rank {aborter} goes on with the rest")));
        }
        // The calls end with the abort, or with an injected fault that occurred before it.
        let ended = entered.and_then(|()| {
            self.run_calls((CollectiveKind::AllReduce, 1000), usize::MAX / 2, 1, turn + 1)
        });
        let is_panic = ended.is_err_and(|failure| failure.status == DIST_ERR_INTERNAL);
        self.report_unless(!is_panic, || "there was a panic".to_owned());
        let (window_ms, connect_ms) = (self.scenario.shrink_window_ms(), self.scenario.connect_ms);
        let group = self.timed(connect_ms, |_| world().shrink(window_ms, connect_ms))?;
        self.reports.line(&format!("rest {}", group.size()));
        self.use_and_release(group, turn + 500_000)
    }

    /// Makes several calls in a group and releases the group.
    fn use_and_release(&mut self, group: GroupHandle, turn: usize) -> CallResult {
        let outcome = self.run_calls_in(group, (CollectiveKind::AllReduce, 1000), 5, 1, turn);
        let released = self.timed(FINALIZE_TIMEOUT_MS, |_| group.release());
        outcome.and(released)
    }
}
