//! Repeated rounds in which ranks are killed with SIGKILL while one process stays alive: it hosts
//! the store and is rank 0 of every round. After the rounds the process has no additional
//! descriptor, thread or mapping, and no process, socket or file remains.

use crate::body::{Reports, Runner};
use crate::crew::{Crew, Ground, Said};
use crate::library::{Role, Store};
use crate::operation::Watched;
use crate::scenario::Scenario;
use crate::{Folder, Quiet, alone, drive, number};
use std::net::TcpListener;
use std::os::fd::IntoRawFd as _;
use std::time::Instant;

/// The number of rounds in the ordinary tests.
const FEW: u64 = 20;
/// The deadline of store calls.
const LIMIT_MS: i64 = 20_000;

#[test]
fn rounds_of_kill_leave_nothing() {
    let _alone = alone();
    let (rounds, began) = (number("CHAOS_ROUNDS", FEW), Instant::now());
    let quiet = Quiet::now();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let role = Role::Heir(listener.into_raw_fd());
    let store = Store::tcp("127.0.0.1", port, role, LIMIT_MS).unwrap();
    let mut failed = 0;
    for number in 0..rounds {
        failed += u64::from(round(number, store, port));
        if (number + 1) % 100 == 0 {
            println!("{} rounds in {} s", number + 1, began.elapsed().as_secs());
        }
    }
    println!("{rounds} rounds of kill -9; in {failed} rank 0 was told before it had left");
    store.release().unwrap();
    quiet.compare();
    assert!(failed > 0);
}

/// Runs one round. Returns true if the driver's own calls failed, as expected when ranks die.
fn round(number: u64, store: Store, port: u16) -> bool {
    let scenario = Scenario::parse(&format!("round {number}"));
    let folder = Folder::new();
    let ground = Ground { folder: folder.path(), places: &[], served: Some(port) };
    let mut crew = Crew::start(&scenario, &ground);
    let mut said: Vec<String> = Vec::new();
    let mut watched = Watched::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut reports = Reports(Box::new(|line: &str| said.push(line.to_owned())));
            Runner::new(&scenario, 0, store, &mut reports, &mut watched).run();
        });
        drive::strike(&scenario, &mut crew, None);
        drive::await_end(&scenario, &mut crew).unwrap();
    });
    watched.look_at_all();
    assert!(watched.touched.is_empty(), "round {number}: {:?}", watched.touched);
    let left = crew.left_behind();
    assert!(left.is_empty(), "round {number}: {}", left.join("; "));
    let wrong = |member: &crate::crew::Member| {
        let found = member.said.iter().any(|said| matches!(said, Said::Wrong(_)));
        let rank = member.rank.unwrap();
        found || (!scenario.dies(rank) && member.code() != Some(0))
    };
    let bad: Vec<_> = crew.members.iter().filter(|member| wrong(member)).collect();
    assert!(
        bad.is_empty(),
        "round {number}: {:?}\n{}",
        bad.iter().map(|member| (&member.rank, member.code(), &member.said)).collect::<Vec<_>>(),
        crew.errors()
    );
    assert!(!said.iter().any(|line| line.starts_with("wrong")), "round {number}: {said:?}");
    said.iter()
        .any(|line| matches!(Said::parse(line), Some(Said::End { status, .. }) if status != 0))
}
