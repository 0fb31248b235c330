//! Tests of the file that the writer creates from events, and of the event buffer.

use super::event::TraceEventKind;
use super::*;
use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::base::dtype::DataType;
use crate::base::ids::Nonce;
use crate::base::label::{Label, LabelledName};
use crate::base::op::ReduceOp;
use crate::transport::{CountSpec, Descriptor, OpKind};
use std::time::Instant;

fn track() -> Arc<GroupTrack> {
    Arc::new(GroupTrack::new(Nonce(*b"0123456789abcdef"), "data \"0\"", 1, &Arc::from([6, 4, 2])))
}

fn all_reduce(sequence: u64) -> Descriptor {
    Descriptor {
        kind: OpKind::AllReduce,
        dtype: Some(DataType::F32),
        op: Some(ReduceOp::Sum),
        root: None,
        count_spec: CountSpec::Count(100),
        sequence,
        algorithm: 1,
        part: 0,
        label: Label::NONE,
    }
}

fn collective_event(
    track: &Arc<GroupTrack>,
    at: [Instant; 3],
    failure: Option<Error>,
) -> TraceEvent {
    let [began, turn, ended] = at;
    let kind = TraceEventKind::Collective {
        descriptor: all_reduce(7),
        details: Box::default(),
        turn: Some(turn),
        algorithm: Some("one_shot"),
        failure: failure.map(Box::new),
    };
    TraceEvent { track: Arc::clone(track), lane: Some(0), began, ended, kind }
}

/// Returns the file that a writer creates from these events.
fn write_to_string(events: &[TraceEvent], dropped: u64, ends: bool) -> String {
    let mut bytes = Vec::new();
    let mut writer = TraceWriter::new(&mut bytes, this_process::clock_snapshot());
    writer.write(events, dropped).unwrap();
    if ends {
        writer.finish().unwrap();
    } else {
        drop(writer);
    }
    String::from_utf8(bytes).unwrap()
}

fn events_named<'a>(file: &'a Value, name: &str) -> Vec<&'a Value> {
    file.as_array().unwrap().iter().filter(|event| event["name"] == name).collect()
}

#[test]
fn labels_appear_in_span_names_and_arguments() {
    let (track, now) = (track(), Instant::now());
    let label = Label::new("layer3.weight").unwrap();
    let mut labelled = collective_event(&track, [now; 3], None);
    if let TraceEventKind::Collective { descriptor, .. } = &mut labelled.kind {
        descriptor.label = label;
    }
    let (peer, tag, dtype) = (Some(2), Some(3), DataType::F32);
    let message = MessageDescriptor { is_outgoing: true, peer, tag, dtype, count: 1, label };
    let sent = TraceEventKind::Message { message, sequence: 4, failure: None };
    let sent = TraceEvent { kind: sent, ..collective_event(&track, [now; 3], None) };
    let text =
        write_to_string(&[labelled, sent, collective_event(&track, [now; 3], None)], 0, true);
    let file: Value = serde_json::from_str(&text).unwrap();
    for name in ["all_reduce \"layer3.weight\"", "send \"layer3.weight\" to rank 2"] {
        assert_eq!(events_named(&file, name)[0]["args"]["label"], "layer3.weight");
    }
    assert_eq!(events_named(&file, "all_reduce")[0]["args"].get("label"), None);
}

#[test]
fn device_time_is_a_span_outside_the_lanes() {
    let (track, now) = (track(), Instant::now());
    let name = LabelledName { name: "all_reduce", label: Label::NONE };
    let kind = TraceEventKind::DeviceWork { name, sequence: 7 };
    let (began, ended) = (now, now + Duration::from_millis(302));
    let event = TraceEvent { track, lane: None, began, ended, kind };
    let file: Value = serde_json::from_str(&write_to_string(&[event], 0, true)).unwrap();
    let events = events_named(&file, "all_reduce");
    let phases: Vec<&Value> = events.iter().map(|event| &event["ph"]).collect();
    assert_eq!(phases, ["b", "e"]);
    let args = &events[0]["args"];
    assert_eq!((&args["device_ms"], &args["sequence"]), (&json!(302.0), &json!(7)));
    let times = [0, 1].map(|index: usize| events[index]["ts"].as_f64().unwrap());
    assert!((times[1] - times[0] - 302_000.0).abs() < 0.01, "{times:?}");
}

#[test]
fn an_operation_is_a_span_with_its_phases_inside() {
    let track = track();
    let now = Instant::now();
    let at = |ms: u64| now + Duration::from_millis(ms);
    let wait = TraceEvent {
        track: Arc::clone(&track),
        lane: Some(0),
        began: at(3),
        ended: at(5),
        kind: TraceEventKind::Wait { rank: 2 },
    };
    let text =
        write_to_string(&[wait, collective_event(&track, [at(0), at(2), at(9)], None)], 0, true);
    let file: Value = serde_json::from_str(&text).unwrap();
    let only = |name: &str| events_named(&file, name)[0].clone();
    let span = only("all_reduce");
    let args = &span["args"];
    assert_eq!((&span["ph"], &span["pid"], &span["dur"]), (&json!("X"), &json!(4), &json!(9000.0)));
    for (key, value) in [
        ("group", json!("data \"0\"")),
        ("sequence", json!(7)),
        ("bytes", json!(400)),
        ("dtype", json!("f32")),
        ("op", json!("SUM")),
        ("algorithm", json!("one_shot")),
        ("state", json!("done")),
        ("rank", json!(1)),
    ] {
        assert_eq!(args[key], value, "{key}");
    }
    // The span names the rank in the outermost group.
    let wait = only("wait for rank 2");
    let begins = |event: &Value| event["ts"].as_f64().unwrap();
    let ends = |event: &Value| begins(event) + event["dur"].as_f64().unwrap();
    let (turn, work) = (only("wait for its turn"), only("work"));
    assert!(begins(&turn) >= begins(&span) && ends(&turn) <= begins(&work) + 0.001);
    assert!(begins(&work) <= begins(&wait) && ends(&wait) <= ends(&work) + 0.001);
    assert!((args["started_us"].as_f64().unwrap() - begins(&work)).abs() < 0.001);
    assert_eq!(only("process_name")["args"]["name"].as_str().unwrap().find("rank 4 on "), Some(0));
    assert_eq!(only("thread_name")["args"]["name"], "data \"0\"");
    let head = only("libdist_trace");
    let first = begins(&span) * 1000.0 - head["args"]["monotonic_ns"].as_f64().unwrap();
    assert!(first.abs() < 60e9, "{head}");
    assert_eq!(only("libdist_end")["args"]["dropped"], 0);
}

#[test]
fn unfinished_file_is_readable() {
    let track = track();
    let now = Instant::now();
    let text = write_to_string(&[collective_event(&track, [now; 3], None)], 0, false);
    assert!(text.starts_with("[\n") && !text.ends_with(']'));
    assert!(text.lines().skip(1).all(|line| {
        serde_json::from_str::<Value>(line.trim_end_matches(',')).is_ok_and(|v| v.is_object())
    }));
    let file: Value = serde_json::from_str(&format!("{text}]")).unwrap();
    assert_eq!(events_named(&file, "all_reduce").len(), 1);
}

#[test]
fn failure_event_has_reason_and_time() {
    let track = track();
    let now = Instant::now();
    let error = Error::new(ErrorKind::PeerFailed, "rank 2 died").with_culprit(2);
    let text = write_to_string(&[collective_event(&track, [now; 3], Some(error))], 3, true);
    let file: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(events_named(&file, "all_reduce")[0]["args"]["state"], "failed: PeerFailed");
    let moment = events_named(&file, "failed: PeerFailed")[0];
    assert_eq!((&moment["ph"], &moment["args"]["error"]), (&json!("i"), &json!("rank 2 died")));
    assert_eq!(events_named(&file, "records lost")[0]["args"]["events"], 3);
    assert_eq!(events_named(&file, "libdist_end")[0]["args"]["dropped"], 3);
}

#[test]
fn span_without_a_lane_is_an_async_event_pair() {
    let track = track();
    let now = Instant::now();
    let event = TraceEvent { lane: None, ..collective_event(&track, [now; 3], None) };
    let text = write_to_string(&[event], 0, true);
    let file: Value = serde_json::from_str(&text).unwrap();
    let pair = events_named(&file, "all_reduce");
    assert_eq!((&pair[0]["ph"], &pair[1]["ph"]), (&json!("b"), &json!("e")));
    assert_eq!(pair[0]["id"], pair[1]["id"]);
}

#[test]
fn full_buffer_counts_dropped_events() {
    let (track, now) = (track(), Instant::now());
    let sink = TraceBuffer::new("nowhere").unwrap();
    let room = sink.events().capacity();
    for _ in 0..room + 5 {
        let what = TraceEventKind::Wait { rank: 0 };
        sink.push(TraceEvent {
            track: Arc::clone(&track),
            lane: Some(0),
            began: now,
            ended: now,
            kind: what,
        });
    }
    assert_eq!((sink.events().len(), sink.dropped.load(Ordering::Relaxed)), (room, 5));
}

/// A disk with space for this many bytes.
struct NearlyFullDisk(usize);

impl std::io::Write for NearlyFullDisk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0 == 0 {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_error_of_the_writer() {
    let (track, now) = (track(), Instant::now());
    let mut writer = TraceWriter::new(NearlyFullDisk(300), this_process::clock_snapshot());
    let outcome = writer.write(&[collective_event(&track, [now; 3], None)], 0);
    assert_eq!(outcome.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
}

/// A process has one trace at a time, so all these checks are in one test.
#[test]
fn a_trace_is_started_written_and_stopped() {
    let path = std::env::temp_dir().join(format!("dist-trace-{}.json", this_process::pid()));
    let path = path.to_str().unwrap();
    let folder = std::env::temp_dir();
    let error = start(folder.to_str().unwrap()).unwrap_err();
    assert!(error.message().contains("creating the trace"), "{error}");
    assert!(stop().is_ok());
    start(path).unwrap();
    let error = start(path).unwrap_err();
    assert!(error.message().contains("dist_trace_stop first"), "{error}");
    assert_eq!(describe()["file"], path);
    let track = track();
    let span = OperationSpan::collective(&track, &all_reduce(1));
    span.take_turn();
    track.set_algorithm("ring");
    let now = Instant::now();
    track.record_wait(0, now, now + Duration::from_millis(1));
    span.end(&Ok(()));
    flush();
    let soon = std::fs::read_to_string(path).unwrap();
    assert!(soon.contains("\"ring\"") && soon.contains("wait for rank 6"), "{soon}");
    stop().unwrap();
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(!events_named(&file, "libdist_end").is_empty());
    std::fs::remove_file(path).unwrap();
    assert!(!is_on() && describe().is_null());
}
