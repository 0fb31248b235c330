//! A rank that waits for one that has left because of what happened on another node.

use super::withdrawal_tests::{descriptor, domains};
use crate::algo::shared::{Lane, Steps};
use crate::algo::{Operation, hierarchical};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::{Deadline, LateDeadline};
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::Nonce;
use crate::transport::SharedDomain;
use std::time::Duration;

/// What rank 0 says, whose peer has left; of a group of several nodes, or of one. The reason comes
/// a little later, if at all.
fn said(spans_nodes: bool, reason: Option<&Error>) -> Error {
    let [domain, other] = domains();
    drop(other);
    let deadline = LateDeadline::from(Deadline::after(Duration::from_mins(1)));
    let operation = Operation::of(descriptor(), Src::empty(), Dst::empty(), &deadline);
    let mut lane = Lane::new(Nonce::default(), 2);
    let steps = Steps::begin(&domain, &mut lane, &operation, ("two_shot", 1));
    let mut steps = if spans_nodes { steps.with_grace(hierarchical::GRACE) } else { steps };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            reason.iter().for_each(|reason| domain.fail(reason));
        });
        steps.publish(&[]).and_then(|()| steps.await_all()).unwrap_err()
    })
}

#[test]
fn between_nodes_the_reason_for_leaving_is_waited_for() {
    let death = Error::new(ErrorKind::PeerFailed, "rank 7 died").with_culprit(7);
    assert_eq!(said(true, Some(&death)), death);
    assert!(said(true, None).message().contains("has left the group"));
    assert!(said(false, Some(&death)).message().contains("has left the group"));
}
