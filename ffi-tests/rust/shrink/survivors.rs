//! The members of the new group, and the errors of the ranks that are no members.

use super::harness::{TestJob, signal};
use super::{CONTINUE_COMMANDS, LEAVE_COMMANDS, assert_continued, names, places, rank_list, start};
use dist::ffi::types::{DIST_ERR_ABORTED, DIST_ERR_PEER_FAILED};

/// Kills several ranks so that none of them notices the death of another.
fn kill_together(job: &mut TestJob, names: &[String], victims: &[usize]) {
    victims.iter().for_each(|&victim| job.stop(&names[victim]));
    let pids: Vec<u32> = victims.iter().map(|&victim| job.pid(&names[victim])).collect();
    signal("KILL", &pids);
}

/// Kills these ranks at the same time during a loop; the survivors continue.
fn check_shrink_after_kill(hosts: &str, victims: &[usize]) {
    let program =
        format!("init\nloop all_reduce f32 SUM 1000\n{CONTINUE_COMMANDS}{LEAVE_COMMANDS}");
    let (mut job, names) = start(hosts, |_| program.clone());
    job.await_reports(&names, "ready");
    kill_together(&mut job, &names, victims);
    let ended = job.finish();
    let survivors: Vec<usize> = (0..names.len()).filter(|rank| !victims.contains(rank)).collect();
    assert_continued(&ended, "rest", &survivors);
}

#[test]
fn two_of_three_shrink_after_any_death() {
    for victim in 0..3 {
        check_shrink_after_kill("aaa", &[victim]);
    }
}

#[test]
fn survivors_shrink_after_simultaneous_deaths() {
    for victims in [&[0, 1][..], &[0, 3], &[2, 3], &[0, 1, 2], &[1, 2, 4], &[0, 2, 3, 4]] {
        check_shrink_after_kill("aaaaa", victims);
    }
}

#[test]
fn survivors_on_several_hosts_shrink() {
    for victims in [&[0][..], &[3], &[1, 2], &[2, 3], &[0, 1]] {
        check_shrink_after_kill("aabb", victims);
    }
    check_shrink_after_kill("abc", &[0]);
    check_shrink_after_kill("abab", &[0, 1]);
}

/// Kills two ranks whose children live on. `limit` is the heartbeat limit, if not the default.
fn check_shrink_with_living_children(start_child: &str, limit: Option<&str>) {
    let victims = [1, 3];
    let mut job = TestJob::new();
    let names = names(5);
    for (rank, place) in places("aaaaa").iter().enumerate() {
        let child = if victims.contains(&rank) { start_child } else { "" };
        let program = format!(
            "init\n{child}\nloop all_reduce f32 SUM 1000\n{CONTINUE_COMMANDS}{LEAVE_COMMANDS}"
        );
        let mut environment = job.environment_with_master("127.0.0.1", rank, names.len());
        environment.extend(limit.map(|limit| ("DIST_HEARTBEAT_LIMIT_MS", limit.to_owned())));
        job.start_on_host(place, &names[rank], &environment, &program);
    }
    job.await_reports(&names, "ready");
    kill_together(&mut job, &names, &victims);
    let survivors = [0, 2, 4];
    for rank in survivors {
        job.await_report(&names[rank], "shrink rest").assert_within_ms(3000);
    }
    assert_eq!(job.kill_orphans(), victims.len());
    assert_continued(&job.finish(), "rest", &survivors);
}

#[test]
fn living_children_of_dead_ranks_do_not_delay_a_shrink() {
    check_shrink_with_living_children("fork_sleeper", None);
}

/// Such children hold the sockets of the dead ranks, so only the heartbeats end the operation. The
/// kernel then proves the deaths.
#[test]
fn cloned_children_of_dead_ranks_do_not_delay_a_shrink() {
    check_shrink_with_living_children("clone_sleeper", Some("500"));
}

#[test]
fn shrink_twice_from_eight_to_five_to_three() {
    let once = "loop all_reduce f32 SUM 1000\nshrink rest\nloop all_reduce f32 SUM 500 on=rest\n";
    let twice = "shrink last on=rest\nall_reduce f32 SUM 1000 on=last\nbarrier on=last\n";
    let program = format!("init\n{once}{twice}release rest\nrelease last\nfinalize\nleaks\n");
    let (mut job, names) = start("aaaaaaaa", |_| program.clone());
    job.await_reports(&names, "ready");
    kill_together(&mut job, &names, &[0, 3, 6]);
    for rank in [1, 2, 4, 5, 7] {
        let report = job.await_report(&names[rank], "shrink rest");
        assert_eq!(report.assert_succeeded().message, rank_list(&[1, 2, 4, 5, 7]));
        job.wait_until("the loop on the rest to be under way", |job| {
            job.reports_so_far(&names[rank])
                .iter()
                .filter(|report| report.command == "ready")
                .count()
                == 2
        });
    }
    kill_together(&mut job, &names, &[1, 7]);
    assert_continued(&job.finish(), "last", &[2, 4, 5]);
}

#[test]
fn stopped_rank_is_excluded_and_gets_an_error() {
    for (hosts, stopped) in [("aaa", 0), ("aaa", 1), ("aab", 0), ("aab", 2)] {
        let others = "gate stopped\nabort enough\nshrink rest timeout_ms=500\n";
        let (mut job, names) = start(hosts, |rank| match rank == stopped {
            true => {
                "init\nbarrier\ngate stopped\nbarrier\nshrink rest\nfinalize\nleaks\n".to_owned()
            }
            false => {
                format!(
                    "init\nbarrier\n{others}all_reduce f32 SUM 10 on=rest\ngate end\n{LEAVE_COMMANDS}"
                )
            }
        });
        job.await_reports(&names, "at stopped");
        job.stop(&names[stopped]);
        job.open_gate("stopped");
        let survivors: Vec<usize> = (0..3).filter(|&rank| rank != stopped).collect();
        for rank in &survivors {
            job.await_report(&names[*rank], "all_reduce f32 SUM 10 on=rest");
        }
        job.resume(&names[stopped]);
        let shrink_report = job.await_report(&names[stopped], "shrink rest");
        let excluded =
            format!("rank {stopped} is excluded from epoch 1, which has ranks {survivors:?}");
        shrink_report.assert_failed(
            DIST_ERR_ABORTED,
            &[&excluded, "did not call dist_group_shrink in time"],
        );
        shrink_report.assert_within_ms(5000);
        job.open_gate("end");
        let ended = job.finish();
        assert_continued(&ended, "rest", &survivors);
        ended.report(&names[stopped], "leaks").assert_succeeded();
    }
}

#[test]
fn absent_rank_is_waited_for_until_the_timeout() {
    for absent in 0..3 {
        let (mut job, names) = start("aaa", |rank| match rank == absent {
            true => "init\nbarrier\ngate end\nfinalize\nleaks\n".to_owned(),
            false => {
                let go_on = CONTINUE_COMMANDS.replace("shrink rest", "shrink rest timeout_ms=400");
                format!("init\nbarrier\nabort enough\n{go_on}gate end\n{LEAVE_COMMANDS}")
            }
        });
        let survivors: Vec<usize> = (0..3).filter(|&rank| rank != absent).collect();
        for rank in &survivors {
            let report = job.await_report(&names[*rank], "shrink rest timeout_ms=400");
            // The lowest survivor waits for the absent rank. The other one may have come later.
            assert!(*rank != survivors[0] || report.took_us >= 400_000, "{report:?}");
            report.assert_within_ms(5000);
        }
        job.open_gate("end");
        let ended = job.finish();
        assert_continued(&ended, "rest", &survivors);
        ended.report(&names[absent], "leaks").assert_succeeded();
    }
}

#[test]
fn death_ends_the_wait_for_an_absent_rank() {
    for hosts in ["aaa", "aab"] {
        let (mut job, names) = start(hosts, |rank| match rank {
            2 => "init\nbarrier\ngate never\n".to_owned(),
            _ => format!(
                "init\nbarrier\nabort enough\ngate all\n{CONTINUE_COMMANDS}{LEAVE_COMMANDS}"
            ),
        });
        job.await_reports(&names[..2], "at all");
        job.await_report(&names[2], "at never");
        job.open_gate("all");
        // The survivors wait for this rank by now, for up to 10 s.
        std::thread::sleep(std::time::Duration::from_millis(300));
        job.kill(&names[2]);
        let ended = job.finish();
        ended.report(&names[0], "shrink rest").assert_within_ms(5000);
        assert_continued(&ended, "rest", &[0, 1]);
    }
}

#[test]
fn minority_error_lists_the_other_ranks() {
    let shrink = "shrink rest timeout_ms=300";
    let (mut job, names) = start("aaaaa", |rank| match rank {
        1 | 2 => format!("init\nbarrier\nabort enough\n{shrink}\ngate end\nfinalize\nleaks\n"),
        _ => "init\nbarrier\ngate end\nfinalize\nleaks\n".to_owned(),
    });
    job.await_reports(&names[1..3], shrink);
    job.open_gate("end");
    let ended = job.finish();
    for name in &names[1..3] {
        let parts = ["only ranks [1, 2] joined", "rank 4 (pid ", "did not call dist_group_shrink"];
        ended.report(name, shrink).assert_failed(DIST_ERR_PEER_FAILED, &parts);
    }
    assert!(names.iter().all(|name| ended.report(name, "leaks").status == 0));
}

#[test]
fn pending_works_end_and_do_not_block_shrink() {
    let load = "all_reduce f32 SUM 20000 async=yes\nrecv 100 any 7 async=yes\n".repeat(20);
    for hosts in ["aaaa", "aabb"] {
        for victim in [0, 2] {
            let program = |rank| match rank == victim {
                true => "init\nbarrier\ngate never\n".to_owned(),
                false => format!(
                    "init\nbarrier\n{load}gate go\n{CONTINUE_COMMANDS}settle\n{LEAVE_COMMANDS}"
                ),
            };
            let (mut job, names) = start(hosts, program);
            let survivors: Vec<usize> = (0..4).filter(|&rank| rank != victim).collect();
            for rank in &survivors {
                job.await_report(&names[*rank], "at go");
            }
            job.await_report(&names[victim], "at never");
            job.kill(&names[victim]);
            job.open_gate("go");
            let ended = job.finish();
            assert_continued(&ended, "rest", &survivors);
            for rank in &survivors {
                let settled = ended.report(&names[*rank], "settle");
                let expected = [DIST_ERR_PEER_FAILED, DIST_ERR_ABORTED].contains(&settled.status);
                assert!(expected, "{settled:?}");
            }
        }
    }
}
