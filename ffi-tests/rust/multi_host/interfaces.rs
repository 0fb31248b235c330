//! The interfaces and ports that ranks of several hosts use between each other: the interfaces that
//! lead to the store, or the interfaces and ports that the user sets.

use super::{assert_all_succeeded, block_placement, names, start_ranks};
use crate::harness::{CommandReport, FinishedJob, TestJob};
use crate::hosts::Hosts;
use dist::ffi::types::{DIST_ERR_CONNECTION, DIST_ERR_INVALID_ARGUMENT, DIST_ERR_PEER_FAILED};
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};

/// Two interfaces of one kind and one of another kind.
const INTERFACES: &[&str] = &["eth0", "eth1", "ib0"];

/// A threshold in bytes. An interface with store traffic only sends less; an interface with its
/// share of [`TRAFFIC`] sends more.
const MIN_PAYLOAD_BYTES: u64 = 300_000;

/// A call that sends several megabytes.
const TRAFFIC: &str = "all_reduce f32 SUM 1000003";

/// Variables that the user sets, and the interfaces that the ranks must use.
struct InterfaceCase {
    variables: &'static [(&'static str, &'static str)],
    interfaces: &'static [usize],
    families: &'static str,
}

const CASES: &[InterfaceCase] = &[
    // Interface 1 leads to the store.
    InterfaceCase { variables: &[], interfaces: &[1], families: "46" },
    InterfaceCase {
        variables: &[("DIST_SOCKET_IFNAME", "eth0")],
        interfaces: &[0],
        families: "46",
    },
    InterfaceCase {
        variables: &[("GLOO_SOCKET_IFNAME", "eth0")],
        interfaces: &[0],
        families: "46",
    },
    InterfaceCase {
        variables: &[("DIST_SOCKET_IFNAME", "ib0"), ("GLOO_SOCKET_IFNAME", "eth0")],
        interfaces: &[2],
        families: "46",
    },
    InterfaceCase { variables: &[("DIST_SOCKET_IFNAME", "ib")], interfaces: &[2], families: "46" },
    InterfaceCase {
        variables: &[("DIST_SOCKET_IFNAME", "=eth0")],
        interfaces: &[0],
        families: "46",
    },
    InterfaceCase {
        variables: &[("DIST_SOCKET_IFNAME", "^eth")],
        interfaces: &[2],
        families: "46",
    },
    InterfaceCase {
        variables: &[("DIST_SOCKET_IFNAME", "ib0,eth0")],
        interfaces: &[2, 0],
        families: "46",
    },
    InterfaceCase {
        variables: &[("DIST_SOCKET_IFNAME", "ADDRESS")],
        interfaces: &[2],
        families: "4",
    },
    InterfaceCase {
        variables: &[("DIST_SOCKET_FAMILY", "AF_INET6")],
        interfaces: &[1],
        families: "6",
    },
    InterfaceCase {
        variables: &[("DIST_SOCKET_IFNAME", "lo,eth"), ("DIST_SOCKET_FAMILY", "AF_INET")],
        interfaces: &[0, 1],
        families: "4",
    },
];

/// Returns the addresses that a rank has published for other hosts.
fn listen_addresses(ended: &FinishedJob, rank: usize) -> Vec<IpAddr> {
    let described: Value =
        serde_json::from_str(&ended.report(&rank.to_string(), "describe").message).unwrap();
    let addresses = described["native"]["network"]["addresses"].as_array().unwrap();
    let address = |it: &Value| it.as_str().unwrap().parse::<SocketAddr>().unwrap().ip();
    addresses.iter().map(address).collect()
}

/// Returns the addresses of a host on these interfaces, in their order.
fn expected_addresses(hosts: &Hosts, host: usize, case: &InterfaceCase) -> Vec<IpAddr> {
    let of = |&network: &usize| [hosts.ipv4(host, network), hosts.ipv6(host, network)];
    let all = case.interfaces.iter().flat_map(of).map(|text| text.parse().unwrap());
    let is_of_family = |it: &IpAddr| case.families.contains(if it.is_ipv4() { '4' } else { '6' });
    all.filter(is_of_family).collect()
}

#[test]
fn ranks_use_the_interfaces_that_are_asked_for() {
    let Some(hosts) = Hosts::try_new_or_skip(2, INTERFACES) else { return };
    let rank_hosts = block_placement(&hosts, &[1, 1]);
    let program = format!("init\ndescribe\n{TRAFFIC}\nfinalize\nleaks\n");
    for case in CASES {
        let sent = || -> Vec<u64> { INTERFACES.iter().map(|it| hosts.bytes_sent(1, it)).collect() };
        let before = sent();
        let variables = |rank: usize| {
            let value = |value: &str| value.replace("ADDRESS", &hosts.ipv4(rank, 2));
            case.variables.iter().map(|&(name, it)| (name, value(it))).collect()
        };
        let mut job = TestJob::new();
        start_ranks(&mut job, &rank_hosts, &hosts.ipv4(0, 1), variables, |_| program.clone());
        let ended = job.finish();
        assert_all_succeeded(&ended, rank_hosts.len(), &program);
        for host in 0..rank_hosts.len() {
            let mut addresses_in_use = listen_addresses(&ended, host);
            let mut expected = expected_addresses(&hosts, host, case);
            // The order of IPv4 and IPv6 depends on the store.
            addresses_in_use.sort_by_key(|it| expected.iter().position(|other| it == other));
            expected.sort_by_key(|it| addresses_in_use.iter().position(|other| it == other));
            assert_eq!(addresses_in_use, expected, "{:?}", case.variables);
        }
        for (network, (after, before)) in sent().into_iter().zip(before).enumerate() {
            let used = after - before > MIN_PAYLOAD_BYTES;
            assert_eq!(
                used,
                case.interfaces.contains(&network),
                "{:?}: {} has sent {} bytes",
                case.variables,
                INTERFACES[network],
                after - before
            );
        }
    }
}

#[test]
fn unknown_interface_error_lists_existing_interfaces() {
    let Some(hosts) = Hosts::try_new_or_skip(2, INTERFACES) else { return };
    let rank_hosts = block_placement(&hosts, &[1, 1]);
    let name = |rank| if rank == 1 { "eth7" } else { "eth" };
    let mut job = TestJob::new();
    let variables = |rank| vec![("DIST_SOCKET_IFNAME", name(rank).to_owned())];
    start_ranks(&mut job, &rank_hosts, &hosts.ipv4(0, 0), variables, |_| {
        "init\nleaks\n".to_owned()
    });
    let ended = job.finish();
    let wrong = ["DIST_SOCKET_IFNAME=\"eth7\"", "eth0 (10.77.0.2", "eth1 (10.77.1.2", "ib0 ("];
    ended.report("1", "init").assert_failed(DIST_ERR_INVALID_ARGUMENT, &wrong);
    // The ranks that wait for rank 1 get the error as well.
    let parts = ["rank 1 (", wrong[0], wrong[1]];
    ended.report("0", "init").assert_failed(DIST_ERR_PEER_FAILED, &parts);
    for name in names(rank_hosts.len()) {
        ended.report(&name, "leaks").assert_succeeded();
    }
}

#[test]
fn ranks_listen_in_the_range_of_ports_that_they_are_given() {
    let Some(hosts) = Hosts::try_new_or_skip(2, &["eth0"]) else { return };
    let rank_hosts = block_placement(&hosts, &[2, 2]);
    let names = names(rank_hosts.len());
    let variables = |_| vec![("DIST_PORT_RANGE", "23000-23001".to_owned())];
    let program = "init\nbarrier\nsend 9 PEER 1 async=yes\nrecv 9 PEER 1\nsettle\ngate look\nfinalize\nleaks\n";
    let program = |rank: usize| program.replace("PEER", &(3 - rank).to_string());
    let mut job = TestJob::new();
    start_ranks(&mut job, &rank_hosts, &hosts.ipv4(0, 0), variables, program);
    job.await_reports(&names, "at look");
    for host in 0..2 {
        let mut ports = hosts.listening_ports(host);
        assert_eq!(ports.remove(&job.port), host == 0, "{ports:?}");
        assert_eq!(Vec::from_iter(ports), [23000, 23001]);
    }
    job.open_gate("look");
    assert_all_succeeded(&job.finish(), rank_hosts.len(), &program(0));
}

#[test]
fn full_port_range_is_reported() {
    let Some(hosts) = Hosts::try_new_or_skip(2, &["eth0"]) else { return };
    let rank_hosts = block_placement(&hosts, &[1, 2]);
    let variables = |_| vec![("DIST_PORT_RANGE", "23000".to_owned())];
    let mut job = TestJob::new();
    start_ranks(&mut job, &rank_hosts, &hosts.ipv4(0, 0), variables, |_| {
        "init\nleaks\n".to_owned()
    });
    let ended = job.finish();
    let used_up = "all 1 ports of DIST_PORT_RANGE=23000-23000 are in use at 10.77.0.2";
    let reports =
        names(rank_hosts.len()).iter().map(|name| ended.report(name, "init")).collect::<Vec<_>>();
    let is_first_hand = |report: &&CommandReport| report.status == DIST_ERR_CONNECTION;
    assert_eq!(reports[1..].iter().filter(is_first_hand).count(), 1, "{reports:?}");
    for report in &reports {
        report.assert_failed(report.status, &[used_up, "widen the range"]);
        assert!([DIST_ERR_CONNECTION, DIST_ERR_PEER_FAILED].contains(&report.status), "{report:?}");
    }
    for name in names(rank_hosts.len()) {
        ended.report(&name, "leaks").assert_succeeded();
    }
}

/// Asserts that the ranks of two hosts reach each other over all interfaces, even if one interface
/// of each host is down.
fn check_with_networks_down(networks: &[&str], down: [Option<usize>; 2]) {
    let Some(hosts) = Hosts::try_new_or_skip(2, networks) else { return };
    let rank_hosts = block_placement(&hosts, &[1, 2]);
    let up = |network: &usize| !down.contains(&Some(*network));
    let master = hosts.ipv4(0, (0..networks.len()).find(up).unwrap());
    for (host, network) in down.into_iter().enumerate() {
        network
            .iter()
            .for_each(|&it| drop(hosts.ip(host, &format!("link set {} down", networks[it]))));
    }
    let variables = |_| vec![("DIST_SOCKET_IFNAME", "^lo".to_owned())];
    let program = "init\ndescribe\nall_reduce f32 SUM 300000\nbarrier\nfinalize\nleaks\n";
    let mut job = TestJob::new();
    start_ranks(&mut job, &rank_hosts, &master, variables, |_| program.to_owned());
    let ended = job.finish();
    assert_all_succeeded(&ended, rank_hosts.len(), program);
    for (host, network) in down.iter().enumerate() {
        let interfaces = networks.len() - usize::from(network.is_some());
        assert_eq!(listen_addresses(&ended, host).len(), 2 * interfaces);
    }
}

#[test]
fn a_host_with_one_network_down_is_reached_by_the_other() {
    check_with_networks_down(&["eth0", "eth1"], [None, Some(0)]);
    check_with_networks_down(&["eth0", "eth1"], [Some(1), None]);
}

#[test]
fn hosts_use_a_network_that_both_have() {
    check_with_networks_down(INTERFACES, [Some(2), Some(0)]);
}
