//! Tests of the behaviour that every store must have. Each test runs with each implementation, and
//! uses only the trait [`Store`]. A deadline bounds each call.

use super::file::FileOptions;
use super::tcp::{ClientOptions, Secret, ServerOptions};
use super::{FileStore, HashStore, PrefixStore, Store, TcpStore};
use crate::base::{Deadline, ErrorKind};
use crate::sys::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

/// Returns a deadline that is long enough for every call that succeeds.
fn test_deadline() -> Deadline {
    Deadline::after_ms(60_000)
}

/// Hosts a server, and connects a client to it. The client uses the Unix socket, because client and
/// server are on one host.
fn tcp() -> Arc<dyn Store> {
    host_store(ClientOptions::default())
}

/// Hosts a server, and connects a client to it over TCP, like a client on another host.
fn tcp_only() -> Arc<dyn Store> {
    host_store(ClientOptions { tcp_only: true, ..ClientOptions::default() })
}

/// Hosts a server that requires encryption, and connects a client to it over TCP.
fn tcp_encrypted() -> Arc<dyn Store> {
    let secret = Some(Secret::from_bytes(b"correct horse battery staple").unwrap());
    host_store(ClientOptions { tcp_only: true, secret, encrypts: true, ..ClientOptions::default() })
}

/// As [`tcp_encrypted`], over the Unix socket.
fn unix_encrypted() -> Arc<dyn Store> {
    let secret = Some(Secret::from_bytes(b"correct horse battery staple").unwrap());
    host_store(ClientOptions { secret, encrypts: true, ..ClientOptions::default() })
}

fn host_store(client: ClientOptions) -> Arc<dyn Store> {
    let server = ServerOptions {
        bind: "127.0.0.1".to_owned(),
        secret: client.secret.clone(),
        encrypts: client.encrypts,
        ..ServerOptions::default()
    };
    Arc::new(TcpStore::host(server, client, &test_deadline()).unwrap())
}

/// Opens a store in a temporary file, which the store removes when it is dropped.
fn file() -> Arc<dyn Store> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let serial = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("dist-conformance-{}-{serial}", std::process::id());
    let path = std::env::temp_dir().join(name);
    Arc::new(FileStore::open(&path, &FileOptions::default(), &test_deadline()).unwrap())
}

macro_rules! conformance {
    ($($test:ident)+) => {
        mod hash { $(#[test] fn $test() { super::$test(&(super::Arc::new(super::HashStore::new()) as _)); })+ }
        mod hash_under_prefix {
            $(#[test] fn $test() {
                let hash = super::Arc::new(super::HashStore::new());
                super::$test(&(super::Arc::new(super::PrefixStore::new("pre", hash)) as _));
            })+
        }
        mod file { $(#[test] fn $test() { super::$test(&super::file()); })+ }
        mod file_under_prefix {
            $(#[test] fn $test() {
                super::$test(&(super::Arc::new(super::PrefixStore::new("pre", super::file())) as _));
            })+
        }
        mod tcp { $(#[test] fn $test() { super::$test(&super::tcp()); })+ }
        mod tcp_only { $(#[test] fn $test() { super::$test(&super::tcp_only()); })+ }
        mod tcp_encrypted { $(#[test] fn $test() { super::$test(&super::tcp_encrypted()); })+ }
        mod unix_encrypted { $(#[test] fn $test() { super::$test(&super::unix_encrypted()); })+ }
        mod tcp_under_prefix {
            $(#[test] fn $test() {
                super::$test(&(super::Arc::new(super::PrefixStore::new("pre", super::tcp())) as _));
            })+
        }
    };
}

conformance! {
    values_are_stored_unchanged
    counters_are_decimal_text
    add_to_text_is_refused_without_change
    compare_and_set_follows_c10d
    append_creates_and_extends
    keys_are_counted_and_deleted
    multi_get_keeps_the_order
    check_does_not_wait
    wait_ends_when_the_last_key_is_set
    every_write_wakes_waiters
    failed_compare_set_wakes_no_waiter
    timed_out_wait_names_the_missing_keys
    satisfied_wait_succeeds_after_the_deadline
    waiters_do_not_block_other_callers
    concurrent_adds_are_not_lost
    keys_are_listed
    queues_keep_their_order
    a_pop_waits_for_its_item
    each_item_goes_to_one_caller
    timed_out_pop_names_the_queue
    barrier_ends_when_all_have_arrived
    timed_out_barrier_reports_the_arrivals
}

fn values_are_stored_unchanged(store: &Arc<dyn Store>) {
    let long = vec![7; 300_000];
    for (key, value) in
        [(&b"k"[..], &b"v"[..]), (b"", b"of the empty key"), (b"empty", b""), (b"\0\xff\n", &long)]
    {
        store.set(key, value, &test_deadline()).unwrap();
        assert_eq!(store.get(key, &test_deadline()).unwrap(), value);
    }
    store.set(b"k", b"other", &test_deadline()).unwrap();
    assert_eq!(store.get(b"k", &test_deadline()).unwrap(), b"other");
}

fn counters_are_decimal_text(store: &Arc<dyn Store>) {
    assert_eq!(store.add(b"n", 5, &test_deadline()).unwrap(), 5);
    assert_eq!(store.add(b"n", -2, &test_deadline()).unwrap(), 3);
    assert_eq!(store.get(b"n", &test_deadline()).unwrap(), b"3");
    assert_eq!(store.add(b"n", i64::MAX, &test_deadline()).unwrap(), i64::MIN + 2);
    store.set(b"n", b" 12abc", &test_deadline()).unwrap();
    assert_eq!(store.add(b"n", 1, &test_deadline()).unwrap(), 13);
}

fn add_to_text_is_refused_without_change(store: &Arc<dyn Store>) {
    store.set(b"text", b"abc", &test_deadline()).unwrap();
    store.set(b"empty", b"", &test_deadline()).unwrap();
    for key in [&b"text"[..], b"empty"] {
        let error = store.add(key, 1, &test_deadline()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotANumber, "{error}");
    }
    assert_eq!(store.get(b"text", &test_deadline()).unwrap(), b"abc");
    assert_eq!(store.add(b"n", 1, &test_deadline()).unwrap(), 1);
}

fn compare_and_set_follows_c10d(store: &Arc<dyn Store>) {
    let run = |expected: &[u8], desired: &[u8]| {
        store.compare_set(b"cs", expected, desired, &test_deadline()).unwrap()
    };
    assert_eq!(run(b"exp", b"new"), b"exp");
    assert!(!store.check(&[b"cs"], &test_deadline()).unwrap());
    assert_eq!(run(b"", b"a"), b"a");
    assert_eq!(run(b"a", b"bb"), b"bb");
    assert_eq!(run(b"WRONG", b"ccc"), b"bb");
    assert_eq!(store.get(b"cs", &test_deadline()).unwrap(), b"bb");
}

fn append_creates_and_extends(store: &Arc<dyn Store>) {
    store.append(b"ap", b"xx", &test_deadline()).unwrap();
    store.append(b"ap", b"yy", &test_deadline()).unwrap();
    assert_eq!(store.get(b"ap", &test_deadline()).unwrap(), b"xxyy");
}

fn keys_are_counted_and_deleted(store: &Arc<dyn Store>) {
    assert_eq!(store.num_keys(&test_deadline()).unwrap(), 0);
    store.set(b"a", b"1", &test_deadline()).unwrap();
    store.set(b"b", b"2", &test_deadline()).unwrap();
    assert_eq!(store.num_keys(&test_deadline()).unwrap(), 2);
    assert!(store.delete_key(b"a", &test_deadline()).unwrap());
    assert!(!store.delete_key(b"a", &test_deadline()).unwrap());
    assert_eq!(store.num_keys(&test_deadline()).unwrap(), 1);
    assert!(!store.check(&[b"a"], &test_deadline()).unwrap());
}

fn multi_get_keeps_the_order(store: &Arc<dyn Store>) {
    store.multi_set(&[(b"a", b"1"), (b"b", b"22"), (b"c", b"")], &test_deadline()).unwrap();
    let values = store.multi_get(&[b"b", b"c", b"a", b"b"], &test_deadline()).unwrap();
    assert_eq!(values, [&b"22"[..], b"", b"1", b"22"]);
    store.multi_set(&[], &test_deadline()).unwrap();
    assert!(store.multi_get(&[], &test_deadline()).unwrap().is_empty());
    store.wait(&[], &test_deadline()).unwrap();
}

fn check_does_not_wait(store: &Arc<dyn Store>) {
    store.set(b"k", b"v", &test_deadline()).unwrap();
    assert!(store.check(&[b"k"], &test_deadline()).unwrap());
    assert!(!store.check(&[b"k", b"zz"], &test_deadline()).unwrap());
    assert!(store.check(&[], &test_deadline()).unwrap());
}

/// Runs `act` on another thread, and returns the receiver of its result.
fn spawn_call<T: Send + 'static>(
    store: &Arc<dyn Store>,
    act: impl FnOnce(&dyn Store) -> T + Send + 'static,
) -> mpsc::Receiver<T> {
    let (sender, receiver) = mpsc::channel();
    let store = store.clone();
    let run = move || {
        let outcome = act(&*store);
        // Drop this thread's clone of the store before the test can end. Otherwise this thread
        // might own the last clone when the process exits, and the store would not be dropped.
        drop(store);
        drop(sender.send(outcome));
    };
    drop(thread::spawn("test-aside", run).unwrap());
    receiver
}

fn wait_ends_when_the_last_key_is_set(store: &Arc<dyn Store>) {
    let got = spawn_call(store, |store| store.multi_get(&[b"x", b"y", b"x"], &test_deadline()));
    let waited = spawn_call(store, |store| store.wait(&[b"y"], &test_deadline()));
    store.set(b"x", b"1", &test_deadline()).unwrap();
    store.set(b"x", b"2", &test_deadline()).unwrap();
    assert_eq!(got.try_recv().unwrap_err(), mpsc::TryRecvError::Empty);
    assert_eq!(waited.try_recv().unwrap_err(), mpsc::TryRecvError::Empty);
    store.set(b"y", b"3", &test_deadline()).unwrap();
    assert_eq!(got.recv_timeout(test_deadline().remaining()).unwrap().unwrap(), [b"2", b"3", b"2"]);
    waited.recv_timeout(test_deadline().remaining()).unwrap().unwrap();
}

fn every_write_wakes_waiters(store: &Arc<dyn Store>) {
    fn woken_by(store: &Arc<dyn Store>, key: &'static [u8], write: impl FnOnce(&[u8])) {
        let waited = spawn_call(store, move |store| store.wait(&[key], &test_deadline()));
        write(key);
        waited.recv_timeout(test_deadline().remaining()).unwrap().unwrap();
    }
    woken_by(store, b"set", |key| store.set(key, b"v", &test_deadline()).unwrap());
    woken_by(store, b"add", |key| assert_eq!(store.add(key, 1, &test_deadline()).unwrap(), 1));
    woken_by(store, b"append", |key| store.append(key, b"v", &test_deadline()).unwrap());
    woken_by(store, b"multi_set", |key| store.multi_set(&[(key, b"v")], &test_deadline()).unwrap());
    woken_by(store, b"compare_set", |key| {
        assert_eq!(store.compare_set(key, b"", b"v", &test_deadline()).unwrap(), b"v");
    });
}

fn failed_compare_set_wakes_no_waiter(store: &Arc<dyn Store>) {
    let waited = spawn_call(store, |store| store.wait(&[b"k"], &Deadline::after_ms(100)));
    store.compare_set(b"k", b"something", b"else", &test_deadline()).unwrap();
    let error = waited.recv_timeout(test_deadline().remaining()).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

fn timed_out_wait_names_the_missing_keys(store: &Arc<dyn Store>) {
    store.set(b"there", b"v", &test_deadline()).unwrap();
    let short = || Deadline::after_ms(50);
    let errors = [
        store.wait(&[b"there", b"absent"], &short()).unwrap_err(),
        store.get(b"absent", &short()).unwrap_err(),
        store.multi_get(&[b"there", b"absent", b"there"], &short()).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Timeout);
        let text = error.message();
        assert!(text.contains("absent") && !text.contains("there"), "{text}");
        assert!(text.contains(" ms"), "{text}");
    }
    // A wait that timed out leaves no state that disturbs a later call.
    store.set(b"absent", b"come", &test_deadline()).unwrap();
    assert_eq!(store.get(b"absent", &test_deadline()).unwrap(), b"come");
}

fn satisfied_wait_succeeds_after_the_deadline(store: &Arc<dyn Store>) {
    store.set(b"k", b"v", &test_deadline()).unwrap();
    let passed = Deadline::after_ms(0);
    store.wait(&[b"k"], &passed).unwrap();
    assert_eq!(store.get(b"k", &passed).unwrap(), b"v");
    assert_eq!(store.wait(&[b"zz"], &passed).unwrap_err().kind(), ErrorKind::Timeout);
}

fn waiters_do_not_block_other_callers(store: &Arc<dyn Store>) {
    let waiters: Vec<_> =
        (0..6).map(|_| spawn_call(store, |store| store.get(b"last", &test_deadline()))).collect();
    for number in 0..20 {
        assert_eq!(store.add(b"n", 1, &test_deadline()).unwrap(), number + 1);
    }
    store.set(b"last", b"v", &test_deadline()).unwrap();
    for waiter in waiters {
        assert_eq!(waiter.recv_timeout(test_deadline().remaining()).unwrap().unwrap(), b"v");
    }
}

fn concurrent_adds_are_not_lost(store: &Arc<dyn Store>) {
    let threads: Vec<_> = (0..8)
        .map(|_| {
            spawn_call(store, |store| {
                (0..50).try_for_each(|_| store.add(b"n", 1, &test_deadline()).map(drop))
            })
        })
        .collect();
    for thread in threads {
        thread.recv_timeout(test_deadline().remaining()).unwrap().unwrap();
    }
    assert_eq!(store.add(b"n", 0, &test_deadline()).unwrap(), 400);
}

fn keys_are_listed(store: &Arc<dyn Store>) {
    assert!(store.list_keys(&test_deadline()).unwrap().is_empty());
    store.multi_set(&[(b"a", b"1"), (b"b/c", b"")], &test_deadline()).unwrap();
    store.add(b"n", 1, &test_deadline()).unwrap();
    store.delete_key(b"a", &test_deadline()).unwrap();
    let mut keys = store.list_keys(&test_deadline()).unwrap();
    keys.sort();
    assert_eq!(keys, [&b"b/c"[..], b"n"]);
}

fn queues_keep_their_order(store: &Arc<dyn Store>) {
    assert_eq!(store.queue_len(b"q", &test_deadline()).unwrap(), 0);
    assert_eq!(store.queue_try_pop(b"q", &test_deadline()).unwrap(), None);
    for item in [&b"1"[..], b"", b"3"] {
        store.queue_push(b"q", item, &test_deadline()).unwrap();
    }
    store.queue_push(b"other", b"x", &test_deadline()).unwrap();
    assert_eq!(store.queue_len(b"q", &test_deadline()).unwrap(), 3);
    assert_eq!(store.queue_try_pop(b"q", &test_deadline()).unwrap().unwrap(), b"1");
    assert_eq!(store.queue_pop(b"q", &test_deadline()).unwrap(), b"");
    store.queue_push(b"q", b"4", &test_deadline()).unwrap();
    assert_eq!(store.queue_pop(b"q", &test_deadline()).unwrap(), b"3");
    assert_eq!(store.queue_pop(b"q", &test_deadline()).unwrap(), b"4");
    assert_eq!(store.queue_try_pop(b"q", &test_deadline()).unwrap(), None);
    assert_eq!(store.queue_len(b"q", &test_deadline()).unwrap(), 0);
    assert!(!store.check(&[b"q"], &test_deadline()).unwrap());
}

fn a_pop_waits_for_its_item(store: &Arc<dyn Store>) {
    let popped = spawn_call(store, |store| store.queue_pop(b"q", &test_deadline()));
    // A key with the same name as the queue is independent of it.
    store.set(b"q", b"key", &test_deadline()).unwrap();
    store.queue_push(b"q", b"item", &test_deadline()).unwrap();
    assert_eq!(popped.recv_timeout(test_deadline().remaining()).unwrap().unwrap(), b"item");
    assert_eq!(store.get(b"q", &test_deadline()).unwrap(), b"key");
}

fn each_item_goes_to_one_caller(store: &Arc<dyn Store>) {
    let poppers: Vec<_> = (0..4)
        .map(|_| {
            spawn_call(store, |store| {
                (0..10)
                    .map(|_| store.queue_pop(b"q", &test_deadline()))
                    .collect::<Result<Vec<_>, _>>()
            })
        })
        .collect();
    for number in 0..40_u8 {
        store.queue_push(b"q", &[number], &test_deadline()).unwrap();
    }
    let mut got = Vec::new();
    for popper in poppers {
        let items = popper.recv_timeout(test_deadline().remaining()).unwrap().unwrap();
        assert!(items.is_sorted(), "one caller gets items in their order: {items:?}");
        got.extend(items.concat());
    }
    got.sort_unstable();
    assert_eq!(got, (0..40).collect::<Vec<u8>>());
}

fn timed_out_pop_names_the_queue(store: &Arc<dyn Store>) {
    let error = store.queue_pop(b"empty-one", &Deadline::after_ms(50)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("empty-one"), "{error}");
    store.queue_push(b"empty-one", b"late", &test_deadline()).unwrap();
    assert_eq!(store.queue_pop(b"empty-one", &test_deadline()).unwrap(), b"late");
}

fn barrier_ends_when_all_have_arrived(store: &Arc<dyn Store>) {
    store.barrier(b"nobody", 0, &test_deadline()).unwrap();
    store.barrier(b"alone", 1, &test_deadline()).unwrap();
    let others: Vec<_> = (0..2)
        .map(|_| spawn_call(store, |store| store.barrier(b"bar", 3, &test_deadline())))
        .collect();
    for other in &others {
        assert_eq!(other.try_recv().unwrap_err(), mpsc::TryRecvError::Empty);
    }
    store.barrier(b"bar", 3, &test_deadline()).unwrap();
    for other in others {
        other.recv_timeout(test_deadline().remaining()).unwrap().unwrap();
    }
    // A caller that arrives later passes immediately.
    store.barrier(b"bar", 3, &test_deadline()).unwrap();
}

fn timed_out_barrier_reports_the_arrivals(store: &Arc<dyn Store>) {
    let error = store.barrier(b"bar", 2, &Deadline::after_ms(50)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("1 of 2"), "{error}");
    // The barrier has counted the caller that timed out.
    store.barrier(b"bar", 2, &test_deadline()).unwrap();
}
