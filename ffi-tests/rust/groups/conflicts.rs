//! Ranks that define a group differently: all ranks that called get an error with both definitions,
//! and the parent group stays usable.

use crate::ranks::{
    barrier, check_members, members_only_options, options, run_in_all_layouts, run_ranks,
};
use dist::api::{Group, SubgroupOptions};
use dist::base::error::{Error, ErrorKind, Result};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

fn assert_has_parts(error: &Error, parts: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    for part in parts {
        assert!(error.message().contains(part), "\"{part}\" is not in: {error}");
    }
}

/// Asserts that the creation failed and that the parent group still works.
fn assert_refused(world: &Arc<Group>, made: Result<Option<Group>>, parts: &[&str]) {
    assert_has_parts(&made.unwrap_err(), parts);
    assert!(world.failure().is_none());
    barrier(world);
    let all = world.new_group(&[], &options()).unwrap().unwrap();
    check_members(&all, world.rank(), &[0, 1, 2, 3]);
}

#[test]
fn different_rank_lists_are_reported_to_all_ranks() {
    run_in_all_layouts(|world| {
        let list: &[usize] = if world.rank() == 2 { &[0, 3] } else { &[0, 1] };
        let named = SubgroupOptions { name: Some("g".into()), ..options() };
        let parts = ["ranks 0, 1, 3 define", "\"g\" of ranks [0, 1]", "rank 2 defines", "[0, 3]"];
        assert_refused(&world, world.new_group(list, &named), &parts);
    });
}

#[test]
fn different_names_and_calls_are_reported() {
    run_ranks("inproc", "aaaa", |world| {
        let me = world.rank();
        let named = SubgroupOptions { name: Some(format!("g{}", me / 2)), ..options() };
        let parts = ["ranks 0, 1 define group \"g0\"", "ranks 2, 3 define group \"g1\""];
        assert_refused(&world, world.new_group(&[0, 1], &named), &parts);
        let parts = ["ranks 0, 1 define a split", "ranks 2, 3 define a split into groups \"g1\""];
        assert_refused(&world, world.split(Some(0), 0, &named), &parts);
        let made = match me {
            0 => world.split(Some(0), 0, &options()),
            1 => world.split(None, 0, &options()),
            _ => world.new_group(&[3], &options()),
        };
        let parts = [
            "rank 0 defines a split into unnamed",
            "rank 1 defines a split without",
            "of ranks [3]",
        ];
        assert_refused(&world, made, &parts);
    });
}

#[test]
fn parent_operation_instead_of_group_creation_fails() {
    run_ranks("inproc", "aa", |world| {
        let error = if world.rank() == 0 {
            world.new_group(&[0, 1], &options()).unwrap_err()
        } else {
            // The block has the length of a group record but is none.
            let (mine, mut all) = ([7; 48], [0; 96]);
            let (send, recv) = (mine.as_slice().into(), all.as_mut_slice().into());
            let call = dist::api::Call::all_gather(send, recv, dist::base::dtype::DataType::U8);
            world.run(call, &dist::api::CallOptions::default()).unwrap_err()
        };
        assert_has_parts(&error, &["all_gather #1 (u8, count 48)"]);
        assert!(world.failure().is_some());
    });
}

/// Each rank creates a group from its own list; `parts` are the expected parts of the callers'
/// errors.
fn check_members_only_conflict(transport: &str, layout: &str, lists: &[&[usize]], parts: &[&str]) {
    run_ranks(transport, layout, |world| {
        let me = world.rank();
        let start = Instant::now();
        if let Some(list) = lists.get(me).filter(|list| !list.is_empty()) {
            let error = world.new_group(list, &members_only_options("g")).unwrap_err();
            assert_has_parts(&error, parts);
            assert!(start.elapsed() < Duration::from_secs(50), "it was not told: {error}");
        }
        barrier(&world);
        // The name is free again.
        let all: Vec<usize> = (0..world.size()).collect();
        check_members(
            &world.new_group(&all, &members_only_options("g")).unwrap().unwrap(),
            me,
            &all,
        );
        barrier(&world);
    });
}

#[test]
fn conflict_is_reported_with_the_same_first_member() {
    for (transport, layout) in [("inproc", "aaa"), ("shm", "aaa"), ("tcp", "aaa"), ("auto", "aab")]
    {
        let parts = ["[0, 1, 2]", "[0, 2, 1]", "rank 1 defines"];
        check_members_only_conflict(
            transport,
            layout,
            &[&[0, 1, 2], &[0, 2, 1], &[0, 1, 2]],
            &parts,
        );
    }
}

#[test]
fn conflict_is_reported_with_different_first_members() {
    // Rank 1 is in both lists, rank 0 in one and rank 2 in the other; the first member varies. Rank
    // 2 calls after ranks 0 and 1 have their errors, since its list matches rank 1's list.
    for (transport, layout) in [("inproc", "aab"), ("shm", "aaa")] {
        for other in [[1, 2], [2, 1]] {
            run_ranks(transport, layout, |world| {
                let me = world.rank();
                if me == 2 {
                    barrier(&world);
                }
                let list = if me == 0 { [0, 1] } else { other };
                let error = world.new_group(&list, &members_only_options("g")).unwrap_err();
                assert_has_parts(
                    &error,
                    &["rank 0 defines", "rank 1 defines", "[0, 1]", &format!("{other:?}")],
                );
                if me != 2 {
                    barrier(&world);
                }
                barrier(&world);
            });
        }
    }
}

#[test]
fn late_member_gets_an_earlier_conflict() {
    run_ranks("inproc", "aaa", |world| {
        let me = world.rank();
        if me == 2 {
            // Ranks 0 and 1 have failed before rank 2 calls.
            barrier(&world);
        }
        let list: &[usize] = if me == 1 { &[0, 1] } else { &[0, 1, 2] };
        assert_has_parts(
            &world.new_group(list, &members_only_options("g")).unwrap_err(),
            &["[0, 1]", "[0, 1, 2]"],
        );
        if me != 2 {
            barrier(&world);
        }
        barrier(&world);
        check_members(
            &world.new_group(&[], &members_only_options("g")).unwrap().unwrap(),
            me,
            &[0, 1, 2],
        );
        barrier(&world);
    });
}

#[test]
fn existing_group_conflicts_with_new_definition() {
    let ready = Barrier::new(3);
    run_ranks("inproc", "aab", |world| {
        let me = world.rank();
        let first = (me != 0).then(|| {
            let group = world.new_group(&[1, 2], &members_only_options("g")).unwrap().unwrap();
            check_members(&group, me, &[1, 2]);
            group
        });
        ready.wait();
        if me == 0 {
            let error = world.new_group(&[0, 1], &members_only_options("g")).unwrap_err();
            assert_has_parts(
                &error,
                &["rank 0 defines group \"g\" of ranks [0, 1]", "rank 1 defines", "[1, 2]"],
            );
        }
        barrier(&world);
        drop(first);
        barrier(&world);
        check_members(
            &world.new_group(&[], &members_only_options("g")).unwrap().unwrap(),
            me,
            &[0, 1, 2],
        );
        barrier(&world);
    });
}
