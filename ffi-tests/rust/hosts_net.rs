//! Tests of the emulated hosts: they reach only each other, a link between them has the requested
//! delay and losses, and the tests leave no namespace or process.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a skipped test says so")]

mod harness;
mod hosts;
mod interface;
#[path = "ctests/toolchain.rs"]
mod toolchain;
mod worker;

use harness::{TestHost, TestJob};
use hosts::{Hosts, LinkSettings, ONE_NETWORK};
use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};

/// The port of the servers: every namespace has its own ports.
const PORT: u16 = 7000;

fn listen_address(host: &str) -> String {
    if host.contains(':') { format!("[{host}]:{PORT}") } else { format!("{host}:{PORT}") }
}

/// Sends bytes from one host to another and back. Returns the shortest round trip in microseconds.
fn exchange(hosts: &Hosts, from: usize, to: usize, address: &str, what: &str) -> u64 {
    let address = listen_address(address);
    let mut job = TestJob::new();
    let listen = format!("listen {address}");
    job.start_on_host(&hosts.host(to), "server", &[], &format!("{listen}\necho\n"));
    job.await_report("server", &listen).assert_succeeded();
    let exchange = format!("exchange {address} {what}");
    job.start_on_host(&hosts.host(from), "client", &[], &exchange);
    let ended = job.finish();
    ended.report("server", "echo").assert_succeeded();
    ended.report("client", &exchange).assert_succeeded().message.parse().unwrap()
}

#[test]
fn hosts_reach_each_other_over_ipv4_and_ipv6() {
    let Some(hosts) = Hosts::try_new_or_skip(3, &["eth0", "eth1", "ib0"]) else { return };
    for (from, to) in [(0, 1), (2, 0)] {
        for network in 0..3 {
            exchange(&hosts, from, to, &hosts.ipv4(to, network), "100000 1");
            exchange(&hosts, from, to, &hosts.ipv6(to, network), "100000 1");
        }
    }
    for network in ["eth0", "eth1", "ib0"] {
        assert!(hosts.ip(1, &format!("link show dev {network}")).contains("LOWER_UP"));
    }
}

#[test]
fn hosts_with_equal_addresses_coexist() {
    let Some(first) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let second = Hosts::try_new(2, ONE_NETWORK).unwrap();
    let names: BTreeSet<String> = first.names().into_iter().chain(second.names()).collect();
    assert_eq!(names.len(), 6);
    let address = listen_address(&first.ipv4(1, 0));
    assert_eq!(address, listen_address(&second.ipv4(1, 0)));
    let mut job = TestJob::new();
    let (listen, exchange) = (format!("listen {address}"), format!("exchange {address} 10 1"));
    job.start_on_host(&second.host(1), "server", &[], &format!("{listen}\necho\n"));
    job.await_report("server", &listen).assert_succeeded();
    job.start_on_host(&first.host(0), "stranger", &[], &exchange);
    assert!(job.await_report("stranger", &exchange).message.contains("refused"));
    job.start_on_host(&second.host(0), "client", &[], &exchange);
    job.await_report("client", &exchange).assert_succeeded();
    job.finish();
}

#[test]
fn ranks_on_several_hosts_meet_in_the_store_of_the_first() {
    let Some(hosts) = Hosts::try_new_or_skip(3, ONE_NETWORK) else { return };
    let rank_hosts = [0, 1, 1, 2].map(|host| hosts.host(host));
    for master in [hosts.ipv4(0, 0), hosts.ipv6(0, 0)] {
        let mut job = TestJob::on_hosts(&rank_hosts, &master, |rank| {
            // The rank that hosts the store leaves last.
            let (server, wait) = if rank == 0 { (" server=yes", "gate end\n") } else { ("", "") };
            format!(
                "store{server}\nset from-{rank} {rank}\nwait from-0\nmeet all 4\n{wait}unstore\n"
            )
        });
        job.await_reports(&["1", "2", "3"], "unstore");
        job.open_gate("end");
        let ended = job.finish();
        ended.assert_all_succeeded("0", 8);
        (1..4).for_each(|rank| ended.assert_all_succeeded(&rank.to_string(), 6));
    }
}

#[test]
fn hosts_have_names_of_their_own() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let mut job = TestJob::new();
    for host in 0..2 {
        let words = ["sh", "-c", "uname -n; echo $DIST_HOST_ID"];
        job.start_program_on_host(&hosts.host(host), &format!("asked-{host}"), &[], &words);
    }
    let ended = job.finish();
    assert_eq!(ended.stdout_text("asked-0"), "host-0\nhost-0\n");
    assert_eq!(ended.stdout_text("asked-1"), "host-1\nhost-1\n");
}

#[test]
fn disconnected_host_is_unreachable() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    exchange(&hosts, 0, 1, &hosts.ipv4(1, 0), "10 1");
    hosts.ip(1, "link set eth0 down");
    // Without the flush, the kernel would try the old neighbour entry for a while.
    hosts.ip(0, "neighbour flush dev eth0");
    let mut job = TestJob::new();
    let exchange = format!("exchange {} 10 1", listen_address(&hosts.ipv4(1, 0)));
    job.start_on_host(&hosts.host(0), "client", &[], &exchange);
    let ended = job.finish();
    assert_ne!(ended.report("client", &exchange).status, 0);
}

#[test]
#[should_panic(expected = "; listener ")]
fn leftover_listener_is_found() {
    // Without hosts there is no leftover to find, but the test must fail as expected.
    let Some(hosts) = Hosts::try_new_or_skip(1, ONE_NETWORK) else {
        panic!("; listener cannot be: no hosts")
    };
    let mut job = TestJob::new();
    let listen = format!("listen 0.0.0.0:{}", job.port);
    job.start_on_host(
        &hosts.host(0),
        "worker",
        &[],
        &format!("{listen}\nfork_sleeper\ngate end\n"),
    );
    job.await_report("worker", &listen).assert_succeeded();
    job.open_gate("end");
    job.finish();
}

#[test]
fn link_delays_both_directions() {
    let Some(mut hosts) = Hosts::try_new_or_skip(3, ONE_NETWORK) else { return };
    let Some(relay) = hosts.add_link([0, 2], &LinkSettings::new(20, 0)) else { return };
    for address in [hosts.ipv4(2, 0), hosts.ipv6(2, 0)] {
        let fastest_us = exchange(&hosts, 0, 2, &address, "1 5");
        assert!(fastest_us >= 40_000, "a round trip of {fastest_us} us over {address}");
    }
    // The third host is not on the link.
    exchange(&hosts, 1, 0, &hosts.ipv4(0, 0), "1 1");
    let counts = relay.stop();
    assert_eq!((counts.lost, counts.overflowed), ([0, 0], [0, 0]));
    // The minimum is two connections with five bytes each.
    assert!(counts.forwarded.iter().all(|&packets| packets >= 14), "{counts:?}");
}

#[test]
fn stream_is_complete_despite_packet_loss() {
    let Some(mut hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let Some(relay) = hosts.add_link([0, 1], &LinkSettings::new(2, 10_000)) else { return };
    exchange(&hosts, 0, 1, &hosts.ipv4(1, 0), "1048576 1");
    let counts = relay.stop();
    // The data needs 719 packets of 1460 bytes, plus the retransmissions.
    assert!(counts.forwarded.iter().all(|&packets| packets >= 719), "{counts:?}");
    assert!(counts.lost.iter().all(|&packets| packets > 0), "{counts:?}");
}

#[test]
fn link_limits_the_byte_rate() {
    let Some(mut hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let line = LinkSettings { bytes_per_second: Some(2_000_000), ..LinkSettings::new(0, 0) };
    let Some(relay) = hosts.add_link([0, 1], &line) else { return };
    // In each direction, the last byte arrives at least 0.5 s after the first one.
    let took_us = exchange(&hosts, 0, 1, &hosts.ipv4(1, 0), "1000000 1");
    assert!(took_us >= 500_000, "{took_us} us");
    relay.stop();
}

#[test]
fn a_full_queue_drops_packets() {
    let Some(mut hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let line = LinkSettings { queue_packets: 4, ..LinkSettings::new(10, 0) };
    let Some(relay) = hosts.add_link([0, 1], &line) else { return };
    exchange(&hosts, 0, 1, &hosts.ipv4(1, 0), "100000 1");
    let counts = relay.stop();
    assert!(counts.overflowed[0] > 0, "{counts:?}");
}

/// Returns the numbers of the datagrams, out of 100, that pass a link with this seed.
fn forwarded_datagrams(seed: u64) -> Option<Vec<u32>> {
    let mut hosts = Hosts::try_new_or_skip(2, ONE_NETWORK)?;
    let line = LinkSettings { seed, ..LinkSettings::new(1, 300_000) };
    let relay = hosts.add_link([0, 1], &line)?;
    let address = listen_address(&hosts.ipv4(1, 0));
    let mut job = TestJob::new();
    let bind = format!("bind {address}");
    job.start_on_host(&hosts.host(1), "receiver", &[], &format!("{bind}\nreceive 100\n"));
    job.await_report("receiver", &bind).assert_succeeded();
    // The sender sends 30 more datagrams, which tell the receiver that the first hundred have
    // arrived. At this loss rate at least one of them arrives.
    let send = format!("datagrams {address} 130");
    job.start_on_host(&hosts.host(0), "sender", &[], &send);
    let ended = job.finish();
    ended.report("sender", &send).assert_succeeded();
    let numbers = ended.report("receiver", "receive 100").assert_succeeded().message.clone();
    relay.stop();
    Some(numbers.split(' ').map(|number| number.parse().unwrap()).collect())
}

#[test]
fn the_seed_decides_which_packets_are_lost() {
    let Some(numbers) = forwarded_datagrams(7) else { return };
    assert!((50..90).contains(&numbers.len()), "{numbers:?}");
    assert!(numbers.is_sorted());
    assert_eq!(forwarded_datagrams(7).unwrap(), numbers);
    assert_ne!(forwarded_datagrams(8).unwrap(), numbers);
}

/// Starts a process on a host that sleeps and is no worker of a job.
fn sleeper(host: &TestHost) -> Child {
    let (program, arguments) = host.command_prefix().split_first().unwrap();
    let mut command = Command::new(program);
    command.args(arguments).args(["sh", "-c", "echo; exec sleep 600"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    // The first line of output shows that the process runs.
    let mut line = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    child
}

/// Waits for the process and returns true if SIGKILL ended it.
fn was_killed(mut child: Child) -> bool {
    use std::os::unix::process::ExitStatusExt as _;
    child.wait().unwrap().signal() == Some(9)
}

#[test]
fn hosts_are_removed_after_a_panic() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let names = hosts.names();
    assert!(names.iter().all(|name| hosts::namespace_exists(name)), "{names:?}");
    let child = sleeper(&hosts.host(1));
    let failing = std::panic::AssertUnwindSafe(move || {
        let _hosts = hosts;
        std::panic::resume_unwind(Box::new("the test fails"));
    });
    assert!(std::panic::catch_unwind(failing).is_err());
    assert!(!names.iter().any(|name| hosts::namespace_exists(name)), "{names:?}");
    assert!(was_killed(child));
}

#[test]
fn leftovers_of_a_killed_test_are_removed() {
    let Some(hosts) = Hosts::try_new_or_skip(1, ONE_NETWORK) else { return };
    let mut owner = Command::new("true").spawn().unwrap();
    owner.wait().unwrap();
    let name = hosts.names()[0].replace(&std::process::id().to_string(), &owner.id().to_string());
    let ip = hosts.host(0).command_prefix()[0].clone();
    assert!(Command::new(ip).args(["netns", "add", &name]).status().unwrap().success());
    drop(Hosts::try_new(1, ONE_NETWORK).unwrap());
    assert!(!hosts::namespace_exists(&name));
    // Namespaces of a living process are not removed.
    assert!(hosts.names().iter().all(|name| hosts::namespace_exists(name)));
}
