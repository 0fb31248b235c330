//! Tests of a rank that waits for a peer which has left because of a failure on another node.

use super::write_revocation_tests::{descriptor, domains};
use crate::algo::operation::RunningAlgorithm;
use crate::algo::shared::{ShmCursor, ShmSequencer};
use crate::algo::table::algorithm_name;
use crate::algo::{Operation, hierarchical};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::Nonce;
use crate::transport::SharedDomain;
use std::time::Duration;

/// Returns the error of rank 0 after its peer has left, in a group on several nodes or on one node.
/// If a reason is given, it arrives 50 ms after the peer has left.
fn wait_error(spans_nodes: bool, reason: Option<&Error>) -> Error {
    let [domain, other] = domains();
    drop(other);
    let deadline = LazyDeadline::from(Deadline::after(Duration::from_mins(1)));
    let operation = Operation::of(descriptor(), Src::empty(), Dst::empty(), &deadline);
    let mut cursor = ShmCursor::new(Nonce::default(), 2, algorithm_name);
    let algorithm = RunningAlgorithm { name: "two_shot", number: 1 };
    let steps = ShmSequencer::begin(&domain, &mut cursor, &operation, algorithm);
    let mut steps = if spans_nodes {
        steps.with_report_grace(hierarchical::HIERARCHICAL_REPORT_GRACE)
    } else {
        steps
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            reason.iter().for_each(|reason| domain.fail(reason));
        });
        steps.publish(&[]).and_then(|()| steps.await_all()).unwrap_err()
    })
}

#[test]
fn multi_node_wait_reports_the_departure_reason() {
    let death = Error::new(ErrorKind::PeerFailed, "rank 7 died").with_culprit(7);
    assert_eq!(wait_error(true, Some(&death)), death);
    assert!(wait_error(true, None).message().contains("has left the group"));
    assert!(wait_error(false, Some(&death)).message().contains("has left the group"));
}
