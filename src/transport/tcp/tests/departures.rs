//! Departures from one of two groups that share the links of two processes.

use super::*;

/// Creates two groups on the same two processes. Returns the meshes of the ranks of each group.
fn two_groups() -> [Vec<TcpMesh>; 2] {
    let first = vec![listen_on_loopback("127.0.0.1", 1), listen_on_loopback("127.0.0.1", 1)];
    let second: Vec<_> = first.iter().map(TcpListening::share).collect();
    let processes = [host::random_nonce().unwrap(), host::random_nonce().unwrap()];
    [first, second].map(|openings| {
        let members = members_in(&processes, &openings, &[0, 1]);
        join_all(openings, &members, &[0, 1], &LinkSecurity::None)
    })
}

/// Opens the link for collective operations from rank 0 to rank 1.
fn open_link(group: &[TcpMesh]) {
    send_all(&group[0], 1, STREAM, b"x").unwrap();
    receive_all(&group[1], 0, STREAM, &mut [0]).unwrap();
}

#[test]
fn report_of_a_departure_may_overtake_the_first_bytes() {
    let [first, second] = two_groups();
    open_link(&first);
    second[1].shared.mark_reported_left(0);
    assert_eq!(second[1].try_receive(0, STREAM, Dst::from(&mut [0; 5][..])).unwrap(), 0);
    send_all(&second[0], 1, STREAM, b"bytes").unwrap();
    let mut got = [0; 5];
    receive_all(&second[1], 0, STREAM, &mut got).unwrap();
    assert_eq!(&got, b"bytes");
}

#[test]
fn rank_that_leaves_without_sending_is_reported_left() {
    for round in 0..20 {
        let [first, mut second] = two_groups();
        open_link(&first);
        let waiter = second.pop().unwrap();
        drop(second);
        let error = first_error(|| receive_all(&waiter, 0, STREAM, &mut [0]));
        assert!(error.message().contains("has left"), "{error}");
        // The link was opened after the departure, so it carries no notice of it.
        let [first, mut second] = two_groups();
        let waiter = second.pop().unwrap();
        drop(second);
        while !waiter.shared.has_left(0) {
            std::thread::yield_now();
        }
        open_link(&first);
        let error = first_error(|| receive_all(&waiter, 0, STREAM, &mut [0]));
        assert!(error.message().contains("has left"), "round {round}: {error}");
    }
}
