//! The coordinator dies at different times while it creates the new group.

use super::{LEAVE_COMMANDS, assert_continued, rank_list, start};
use std::time::{Duration, Instant};

/// The survivors wait for rank 3, and their coordinator dies during the wait.
#[test]
fn dead_coordinator_is_replaced() {
    for hosts in ["aaaa", "abab"] {
        let (mut job, names) = start(hosts, |rank| {
            let late = if rank == 3 { "gate late\n" } else { "" };
            let go_on = "shrink rest timeout_ms=20000\nall_reduce f32 SUM 10 on=rest\n";
            format!("init\nbarrier\nabort enough\n{late}gate all\n{go_on}{LEAVE_COMMANDS}")
        });
        job.await_reports(&names[..3], "at all");
        job.open_gate("all");
        // The survivors have joined the rendezvous or are about to join it.
        std::thread::sleep(Duration::from_millis(100));
        job.kill("0");
        job.open_gate("late");
        assert_continued(&job.finish(), "rest", &[1, 2, 3]);
    }
}

/// Kills the coordinator `delay` after the failure of the group. If it has already created the new
/// group, that group fails and the survivors shrink again.
fn kill_after(hosts: &str, delay: Duration) {
    let (mut job, names) = start(hosts, |rank| match rank {
        0 => "init\nbarrier\ngate go\nabort enough\nshrink rest\ngate never\n".to_owned(),
        _ => {
            let go_on = "shrink rest\nbarrier on=rest\nshrink last on=rest\n";
            let go_on = format!("{go_on}all_reduce f32 SUM 100 on=last\nrelease last\n");
            format!("init\nbarrier\ngate go\nabort enough\n{go_on}{LEAVE_COMMANDS}")
        }
    });
    job.await_reports(&names, "at go");
    let pid = job.pid("0");
    job.open_gate("go");
    let opened = Instant::now();
    while opened.elapsed() < delay {
        std::hint::spin_loop();
    }
    super::harness::signal("KILL", &[pid]);
    let ended = job.finish();
    for name in &names[1..] {
        let rest = ended.report(name, "shrink rest").assert_succeeded().message.clone();
        let possible = [rank_list(&[0, 1, 2, 3]), rank_list(&[1, 2, 3])];
        assert!(possible.contains(&rest), "rank {name} is in {rest} after {delay:?}");
        let last = ended.report(name, "shrink last on=rest");
        assert_eq!(last.assert_succeeded().message, rank_list(&[1, 2, 3]), "after {delay:?}");
        ended.report(name, "all_reduce f32 SUM 100 on=last").assert_succeeded();
        ended.report(name, "leaks").assert_succeeded();
    }
}

#[test]
fn coordinator_may_die_at_any_time() {
    for step in 0..12 {
        kill_after("aaaa", Duration::from_micros(step * 1500));
    }
}

#[test]
fn coordinator_on_another_host_may_die_at_any_time() {
    for step in 0..8 {
        kill_after("abab", Duration::from_micros(step * 4000));
    }
}
