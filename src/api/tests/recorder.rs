//! Tests of the flight recorder: the groups in a dump, and the entries of operations that wait for
//! their turn.

use super::*;

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
