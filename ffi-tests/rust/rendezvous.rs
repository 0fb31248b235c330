//! The rendezvous of ranks and its errors: wrong environments, ports that another program uses, and
//! ranks that are absent, join twice or restart. Every rank is a process.
#![allow(clippy::unwrap_used, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::expect_used, clippy::panic, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::print_stdout, reason = "a test says what it has measured")]

mod harness;
#[path = "rendezvous/replaced_ranks.rs"]
mod replaced_ranks;
mod worker;

use dist::base::deadline::Deadline;
use dist::ffi::types::{
    DIST_ERR_CONNECTION, DIST_ERR_INVALID_ARGUMENT, DIST_ERR_MISMATCH, DIST_ERR_NOT_FOUND,
    DIST_ERR_SYSTEM, DIST_ERR_TIMEOUT,
};
use dist::store::Store as _;
use dist::store::tcp::{ClientOptions, Server, ServerOptions, TcpStore};
use harness::{CommandReport, FinishedJob, TestJob};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::time::Duration;

const LOOPBACK: &str = "127.0.0.1";

/// The remedy in error messages about the environment.
const REMEDY: &str = "start the program with distrun, torchrun, mpirun or srun";

/// A program that uses a group and finalizes.
const USE_AND_LEAVE: &str = "all_reduce f32 SUM 10\nbarrier\nfinalize\nleaks\n";

/// Starts a store outside of the ranks, as a launcher hosts it.
fn launcher_store() -> Arc<Server> {
    Server::start(ServerOptions { bind: LOOPBACK.into(), port: 0, ..ServerOptions::default() })
        .unwrap()
}

/// Returns a client of the store at this port.
fn client(port: u16) -> TcpStore {
    let options = ClientOptions { host: LOOPBACK.into(), port, ..ClientOptions::default() };
    TcpStore::connect(options, &Deadline::after_ms(20_000)).unwrap()
}

/// Returns the environment of a rank whose launcher hosts the store.
fn agent_environment(rank: usize, size: usize, server: &Server) -> Vec<(&'static str, String)> {
    vec![
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", size.to_string()),
        ("MASTER_ADDR", LOOPBACK.to_owned()),
        ("MASTER_PORT", server.port().to_string()),
        ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()),
        ("TORCHELASTIC_RUN_ID", "a-test".to_owned()),
    ]
}

/// Variables and their values.
type EnvironmentVariables<'a> = &'a [(&'a str, &'a str)];

/// Runs a failing call in one process without peers. Asserts that the process has released its
/// resources, and returns the report.
fn run_single_worker(environment: EnvironmentVariables<'_>, command: &str) -> CommandReport {
    let mut job = TestJob::new();
    let mut all: Vec<(&str, String)> = vec![("MASTER_PORT", job.port.to_string())];
    all.extend(environment.iter().map(|(name, value)| (*name, (*value).to_owned())));
    job.start("0", &all, &format!("{command}\nleaks\n"));
    let ended = job.finish();
    ended.report("0", "leaks").assert_succeeded();
    ended.report("0", command)
}

/// Asserts that these ranks have joined, used the group and released their resources.
fn assert_worked(ended: &FinishedJob, names: &[&str], init: &str) {
    for name in names {
        for what in [init, "all_reduce f32 SUM 10", "barrier", "finalize", "leaks"] {
            ended.report(name, what).assert_succeeded();
        }
        assert_eq!(ended.exit_status(name), 0);
    }
}

#[test]
fn a_wrong_environment_is_named_with_its_remedy_at_once() {
    let (rank, size, address) = (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", LOOPBACK));
    let wrong: &[(EnvironmentVariables<'_>, &[&str])] = &[
        (&[size, address], &["WORLD_SIZE is set but RANK is not", REMEDY]),
        (&[rank, address], &["RANK is set but WORLD_SIZE is not", REMEDY]),
        (&[address], &["rank", "environment variable RANK", REMEDY]),
        (&[rank, size], &["environment variable MASTER_ADDR is not set", REMEDY]),
        (&[], &["environment variable MASTER_ADDR is not set", REMEDY]),
        (&[("RANK", "two"), size, address], &["RANK=\"two\""]),
        (&[("RANK", "-1"), size, address], &["RANK=\"-1\""]),
        (&[rank, ("WORLD_SIZE", "2.5"), address], &["WORLD_SIZE=\"2.5\""]),
        (&[("RANK", "2"), size, address], &["rank 2 does not exist in a world of 2"]),
        (&[rank, ("WORLD_SIZE", "0"), address], &["rank 0 does not exist in a world of 0"]),
        (&[rank, size, address, ("MASTER_PORT", "99999")], &["MASTER_PORT=\"99999\""]),
        (
            &[rank, size, address, ("DIST_CONNECT_TIMEOUT_MS", "soon")],
            &["DIST_CONNECT_TIMEOUT_MS=\"soon\""],
        ),
        (&[rank, size, address, ("DIST_LOG_LEVEL", "LOUD")], &["DIST_LOG_LEVEL=\"LOUD\"", "WARN"]),
    ];
    for (environment, parts) in wrong {
        run_single_worker(environment, "init")
            .assert_failed(DIST_ERR_INVALID_ARGUMENT, parts)
            .assert_within_ms(2000);
    }
}

#[test]
fn wrong_options_are_named_at_once() {
    let environment = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", LOOPBACK)];
    let wrong: &[(&str, &[&str])] = &[
        ("init url=etcd://here", &["etcd://here", "tcp://host:port?rank=R&world_size=N"]),
        ("init url=file://here", &["file://here", "file:///path?rank=R&world_size=N"]),
        ("init url=tcp://here", &["tcp://here", "the port is missing"]),
        ("init url=tcp://here:1?rank=x&world_size=2", &["rank=\"x\""]),
        ("init rank=3 size=3", &["rank 3 does not exist in a world of 3"]),
        ("init timeout_ms=-5", &["timeout_ms is -5"]),
        ("init group=a/b", &["\"a/b\" is not a valid group name"]),
    ];
    for (command, parts) in wrong {
        run_single_worker(&environment, command)
            .assert_failed(DIST_ERR_INVALID_ARGUMENT, parts)
            .assert_within_ms(2000);
    }
    // The rank reports this error before it waits for its peers, since the peers might never find
    // it.
    for rank in ["0", "1"] {
        let environment = [("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", LOOPBACK)];
        run_single_worker(&environment, "init backend=fast")
            .assert_failed(DIST_ERR_NOT_FOUND, &["\"fast\"", "native"])
            .assert_within_ms(2000);
    }
}

#[test]
fn absent_ranks_are_named_at_the_deadline() {
    let mut job = TestJob::new();
    for rank in [0, 2] {
        job.start_rank(rank, 4, "init connect_timeout_ms=500\nleaks\n");
    }
    let ended = job.finish();
    for (name, parts) in
        [("0", ["ranks 1, 3", "join"]), ("2", ["rank 0", "has published no offer"])]
    {
        let report = ended.report(name, "init connect_timeout_ms=500");
        // Rank 2 may also find that rank 0 has given up and closed its store.
        if name == "0" || report.status != DIST_ERR_CONNECTION {
            report.assert_failed(DIST_ERR_TIMEOUT, &parts);
        }
        report.assert_within_ms(2500);
        ended.report(name, "leaks").assert_succeeded();
    }
}

#[test]
fn missing_store_is_reported_with_its_address() {
    let mut job = TestJob::new();
    job.start_rank(1, 2, "init connect_timeout_ms=500\nleaks\n");
    let address = format!("{LOOPBACK}:{}", job.port);
    let ended = job.finish();
    ended
        .report("1", "init connect_timeout_ms=500")
        .assert_failed(DIST_ERR_CONNECTION, &[&address, "no process listens on this port"])
        .assert_within_ms(2500);
    ended.report("1", "leaks").assert_succeeded();
}

#[test]
fn port_of_another_service_is_reported() {
    let mut job = TestJob::new();
    let other = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let port = other.local_addr().unwrap().port();
    let mut environment = job.environment(0, 2);
    let set_rank = |environment: &mut Vec<(&str, String)>, rank: &str| {
        environment.retain(|(name, _)| !matches!(*name, "RANK" | "MASTER_PORT"));
        environment.extend([("RANK", rank.to_owned()), ("MASTER_PORT", port.to_string())]);
    };
    let init = "init connect_timeout_ms=1500";
    set_rank(&mut environment, "0");
    job.start("0", &environment, &format!("{init}\nleaks\n"));
    // The listener answers this rank with another protocol.
    set_rank(&mut environment, "1");
    job.start("1", &environment, &format!("{init}\nleaks\n"));
    let (mut stream, _) = other.accept().unwrap();
    stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let report = job.await_report("1", init);
    report.assert_failed(DIST_ERR_CONNECTION, &[&format!("{LOOPBACK}:{port}"), "not a store"]);
    // The listener accepts this connection but sends no response.
    job.start("1-silent", &environment, &format!("{init}\nleaks\n"));
    let ended = job.finish();
    ended
        .report("0", init)
        .assert_failed(DIST_ERR_SYSTEM, &[&port.to_string(), "uses the port"])
        .assert_within_ms(2500);
    let silent = ended.report("1-silent", init);
    silent.assert_failed(DIST_ERR_TIMEOUT, &["did not answer"]).assert_within_ms(3500);
    for name in ["0", "1", "1-silent"] {
        ended.report(name, "leaks").assert_succeeded();
    }
}

#[test]
fn store_may_listen_on_another_address() {
    // An address for documentation, which does not belong to this host, as behind a load balancer
    // or a service name.
    let elsewhere = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "192.0.2.1")];
    run_single_worker(&elsewhere, "init")
        .assert_failed(
            DIST_ERR_SYSTEM,
            &["192.0.2.1", "no such address", "DIST_STORE_BIND_ADDRESS"],
        )
        .assert_within_ms(2000);
    let mut job = TestJob::new();
    for rank in 0..2 {
        let mut environment = job.environment(rank, 2);
        if rank == 0 {
            environment.retain(|(name, _)| *name != "MASTER_ADDR");
            environment.push(("MASTER_ADDR", "192.0.2.1".to_owned()));
            environment.push(("DIST_STORE_BIND_ADDRESS", LOOPBACK.to_owned()));
        }
        job.start(&rank.to_string(), &environment, &format!("init\n{USE_AND_LEAVE}"));
    }
    assert_worked(&job.finish(), &["0", "1"], "init");
}

#[test]
fn different_world_sizes_are_reported_to_both() {
    let mut job = TestJob::new();
    job.start_rank(0, 2, "init\nleaks\n");
    job.start_rank(1, 3, "init\nleaks\n");
    let ended = job.finish();
    for name in ["0", "1"] {
        let parts = ["rank 1 (pid ", "has a world size of 3, but rank 0 has 2"];
        ended.report(name, "init").assert_failed(DIST_ERR_MISMATCH, &parts).assert_within_ms(5000);
        ended.report(name, "leaks").assert_succeeded();
    }
}

#[test]
fn a_rank_with_another_version_is_named() {
    let nonce = "0123456789abcdef0123456789abcdef";
    let newer =
        format!(r#"{{"nonce":"{nonce}","size":2,"version":"9.9.9","who":"pid 7, host there"}}"#);
    let parts: [(&str, &[&str]); 2] = [
        (newer.as_str(), &["rank 1 (pid 7, host there) runs libdist 9.9.9, but rank 0 runs 0."]),
        ("something else", &["rank 1", "not from libdist", "same version"]),
    ];
    for (entry, parts) in parts {
        let server = launcher_store();
        let deadline = Deadline::after_ms(20_000);
        client(server.port()).set(b"dist/world/rank/1", entry.as_bytes(), &deadline).unwrap();
        let mut job = TestJob::new();
        job.start("0", &agent_environment(0, 2, &server), "init\nleaks\n");
        let ended = job.finish();
        ended.report("0", "init").assert_failed(DIST_ERR_MISMATCH, parts).assert_within_ms(5000);
        ended.report("0", "leaks").assert_succeeded();
    }
}

#[test]
fn restarted_job_ignores_keys_of_earlier_attempt() {
    let server = launcher_store();
    let names = ["0", "1", "2"];
    let mut job = TestJob::new();
    for (rank, name) in names.iter().enumerate() {
        job.start(name, &agent_environment(rank, 3, &server), "init\nloop barrier\n");
    }
    // The ranks are killed during their calls, so no rank removes its keys from the store.
    job.await_reports(&names, "ready");
    for name in names {
        job.kill(name);
    }
    drop(job.finish());
    // The next jobs have the same number of ranks, then fewer, then more.
    for size in [3, 2, 3] {
        let mut job = TestJob::new();
        for (rank, name) in names[..size].iter().enumerate() {
            job.start(
                name,
                &agent_environment(rank, size, &server),
                &format!("init\n{USE_AND_LEAVE}"),
            );
        }
        let ended = job.finish();
        assert_worked(&ended, &names[..size], "init");
        for name in &names[..size] {
            ended.report(name, "init").assert_within_ms(5000);
        }
    }
}

#[test]
fn named_jobs_share_a_store() {
    let server = launcher_store();
    let mut job = TestJob::new();
    let mut names = Vec::new();
    for rank in 0..2 {
        for group in ["left", "right"] {
            let name = format!("{group}-{rank}");
            let program = format!("init group={group}\ngate both\n{USE_AND_LEAVE}");
            job.start(&name, &agent_environment(rank, 2, &server), &program);
            names.push(name);
        }
    }
    job.await_reports(&names, "at both");
    job.open_gate("both");
    let ended = job.finish();
    for name in &names {
        let group = name.split('-').next().unwrap();
        assert_worked(&ended, &[name], &format!("init group={group}"));
    }
}

#[test]
fn groups_of_one_process_are_independent() {
    let server = launcher_store();
    let mut job = TestJob::new();
    for rank in 0..2 {
        let program = format!(
            "store here\ngroup a rank={rank} size=2\ngroup b rank={rank} size=2\n\
             all_reduce f32 SUM 10 on=b\nall_reduce f32 SUM 100000 on=a\nrelease a\n\
             barrier on=b\nrelease b\nunstore\nleaks\n"
        );
        job.start(&rank.to_string(), &agent_environment(rank, 2, &server), &program);
    }
    let ended = job.finish();
    for name in ["0", "1"] {
        ended.assert_all_succeeded(name, 11);
    }
}

#[test]
fn url_or_store_needs_no_environment() {
    let mut job = TestJob::new();
    let url = |rank| format!("url=tcp://{LOOPBACK}:{}?rank={rank}&world_size=3", job.port);
    let inits: Vec<String> = (0..3).map(|rank| format!("init {}", url(rank))).collect();
    for (rank, init) in inits.iter().enumerate() {
        job.start(&rank.to_string(), &[], &format!("{init}\n{USE_AND_LEAVE}"));
    }
    let ended = job.finish();
    for (rank, init) in inits.iter().enumerate() {
        assert_worked(&ended, &[&rank.to_string()], init);
    }

    let server = launcher_store();
    let mut job = TestJob::new();
    for rank in 0..3 {
        let environment = [("MASTER_PORT", server.port().to_string())];
        let init = format!("init store=yes rank={rank} size=3");
        job.start(&rank.to_string(), &environment, &format!("{init}\n{USE_AND_LEAVE}"));
    }
    let ended = job.finish();
    for rank in 0..3 {
        let init = format!("init store=yes rank={rank} size=3");
        assert_worked(&ended, &[&rank.to_string()], &init);
    }
}

#[test]
fn rank_0_is_a_client_of_the_launcher_store() {
    let server = launcher_store();
    let mut job = TestJob::new();
    for rank in 0..2 {
        // A process may also join again after it has finalized.
        let program = format!("init\n{USE_AND_LEAVE}init\n{USE_AND_LEAVE}");
        job.start(&rank.to_string(), &agent_environment(rank, 2, &server), &program);
    }
    let ended = job.finish();
    for name in ["0", "1"] {
        ended.assert_all_succeeded(name, 11);
    }
}

/// Sends garbage data to all sockets on which ranks of the job listen. Returns the number of
/// connections that accepted it.
fn send_garbage(job: &TestJob) -> usize {
    let mut answered_connections = 0;
    for name in job.abstract_sockets() {
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let Ok(mut stream) = UnixStream::connect_addr(&address) else { continue };
        stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        answered_connections += usize::from(stream.write_all(&[0x5a; 300]).is_ok());
    }
    answered_connections
}

#[test]
fn init_of_8_ranks_survives_garbage_connections() {
    const RANKS: usize = 8;
    let mut answered_connections = 0;
    // The sockets exist only for a few milliseconds, so the test repeats the job up to 10 times;
    // the first job usually suffices.
    for _ in 0..10 {
        let mut job = TestJob::without_launcher(RANKS, |_| {
            format!("init\nall_reduce f32 SUM 100000\nbroadcast f32 70000 5\n{USE_AND_LEAVE}")
        });
        let mut strangers: Vec<TcpStream> = Vec::new();
        job.wait_until("all ranks to come", |job| {
            answered_connections += send_garbage(job);
            if let Ok(mut stream) = TcpStream::connect((LOOPBACK, job.port)) {
                // The store may drop the connection before all of the data arrives.
                drop(stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"));
                strangers.push(stream);
            }
            (0..RANKS).all(|rank| job.reports_so_far(&rank.to_string()).len() > 1)
        });
        for mut stream in strangers {
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut answer = Vec::new();
            // The read ends when the store closes the connection.
            drop(stream.read_to_end(&mut answer));
            assert!(answer.is_empty());
        }
        let ended = job.finish();
        for rank in 0..RANKS {
            ended.report(&rank.to_string(), "all_reduce f32 SUM 100000").assert_succeeded();
            ended.report(&rank.to_string(), "broadcast f32 70000 5").assert_succeeded();
            assert_worked(&ended, &[&rank.to_string()], "init");
        }
        if answered_connections > 0 {
            break;
        }
    }
    println!("{answered_connections} connections were made to the sockets of ranks");
    assert!(answered_connections > 0);
}
