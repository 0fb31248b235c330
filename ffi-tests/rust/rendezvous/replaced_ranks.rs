//! Ranks that join twice, restart or die while the ranks of a group meet.

use super::{USE_AND_LEAVE, agent_environment, assert_worked, client, launcher_store};
use crate::harness::TestJob;
use dist::base::deadline::Deadline;
use dist::ffi::types::{
    DIST_ERR_CONNECTION, DIST_ERR_INVALID_ARGUMENT, DIST_ERR_PEER_FAILED, DIST_ERR_SYSTEM,
    DIST_ERR_TIMEOUT,
};
use dist::store::Store as _;
use dist::store::tcp::TcpStore;
use std::time::Duration;

/// Waits until a rank has published its address in the store.
fn await_rank(store: &TcpStore, rank: usize) {
    let key = format!("dist/world/rank/{rank}");
    store.get(key.as_bytes(), &Deadline::after_ms(20_000)).unwrap();
}

#[test]
fn replaced_rank_gets_an_error_and_new_one_joins() {
    let mut job = TestJob::new();
    for rank in [0, 1] {
        job.start_rank(rank, 3, &format!("init\n{USE_AND_LEAVE}"));
    }
    await_rank(&client(job.port), 1);
    let environment = job.environment(1, 3);
    job.start("1-again", &environment, &format!("init\n{USE_AND_LEAVE}"));
    let again = job.pid("1-again");
    let taken = format!("taken by another process (pid {again}, ");
    job.await_report("1", "init")
        .assert_failed(DIST_ERR_INVALID_ARGUMENT, &[&taken, "the same rank"]);
    job.start_rank(2, 3, &format!("init\n{USE_AND_LEAVE}"));
    assert_worked(&job.finish(), &["0", "1-again", "2"], "init");
}

#[test]
fn duplicate_rank_does_not_disturb_a_running_group() {
    let mut job =
        TestJob::without_launcher(2, |_| format!("init\nbarrier\ngate go\n{USE_AND_LEAVE}"));
    job.await_reports(&["0", "1"], "at go");
    let init = "init connect_timeout_ms=700";
    for rank in [0, 1] {
        let environment = job.environment(rank, 2);
        job.start(&format!("{rank}-again"), &environment, &format!("{init}\nleaks\n"));
    }
    let again = job.await_report("0-again", init);
    again.assert_failed(DIST_ERR_SYSTEM, &["uses the port"]);
    let again = job.await_report("1-again", init);
    again.assert_failed(DIST_ERR_TIMEOUT, &["was the group already created without this process"]);
    again.assert_within_ms(3000);
    job.open_gate("go");
    let ended = job.finish();
    assert_worked(&ended, &["0", "1"], "init");
    ended.report("0-again", "leaks").assert_succeeded();
    ended.report("1-again", "leaks").assert_succeeded();
}

#[test]
fn rank_may_restart_before_the_group_forms() {
    let mut job = TestJob::new();
    for rank in [0, 1] {
        job.start_rank(rank, 3, &format!("init\n{USE_AND_LEAVE}"));
    }
    await_rank(&client(job.port), 1);
    job.kill("1");
    // Rank 0 now finds all ranks and offers them the group; the dead process of rank 1 does not
    // answer.
    job.start_rank(2, 3, &format!("init\n{USE_AND_LEAVE}"));
    await_rank(&client(job.port), 2);
    // The offer to rank 2 also names the dead process.
    let environment = job.environment(1, 3);
    job.start("1-anew", &environment, &format!("init\n{USE_AND_LEAVE}"));
    assert_worked(&job.finish(), &["0", "1-anew", "2"], "init");
}

#[test]
fn death_while_the_group_forms_is_reported_at_once() {
    for victim in ["1", "0"] {
        let mut job = TestJob::new();
        let server = launcher_store();
        let start = |job: &mut TestJob, rank: usize| {
            let environment = agent_environment(rank, 3, &server);
            job.start(&rank.to_string(), &environment, "init\nexit 0\n");
        };
        start(&mut job, 0);
        start(&mut job, 1);
        await_rank(&client(server.port()), 0);
        await_rank(&client(server.port()), 1);
        // The stopped process has joined and does not confirm the offer, or makes no offer.
        job.stop(victim);
        start(&mut job, 2);
        await_rank(&client(server.port()), 2);
        std::thread::sleep(Duration::from_millis(500));
        job.kill(victim);
        let ended = job.finish();
        let died = format!("rank {victim} (pid ");
        for name in ["0", "1", "2"].into_iter().filter(|name| *name != victim) {
            let report = ended.report(name, "init");
            report
                .assert_failed(DIST_ERR_PEER_FAILED, &[&died, "died while the group was created"]);
            report.assert_within_ms(8000);
        }
    }
}

#[test]
fn death_before_the_last_rank_arrives_is_reported() {
    let mut job = TestJob::new();
    let server = launcher_store();
    for rank in [0, 1, 2] {
        job.start(&rank.to_string(), &agent_environment(rank, 4, &server), "init\nexit 0\n");
    }
    (0..3).for_each(|rank| await_rank(&client(server.port()), rank));
    // Rank 0 has seen that rank 1 lives. Rank 3 does not arrive.
    std::thread::sleep(Duration::from_millis(1500));
    job.kill("1");
    let ended = job.finish();
    for name in ["0", "2"] {
        let report = ended.report(name, "init");
        let parts = ["rank 1 (pid ", "died while the group was created"];
        report.assert_failed(DIST_ERR_PEER_FAILED, &parts);
        report.assert_within_ms(15_000);
    }
}

#[test]
fn death_during_init_is_reported_in_time() {
    let init = "init connect_timeout_ms=1000";
    let program = format!("{init}\nloop barrier\nfinalize\nleaks\n");
    let mut formed = 0;
    // The delays cover the time from before the victim joins until after the group exists, on
    // machines of any speed.
    for (turn, victim) in (0..12).zip([0, 1, 2].into_iter().cycle()) {
        let mut job = TestJob::without_launcher(3, |_| program.clone());
        let victim = victim.to_string();
        job.await_report(&victim, "start");
        std::thread::sleep(Duration::from_millis(turn));
        job.kill(&victim);
        let ended = job.finish();
        for name in ["0", "1", "2"].into_iter().filter(|name| *name != victim) {
            let outcome = ended.report(name, init);
            outcome.assert_within_ms(2500);
            if outcome.status == 0 {
                formed += 1;
                ended.report(name, "barrier").assert_failed(DIST_ERR_PEER_FAILED, &["died"]);
            } else {
                let expected_statuses =
                    [DIST_ERR_TIMEOUT, DIST_ERR_CONNECTION, DIST_ERR_PEER_FAILED];
                assert!(expected_statuses.contains(&outcome.status), "{outcome:?}");
            }
            ended.report(name, "leaks").assert_succeeded();
        }
    }
    println!("{formed} of 24 survivors were in a group before the death");
}
