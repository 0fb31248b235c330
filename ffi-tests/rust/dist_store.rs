//! Tests the built dist-store program against stores that dist-store or the test serves.
#![allow(clippy::unwrap_used, reason = "in a test a broken assumption is a failure")]

#[path = "program/mod.rs"]
mod program;
mod program_paths;

use dist::base::deadline::Deadline;
use dist::store::tcp::ClientOptions;
use dist::store::{Store as _, TcpStore};
use program::{
    FinishedProgram, PROGRAM_TIMEOUT, RunningProgram, TestFolder, free_port, wait_until,
};
use program_paths::DIST_STORE;
use std::fs::{self, File};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Returns a dist-store command without the variables of a launcher or a user.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new(DIST_STORE);
    for name in
        ["MASTER_ADDR", "MASTER_PORT", "DIST_LOG_LEVEL", "DIST_STORE_UNIX", "TORCH_CPP_LOG_LEVEL"]
    {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> FinishedProgram {
    RunningProgram::start(command(args), |_| {}).wait()
}

/// A running `dist-store serve` that listens on a port.
struct StoreServer {
    program: RunningProgram,
    port: String,
}

impl StoreServer {
    fn start() -> Self {
        Self::start_with(&["--port", "0"])
    }

    fn start_with(args: &[&str]) -> Self {
        let program = RunningProgram::start(command(&[&["serve"], args].concat()), |_| {});
        let line = program.first_lines(1).remove(0);
        let address = line.strip_prefix("listening on ").unwrap().to_owned();
        let port = address.rsplit_once(':').unwrap().1.to_owned();
        Self { program, port }
    }

    /// Starts a command on this store.
    fn start_client(&self, args: &[&str]) -> RunningProgram {
        let command = command(&[args, &["--port", &self.port]].concat());
        RunningProgram::start(command, |_| {})
    }

    /// Runs a command on this store to its end.
    fn run_client(&self, args: &[&str]) -> FinishedProgram {
        self.start_client(args).wait()
    }

    /// Runs a command on this store, asserts its success and returns its output.
    fn client_stdout(&self, args: &[&str]) -> String {
        let ended = self.run_client(args);
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{args:?}: {}", ended.stdout);
        ended.stdout
    }

    fn store(&self) -> TcpStore {
        let port = self.port.parse().unwrap();
        let options = ClientOptions { host: "127.0.0.1".into(), port, ..ClientOptions::default() };
        TcpStore::connect(options, &deadline()).unwrap()
    }
}

fn deadline() -> Deadline {
    Deadline::after(PROGRAM_TIMEOUT)
}

#[test]
fn values_are_set_and_read_unchanged() {
    let served = StoreServer::start();
    assert_eq!(served.client_stdout(&["set", "k", "one two"]), "");
    assert_eq!(served.client_stdout(&["get", "k"]), "one two");
    let folder = TestFolder::new();
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    fs::write(folder.path("in"), &bytes).unwrap();
    let set = RunningProgram::start(
        command(&["set", "binary", "-", "--port", &served.port]),
        |command| {
            command.stdin(File::open(folder.path("in")).unwrap());
        },
    );
    assert_eq!(set.wait().status, 0);
    let mut get = served.start_client(&["get", "binary"]);
    assert!(get.child.wait().unwrap().success());
    assert!(get.folder.bytes("out") == bytes);
    served.client_stdout(&["set", "lines", "a\nb\\"]);
    assert_eq!(served.client_stdout(&["get", "k", "lines"]), "one two\na\\nb\\\\\n");
    assert_eq!(served.client_stdout(&["get", "k", "lines", "--raw"]), "one twoa\nb\\");
    assert_eq!(served.client_stdout(&["set", "dash", "-5"]), "");
    assert_eq!(served.client_stdout(&["get", "dash", "--no-wait"]), "-5");
}

#[test]
fn counters_refuse_values_that_are_not_numbers() {
    let served = StoreServer::start();
    assert_eq!(served.client_stdout(&["add", "n"]), "1\n");
    assert_eq!(served.client_stdout(&["add", "n", "41"]), "42\n");
    assert_eq!(served.client_stdout(&["add", "n", "-2"]), "40\n");
    served.client_stdout(&["set", "text", "abc"]);
    let ended = served.run_client(&["add", "text"]);
    assert_eq!((ended.status, ended.stdout.as_str()), (1, ""));
    assert!(ended.stderr.starts_with("dist-store: ") && ended.stderr.contains("not a number"));
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
}

#[test]
fn missing_key_is_an_error_or_waited_for() {
    let served = StoreServer::start();
    served.client_stdout(&["set", "there", "1"]);
    let ended = served.run_client(&["get", "there", "gone", "also gone", "--no-wait"]);
    assert_eq!((ended.status, ended.stdout.as_str()), (1, ""));
    assert_eq!(ended.stderr, "dist-store: missing: \"gone\", \"also gone\"\n");
    for what in ["get", "wait"] {
        let ended = served.run_client(&[what, "there", "gone", "--timeout", "1"]);
        assert_eq!((ended.status, ended.stdout.as_str()), (4, ""), "{}", ended.stderr);
        assert!(ended.stderr.starts_with("dist-store: timed out after "), "{}", ended.stderr);
        assert!(ended.stderr.ends_with("; missing: \"gone\"\n"), "{}", ended.stderr);
    }
    let (get, wait) =
        (served.start_client(&["get", "later"]), served.start_client(&["wait", "later", "there"]));
    served.client_stdout(&["set", "later", "now"]);
    let (get, wait) = (get.wait(), wait.wait());
    assert_eq!((get.status, get.stdout.as_str()), (0, "now"));
    assert_eq!((wait.status, wait.stdout.as_str(), wait.stderr.as_str()), (0, "", ""));
}

#[test]
fn long_wait_names_missing_keys() {
    let served = StoreServer::start();
    let wait = served.start_client(&["wait", "a", "b", "--timeout", "60"]);
    served.client_stdout(&["set", "a", ""]);
    wait.wait_for_stderr(" s; missing: \"b\"\n");
    served.client_stdout(&["set", "b", ""]);
    let ended = wait.wait();
    assert_eq!(ended.status, 0);
    assert!(ended.stderr.starts_with("dist-store: waiting for "), "{}", ended.stderr);
}

#[test]
fn keys_are_listed_in_order_with_sizes() {
    let served = StoreServer::start();
    let store = served.store();
    for (key, value) in [(&b"b/2"[..], &b"xy"[..]), (b"a", b""), (b"b/1\n", b"z\0"), (b"c", b"3")] {
        store.set(key, value, &deadline()).unwrap();
    }
    let listed = |args: &[&str]| served.client_stdout(&[&["list"], args].concat());
    assert_eq!(listed(&[]), "         0  a\n         2  b/1\\n\n         2  b/2\n         1  c\n");
    assert_eq!(listed(&["b/"]), "         2  b/1\\n\n         2  b/2\n");
    assert_eq!(listed(&["b/", "--values"]), "         2  b/1\\n = z\\0\n         2  b/2 = xy\n");
    assert_eq!(listed(&["none"]), "");
    let line = "{\"bytes\":2,\"key\":\"b/2\"}\n";
    assert_eq!(listed(&["b/2", "--json"]), line);
    let values = "{\"bytes\":0,\"key\":\"a\",\"value\":\"\"}\n";
    assert_eq!(listed(&["a", "--json", "--values"]), values);
    assert_eq!(
        listed(&["--prefix", "b", "--values"]),
        "         2  1\\n = z\\0\n         2  2 = xy\n"
    );
    assert_eq!(served.client_stdout(&["get", "2", "--prefix", "b"]), "xy");
}

#[test]
fn many_and_large_values_are_listed_in_batches() {
    let served = StoreServer::start();
    let store = served.store();
    let small: Vec<Vec<u8>> = (0..1500).map(|i| format!("small/{i:04}").into_bytes()).collect();
    let pairs: Vec<(&[u8], &[u8])> = small.iter().map(|key| (key.as_slice(), &b"1"[..])).collect();
    store.multi_set(&pairs, &deadline()).unwrap();
    // The values together exceed the size of one response, so that the client must fetch them one
    // by one.
    let part = vec![b'x'; 8 << 20];
    for key in [b"z/large/0", b"z/large/1", b"z/large/2"] {
        (0..11).for_each(|_| store.append(key, &part, &deadline()).unwrap());
    }
    let ended = served.run_client(&["list", "--timeout", "60"]);
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!((lines.len(), lines[1499]), (1503, "         1  small/1499"));
    assert_eq!(lines[1502], "  92274688  z/large/2");
}

#[test]
fn watch_prints_new_changed_and_deleted_keys() {
    let served = StoreServer::start();
    let store = served.store();
    store.set(b"w/old", b"1", &deadline()).unwrap();
    let watch = served.start_client(&["watch", "w/", "--interval", "5"]);
    let first = watch.first_lines(1).remove(0);
    assert!(
        first.ends_with(&format!("Z 1 key in the store at 127.0.0.1:{}", served.port)),
        "{first}"
    );
    store.set(b"other", b"unseen", &deadline()).unwrap();
    store.set(b"w/new", b"a\n", &deadline()).unwrap();
    assert!(
        watch.first_lines(2)[1].ends_with("Z + w/new = \"a\\n\""),
        "{:?}",
        watch.first_lines(2)
    );
    store.set(b"w/new", &[b'b'; 100], &deadline()).unwrap();
    let line = watch.first_lines(3).remove(2);
    assert!(
        line.contains("Z ~ w/new \"a\\n\" -> \"bbb") && line.ends_with("...\" (100 bytes)"),
        "{line}"
    );
    assert!(store.delete_key(b"w/old", &deadline()).unwrap());
    assert!(watch.first_lines(4)[3].ends_with("Z - w/old was \"1\""), "{:?}", watch.first_lines(4));
    watch.signal("INT");
    assert_eq!(watch.wait().status, -1);
}

#[test]
fn watch_ends_after_timeout_or_with_the_store() {
    let served = StoreServer::start();
    let began = Instant::now();
    let out = served.client_stdout(&["watch", "--for", "0.3"]);
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert_eq!(out.lines().count(), 1);
    let watch = served.start_client(&["watch", "--interval", "5"]);
    drop(watch.first_lines(1));
    drop(served);
    let ended = watch.wait();
    assert_eq!(ended.status, 3, "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
}

#[test]
fn statistics_list_keys_and_joined_ranks() {
    let served = StoreServer::start();
    let store = served.store();
    store.set(b"large", &[0; 5000], &deadline()).unwrap();
    let entry = |rank: usize, size: usize| {
        let text = format!(
            "{{\"nonce\":\"{rank:032x}\",\"size\":{size},\"version\":\"{}\",\"who\":\"pid {rank}, host h\"}}",
            env!("CARGO_PKG_VERSION")
        );
        store
            .set(format!("dist/world/rank/{rank}").as_bytes(), text.as_bytes(), &deadline())
            .unwrap();
    };
    [(0, 4), (1, 4), (3, 5)].into_iter().for_each(|(rank, size)| entry(rank, size));
    let text = served.client_stdout(&["stats"]);
    for part in [
        &format!("the store at 127.0.0.1:{}\nconnected in ", served.port),
        "\nround trip ",
        " (median of 100)\n4 keys with 5",
        "\n  5000  \"large\"\n",
        "\nworld of 4: ranks 0, 1, 3 have arrived; 2 is missing\n",
        "\n  rank 3 has a world size of 5\n  rank 0: pid 0, host h\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("joined"), "{text}");
    let value: serde_json::Value =
        serde_json::from_str(&served.client_stdout(&["stats", "--json"])).unwrap();
    assert_eq!((&value["keys"], &value["workers"]), (&4.into(), &0.into()), "{value}");
    assert_eq!(value["largest"][0], serde_json::json!({"key": "large", "bytes": 5000}));
    let group = &value["groups"][0];
    assert_eq!((&group["name"], &group["size"]), (&"world".into(), &4.into()), "{value}");
    assert_eq!(group["missing"], serde_json::json!([2]));
    assert_eq!(group["arrived"][2], serde_json::json!({"rank": 3, "process": "pid 3, host h"}));
}

#[test]
fn statistics_count_the_workers_that_have_joined() {
    let served = StoreServer::start();
    let port = served.port.parse().unwrap();
    let worker = || {
        let world_size = Some(4);
        let options =
            ClientOptions { host: "127.0.0.1".into(), port, world_size, ..Default::default() };
        TcpStore::connect(options, &deadline()).unwrap()
    };
    let _workers = [worker(), worker(), worker()];
    let text = served.client_stdout(&["stats"]);
    assert!(
        text.contains("\nclients that have joined as workers: 3\n0 keys with 0 bytes of values\n"),
        "{text}"
    );
}

#[test]
fn statistics_name_missing_ranks() {
    let served = StoreServer::start();
    let store: std::sync::Arc<dyn dist::store::Store> = std::sync::Arc::new(served.store());
    let join = |rank: usize, deadline: &Deadline| {
        let store = std::sync::Arc::clone(&store);
        let group = dist::api::GroupOptions {
            store,
            rank,
            size: 3,
            backend: None,
            backend_options: String::new(),
            device: None,
            name: "trainers".to_owned(),
            timeout_ms: 0,
            connect_timeout_ms: u64::try_from(deadline.timeout().as_millis()).unwrap(),
            global_ranks: None,
            job_secret: None,
        };
        dist::api::Group::create(group)
    };
    join(2, &Deadline::after_ms(50)).unwrap_err();
    let text = served.client_stdout(&["stats"]);
    assert!(text.contains("\ntrainers of 3: rank 2 has arrived; 0, 1 are missing\n"), "{text}");
    assert!(text.contains(&format!("\n  rank 2: pid {}, host ", std::process::id())), "{text}");
}

#[test]
fn bench_names_every_call_and_leaves_no_keys() {
    let served = StoreServer::start();
    let text = served.client_stdout(&["bench", "--seconds", "0.05", "--bytes", "1K"]);
    assert!(text.contains("values of 1024 bytes, 50.00 ms for each kind of call"), "{text}");
    let calls: Vec<&str> =
        text.lines().skip(2).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(calls, ["set", "get", "add", "check", "wait"]);
    let rates = text.lines().skip(2).map(|line| line.split_whitespace().nth(1).unwrap());
    rates.for_each(|rate| assert!(rate.parse::<f64>().unwrap() > 0.0, "{text}"));
    let bench = served.start_client(&["bench", "--seconds", "60"]);
    wait_until("the key", || !served.store().list_keys(&deadline()).unwrap().is_empty());
    bench.signal("TERM");
    let ended = bench.wait();
    assert_eq!((ended.status, ended.stderr.as_str()), (143, "dist-store: SIGTERM received\n"));
    assert!(served.store().list_keys(&deadline()).unwrap().is_empty());
}

#[test]
fn server_shuts_down_cleanly_on_signal() {
    for name in ["INT", "TERM"] {
        let served = StoreServer::start();
        let store = served.store();
        served.program.signal(name);
        let ended = served.program.wait();
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
        assert!(store.check(&[b"k"], &Deadline::after_ms(10_000)).is_err());
    }
}

#[test]
fn server_uses_given_address_and_logs_to_stderr() {
    let served = StoreServer::start_with(&["--port", "0", "--bind", "all", "--max-bytes", "4K"]);
    assert!(["[::]:", "0.0.0.0:"].iter().any(|all| served.program.first_lines(1)[0].contains(all)));
    served.client_stdout(&["set", "k", "v"]);
    let ended = served.run_client(&["set", "large", &"x".repeat(5000)]);
    assert_eq!(ended.status, 3, "{}", ended.stderr);
    served.program.wait_for_stderr("libdist WARN: store server: dropped ");
    served.program.wait_for_stderr("the store has reached its limit of 4096 bytes");
    let ended = run(&["serve", "--port", &served.port, "--bind", "all"]);
    assert_eq!((ended.status, ended.stdout.as_str()), (1, ""));
    assert!(ended.stderr.contains(&format!(":{}: ", served.port)), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
}

#[test]
fn server_refuses_low_descriptor_limit() {
    let script = format!("ulimit -n 64; exec {DIST_STORE} serve --port 0 --connections \"$0\"");
    let start = |connections: &str| {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &script, connections]);
        RunningProgram::start(shell, |_| {})
    };
    let ended = start("100").wait();
    assert_eq!((ended.status, ended.stdout.as_str()), (1, ""));
    let text = "dist-store: 100 connections need 132 open files, but the limit is 64";
    assert!(ended.stderr.starts_with(text), "{}", ended.stderr);
    drop(start("32").first_lines(1));
}

#[test]
fn missing_store_is_reported_with_its_address() {
    let port = free_port();
    for args in [
        &["get", "k"][..],
        &["set", "k", "v"],
        &["add", "k"],
        &["wait", "k"],
        &["list"],
        &["watch"],
        &["stats"],
        &["bench"],
    ] {
        let ended = run(&[args, &["--port", &port, "--timeout", "0.05"]].concat());
        assert_eq!((ended.status, ended.stdout.as_str()), (3, ""), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.starts_with("dist-store: "), "{}", ended.stderr);
        assert!(ended.stderr.contains(&format!("127.0.0.1:{port}")), "{}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
    // The port accepts connections but sends no response.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = deaf.local_addr().unwrap().port().to_string();
    let ended = run(&["list", "--port", &port, "--timeout", "0.1"]);
    assert_eq!(ended.status, 3, "{}", ended.stderr);
}

#[test]
fn hanging_store_is_a_timeout() {
    let served = StoreServer::start();
    // The server is stopped after the client has connected, so that it does not answer the next
    // query.
    let watch = served.start_client(&["watch", "--interval", "1", "--timeout", "1"]);
    drop(watch.first_lines(1));
    served.program.signal("STOP");
    let ended = watch.wait();
    assert_eq!(ended.status, 4, "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    served.program.signal("CONT");
}

#[test]
fn store_address_is_taken_from_the_environment() {
    let served = StoreServer::start();
    served.client_stdout(&["set", "k", "v"]);
    let get = RunningProgram::start(command(&["get", "k"]), |command| {
        command.env("MASTER_ADDR", "localhost").env("MASTER_PORT", &served.port);
    });
    assert_eq!(get.wait().stdout, "v");
    let wrong = RunningProgram::start(command(&["get", "k"]), |command| {
        command.env("MASTER_PORT", "many");
    });
    let ended = wrong.wait();
    assert_eq!(ended.status, 2);
    assert!(ended.stderr.contains("MASTER_PORT=\"many\""), "{}", ended.stderr);
}

#[test]
fn closed_output_pipe_is_no_error() {
    let served = StoreServer::start();
    let store = served.store();
    for i in 0..10 {
        store.set(format!("k{i}").as_bytes(), b"", &deadline()).unwrap();
    }
    let mut list = RunningProgram::start(command(&["list", "--port", &served.port]), |command| {
        command.stdout(Stdio::piped());
    });
    drop(list.child.stdout.take());
    let ended = list.wait();
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
}

#[test]
fn wrong_usage_has_exit_status_2() {
    for args in [&["get"][..], &["fetch"], &["get", "k", "--timeout", "0"], &[]] {
        let ended = run(args);
        assert_eq!((ended.status, ended.stdout.as_str()), (2, ""), "{args:?}");
        assert!(!ended.stderr.is_empty());
    }
    let served = StoreServer::start();
    let key = "k".repeat(9000);
    let ended = served.run_client(&["get", &key]);
    assert_eq!(ended.status, 2, "{}", ended.stderr);
}

#[test]
fn the_help_explains_statuses_and_examples() {
    let ended = run(&["--help"]);
    assert_eq!(ended.status, 0);
    for text in ["Exit statuses:", "Examples:", "DIST_LOG_LEVEL", "MASTER_ADDR"] {
        assert!(ended.stdout.contains(text), "{text}");
    }
    let commands = ["serve", "get", "set", "add", "wait", "list", "watch", "stats", "bench"];
    for command in commands {
        assert!(ended.stdout.contains(&format!("\n  {command} ")), "{command}");
        let help = run(&[command, "--help"]);
        assert_eq!(help.status, 0);
        let place =
            help.stdout.contains("--timeout <SECONDS>") && help.stdout.contains("--prefix <P>");
        assert_eq!(place, command != "serve", "{command}");
    }
}
