//! A man in the middle between two hosts. All connections of the job, to the store and between the
//! ranks, go through a host of the attacker: the ranks reach each other only through its ports. It
//! records all bytes, inverts a bit, or cuts a connection. With `DIST_SECURITY=encrypt` it can only
//! delay, cut and count; each test shows with `auth` that its attack is real.

use super::{assert_all_succeeded, block_placement, start_ranks};
use crate::harness::{FinishedJob, TestJob};
use crate::hosts::{Hosts, ONE_NETWORK};
use crate::toolchain::skip;
use dist::ffi::types::{DIST_ERR_AUTH, DIST_OK};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Forwards connections. The arguments are an attack, a folder for the records of all bytes, and
/// rules NEAR=FAR. The attack `flip DIRECTION POSITION` inverts a bit of this byte of each
/// connection between ranks, and `cut DIRECTION POSITION` ends such a connection there. The
/// direction is that from the connecting side, `out`, or to it, `back`.
const ATTACKER: &str = r#"
import itertools, socket, sys, threading

attack, folder, rules = sys.argv[1].split(), sys.argv[2], sys.argv[3:]
numbers = itertools.count()

def pump(source, sink, direction, name, is_attacked):
    done = 0
    with open(f"{folder}/{name}", "wb", buffering=0) as record:
        try:
            while True:
                data = bytearray(source.recv(65536))
                if not data:
                    break
                record.write(data)
                if is_attacked and len(attack) == 3 and attack[1] == direction:
                    at = int(attack[2]) - done
                    if 0 <= at < len(data):
                        if attack[0] == "flip":
                            data[at] ^= 1
                        else:
                            sink.sendall(data[:at])
                            break
                done += len(data)
                sink.sendall(data)
            for end in (source, sink):
                end.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, sink):
                end.close()

def serve(listener, target, kind):
    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(target)
        except OSError:
            near.close()
            continue
        number = next(numbers)
        for one, other, way in ((near, far, "out"), (far, near, "back")):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            name = f"{kind}-{number}-{way}"
            arguments = (one, other, way, name, kind == "ranks")
            threading.Thread(target=pump, args=arguments, daemon=True).start()

threads = []
for index, rule in enumerate(rules):
    (host, port), target = (it.rsplit(":", 1) for it in rule.split("="))
    listener = socket.create_server((host, int(port)), backlog=64)
    where = (target[0], int(target[1]))
    kind = "store" if index == 0 else "ranks"
    threads.append(threading.Thread(target=serve, args=(listener, where, kind), daemon=True))
for thread in threads:
    thread.start()
print("ready", flush=True)
for thread in threads:
    thread.join()
"#;

/// The status by which a worker reports a wrong result.
const WRONG_RESULT: i32 = -999;

/// The ports of the ranks, and of the attacker in their place.
const RANK_PORTS: [u16; 2] = [21000, 22000];
const PUBLISHED_PORTS: [u16; 2] = [31000, 32000];

/// The number of bytes of the handshake in each direction of a connection between ranks. Data
/// follow it in the direction `out` only.
const OUT_HANDSHAKE_BYTES: usize = 96 + 17;
const BACK_HANDSHAKE_BYTES: usize = 49 + 17;

const PROGRAM: &str = "init connect_timeout_ms=20000\nall_reduce f32 SUM 1000 timeout_ms=20000\n\
                       all_reduce f32 SUM 300000 timeout_ms=20000\nfinalize\nleaks\n";

/// Starts the attacker on host 2. It ends with the host's name space.
fn start_attacker(hosts: &Hosts, attack: &str, folder: &Path, rules: &[String]) -> Option<Child> {
    let place = hosts.host(2);
    let prefix = place.command_prefix();
    let mut attacker = Command::new(&prefix[0]);
    attacker.args(&prefix[1..]).args(["python3", "-c", ATTACKER, attack]).arg(folder).args(rules);
    let mut attacker = attacker.stdout(Stdio::piped()).spawn().ok()?;
    let mut ready = String::new();
    BufReader::new(attacker.stdout.as_mut()?).read_line(&mut ready).ok()?;
    (ready == "ready\n").then_some(attacker)
}

/// The recorded bytes of a job: the name of each direction of each connection, and its bytes.
type Recording = Vec<(String, Vec<u8>)>;

/// Runs a job of two ranks with this setting under an attack. Returns the finished job and the
/// recorded bytes, or `None` if the attacker cannot run.
fn run(hosts: &Hosts, setting: &str, attack: &str) -> Option<(FinishedJob, Recording)> {
    let mut job = TestJob::new();
    let records = job.file("records");
    fs::create_dir(&records).unwrap();
    let secret = job.file("secret");
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(&secret);
    file.unwrap().write_all(b"correct horse battery staple").unwrap();
    let rank_hosts = block_placement(hosts, &[1, 1]);
    let [first, second, middle] = [0, 1, 2].map(|host| hosts.ipv4(host, 0));
    let environment = job.environment_with_master(&first, 0, 2);
    let store = &environment.iter().find(|(name, _)| *name == "MASTER_PORT").unwrap().1;
    let rules = [
        format!("{middle}:{store}={first}:{store}"),
        format!("{middle}:{}={first}:{}", PUBLISHED_PORTS[0], RANK_PORTS[0]),
        format!("{middle}:{}={second}:{}", PUBLISHED_PORTS[1], RANK_PORTS[1]),
    ];
    let Some(mut attacker) = start_attacker(hosts, attack, &records, &rules) else {
        skip("the attacker of this test needs python3");
        return None;
    };
    let variables = |rank: usize| {
        let mut variables = vec![
            ("DIST_STORE_SECRET_FILE", secret.to_str().unwrap().to_owned()),
            ("DIST_SECURITY", setting.to_owned()),
            ("DIST_ADVERTISE", format!("{middle}:{}", PUBLISHED_PORTS[rank])),
            ("DIST_PORT_RANGE", RANK_PORTS[rank].to_string()),
        ];
        if rank == 1 {
            variables.push(("MASTER_ADDR", middle.clone()));
        }
        variables
    };
    start_ranks(&mut job, &rank_hosts, &first, variables, |_| PROGRAM.to_owned());
    let ended = job.finish();
    attacker.kill().unwrap();
    attacker.wait().unwrap();
    let recorded = fs::read_dir(&records).unwrap().map(|entry| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
    });
    let recording = recorded.collect();
    Some((ended, recording))
}

/// The bytes of a rank's input: the elements (rank + 1) * 1, 2, .. 7, repeated. For both ranks
/// together, of their sum.
fn pattern(factor: u8) -> Vec<u8> {
    (1..=7_u8).flat_map(|step| f32::from(factor * step).to_le_bytes()).collect()
}

fn occurs(recording: &Recording, kind: &str, text: &[u8]) -> bool {
    let of_kind = recording.iter().filter(|(name, _)| name.starts_with(kind));
    of_kind.into_iter().any(|(_, bytes)| bytes.windows(text.len()).any(|window| window == text))
}

#[test]
fn attacker_that_records_all_bytes_sees_no_data() {
    let Some(hosts) = Hosts::try_new_or_skip(3, ONE_NETWORK) else { return };
    for (setting, is_visible) in [("auth", true), ("encrypt", false)] {
        let Some((ended, recording)) = run(&hosts, setting, "record") else { return };
        assert_all_succeeded(&ended, 2, PROGRAM);
        let bytes: usize = recording.iter().map(|(_, bytes)| bytes.len()).sum();
        println!("{setting}: {bytes} bytes on {} directions", recording.len());
        assert!(bytes > 300_000 * 4, "the connections did not go through the attacker");
        let numbers = [1, 2, 3].map(pattern);
        let sees_numbers = numbers.iter().any(|numbers| occurs(&recording, "ranks", numbers));
        assert_eq!(sees_numbers, is_visible, "{setting}: elements of a tensor");
        // Keys and values of the store: each rank stores its setting, its version and its host.
        for text in [setting.as_bytes(), env!("CARGO_PKG_VERSION").as_bytes(), b"host-1"] {
            assert_eq!(occurs(&recording, "store", text), is_visible, "{setting}: {text:?}");
        }
    }
}

/// Asserts that no command of a job has a wrong result, and that at least one has failed. Returns
/// the statuses of the failures.
fn failures_without_wrong_results(ended: &FinishedJob, attack: &str) -> Vec<i32> {
    let (mut failures, mut statuses) = (Vec::new(), Vec::new());
    for rank in ["0", "1"] {
        for report in ended.reports(rank) {
            assert_ne!(report.status, WRONG_RESULT, "{attack}, rank {rank}: {report:?}");
            report.assert_within_ms(25_000);
            if report.status != DIST_OK {
                failures.push(format!("{rank}: {} {}", report.command, report.message));
                statuses.push(report.status);
            }
        }
        ended.report(rank, "leaks").assert_succeeded();
    }
    println!("{attack}: {failures:?}");
    assert!(!failures.is_empty(), "{attack}: the job did not notice");
    statuses
}

#[test]
fn inverted_bit_never_gives_a_wrong_result() {
    let Some(hosts) = Hosts::try_new_or_skip(3, ONE_NETWORK) else { return };
    // The end of the handshake, positions in the first record, and within the data of the second
    // all_reduce.
    let mut attacks = vec![format!("flip back {}", BACK_HANDSHAKE_BYTES - 1)];
    attacks.extend([0, 3, 9].map(|at| format!("flip out {}", OUT_HANDSHAKE_BYTES + at)));
    attacks.extend([5_000, 200_000].map(|at| format!("flip out {at}")));
    for attack in &attacks {
        let Some((ended, _)) = run(&hosts, "encrypt", attack) else { return };
        let statuses = failures_without_wrong_results(&ended, attack);
        assert!(statuses.contains(&DIST_ERR_AUTH), "{attack}: {statuses:?}");
    }
    // Without encryption, the last attack changes a result.
    let Some((ended, _)) = run(&hosts, "auth", &attacks[attacks.len() - 1]) else { return };
    let reports = [ended.reports("0"), ended.reports("1")].concat();
    assert!(reports.iter().any(|report| report.status == WRONG_RESULT), "{reports:?}");
}

#[test]
fn cut_connection_is_an_error_in_time() {
    let Some(hosts) = Hosts::try_new_or_skip(3, ONE_NETWORK) else { return };
    let mut attacks = vec![format!("cut back {}", BACK_HANDSHAKE_BYTES - 1)];
    attacks.extend([0, 3].map(|at| format!("cut out {}", OUT_HANDSHAKE_BYTES + at)));
    attacks.extend([5_000, 200_000].map(|at| format!("cut out {at}")));
    for attack in &attacks {
        let Some((ended, _)) = run(&hosts, "encrypt", attack) else { return };
        let statuses = failures_without_wrong_results(&ended, attack);
        assert!(!statuses.contains(&DIST_ERR_AUTH), "{attack}: {statuses:?}");
    }
}
