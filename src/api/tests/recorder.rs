//! What the flight recorder says of groups, and of operations that wait for their turn.

use super::*;

/// The only group of a dump.
fn group_in(dump: &Value) -> &Value {
    let groups = dump["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 1);
    &groups[0]
}

#[test]
fn a_dump_says_who_is_in_a_group_and_why_it_has_failed() {
    let (group, _fake) = Fake::group("told", true);
    let dump = group.flight_record();
    let told = group_in(&dump);
    assert_eq!(
        (&told["name"], &told["rank"], &told["size"]),
        (&"told".into(), &0.into(), &2.into())
    );
    assert_eq!((&told["state"], &told["failure"]), (&"open".into(), &Value::Null));
    let member = &told["members"][1];
    assert_eq!((&member["host"], &member["global_rank"]), (&"h".into(), &1.into()));
    assert!(group.id().to_string().starts_with(told["id"].as_str().unwrap()));

    group.abort("enough");
    let dump = group.flight_record();
    let failure = &group_in(&dump)["failure"];
    assert_eq!((&failure["kind"], &failure["culprit"]), (&"Aborted".into(), &0.into()));

    // Who was in it is forgotten, and not what became of it.
    let id = group.id();
    drop(group);
    let dump = crate::api::recorder::dump(Some(id), crate::api::recorder::Why::Asked);
    let told = group_in(&dump);
    assert_eq!((&told["state"], &told["members"]), (&"left".into(), &Value::Null));
    assert_eq!(told["failure"]["kind"], "Aborted");
}

#[test]
fn an_operation_waits_runs_and_ends() {
    let (group, fake) = Fake::group("states", false);
    let works = [issue(&group), issue(&group)];
    let states = || {
        let dump = group.flight_record();
        let entries = dump["entries"].as_array().unwrap().clone();
        entries.iter().map(|it| it["state"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // The worker has taken the first one, or is about to.
    let running = || (states() == ["running", "waiting"]).then_some(());
    while running().is_none() {
        std::thread::yield_now();
    }
    fake.open();
    for work in &works {
        assert_eq!(work.wait(&long()), Ok(Progress::Done));
    }
    assert_eq!(states(), ["done", "done"]);
}
