//! Repeated rounds in which ranks are killed with SIGKILL while one process stays alive: it hosts
//! the store and is rank 0 of every round. After the rounds the process has no additional
//! descriptor, thread or mapping, and no process, socket or file remains.

use crate::body::{ReportWriter, ScenarioRank};
use crate::checked_collective::WatchedBuffers;
use crate::library::{StoreHandle, StoreRole};
use crate::scenario::Scenario;
use crate::scenario_processes::{RankReport, ScenarioEnvironment, ScenarioProcesses};
use crate::{LeakCheck, ScenarioFolder, numeric_setting, scenario_runner, serial_guard};
use std::net::TcpListener;
use std::os::fd::IntoRawFd as _;
use std::time::Instant;

/// The number of rounds in the ordinary tests.
const DEFAULT_ROUNDS: u64 = 20;
/// The deadline of store calls.
const LIMIT_MS: i64 = 20_000;

#[test]
fn rounds_of_kill_leave_nothing() {
    let _alone = serial_guard();
    let (rounds, began) = (numeric_setting("CHAOS_ROUNDS", DEFAULT_ROUNDS), Instant::now());
    let leak_check = LeakCheck::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let role = StoreRole::InheritedServer(listener.into_raw_fd());
    let store = StoreHandle::tcp("127.0.0.1", port, role, LIMIT_MS).unwrap();
    let mut failed = 0;
    for number in 0..rounds {
        failed += u64::from(run_round(number, store, port));
        if (number + 1) % 100 == 0 {
            println!("{} rounds in {} s", number + 1, began.elapsed().as_secs());
        }
    }
    println!("{rounds} rounds of kill -9; in {failed} rank 0 was told before it had left");
    store.release().unwrap();
    leak_check.assert_no_leaks();
    assert!(failed > 0);
}

/// Runs one round. Returns true if the driver's own calls failed, as expected when ranks die.
fn run_round(number: u64, store: StoreHandle, port: u16) -> bool {
    let scenario = Scenario::parse(&format!("round {number}"));
    let folder = ScenarioFolder::new();
    let environment =
        ScenarioEnvironment { folder: folder.path(), hosts: &[], driver_store_port: Some(port) };
    let mut processes = ScenarioProcesses::start(&scenario, &environment);
    let mut problems: Vec<String> = Vec::new();
    let mut watched = WatchedBuffers::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut reports = ReportWriter(Box::new(|line: &str| problems.push(line.to_owned())));
            ScenarioRank::new(&scenario, 0, store, &mut reports, &mut watched).run();
        });
        scenario_runner::inject_when_due(&scenario, &mut processes, None);
        scenario_runner::await_exits(&scenario, &mut processes).unwrap();
    });
    watched.check_all_buffers();
    assert!(watched.violations.is_empty(), "round {number}: {:?}", watched.violations);
    let leftovers = processes.leftovers();
    assert!(leftovers.is_empty(), "round {number}: {}", leftovers.join("; "));
    let wrong = |member: &crate::scenario_processes::ScenarioProcess| {
        let has_wrong_result =
            member.reports.iter().any(|report| matches!(report, RankReport::WrongResult(_)));
        let rank = member.rank.unwrap();
        has_wrong_result || (!scenario.is_killed(rank) && member.exit_code() != Some(0))
    };
    let bad: Vec<_> = processes.processes.iter().filter(|member| wrong(member)).collect();
    assert!(
        bad.is_empty(),
        "round {number}: {:?}\n{}",
        bad.iter()
            .map(|member| (&member.rank, member.exit_code(), &member.reports))
            .collect::<Vec<_>>(),
        processes.errors()
    );
    assert!(!problems.iter().any(|line| line.starts_with("wrong")), "round {number}: {problems:?}");
    problems.iter()
        .any(|line| matches!(RankReport::parse(line), Some(RankReport::End { status, .. }) if status != 0))
}
