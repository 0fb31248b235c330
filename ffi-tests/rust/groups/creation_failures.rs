//! Ranks that are absent, cannot join, or leave: the other ranks get an error in time that names
//! them.

use crate::ranks::{
    barrier, check_members, members_only_options, options, run_in_all_layouts, run_ranks,
};
use dist::api::SubgroupOptions;
use dist::base::error::ErrorKind;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Returns options with a deadline that present members meet even on a busy machine.
fn short_timeout_options(name: &str) -> SubgroupOptions {
    SubgroupOptions { connect_timeout_ms: 1500, ..members_only_options(name) }
}

#[test]
fn absent_members_are_named_at_the_deadline() {
    for (transport, layout) in [("inproc", "aaaa"), ("tcp", "aaaa"), ("auto", "aabb")] {
        run_ranks(transport, layout, |world| {
            let me = world.rank();
            for (list, absent) in [([0, 1, 2], 2), ([2, 1, 0], 2), ([1, 0, 3], 3)] {
                if list.contains(&me) && me != absent {
                    let error = world.new_group(&list, &short_timeout_options("g")).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
                    let text = error.message();
                    assert!(text.contains(&format!("for rank {absent} to")), "{text}");
                }
                barrier(&world);
            }
            let group =
                world.new_group(&[3, 2, 1, 0], &members_only_options("g")).unwrap().unwrap();
            check_members(&group, me, &[3, 2, 1, 0]);
            barrier(&world);
        });
    }
}

#[test]
fn absent_rank_in_collective_creation_fails_the_parent() {
    run_ranks("inproc", "aab", |world| {
        if world.rank() == 1 {
            return while world.failure().is_none() {
                std::thread::yield_now();
            };
        }
        let soon = SubgroupOptions { connect_timeout_ms: 300, ..options() };
        let error = world.new_group(&[0, 2], &soon).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(error.message().contains("rank 1"), "{error}");
        assert!(world.failure().is_some());
    });
}

#[test]
fn rank_that_cannot_join_reports_the_reason() {
    run_in_all_layouts(|world| {
        let (me, start) = (world.rank(), Instant::now());
        for culprit in [0, 2] {
            let wrong = (me == culprit).then(|| "tarnsport=shm".to_owned());
            for members_only in [false, true] {
                let options =
                    SubgroupOptions { backend_options: wrong.clone(), members_only, ..options() };
                let error = world.new_group(&[0, 1, 2, 3], &options).unwrap_err();
                assert!(error.message().contains("tarnsport"), "{error}");
                let named = format!("rank {culprit} (pid");
                assert!(me == culprit || error.message().contains(&named), "{error}");
            }
        }
        assert!(start.elapsed() < Duration::from_secs(50));
        barrier(&world);
    });
}

#[test]
fn released_parent_member_is_not_waited_for() {
    for (transport, layout) in [("inproc", "aaa"), ("shm", "aaa"), ("tcp", "aaa")] {
        let released = Barrier::new(3);
        run_ranks(transport, layout, |world| {
            let me = world.rank();
            barrier(&world);
            if me == 1 {
                drop(world);
                released.wait();
                return;
            }
            released.wait();
            let error = world.new_group(&[0, 1, 2], &members_only_options("g")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PeerFailed, "{error}");
            assert!(error.message().contains("rank 1"), "{error}");
        });
    }
}

#[test]
fn the_failure_of_the_parent_ends_the_wait() {
    run_ranks("inproc", "aab", |world| {
        if world.rank() == 1 {
            let other = Arc::clone(&world);
            std::thread::scope(|scope| {
                let waits =
                    scope.spawn(move || other.new_group(&[1, 2], &members_only_options("g")));
                world.abort("enough");
                let error = waits.join().unwrap().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
            });
        } else if world.rank() == 0 {
            let error = world.new_group(&[0, 2], &members_only_options("h")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
        }
    });
}

#[test]
fn parent_and_child_are_released_in_any_order() {
    run_in_all_layouts(|world| {
        let me = world.rank();
        let child = Arc::new(world.new_group(&[1, 0, 2], &options()).unwrap());
        let local = world.new_group(&[3, 1], &members_only_options("pair")).unwrap();
        drop(world);
        if let Some(child) = child.as_ref() {
            check_members(child, me, &[1, 0, 2]);
        }
        if let Some(pair) = &local {
            check_members(pair, me, &[3, 1]);
        }
        let Some(child) = Arc::into_inner(child).unwrap() else { return };
        let child = Arc::new(child);
        let grandchild = child.split(Some(0), 0, &options()).unwrap().unwrap();
        drop(child);
        check_members(&grandchild, me, &[1, 0, 2]);
    });
}

#[test]
fn invalid_arguments_do_not_fail_the_group() {
    run_ranks("inproc", "aa", |world| {
        let refused = |ranks: &[usize], options: &SubgroupOptions, part: &str| {
            let error = world.new_group(ranks, options).unwrap_err();
            assert!(error.message().contains(part), "{error}");
        };
        refused(&[0, 2], &options(), "rank 2 does not exist in a group of 2");
        refused(&[1, 0, 1], &options(), "rank 1 is in the list twice");
        let named = |name: &str| SubgroupOptions { name: Some(name.into()), ..options() };
        refused(&[0], &named("a/b"), "a/b");
        refused(&[0], &named(""), "1 to 200 bytes");
        let backend = SubgroupOptions { backend: Some("nonesuch".into()), ..options() };
        refused(&[0], &backend, "there is no back end \"nonesuch\"");
        let error = world.split(Some(0), 0, &members_only_options("g")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        let gloo = SubgroupOptions { backend: Some("GLOO".into()), ..options() };
        let options = if world.rank() == 0 { gloo } else { options() };
        check_members(&world.new_group(&[], &options).unwrap().unwrap(), world.rank(), &[0, 1]);
    });
}
