//! Groups that all ranks of the parent create: from lists of ranks, and by splits.

use crate::ranks::{
    barrier, check_members, options, run_in_all_layouts, run_ranks, run_ranks_with, sum_of_bits,
};
use dist::api::{CallOptions, Group, SubgroupOptions};
use dist::base::buffer::{Dst, Src};
use dist::base::deadline::Deadline;
use dist::base::dtype::DataType;
use std::sync::Arc;

#[test]
fn a_new_group_has_the_ranks_of_the_list_in_its_order() {
    run_in_all_layouts(|world| {
        let me = world.rank();
        for ranks in [&[2, 0][..], &[3, 1, 0], &[1], &[0, 1, 2, 3], &[3, 2, 1, 0]] {
            let made = world.new_group(ranks, &options()).unwrap();
            assert_eq!(made.is_some(), ranks.contains(&me));
            made.iter().for_each(|group| check_members(group, me, ranks));
            barrier(&world);
        }
        let all = world.new_group(&[], &options()).unwrap().unwrap();
        check_members(&all, me, &[0, 1, 2, 3]);
    });
}

#[test]
fn a_split_is_ordered_by_key_and_rank() {
    run_in_all_layouts(|world| {
        let me = world.rank();
        // Splits by parity, with the ranks in reverse order.
        let color = u32::try_from(me % 2).unwrap();
        let key = -i32::try_from(me).unwrap();
        let half = world.split(Some(color), key, &options()).unwrap().unwrap();
        check_members(&half, me, if me % 2 == 0 { &[2, 0] } else { &[3, 1] });
        // Equal keys keep the order of the ranks; the smallest and the largest key are sorted as
        // well.
        let keys = [0, i32::MAX, 0, i32::MIN];
        let all = world.split(Some(7), keys[me], &options()).unwrap().unwrap();
        check_members(&all, me, &[3, 0, 2, 1]);
        // Rank 0 joins no group, and rank 2 is alone in its group.
        let color = [None, Some(1), Some(2), Some(1)][me];
        let made = world.split(color, 0, &options()).unwrap();
        match (me, made) {
            (0, None) => {}
            (2, Some(group)) => check_members(&group, me, &[2]),
            (1 | 3, Some(group)) => check_members(&group, me, &[1, 3]),
            (_, made) => panic!("rank {me} has {made:?}"),
        }
        assert!(world.split(None, 0, &options()).unwrap().is_none());
        barrier(&world);
    });
}

#[test]
fn nested_groups_map_ranks_to_the_world() {
    run_ranks("inproc", "aabb", |world| {
        let me = world.rank();
        let Some(outer) = world.new_group(&[3, 1, 2], &options()).unwrap() else { return };
        let outer = Arc::new(outer);
        let named = SubgroupOptions { name: Some("inner".into()), ..options() };
        let made = outer.new_group(&[2, 0], &named).unwrap();
        let Some(inner) = made else { return assert_eq!(me, 1) };
        check_members(&inner, me, &[2, 3]);
        let text = inner.describe();
        assert_eq!(
            (text["name"].as_str(), text["parent"].as_str()),
            (Some("inner"), Some(outer.name()))
        );
        assert_eq!(text["ranks"].to_string(), "[2,3]");
        assert_eq!(outer.describe()["parent"], "world");
        assert!(world.describe()["parent"].is_null());
    });
}

#[test]
fn generated_names_are_equal_on_all_ranks_and_unique() {
    run_ranks("inproc", "aaaa", |world| {
        let names = |group: &Group| {
            let mut own_names = group.name().as_bytes().to_vec();
            own_names.resize(64, 0);
            let mut all = vec![0; 64 * group.size()];
            let call = dist::api::Call::all_gather(
                Src::from(own_names.as_slice()),
                Dst::from(all.as_mut_slice()),
                DataType::U8,
            );
            group.run(call, &CallOptions::default()).unwrap();
            assert!(all.chunks(64).all(|name| name == own_names), "{:?}", group.name());
        };
        let make = || world.new_group(&[1, 0, 2, 3], &options()).unwrap().unwrap();
        let (one, two) = (make(), make());
        names(&one);
        names(&two);
        assert!(one.name().starts_with("world[1,0,2,3]#") && one.name() != two.name());
        assert_eq!(one.timeout_ms(), world.timeout_ms());
        let own = SubgroupOptions { timeout_ms: 1234, ..options() };
        let mut deep = Arc::new(world.split(Some(0), 0, &own).unwrap().unwrap());
        assert_eq!(deep.timeout_ms(), 1234);
        assert!(deep.name().starts_with("world:color0#"), "{}", deep.name());
        for _ in 0..20 {
            deep = Arc::new(deep.new_group(&[], &options()).unwrap().unwrap());
            assert!(deep.name().len() <= 200, "{}", deep.name());
        }
        check_members(&deep, world.rank(), &[0, 1, 2, 3]);
    });
}

#[test]
fn overlapping_groups_are_used_at_once_from_several_threads() {
    run_in_all_layouts(|world| {
        let me = world.rank();
        let pairs = [[0, 1], [1, 2], [2, 3], [3, 0], [0, 2], [1, 3]];
        let groups: Vec<_> = pairs
            .iter()
            .filter_map(|pair| Some((*pair, world.new_group(pair, &options()).unwrap()?)))
            .collect();
        assert_eq!(groups.len(), 3);
        std::thread::scope(|scope| {
            for (pair, group) in &groups {
                scope.spawn(move || (0..30).for_each(|_| check_members(group, me, pair)));
            }
            for _ in 0..30 {
                assert_eq!(sum_of_bits(&world, me), 15);
            }
        });
        barrier(&world);
    });
}

#[test]
fn groups_are_created_while_other_threads_use_the_parent() {
    run_ranks("shm", "aaa", |world| {
        let me = world.rank();
        // The order of both operations on the parent is the same on all ranks, since each waits for
        // the previous one.
        std::thread::scope(|scope| {
            let made = scope.spawn(|| {
                let options = SubgroupOptions { members_only: true, ..options() };
                (0..10).for_each(|_| {
                    let group = world.new_group(&[], &options).unwrap().unwrap();
                    check_members(&group, me, &[0, 1, 2]);
                });
            });
            (0..200).for_each(|_| assert_eq!(sum_of_bits(&world, me), 7));
            made.join().unwrap();
        });
        barrier(&world);
    });
}

#[test]
fn any_source_receive_ignores_group_creation_messages() {
    for (transport, layout) in [("inproc", "aa"), ("shm", "aa"), ("tcp", "aa")] {
        run_ranks(transport, layout, |world| {
            let (me, dtype) = (world.rank(), DataType::U8);
            let room = Dst::from(Box::leak(vec![0_u8; 4096].into_boxed_slice()));
            let any = world.receive(room, dtype, None, None, CallOptions::default()).unwrap();
            let work = Arc::clone(any.work());
            any.issue().unwrap();
            let group = world.new_group(&[1, 0], &options()).unwrap().unwrap();
            check_members(&group, me, &[1, 0]);
            let local = SubgroupOptions { members_only: true, ..options() };
            check_members(&world.new_group(&[0, 1], &local).unwrap().unwrap(), me, &[0, 1]);
            assert!(!work.is_done());
            barrier(&world);
            let bytes = Src::from(&b"for anybody"[..]);
            let send = world.send(bytes, dtype, 1 - me, 5, CallOptions::default()).unwrap();
            let sent = Arc::clone(send.work());
            send.issue().unwrap();
            for work in [work, sent] {
                work.wait(&Deadline::after_ms(60_000)).unwrap();
            }
            barrier(&world);
        });
    }
}

#[test]
fn group_of_one_can_create_groups() {
    run_ranks("auto", "a", |world| {
        for _ in 0..3 {
            check_members(&world.new_group(&[], &options()).unwrap().unwrap(), 0, &[0]);
            check_members(&world.split(Some(1), 1, &options()).unwrap().unwrap(), 0, &[0]);
            let local = SubgroupOptions { members_only: true, ..options() };
            check_members(&world.new_group(&[0], &local).unwrap().unwrap(), 0, &[0]);
        }
        assert!(world.split(None, 0, &options()).unwrap().is_none());
    });
}

/// Returns the algorithm for the smallest call, and the source of this choice.
fn chosen_algorithm(group: &Group, kind: &str) -> (String, String) {
    let first = &group.describe()["native"]["algorithms"][kind]["chosen"][0];
    let text = |key: &str| first[key].as_str().unwrap().to_owned();
    (text("algorithm"), text("source"))
}

#[test]
fn subgroups_inherit_algorithm_options_of_rank_0() {
    let file = std::env::temp_dir().join(format!("dist-inherited-{}.json", std::process::id()));
    let rows = r#"{"rows": [{"operation": "all_reduce", "algorithm": "two_shot"}]}"#;
    std::fs::write(&file, rows).unwrap();
    let backend_options = |rank: usize| match rank {
        0 => format!("host_id=a;algorithm=broadcast=staged;tuning_file={}", file.display()),
        _ => format!("host_id={};tuning_file=/nonexistent", ["a", "a", "b", "b"][rank]),
    };
    run_ranks_with(backend_options, 4, |world| {
        let expected = |name: &str, why: &str| (name.to_owned(), why.to_owned());
        if world.rank() == 0 {
            // No rank reads the file again.
            std::fs::remove_file(&file).unwrap();
        }
        for own in [None, Some("slot_bytes=8192;algorithm=barrier=flags".to_owned())] {
            let is_own = own.is_some();
            let options = SubgroupOptions { backend_options: own, ..options() };
            let Some(pair) = world.new_group(&[3, 2], &options).unwrap() else { continue };
            assert_eq!(
                chosen_algorithm(&pair, "all_reduce"),
                expected("two_shot", "tuning file, row 1")
            );
            let broadcast =
                if is_own { expected("inline", "table") } else { expected("staged", "options") };
            assert_eq!(chosen_algorithm(&pair, "broadcast"), broadcast);
            let source = if is_own { "options" } else { "table" };
            assert_eq!(chosen_algorithm(&pair, "barrier"), expected("flags", source));
            barrier(&pair);
        }
        let alone = world.new_group(&[2], &options()).unwrap();
        assert_eq!(alone.is_some(), world.rank() == 2);
        barrier(&world);
    });
}
