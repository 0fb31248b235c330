//! Converts the entries of the flight recorder (one entry per operation) to JSON.

use super::groups::group_sizes;
use super::message_words::decode_message;
use super::ring::{DONE, MAX_ENTRIES, RECORDER, RUNNING, WAITING, short_group_id};
use super::snapshot::{EntryKind, EntrySnapshot};
use crate::api::observe::operation_details::{CallSizes, flat_sizes};
use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::base::dtype::DataType;
use crate::base::ids::{GroupId, WorldSize};
use crate::base::label::Label;
use crate::transport::{CountSpec, Descriptor};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

/// Converts the operation of an entry to JSON. Returns `None` for invalid words.
fn describe_operation(entry: &EntrySnapshot, group_size: Option<WorldSize>) -> Option<Value> {
    match entry.kind() {
        EntryKind::Collective => {
            entry.descriptor().map(|descriptor| describe_collective(entry, &descriptor, group_size))
        }
        EntryKind::Message => describe_message(entry.words, entry.label),
        EntryKind::MonitoredBarrier => Some(describe_monitored_barrier(entry)),
    }
}

fn describe_monitored_barrier(entry: &EntrySnapshot) -> Value {
    let details = entry.details();
    json!({
        "kind": "monitored_barrier",
        "sequence": entry.sequence(),
        "operation": "monitored_barrier",
        "description": entry.describe_operation(),
        "timeout_ms": entry.barrier_timeout_ms(),
        "missing": details.missing,
        "missing_count": details.missing_count,
    })
}

fn describe_message(words: [u64; 4], label: Label) -> Option<Value> {
    let message = MessageDescriptor { label, ..decode_message(words)? };
    // A receive of any length has no count.
    let count = (message.count != usize::MAX).then_some(message.count);
    let sizes = count.map(|count| flat_sizes([count]));
    let none = Some(Vec::new());
    let (inputs, outputs) = if message.is_outgoing { (sizes, none) } else { (none, sizes) };
    Some(json!({
        "kind": "message",
        "sequence": words[2],
        "operation": if message.is_outgoing { "send" } else { "recv" },
        "description": message.to_string(),
        "dtype": message.dtype.name(),
        "count": count,
        "bytes": count.and_then(|count| count.checked_mul(message.dtype.size())),
        "peer": message.peer,
        "tag": message.tag,
        "input_sizes": inputs,
        "output_sizes": outputs,
    }))
}

fn describe_collective(
    entry: &EntrySnapshot,
    descriptor: &Descriptor,
    group_size: Option<WorldSize>,
) -> Value {
    let details = entry.details();
    let rank = usize::try_from(entry.rank).unwrap_or(usize::MAX);
    let CallSizes { inputs, outputs } = details.collective_sizes(descriptor, rank, group_size);
    let mut dtype = descriptor.dtype;
    let count = match descriptor.count_spec {
        CountSpec::Count(count) => Some(count),
        CountSpec::Counts { total, .. } => Some(total),
        CountSpec::Lengths => {
            dtype = Some(DataType::U8);
            details.total_bytes
        }
        CountSpec::Pairwise | CountSpec::Operator | CountSpec::TensorList => None,
    };
    let element = dtype.map_or(1, |dtype| dtype.size() as u64);
    json!({
        "kind": "collective",
        "sequence": descriptor.sequence,
        "operation": descriptor.call_name(),
        "description": entry.describe_call(descriptor),
        "dtype": dtype.map(|dtype| dtype.name()),
        "op": descriptor.op.map(|op| op.name()),
        "root": descriptor.root,
        "count": count,
        "bytes": count.and_then(|count| count.checked_mul(element)),
        "input_sizes": inputs,
        "output_sizes": outputs,
    })
}

/// Returns the entries of one group or of all groups, oldest first.
pub(super) fn describe_entries(group: Option<GroupId>) -> Vec<Value> {
    let next = RECORDER.next_number.load(Ordering::Acquire);
    let first = next.saturating_sub(MAX_ENTRIES as u64);
    let wanted = group.map(short_group_id);
    let sizes = group_sizes();
    let entries = (first..next).filter_map(EntrySnapshot::read);
    let entries = entries.filter(|entry| wanted.is_none_or(|wanted| wanted == entry.group));
    let describe = |entry: EntrySnapshot| describe_entry(&entry, sizes.get(&entry.group).copied());
    entries.filter_map(describe).collect()
}

fn describe_entry(snapshot: &EntrySnapshot, group_size: Option<WorldSize>) -> Option<Value> {
    let mut json_entry = describe_operation(snapshot, group_size)?;
    if !snapshot.label.is_none() {
        json_entry["label"] = json!(snapshot.label.text());
    }
    let state = match snapshot.state {
        WAITING => "waiting",
        RUNNING => "running",
        DONE => "done",
        _ => "failed",
    };
    let started = Some(snapshot.started_ns).filter(|&ns| ns != 0 && state != "waiting");
    let fields = [
        ("record", json!(snapshot.number)),
        ("group", json!(format!("{:016x}", snapshot.group))),
        ("rank", json!(snapshot.rank)),
        ("issued_ns", json!(snapshot.issued_ns)),
        ("started_ns", json!(started)),
        ("ended_ns", json!((!snapshot.is_under_way()).then_some(snapshot.ended_ns))),
        ("state", json!(state)),
        ("error", json!(snapshot.failure().map(|kind| format!("{kind:?}")))),
        ("culprit", json!(snapshot.culprit())),
        (
            "device_ms",
            json!(snapshot.details().device_time.map(|time| time.as_secs_f64() * 1000.0)),
        ),
    ];
    for (name, value) in fields {
        json_entry[name] = value;
    }
    Some(json_entry)
}

#[cfg(test)]
mod tests {
    use super::super::message_words::{encode_message, is_labelled};
    use super::*;

    #[test]
    fn message_words_round_trip() {
        for (peer, tag, count) in [(Some(65_535), Some(u32::MAX >> 1), 9), (None, None, usize::MAX)]
        {
            let (is_outgoing, dtype) = (peer.is_some(), DataType::F64);
            let message =
                MessageDescriptor { is_outgoing, peer, tag, dtype, count, label: Label::NONE };
            let words = encode_message(&message, 3);
            assert_eq!(decode_message(words), Some(message));
            assert!(!is_labelled(&words));
            let label = Label::new("x").unwrap();
            assert!(is_labelled(&encode_message(&MessageDescriptor { label, ..message }, 3)));
            let found = describe_message(words, Label::NONE).unwrap();
            assert_eq!((&found["kind"], &found["sequence"]), (&"message".into(), &3.into()));
            assert_eq!(found["bytes"], peer.map_or(Value::Null, |_| 72.into()));
        }
    }
}
