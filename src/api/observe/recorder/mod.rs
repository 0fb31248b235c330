//! The flight recorder: a ring of entries with the last 2000 operations of the process. It is
//! always on.
//!
//! Recording takes about ten relaxed stores to one entry that no other thread writes. Reading the
//! clock costs more, so the recorder reuses times that it already has:
//! * The time of issue is the time at which the operation's deadline starts.
//! * If an operation runs immediately, its start is its time of issue. An operation that must wait
//!   for its turn (for earlier collectives of the group) has a start of its own.
//! * If an operation takes only some microseconds, its end is its start (see
//!   [`OperationRecord::end_without_clock`]).
//!
//! Each entry has a stamp. The writer sets the stamp to 0, writes the entry, and then sets the
//! stamp to the operation's number. A reader reads the stamp before and after it copies the entry,
//! and drops the copy if one of the two stamps differs from the expected number.
//!
//! | file | content |
//! |---|---|
//! | `ring` | the entries and the clock |
//! | `details` | the details of operations that need more room than an entry has |
//! | `record` | the functions that record an operation |
//! | `device_time` | the time that a device needs for an operation |
//! | `message_words` | the encoding of a message and of a monitored barrier |
//! | `entries` | an entry as JSON |
//! | `snapshot` | a consistent copy of an entry |
//! | `groups` | the list of groups, with their members and failures |
//! | `dump` | the whole dump as JSON |
//! | `request_socket` | the socket at which `dist-doctor --pid` gets a dump |
//! | `dump_files` | the files of dumps, written at failures and on a trigger |

mod details;
mod device_time;
mod dump;
mod dump_files;
mod entries;
mod groups;
mod message_words;
mod record;
mod request_socket;
mod ring;
mod snapshot;

pub(in crate::api) use device_time::DeviceTimeRecord;
pub use dump::{DumpReason, dump};
pub(in crate::api) use dump_files::{
    RecorderMembership, dump_failures_and_wait, read_dump_environment, request_failure_dump,
};
pub(in crate::api) use groups::{
    CallSummary, IssueCounter, NewGroup, OpenGroup, RecordedCall, group_name, take_call_summaries,
    take_call_summary, visit_open_groups,
};
pub use record::{OperationOrigin, OperationRecord, RecorderSlot, begin_collective, begin_message};
pub(in crate::api) use record::{begin_encoded, begin_monitored_barrier};
pub use ring::MAX_ENTRIES;
pub(in crate::api) use ring::{recorder_now_ns, recorder_ns, recorder_unix_ns, short_group_id};
pub(in crate::api) use snapshot::{EntryKind, EntrySnapshot, newest_entries};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::{Error, ErrorKind};
    use crate::base::ids::Nonce;
    use crate::base::label::Label;
    use crate::transport::{CountSpec, Descriptor, OpKind};

    fn barrier(sequence: u64) -> Descriptor {
        Descriptor {
            kind: OpKind::Barrier,
            dtype: None,
            op: None,
            root: None,
            count_spec: CountSpec::Count(0),
            sequence,
            algorithm: 0,
            part: 0,
            label: Label::NONE,
        }
    }

    #[test]
    fn entry_has_only_the_label_of_its_own_call() {
        let group = Nonce(*b"recorder-label-i");
        let label = Label::new("layer3.weight").unwrap();
        // The ring also reuses entries that had a label before.
        for sequence in 1..=u64::try_from(MAX_ENTRIES).unwrap() * 2 + 2 {
            let origin = OperationOrigin { group, rank: 1, issued_ns: recorder_now_ns() };
            let label = if sequence % 3 == 0 { label } else { Label::NONE };
            let descriptor = Descriptor { label, ..barrier(sequence) };
            begin_collective(RecorderSlot::reserve(), origin, &descriptor, true).end(&Ok(()));
        }
        let dump = dump(Some(group), DumpReason::Request);
        let entries = dump["entries"].as_array().unwrap();
        assert!(entries.len() > 100);
        for entry in entries {
            let sequence = entry["sequence"].as_u64().unwrap();
            let (description, key) = (&entry["description"], entry.get("label"));
            if sequence % 3 == 0 {
                assert_eq!(key.unwrap(), "layer3.weight");
                assert_eq!(*description, format!("barrier #{sequence} \"layer3.weight\""));
            } else {
                assert_eq!((key, description), (None, &format!("barrier #{sequence}").into()));
            }
        }
    }

    #[test]
    fn the_last_entries_are_kept_with_their_outcome() {
        let group = Nonce(*b"recorder-test-id");
        for sequence in 1..=5 {
            let origin = OperationOrigin { group, rank: 1, issued_ns: recorder_now_ns() };
            let record = begin_collective(
                RecorderSlot::reserve(),
                origin,
                &barrier(sequence),
                sequence != 3,
            );
            match sequence {
                1 => record.end(&Ok(())),
                2 => record.end(&Err(Error::new(ErrorKind::Timeout, "late").with_culprit(7))),
                3 => record.mark_running(),
                _ => {}
            }
        }
        let origin = OperationOrigin { group, rank: 1, issued_ns: recorder_now_ns() };
        let _waiting = begin_collective(RecorderSlot::reserve(), origin, &barrier(6), false);
        let dump = dump(Some(group), DumpReason::Request);
        let entries = dump["entries"].as_array().unwrap();
        let states: Vec<_> = entries.iter().map(|e| e["state"].as_str().unwrap()).collect();
        assert_eq!(states, ["done", "failed", "running", "running", "running", "waiting"]);
        assert_eq!(entries[0]["operation"], "barrier");
        assert_eq!(entries[0]["description"], "barrier #1");
        assert_eq!((&entries[1]["error"], &entries[1]["culprit"]), (&"Timeout".into(), &7.into()));
        assert!(entries[2]["started_ns"].as_u64() > entries[2]["issued_ns"].as_u64());
        assert_eq!(entries[3]["started_ns"], entries[3]["issued_ns"]);
        assert!(entries[5]["started_ns"].is_null() && entries[5]["ended_ns"].is_null());
        assert!(dump["taken_ns"].as_u64() >= entries[5]["issued_ns"].as_u64());
    }
}
