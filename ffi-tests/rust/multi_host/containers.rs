//! Containers: ranks with one IPC name space and separate networks, and ranks that reach each other
//! only through published ports.

use super::{assert_all_succeeded, block_placement, start_ranks};
use crate::harness::{FinishedJob, TestJob};
use crate::hosts::{Hosts, ONE_NETWORK};
use crate::toolchain::skip;
use serde_json::{Value, json};
use std::process::{Child, Command, Stdio};

const CALLS: &str = "init\ndescribe\nall_reduce i32 SUM 1\nall_reduce f32 SUM 300003\nfinalize\n";

/// An empty text means that the variable is not set, so that all name spaces of this machine have
/// one host identity.
const NO_HOST_ID: (&str, &str) = ("DIST_HOST_ID", "");

fn described(ended: &FinishedJob, rank: usize) -> Value {
    let described = ended.report(&rank.to_string(), "describe").message;
    serde_json::from_str::<Value>(&described).unwrap()["native"].clone()
}

/// Returns the number of lines about memory that ranks cannot share.
fn sharing_warnings(ended: &FinishedJob, rank: usize) -> usize {
    let text = ended.stderr_text(&rank.to_string());
    text.lines().filter(|line| line.contains("cannot share memory use TCP")).count()
}

#[test]
fn containers_without_a_common_network_name_space_use_tcp() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    for (counts, nodes) in [
        (vec![1, 1], json!([[0], [1]])),
        (vec![2, 1], json!([[0, 1], [2]])),
        (vec![2, 2], json!([[0, 1], [2, 3]])),
    ] {
        let rank_hosts = block_placement(&hosts, &counts);
        let mut job = TestJob::new();
        let variables = |_| {
            [NO_HOST_ID, ("DIST_LOG_LEVEL", "WARN")]
                .map(|(name, it)| (name, it.to_owned()))
                .to_vec()
        };
        start_ranks(&mut job, &rank_hosts, &hosts.ipv4(0, 0), variables, |_| CALLS.to_owned());
        let ended = job.finish();
        assert_all_succeeded(&ended, rank_hosts.len(), CALLS);
        for rank in 0..rank_hosts.len() {
            assert_eq!(described(&ended, rank)["nodes"], nodes, "rank {rank}");
            assert_eq!(sharing_warnings(&ended, rank), 1, "rank {rank}");
        }
    }
}

#[test]
fn transport_shm_names_the_ranks_that_cannot_share() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let rank_hosts = block_placement(&hosts, &[1, 1]);
    let mut job = TestJob::new();
    let variables = |_| {
        [NO_HOST_ID, ("DIST_TRANSPORT", "shm")].map(|(name, it)| (name, it.to_owned())).to_vec()
    };
    start_ranks(&mut job, &rank_hosts, &hosts.ipv4(0, 0), variables, |_| "init\n".to_owned());
    let ended = job.finish();
    for rank in 0..2 {
        let report = ended.report(&rank.to_string(), "init");
        let parts = ["transport=shm", "rank 0", "rank 1", "network name space"];
        report.assert_failed(dist::ffi::types::DIST_ERR_UNSUPPORTED, &parts);
    }
}

/// The ports that are published for each rank: the store's, and those of the range.
const RANGE: std::ops::RangeInclusive<u16> = 20000..=20007;

/// A router that forwards TCP connections: for each argument `ADDRESS:PORT=ADDRESS:PORT`, from the
/// first to the second. It prints a line when it listens.
const ROUTER: &str = r#"
import socket, sys, threading

def pump(source, sink):
    try:
        while True:
            data = source.recv(65536)
            if not data:
                break
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, sink):
            end.close()

def serve(listener, target):
    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(target)
        except OSError:
            near.close()
            continue
        for one, other in ((near, far), (far, near)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=pump, args=(one, other), daemon=True).start()

threads = []
for rule in sys.argv[1:]:
    (host, port), target = (it.rsplit(":", 1) for it in rule.split("="))
    listener = socket.create_server((host, int(port)), backlog=64)
    where = (target[0], int(target[1]))
    threads.append(threading.Thread(target=serve, args=(listener, where), daemon=True))
for thread in threads:
    thread.start()
print("ready", flush=True)
for thread in threads:
    thread.join()
"#;

/// Starts the router on a host. It ends with the host's name space.
fn start_router(hosts: &Hosts, host: usize, rules: &[String]) -> Option<Child> {
    let place = hosts.host(host);
    let prefix = place.command_prefix();
    let mut router = Command::new(&prefix[0]);
    router.args(&prefix[1..]).args(["python3", "-c", ROUTER]).args(rules).stdout(Stdio::piped());
    let mut router = router.spawn().ok()?;
    let mut ready = String::new();
    let output = router.stdout.as_mut()?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut ready).ok()?;
    (ready == "ready\n").then_some(router)
}

#[test]
fn ranks_meet_through_published_ports() {
    let Some(hosts) = Hosts::try_new_or_skip(3, &["eth0", "eth1"]) else { return };
    // Rank 0 is in network 0 and rank 1 in network 1; only the router is in both.
    hosts.ip(0, "link set eth1 down");
    hosts.ip(1, "link set eth0 down");
    let local = [hosts.ipv4(0, 0), hosts.ipv4(1, 1)];
    let published = [hosts.ipv4(2, 1), hosts.ipv4(2, 0)];
    let rank_hosts = block_placement(&hosts, &[1, 1]);
    let mut job = TestJob::new();
    let environment = job.environment_with_master(&local[0], 0, 2);
    let store_port = &environment.iter().find(|(name, _)| *name == "MASTER_PORT").unwrap().1;
    let forward = |rank: usize, from: u16, to: u16| {
        format!("{}:{from}={}:{to}", published[rank], local[rank])
    };
    let store_port: u16 = store_port.parse().unwrap();
    let mut rules = vec![forward(0, store_port, store_port)];
    for (index, port) in RANGE.enumerate() {
        rules.push(forward(0, port, port));
        // The published ports of rank 1 have other numbers.
        rules.push(forward(1, 31000 + u16::try_from(index).unwrap(), port));
    }
    let Some(mut router) = start_router(&hosts, 2, &rules) else {
        return skip("the router of this test needs python3");
    };
    let variables = |rank: usize| match rank {
        0 => vec![("DIST_ADVERTISE", format!("{}:20000-20007", published[0]))],
        _ => vec![
            ("MASTER_ADDR", published[0].clone()),
            ("DIST_ADVERTISE", format!("{}:31000-31007", published[1])),
            ("DIST_PORT_RANGE", "20000-20007".to_owned()),
        ],
    };
    start_ranks(&mut job, &rank_hosts, &local[0], variables, |_| CALLS.to_owned());
    let ended = job.finish();
    router.kill().unwrap();
    router.wait().unwrap();
    assert_all_succeeded(&ended, 2, CALLS);
}
