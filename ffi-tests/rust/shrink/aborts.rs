//! An abort of a group also aborts its subgroups; a death does not affect groups without the dead
//! rank.

use super::{rank_list, start};
use dist::ffi::types::{DIST_ERR_ABORTED, DIST_ERR_PEER_FAILED};

const GROUPS: &str = "new child 0,1,2\nnew grand 0,1 on=child\n";
const LEAVE: &str = "release grand\nrelease child\nfinalize\nleaks\n";

#[test]
fn abort_reaches_child_and_grandchild_groups() {
    for hosts in ["aaaa", "aabb", "abca"] {
        let (mut job, names) = start(hosts, |rank| {
            let (made, released) = match rank {
                3 => ("new child 0,1,2\n", "finalize\nleaks\n"),
                2 => (GROUPS, "release child\nfinalize\nleaks\n"),
                _ => (GROUPS, LEAVE),
            };
            // No other rank enters the barrier of the grandchild or of the child, so the ranks wait
            // until the abort.
            let waits = match rank {
                0 => "gate go\nbarrier on=grand\nbarrier on=child\n",
                3 => "gate go\nabort enough of this\nall_reduce f32 SUM 1\n",
                _ => "gate go\nbarrier on=child\nbarrier\n",
            };
            format!("init\n{made}barrier\n{waits}{released}")
        });
        job.await_reports(&names, "at go");
        job.open_gate("go");
        let ended = job.finish();
        let reason = "rank 3 aborted group world: enough of this";
        for (name, waited) in [("0", "grand"), ("1", "child"), ("2", "child")] {
            let parent = if waited == "grand" { "world[0,1,2]#1" } else { "world" };
            let parent_failure = format!("parent group {parent} failed");
            let report = ended.report(name, &format!("barrier on={waited}"));
            report
                .assert_failed(DIST_ERR_ABORTED, &[reason, &parent_failure])
                .assert_within_ms(5000);
        }
        ended.report("0", "barrier on=child").assert_failed(DIST_ERR_ABORTED, &[reason]);
        ended.report("3", "all_reduce f32 SUM 1").assert_failed(DIST_ERR_ABORTED, &[]);
        assert!(names.iter().all(|name| ended.report(name, "leaks").status == 0));
    }
}

#[test]
fn abort_reaches_members_only_groups() {
    for hosts in ["aaa", "aba"] {
        let (mut job, names) = start(hosts, |rank| match rank {
            2 => "init\ngate go\nabort enough\nfinalize\nleaks\n".to_owned(),
            _ => {
                let waits = if rank == 0 {
                    "gate go\nbarrier on=pair\n"
                } else {
                    "gate go\nrecv 8 0 1 on=pair\n"
                };
                format!(
                    "init\nnew pair 0,1 members=yes\nall_reduce f32 SUM 5 on=pair\n{waits}release pair\nfinalize\nleaks\n"
                )
            }
        });
        job.await_reports(&names, "at go");
        job.open_gate("go");
        let ended = job.finish();
        let reason = "rank 2 aborted group world: enough";
        ended.report("0", "barrier on=pair").assert_failed(DIST_ERR_ABORTED, &[reason]);
        ended.report("1", "recv 8 0 1 on=pair").assert_failed(DIST_ERR_ABORTED, &[reason]);
        assert!(names.iter().all(|name| ended.report(name, "leaks").status == 0));
    }
}

#[test]
fn death_does_not_fail_groups_without_the_dead_rank() {
    for hosts in ["aaa", "aab"] {
        let (mut job, names) = start(hosts, |rank| match rank {
            2 => "init\nnew pair 0,1\nbarrier\ngate never\n".to_owned(),
            _ => {
                let after =
                    "all_reduce f32 SUM 50 on=pair\nshrink rest\nall_reduce f32 SUM 60 on=pair\n";
                let leave = "barrier on=rest\nrelease pair\nrelease rest\nfinalize\nleaks\n";
                format!(
                    "init\nnew pair 0,1\nbarrier\nloop barrier timeout_ms=30000\n{after}{leave}"
                )
            }
        });
        job.await_report("2", "at never");
        job.kill("2");
        let ended = job.finish();
        for name in &names[..2] {
            let died = ended.report(name, "barrier timeout_ms=30000");
            died.assert_failed(DIST_ERR_PEER_FAILED, &["rank 2 (pid "]);
            for what in ["all_reduce f32 SUM 50 on=pair", "all_reduce f32 SUM 60 on=pair", "leaks"]
            {
                ended.report(name, what).assert_succeeded();
            }
            assert_eq!(
                ended.report(name, "shrink rest").assert_succeeded().message,
                rank_list(&[0, 1])
            );
        }
    }
}

#[test]
fn group_survives_release_of_its_parent() {
    let (mut job, names) = start("aaa", |rank| {
        match rank {
        2 => "init\nnew mid 0,1,2\nnew child 0,1 on=mid\nbarrier\ngate go\nabort enough on=mid\nbarrier\nrelease mid\nfinalize\nleaks\n".to_owned(),
        _ => "init\nnew mid 0,1,2\nnew child 0,1 on=mid\nrelease mid\nbarrier\ngate go\nbarrier\nall_reduce f32 SUM 5 on=child\nrelease child\nfinalize\nleaks\n".to_owned(),
    }
    });
    job.await_reports(&names, "at go");
    job.open_gate("go");
    let ended = job.finish();
    for name in &names[..2] {
        ended.report(name, "all_reduce f32 SUM 5 on=child").assert_succeeded();
    }
    assert!(names.iter().all(|name| ended.report(name, "leaks").status == 0));
}
