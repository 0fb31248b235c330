//! Groups that only their members create (`members_only`).

use crate::ranks::{
    barrier, check_members, members_only_options, options, run_in_all_layouts, run_ranks,
};
use dist::api::SubgroupOptions;
use dist::base::error::ErrorKind;
use std::sync::Arc;

#[test]
fn named_group_needs_calls_of_its_members_only() {
    run_in_all_layouts(|world| {
        let me = world.rank();
        let (name, pair): (_, &[usize]) =
            if me % 2 == 0 { ("even", &[2, 0]) } else { ("odd", &[1, 3]) };
        let group = world.new_group(pair, &members_only_options(name)).unwrap().unwrap();
        check_members(&group, me, pair);
        assert_eq!(group.name(), name);
        // A rank that is no member returns immediately without a group.
        assert!(
            world.new_group(&[(me + 1) % 4], &members_only_options("other")).unwrap().is_none()
        );
        barrier(&world);
    });
}

#[test]
fn unnamed_groups_are_numbered() {
    run_ranks("inproc", "aaab", |world| {
        let me = world.rank();
        let unnamed = SubgroupOptions { members_only: true, ..options() };
        let ranks: &[usize] = if me < 3 { &[0, 1, 2] } else { &[3] };
        let make = || world.new_group(ranks, &unnamed).unwrap().unwrap();
        let (one, two) = (make(), make());
        check_members(&two, me, ranks);
        check_members(&one, me, ranks);
        assert_ne!(one.name(), two.name());
        barrier(&world);
    });
}

#[test]
fn an_attempt_that_failed_is_not_counted() {
    run_ranks("inproc", "aab", |world| {
        let me = world.rank();
        let unnamed = SubgroupOptions { members_only: true, ..options() };
        if me == 0 {
            let hasty = SubgroupOptions { connect_timeout_ms: 50, ..unnamed.clone() };
            let error = world.new_group(&[0, 1], &hasty).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        }
        barrier(&world);
        if me < 2 {
            // Rank 1 may first get the error of the attempt that it missed. Both ranks try again
            // and then use the same attempt number.
            let mut attempts = (0..5).map(|_| world.new_group(&[0, 1], &unnamed));
            check_members(&attempts.find_map(Result::ok).unwrap().unwrap(), me, &[0, 1]);
        }
        barrier(&world);
    });
}

#[test]
fn group_of_one_keeps_its_name() {
    run_ranks("inproc", "aa", |world| {
        let alone = [world.rank()];
        let group = world.new_group(&alone, &members_only_options("alone")).unwrap().unwrap();
        let error = world.new_group(&alone, &members_only_options("alone")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.message().contains("has not been released"), "{error}");
        drop(group);
        assert!(world.new_group(&alone, &members_only_options("alone")).unwrap().is_some());
        barrier(&world);
    });
}

#[test]
fn a_name_is_free_again_once_its_group_is_released() {
    run_ranks("shm", "aaa", |world| {
        let me = world.rank();
        for turn in 0..5 {
            let list: &[usize] = if turn % 2 == 0 { &[0, 1, 2] } else { &[2, 1, 0] };
            let group = world.new_group(list, &members_only_options("again")).unwrap().unwrap();
            check_members(&group, me, list);
            let error = world.new_group(list, &members_only_options("again")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains("has not been released"), "{error}");
            drop(group);
            // A new group may take the name only after all ranks have released the old one.
            barrier(&world);
        }
    });
}

#[test]
fn members_only_groups_are_created_concurrently() {
    run_in_all_layouts(|world| {
        let me = world.rank();
        let lists: [&[usize]; 4] = [&[0, 1, 2], &[3, 2, 1], &[0, 3], &[1, 0, 2, 3]];
        std::thread::scope(|scope| {
            for (number, list) in lists.iter().enumerate().filter(|(_, list)| list.contains(&me)) {
                let world = Arc::clone(&world);
                scope.spawn(move || {
                    for turn in 0..3 {
                        let name = format!("list {number} turn {turn}");
                        let group =
                            world.new_group(list, &members_only_options(&name)).unwrap().unwrap();
                        check_members(&group, me, list);
                    }
                });
            }
        });
        barrier(&world);
    });
}
