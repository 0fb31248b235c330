//! Tests of the flight recorder: the groups in a dump, and the entries of operations that wait for
//! their turn.

use super::ranks::run;
use super::*;
use crate::api::collective::batch;
use crate::api::collective::bytes::BytesCall;
use crate::api::collective::tensor_list::{ListCall, ListTensor};
use crate::api::observe::recorder::take_call_summary;
use crate::base::op::ReduceOp;
use serde_json::json;
use std::time::Duration;

/// Returns the only group of a dump.
fn group_in(dump: &Value) -> &Value {
    let groups = dump["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 1);
    &groups[0]
}

#[test]
fn dump_has_group_members_and_failure() {
    let (group, _fake) = FakeBackend::group("told", true);
    let dump = group.flight_record();
    let group_dump = group_in(&dump);
    assert_eq!(
        (&group_dump["name"], &group_dump["rank"], &group_dump["size"]),
        (&"told".into(), &0.into(), &2.into())
    );
    assert_eq!((&group_dump["state"], &group_dump["failure"]), (&"open".into(), &Value::Null));
    let member = &group_dump["members"][1];
    assert_eq!((&member["host"], &member["global_rank"]), (&"h".into(), &1.into()));
    assert!(group.id().to_string().starts_with(group_dump["id"].as_str().unwrap()));

    group.abort("enough");
    let dump = group.flight_record();
    let failure = &group_in(&dump)["failure"];
    assert_eq!((&failure["kind"], &failure["culprit"]), (&"Aborted".into(), &0.into()));

    // After the release, the dump keeps the group's failure but not its members.
    let id = group.id();
    drop(group);
    let dump = crate::api::observe::recorder::dump(
        Some(id),
        crate::api::observe::recorder::DumpReason::Request,
    );
    let group_dump = group_in(&dump);
    assert_eq!((&group_dump["state"], &group_dump["members"]), (&"left".into(), &Value::Null));
    assert_eq!(group_dump["failure"]["kind"], "Aborted");
}

#[test]
fn dump_shows_waiting_running_and_done() {
    let (group, fake) = FakeBackend::group("states", false);
    let works = [issue_barrier(&group), issue_barrier(&group)];
    let states = || {
        let dump = group.flight_record();
        let entries = dump["entries"].as_array().unwrap().clone();
        entries.iter().map(|it| it["state"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // The worker has started the first operation or will start it.
    let running = || (states() == ["running", "waiting"]).then_some(());
    while running().is_none() {
        std::thread::yield_now();
    }
    fake.open_gate();
    for work in &works {
        assert_eq!(work.wait(&long_deadline()), Ok(WorkProgress::Done));
    }
    assert_eq!(states(), ["done", "done"]);
}

/// Returns the entries of this rank.
fn own_entries(group: &Group) -> Vec<Value> {
    let dump = group.flight_record();
    let entries = dump["entries"].as_array().unwrap().clone();
    entries.into_iter().filter(|entry| entry["rank"] == group.rank()).collect()
}

#[test]
fn call_on_byte_strings_is_one_entry_with_its_size() {
    static BYTES: [u8; 6] = [7; 6];
    run("transport=inproc", 3, |group| {
        let me = group.rank();
        let mine = Src::from(&BYTES[..=me]);
        let blocks = (me == 0).then(|| (1..=3).map(|len| Src::from(&BYTES[..len])).collect());
        let options = CallOptions::default();
        for call in [
            BytesCall::all_gather(mine),
            BytesCall::broadcast(mine, 1),
            BytesCall::gather(mine, 2),
            BytesCall::scatter(blocks, 0),
        ] {
            group.run_bytes(&call, &options).unwrap();
        }
        let entries = own_entries(group);
        let texts: Vec<&str> =
            entries.iter().map(|entry| entry["description"].as_str().unwrap()).collect();
        // Only the root of a gather or a scatter knows the size of all strings.
        let known = |root: usize| if me == root { ", 6 bytes" } else { "" };
        let expected = [
            "all_gather_bytes #1 (6 bytes)".to_owned(),
            "broadcast_bytes #3 (root 1, 2 bytes)".to_owned(),
            format!("gather_bytes #5 (root 2{})", known(2)),
            format!("scatter_bytes #7 (root 0{})", known(0)),
        ];
        assert_eq!(texts, expected);
        let fields = |name: &str| entries.iter().map(|it| it[name].clone()).collect::<Vec<_>>();
        assert_eq!(fields("sequence"), [1, 3, 5, 7]);
        assert_eq!(fields("dtype"), ["u8"; 4]);
        assert_eq!(fields("state"), ["done"; 4]);
        assert_eq!((&entries[0]["bytes"], &entries[1]["bytes"]), (&6.into(), &2.into()));
        assert_eq!(entries[2]["bytes"].as_u64(), (me == 2).then_some(6));
        // The comparison of calls finds each call of the history once.
        let summary = take_call_summary(group.id(), me).unwrap();
        let last_calls = &summary.last_calls;
        let sum = last_calls.iter().fold(0_u64, |sum, call| sum.wrapping_add(call.hash));
        assert_eq!((summary.sum.calls, summary.sum.hash), (last_calls.len() as u64, sum));
    });
}

#[test]
fn monitored_barriers_are_entries_with_the_missing_ranks() {
    let failed = std::sync::Barrier::new(3);
    run("transport=inproc", 3, |group| {
        let me = group.rank();
        assert!(group.monitored_barrier(Some(Duration::from_secs(20)), true).is_ok());
        if me == 1 {
            failed.wait();
        }
        assert!(group.monitored_barrier(Some(Duration::from_millis(150)), true).is_err());
        if me != 1 {
            failed.wait();
        }
        let entries = own_entries(group);
        assert_eq!(entries.len(), 2, "{entries:?}");
        for (entry, number) in entries.iter().zip(1..) {
            assert_eq!(entry["kind"], "monitored_barrier");
            assert_eq!(entry["sequence"], number);
            assert_eq!(entry["description"], format!("monitored_barrier #{number}"));
        }
        let [done, failed] = &entries[..] else { panic!("{entries:?}") };
        assert_eq!((&done["state"], &done["timeout_ms"]), (&"done".into(), &20_000.into()));
        assert_eq!((&done["missing"], &done["missing_count"]), (&Value::Array(vec![]), &0.into()));
        assert_eq!((&failed["state"], &failed["error"]), (&"failed".into(), &"Timeout".into()));
        assert_eq!((&failed["timeout_ms"], &failed["culprit"]), (&150.into(), &1.into()));
        assert_eq!(failed["missing"].as_array().unwrap()[..], [Value::from(1)]);
        assert_eq!(failed["missing_count"], 1);
        // The coordinator waits for the others until its timeout.
        let times = ["issued_ns", "ended_ns"].map(|name| failed[name].as_u64().unwrap());
        assert!(me != 0 || times[1] - times[0] >= 150_000_000, "{failed}");
        // The barriers are no collectives: the group's calls do not contain them.
        let summary = take_call_summary(group.id(), me).unwrap();
        assert_eq!((summary.sum.calls, summary.last_calls.len()), (0, 0));
    });
}

/// Runs a call with a work.
fn run_with_work(group: &Arc<Group>, call: Call<'static>) {
    let prepared = group.prepare(call, CallOptions::default()).unwrap();
    let work = Arc::clone(prepared.work());
    prepared.issue().unwrap();
    assert_eq!(work.wait(&long_deadline()), Ok(WorkProgress::Done));
}

/// Runs two all-reduces as one fused operation.
fn run_fused(group: &Arc<Group>) {
    batch::begin(None).unwrap();
    for len in [8, 12] {
        let (data, dtype) = (Dst::from(leak_bytes(&vec![0; len])), DataType::F32);
        let call = Call::all_reduce(data.as_src(), data, dtype, ReduceOp::Sum);
        let call = group.prepare(call, CallOptions::default()).unwrap();
        batch::collect_or_issue(call).unwrap();
    }
    let batch = batch::end().unwrap();
    let work = Arc::clone(batch.work());
    batch.issue(false);
    assert_eq!(work.wait(&long_deadline()), Ok(WorkProgress::Done));
}

#[test]
fn entries_have_the_sizes_of_inputs_and_outputs() {
    run("transport=inproc", 2, |group| {
        let me = group.rank();
        let dst = |elements: usize| Dst::from(leak_bytes(&vec![0; elements * 4]));
        let src = |elements: usize| dst(elements).as_src();
        let (dtype, options) = (DataType::F32, CallOptions::default());
        let run = |call: Call<'static>| group.run(call, &options).unwrap();
        run(Call::all_gather(src(5), dst(10), dtype));
        run(Call::gather(src(5), dst(if me == 0 { 10 } else { 0 }), dtype, 0));
        // A count for each rank: 3 elements from rank 0, and 4 elements from rank 1.
        run(Call::all_gather_v(src(3 + me), vec![dst(3), dst(4)], dtype));
        run_with_work(group, Call::all_gather_v(src(3 + me), vec![dst(3), dst(4)], dtype));
        let recvs = (me == 1).then(|| vec![dst(3), dst(4)]);
        run(Call::gather_v(src(3 + me), recvs, dtype, 1));
        let sends = (me == 1).then(|| vec![src(3), src(4)]);
        run(Call::scatter_v(sends, dst(3 + me), dtype, 1));
        let sends = vec![src(me + 1), src(me + 1)];
        run(Call::all_to_all_v(sends, vec![dst(1), dst(2)], dtype));
        let data = dst(6);
        let tensor = ListTensor { name: "w".into(), dtype, shape: vec![2, 3], device: None, data };
        group.run_list(ListCall::all_gather(vec![tensor]), &options).unwrap();
        run_fused(group);
        let strings = BytesCall::all_gather(Src::from(&[7; 9][..=me]));
        group.run_bytes(&strings, &options).unwrap();
        let entries = own_entries(group);
        let at_root = |root: usize, sizes: Value| if me == root { sizes } else { json!([]) };
        let own = json!([[3 + me]]);
        let expected = [
            (json!([[5]]), json!([[2, 5]])),
            (json!([[5]]), at_root(0, json!([[2, 5]]))),
            (own.clone(), json!([[3], [4]])),
            (own.clone(), json!([[3], [4]])),
            (own.clone(), at_root(1, json!([[3], [4]]))),
            (at_root(1, json!([[3], [4]])), own),
            (json!([[me + 1], [me + 1]]), json!([[1], [2]])),
            (json!([[3]]), json!([[2, 3]])),
            (json!([[2], [3]]), json!([[2], [3]])),
            (json!([[me + 1]]), json!([[1], [2]])),
        ];
        assert_eq!(entries.len(), expected.len(), "{entries:?}");
        for (entry, (inputs, outputs)) in entries.iter().zip(expected) {
            let sizes = (&entry["input_sizes"], &entry["output_sizes"]);
            assert_eq!(sizes, (&inputs, &outputs), "{entry}");
        }
    });
}
