//! Messages between ranks of several hosts: every rank to every other rank, in all sizes, received
//! in another order than sent; from any source; and messages without a sender or a receiver.

use super::{MAX_REPORT_MS, assert_all_succeeded, block_placement};
use crate::harness::{TestHost, TestJob};
use crate::hosts::{Hosts, LinkSettings, ONE_NETWORK};
use dist::ffi::types::{DIST_ERR_PEER_FAILED, DIST_ERR_TIMEOUT};

/// Returns the program of one rank, in which messages of these sizes go from every rank to every
/// rank. The rank receives the last messages first. Then it receives messages from any source, with
/// any tag, into buffers that are longer than the message.
fn all_messages_program(ranks: usize, me: usize, sizes: &[usize]) -> String {
    let mut program = "init\n".to_owned();
    let mut add = |line: String| program.push_str(&format!("{line}\n"));
    // The ranks start with different peers, so that they do not all send to the same rank.
    let peers: Vec<usize> = (0..ranks).map(|turn| (me + turn) % ranks).collect();
    for peer in &peers {
        for (tag, size) in sizes.iter().enumerate() {
            add(format!("send {size} {peer} {tag} async=yes"));
        }
    }
    for peer in &peers {
        for (tag, size) in sizes.iter().enumerate().rev() {
            add(format!("recv {size} {peer} {tag}"));
        }
    }
    add("settle".to_owned());
    add("barrier".to_owned());
    for (turn, peer) in peers.iter().enumerate() {
        add("recv 1000 any any of=100 async=yes".to_owned());
        add(format!("send 100 {peer} {} async=yes", 40 + turn));
    }
    add("settle".to_owned());
    // A receive from any source takes the first message that arrives.
    add("barrier".to_owned());
    for peer in &peers {
        add(format!("send 77 {peer} 9 async=yes"));
    }
    peers.iter().for_each(|_| add("recv 77 any 9".to_owned()));
    add("settle".to_owned());
    program + "finalize\nleaks\n"
}

/// Asserts that all messages arrive with the right content.
fn check_messages(rank_hosts: &[TestHost], master: &str, sizes: &[usize]) {
    let program = |rank| all_messages_program(rank_hosts.len(), rank, sizes);
    let job = TestJob::on_hosts(rank_hosts, master, program);
    // All programs have the same length.
    assert_all_succeeded(&job.finish(), rank_hosts.len(), &program(0));
}

/// The sizes: empty, inline in a control slot of shared memory, eager, and rendezvous.
const SIZES: &[usize] = &[0, 1, 48, 5000, 70_001, 1 << 22];

#[test]
fn messages_between_two_hosts() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let rank_hosts = block_placement(&hosts, &[2, 2]);
    for master in [hosts.ipv4(0, 0), hosts.ipv6(0, 0)] {
        check_messages(&rank_hosts, &master, SIZES);
    }
}

/// Returns the program of one rank of a ring. Each size goes around the ring in place, by
/// `sendrecv`, and by synchronous sends whose receivers probe first.
fn ring_program(ranks: usize, me: usize, sizes: &[usize]) -> String {
    let (next, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
    let mut program = "init\n".to_owned();
    for (tag, size) in sizes.iter().enumerate() {
        program += &format!("sendrecv {size} {next} {before} {tag}\n");
        program += &format!("sendrecv {size} {next} any {tag} async=yes\nsettle\nbarrier\n");
        program += &format!("send {size} {next} {tag} sync=yes async=yes\n");
        program += &format!("probe {size} {before} {tag}\nsettle\nbarrier\n");
        program += &format!("sendrecv {size} {me} {me} {tag} sync=yes\n");
    }
    program + "finalize\nleaks\n"
}

#[test]
fn probe_and_sendrecv_around_a_ring() {
    let sizes = [0, 1, 48, 5000, 70_001, 1 << 22];
    // The ranks use shared memory, sockets, and both.
    for hosts in [vec!["a", "a"], vec!["a", "b", "c"], vec!["a", "a", "b", "a", "b"]] {
        let rank_hosts: Vec<_> = hosts.into_iter().map(TestHost::on_this_network).collect();
        let program = |rank| ring_program(rank_hosts.len(), rank, &sizes);
        let job = TestJob::on_hosts(&rank_hosts, "127.0.0.1", program);
        assert_all_succeeded(&job.finish(), rank_hosts.len(), &program(0));
    }
}

#[test]
fn a_synchronous_send_waits_for_its_receive() {
    for hosts in [["a", "a"], ["a", "b"]] {
        let rank_hosts = hosts.map(TestHost::on_this_network);
        let late = "send 4 1 7 timeout_ms=300 sync=yes";
        let mut job = TestJob::on_hosts(&rank_hosts, "127.0.0.1", |rank| {
            let first = if rank == 0 { late } else { "gate over" };
            format!("init\nbarrier\n{first}\nbarrier\nfinalize\nleaks\n")
        });
        job.await_report("0", late);
        job.open_gate("over");
        let ended = job.finish();
        let parts = ["4 bytes with tag 7 to rank 1 (pid ", "was not received", "300 ms"];
        ended
            .report("0", late)
            .assert_failed(DIST_ERR_TIMEOUT, &parts)
            .assert_within_ms(MAX_REPORT_MS);
        assert!(["0", "1"].iter().all(|rank| ended.exit_status(rank) == 0));
    }
}

#[test]
fn a_probe_ends_when_its_sender_dies() {
    for hosts in [["a", "a"], ["a", "b"]] {
        let rank_hosts = hosts.map(TestHost::on_this_network);
        let probe = "probe 16 0 9";
        let mut job = TestJob::on_hosts(&rank_hosts, "127.0.0.1", |rank| {
            let waits = if rank == 0 { "gate never" } else { probe };
            format!("init\nbarrier\n{waits}\n")
        });
        job.await_reports(&["0", "1"], "barrier");
        job.kill("0");
        let ended = job.finish();
        ended
            .report("1", probe)
            .assert_failed(DIST_ERR_PEER_FAILED, &["probe for a message of rank 0"]);
    }
}

#[test]
fn messages_between_hosts_that_differ_only_in_name() {
    let rank_hosts = ["a", "b", "a", "c", "b"].map(TestHost::on_this_network);
    check_messages(&rank_hosts, "127.0.0.1", SIZES);
}

#[test]
fn messages_over_a_slow_lossy_link() {
    let Some(mut hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let Some(relay) = hosts.add_link([0, 1], &LinkSettings::new(20, 10_000)) else { return };
    let rank_hosts = block_placement(&hosts, &[2, 2]);
    check_messages(&rank_hosts, &hosts.ipv4(0, 0), &[0, 1, 5000, 5000, 100_000]);
    let counts = relay.stop();
    assert!(counts.lost.iter().all(|&packets| packets > 0), "{counts:?}");
    println!("over a line with 20 ms and 1 % losses: {counts:?}");
}

#[test]
fn unmatched_message_times_out_without_side_effects() {
    let rank_hosts = ["a", "b"].map(TestHost::on_this_network);
    let late = [
        (
            "recv 16 1 5 timeout_ms=300",
            ["no message of rank 1 (pid ", "with tag 5 arrived", "300 ms"],
        ),
        (
            "recv 16 any 6 timeout_ms=200",
            ["no message of any rank", "with tag 6 arrived", "200 ms"],
        ),
        (
            "send 4194304 1 7 timeout_ms=300",
            ["4194304 bytes with tag 7 to rank 1 (pid ", "was not received", "300 ms"],
        ),
    ];
    let calls: Vec<&str> = late.iter().map(|(call, _)| *call).collect();
    let after = "send 4194304 PEER 8 async=yes\nrecv 4194304 PEER 8\nsettle\n\
                 all_reduce f32 SUM 5000\nfinalize\nleaks\n";
    let mut job = TestJob::on_hosts(&rank_hosts, "127.0.0.1", |rank| {
        let calls = if rank == 0 { calls.join("\n") } else { "gate over".to_owned() };
        format!("init\nbarrier\n{calls}\n{}", after.replace("PEER", &(1 - rank).to_string()))
    });
    job.await_report("0", late[2].0);
    job.open_gate("over");
    let ended = job.finish();
    for (call, parts) in late {
        let report = ended.report("0", call);
        report.assert_failed(DIST_ERR_TIMEOUT, &parts).assert_within_ms(MAX_REPORT_MS);
    }
    for rank in ["0", "1"] {
        for report in ended.reports(rank).iter().filter(|it| !calls.contains(&it.command.as_str()))
        {
            report.assert_succeeded();
        }
        ended.report(rank, "leaks");
        assert_eq!(ended.exit_status(rank), 0);
    }
}
