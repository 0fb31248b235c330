//! Tests of the verdicts on sample jobs. There is a test for each kind of fault, and a test with
//! arbitrary input that must not cause a panic.

use super::*;
use crate::recorder_dump::Dump;
use crate::sample_dumps::{self, SampleDump};
use proptest::prelude::*;
use serde_json::{Value, json};

const SUM_ARGUMENTS: &str = "f32, SUM, count 10";

/// Builds the dumps of `size` ranks, and applies `change` to each.
fn sample_dumps(size: usize, mut change: impl FnMut(usize, &mut SampleDump)) -> Vec<SampleDump> {
    let of = |rank: usize| {
        let mut dump = sample_dumps::sample_dump(rank, size, 16);
        change(rank, &mut dump);
        dump
    };
    (0..size).map(of).collect()
}

fn sample_job(dumps: &[SampleDump]) -> JobDumps {
    JobDumps::from_dumps(dumps.iter().map(SampleDump::to_dump).collect())
}

/// Returns the class, the culprits and the text of the first finding. Also builds both reports, and
/// compares them with the finding.
fn first_finding(job: &JobDumps) -> (&'static str, Vec<usize>, String) {
    let findings = diagnose(job);
    let text = report::report_text(job, &findings);
    let json = report::report_json(job, &findings);
    let first = findings.first().expect("a finding").clone();
    assert_eq!(text.lines().next(), Some(first.text.as_str()));
    assert_eq!(json["verdict"], first.text);
    assert_eq!(json["findings"][0]["class"], first.class.name());
    (first.class.name(), first.culprits, first.text)
}

#[test]
fn running_job_has_no_findings() {
    let healthy = sample_job(&sample_dumps(4, |_, _| {}));
    assert!(diagnose(&healthy).is_empty());
    assert!(report::report_text(&healthy, &[]).starts_with("no fault found in 4 dumps\n"));
    // Dumps are not taken simultaneously: two ranks have just begun an operation that the others
    // have not.
    let moving = sample_dumps(4, |rank, dump| {
        if rank < 2 {
            dump.add_collective(1, rank, 17, "all_reduce", SUM_ARGUMENTS);
            dump.set_outcome("running", 19_500, None);
        }
    });
    assert!(diagnose(&sample_job(&moving)).is_empty());
}

#[test]
fn skipping_rank_is_named_with_its_activity() {
    let hangs = sample_dumps(4, |rank, dump| {
        if rank != 2 {
            dump.add_collective(1, rank, 17, "all_reduce", SUM_ARGUMENTS);
        }
    });
    let (class, culprits, text) = first_finding(&sample_job(&hangs));
    assert_eq!((class, culprits), ("behind", vec![2]));
    assert_eq!(
        text,
        "rank 2 (pid 102, host a) never entered all_reduce #17 (f32, SUM, count 10) of group world; it has been in no \
         operation for 19.8 s; it last finished all_reduce #16 of group world; 3 ranks wait for it"
    );
}

#[test]
fn late_or_absent_rank_is_found_after_the_deadline() {
    for comes_late in [false, true] {
        let failed = sample_dumps(3, |rank, dump| {
            dump.fail_group(0, "Timeout", "rank 1 (pid 101, host a) is late", Some(1));
            if rank != 1 {
                dump.add_collective(1, rank, 17, "all_reduce", SUM_ARGUMENTS);
                dump.set_outcome("failed Timeout", 5000, Some(8000));
            } else if comes_late {
                dump.add_collective(1, rank, 17, "all_reduce", SUM_ARGUMENTS);
                dump.set_outcome("failed Timeout", 9000, Some(9001));
                // A call in a failed group is no mismatch.
                dump.add_collective(1, rank, 18, "barrier", "");
                dump.set_outcome("failed Timeout", 9002, Some(9003));
            }
        });
        let (class, culprits, text) = first_finding(&sample_job(&failed));
        assert_eq!((class, culprits), ("behind", vec![1]), "{text}");
        let expected = if comes_late {
            "entered all_reduce #17 (f32, SUM, count 10) of group world only 4.0 s"
        } else {
            "never entered"
        };
        assert!(
            text.contains(expected) && text.ends_with("2 ranks waited for it and failed"),
            "{text}"
        );
    }
}

#[test]
fn mismatch_names_both_calls() {
    let mismatched = sample_dumps(3, |rank, dump| {
        match rank {
            1 => dump.add_collective(1, rank, 17, "barrier", ""),
            _ => dump.add_collective(1, rank, 17, "all_reduce", SUM_ARGUMENTS),
        }
        dump.fail_group(0, "Mismatch", "rank 1 and rank 0 called different operations", None);
    });
    let (class, culprits, text) = first_finding(&sample_job(&mismatched));
    assert_eq!((class, culprits), ("mismatch", vec![1]));
    assert_eq!(
        text,
        "mismatch in group world: rank 1 (pid 101, host a) called barrier #17 and ranks 0, 2 called all_reduce \
         #17 (f32, SUM, count 10)"
    );
    // If two ranks differ, there is no majority, so both are culprits.
    let (class, culprits, _) = first_finding(&sample_job(&mismatched[..2]));
    assert_eq!((class, culprits), ("mismatch", vec![0, 1]));
}

#[test]
fn mismatch_of_labels_names_both_labels() {
    let mismatched = sample_dumps(3, |rank, dump| {
        dump.add_collective(1, rank, 17, "all_reduce", SUM_ARGUMENTS);
        dump.set_label(if rank == 1 { "layer4.bias" } else { "layer4.weight" });
        dump.fail_group(0, "Mismatch", "rank 1 and rank 0 called different operations", None);
    });
    let (class, culprits, text) = first_finding(&sample_job(&mismatched));
    assert_eq!((class, culprits), ("mismatch", vec![1]));
    assert_eq!(
        text,
        "mismatch in group world: rank 1 (pid 101, host a) called all_reduce #17 \"layer4.bias\" (f32, SUM, count \
         10) and ranks 0, 2 called all_reduce #17 \"layer4.weight\" (f32, SUM, count 10)"
    );
}

#[test]
fn rank_arriving_after_mismatch_counts_for_majority() {
    let mismatched = sample_dumps(3, |rank, dump| {
        match rank {
            1 => dump.add_collective(1, rank, 17, "barrier", ""),
            _ => dump.add_collective(1, rank, 17, "all_reduce", SUM_ARGUMENTS),
        }
        let began = if rank == 0 { 6000 } else { 5000 };
        dump.set_outcome("failed Mismatch", began, Some(began + 1));
    });
    let (class, culprits, text) = first_finding(&sample_job(&mismatched));
    assert_eq!((class, culprits), ("mismatch", vec![1]));
    assert!(text.contains("and ranks 0, 2 called all_reduce #17"), "{text}");
}

#[test]
fn peer_failure_names_the_reporting_ranks() {
    let message = "rank 1 (pid 101, host a) died; it last finished all_reduce #16";
    let mut dead = sample_dumps(3, |rank, dump| {
        dump.fail_group(0, "PeerFailed", message, Some(1));
        dump.add_collective(1, rank, 17, "all_reduce", SUM_ARGUMENTS);
        dump.set_outcome("failed PeerFailed", 5000, Some(6000));
    });
    drop(dead.remove(1));
    let (class, culprits, text) = first_finding(&sample_job(&dead));
    assert_eq!((class, culprits), ("failure", vec![1]));
    assert_eq!(text, format!("group world has failed: {message}; ranks 0, 2 reported this"));
}

#[test]
fn disagreeing_ranks_are_reported() {
    let split = sample_dumps(3, |rank, dump| {
        let culprit = if rank == 0 { 2 } else { 0 };
        dump.fail_group(0, "PeerFailed", &format!("rank {culprit} died"), Some(culprit));
    });
    let (class, culprits, text) = first_finding(&sample_job(&split));
    assert_eq!((class, culprits), ("failure", vec![0, 2]));
    assert!(
        text.contains("rank 0 died; ranks 1, 2 reported this, but rank 0 reported: rank 2 died"),
        "{text}"
    );
}

#[test]
fn calls_on_different_groups_are_a_deadlock() {
    let crossed = sample_dumps(2, |rank, dump| {
        dump.add_group(7, "left", rank, &[0, 1]);
        dump.add_group(8, "right", rank, &[0, 1]);
        let (id, name) = [(7, "all_reduce"), (8, "barrier")][rank];
        dump.add_collective(id, rank, 1, name, "");
    });
    let (class, _, text) = first_finding(&sample_job(&crossed));
    assert_eq!(class, "deadlock");
    assert_eq!(
        text,
        "deadlock, each rank waits for the next: rank 0 (pid 100, host a) waits in all_reduce #1 of group left for rank \
         1 (pid 101, host a); rank 1 (pid 101, host a) waits in barrier #1 of group right for rank 0 (pid 100, host \
         a)"
    );
}

#[test]
fn waiting_rank_is_not_the_culprit() {
    // Rank 0 waits for 1 in the world, 1 waits for 2 in a group of both, and 2 does not wait.
    let chain = sample_dumps(3, |rank, dump| match rank {
        0 => dump.add_collective(1, 0, 17, "all_reduce", SUM_ARGUMENTS),
        _ => {
            dump.add_group(7, "pair", rank - 1, &[1, 2]);
            if rank == 1 {
                dump.add_collective(7, 0, 1, "barrier", "");
            }
        }
    });
    let (class, culprits, text) = first_finding(&sample_job(&chain));
    // The finding uses the rank in the group in which the rank is missing first.
    assert_eq!((class, culprits), ("behind", vec![1]));
    assert!(
        text.starts_with("rank 1 (rank 2 of the job, pid 102, host a) never entered barrier #1"),
        "{text}"
    );
    // Without its dump, the rank is silent.
    let (class, culprits, text) = first_finding(&sample_job(&chain[..2]));
    assert_eq!((class, culprits), ("silent", vec![1]));
    assert!(
        text.starts_with("there is no dump of rank 1 (rank 2 of the job, pid 102, host a)"),
        "{text}"
    );
}

#[test]
fn all_ranks_without_dump_are_named() {
    let few =
        sample_dumps(6, |rank, dump| dump.add_collective(1, rank, 17, "all_reduce", SUM_ARGUMENTS));
    let few = sample_job(&few[..2]);
    let (class, culprits, text) = first_finding(&few);
    assert_eq!((class, culprits), ("silent", vec![2, 3, 4, 5]));
    assert!(text.contains("there is no dump of ranks 2-5"), "{text}");
    assert!(report::report_text(&few, &[]).contains("\n  no dump of ranks 2-5\n"));
}

#[test]
fn operation_that_all_ranks_entered_is_stalled() {
    let all =
        sample_dumps(3, |rank, dump| dump.add_collective(1, rank, 17, "all_reduce", SUM_ARGUMENTS));
    let (class, culprits, text) = first_finding(&sample_job(&all));
    assert_eq!((class, culprits), ("stalled", vec![]));
    assert!(text.contains("all 3 ranks of group world are in all_reduce #17"), "{text}");
}

#[test]
fn unmatched_receive_counts_without_waiting_collective() {
    let waits = sample_dumps(2, |rank, dump| {
        if rank == 0 {
            dump.add_receive(1, 0, 1);
        }
    });
    let (class, culprits, text) = first_finding(&sample_job(&waits));
    assert_eq!((class, culprits), ("behind", vec![1]));
    assert!(text.contains("has not matched the receive from rank 1, tag 7"), "{text}");
    let both = sample_dumps(2, |rank, dump| dump.add_receive(1, rank, 1 - rank));
    assert_eq!(first_finding(&sample_job(&both)).0, "deadlock");
}

#[test]
fn repeatedly_late_rank_is_slow() {
    let slow = sample_dumps(3, |rank, dump| {
        for sequence in 17..=70 {
            dump.add_collective(1, rank, sequence, "all_reduce", SUM_ARGUMENTS);
            let end = sequence * 100;
            dump.set_outcome("done", if rank == 2 { end - 1 } else { end - 60 }, Some(end));
        }
    });
    let (class, culprits, text) = first_finding(&sample_job(&slow));
    assert_eq!((class, culprits), ("slow", vec![2]));
    let expected = "rank 2 (pid 102, host a) was the last to enter 54 of 70 operations of group world; the other ranks waited";
    assert!(text.starts_with(expected), "{text}");
}

/// Generates arbitrary JSON with the structure of a dump.
fn arbitrary_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        (0..4_u64).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop_oneof![
            Just("running"),
            Just("waiting"),
            Just("done"),
            Just("failed"),
            Just("collective"),
            Just("message"),
            Just("0000000000000001"),
            Just("all_reduce"),
            Just("Timeout"),
        ]
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 16, 4, |inner| {
        prop_oneof![proptest::collection::vec(inner, 0..4).prop_map(Value::from), Just(json!([])),]
    })
}

/// Generates the position of a change in a dump.
fn arbitrary_field() -> impl Strategy<Value = (Option<(&'static str, usize)>, &'static str)> {
    let list = prop_oneof![
        Just(None),
        (0..3_usize).prop_map(|at| Some(("entries", at))),
        (0..1_usize).prop_map(|at| Some(("groups", at))),
    ];
    const FIELDS: &[&str] = &[
        "host",
        "pid",
        "rank",
        "size",
        "origin_unix_ns",
        "taken_ns",
        "id",
        "name",
        "members",
        "failure",
        "group",
        "kind",
        "operation",
        "sequence",
        "description",
        "issued_ns",
        "started_ns",
        "ended_ns",
        "state",
        "error",
        "peer",
    ];
    (list, proptest::sample::select(FIELDS))
}

proptest! {
    /// The doctor either refuses arbitrary dumps or gives a verdict.
    #[test]
    fn arbitrary_dumps_do_not_panic(
        changes in proptest::collection::vec((0..3_usize, arbitrary_field(), arbitrary_json()), 1..6)
    ) {
        let mut values: Vec<Value> = sample_dumps(3, |rank, dump| match rank {
            0 => dump.add_receive(1, 0, 1),
            _ => dump.add_collective(1, rank, 17, "all_reduce", SUM_ARGUMENTS),
        }).iter().map(SampleDump::to_value).collect();
        for (which, (list, field), value) in changes {
            match list {
                Some((list, at)) => values[which][list][at][field] = value,
                None => values[which][field] = value,
            }
        }
        let parsed = values.iter().map(|value| Dump::parse("f", value.to_string().as_bytes()));
        let job = JobDumps::from_dumps(parsed.filter_map(Result::ok).collect());
        let findings = diagnose(&job);
        prop_assert!(!report::report_text(&job, &findings).is_empty());
        prop_assert!(report::report_json(&job, &findings).is_object());
        assert_well_formed(&html_page::page(&job, &findings));
    }
}

/// Asserts that each element of a page is closed in order, and that the page needs no other file.
fn assert_well_formed(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    for tag in page.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag ends");
        let name = tag.split([' ', '/']).find(|word| !word.is_empty()).unwrap_or_default();
        match () {
            () if tag.starts_with('/') => assert_eq!(open.pop(), Some(name), "in {page}"),
            () if tag.ends_with('/') || ["!DOCTYPE", "meta"].contains(&name) => {}
            () => open.push(name),
        }
    }
    assert_eq!(open, Vec::<&str>::new());
    for foreign in ["src=", "href=", "url(", "@import", "<script", "http"] {
        assert!(!page.contains(foreign), "the page contains {foreign}");
    }
}

#[test]
fn page_has_verdict_waits_and_operations_of_each_rank() {
    let hangs = sample_dumps(4, |rank, dump| {
        if rank != 2 {
            dump.add_collective(1, rank, 17, "all_reduce", SUM_ARGUMENTS);
        }
    });
    let job = sample_job(&hangs);
    let page = html_page::page(&job, &diagnose(&job));
    assert_well_formed(&page);
    let verdict = "<p class=\"verdict\">rank 2 (pid 102, host a) never entered all_reduce #17";
    assert!(page.contains(verdict), "{page}");
    let wait = "<tr><td>rank 0 (pid 100, host a)</td><td>rank 2</td><td>all_reduce #17</td>\
                <td>world</td><td>15.0 s</td></tr>";
    assert!(page.contains(wait), "{page}");
    assert_eq!(page.matches("<rect class=\"done\"").count(), 4 * 16);
    assert_eq!(page.matches("<rect class=\"running\"").count(), 3);
    assert!(page.contains("<text class=\"culprit\" x=\"0\"") && page.contains(">rank 2</text>"));
    assert_eq!(page.matches("class=\"culprit\"").count(), 1);
}

#[test]
fn page_of_a_running_job_is_healthy_and_without_waits() {
    let job = sample_job(&sample_dumps(2, |_, _| {}));
    let page = html_page::page(&job, &diagnose(&job));
    assert_well_formed(&page);
    assert!(page.contains("<p class=\"verdict healthy\">no fault found in 2 dumps</p>"), "{page}");
    assert!(!page.contains("Which rank waits"), "{page}");
}

#[test]
fn texts_of_dumps_are_escaped_in_the_page() {
    let dumps = sample_dumps(2, |rank, dump| {
        dump.add_collective(1, rank, 17, "<script>alert('x')</script>", "a & \"b\"");
    });
    let job = sample_job(&dumps);
    let page = html_page::page(&job, &diagnose(&job));
    assert_well_formed(&page);
    assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;"), "{page}");
    assert!(page.contains("a &amp; &quot;b&quot;"), "{page}");
}
