//! What every store must do, run against each of them. A test takes a store and knows nothing else;
//! each one ends by a deadline.

use super::file::FileOptions;
use super::tcp::{ClientOptions, ServerOptions};
use super::{FileStore, HashStore, PrefixStore, Store, TcpStore};
use crate::base::{Deadline, ErrorKind};
use crate::sys::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

/// Enough for anything that succeeds.
fn soon() -> Deadline {
    Deadline::after_ms(60_000)
}

/// A client and its server, which are on one host and so meet on a Unix socket.
fn tcp() -> Arc<dyn Store> {
    hosted(ClientOptions::default())
}

/// The same without that: as on two hosts.
fn tcp_only() -> Arc<dyn Store> {
    hosted(ClientOptions { tcp_only: true, ..ClientOptions::default() })
}

fn hosted(client: ClientOptions) -> Arc<dyn Store> {
    let server = ServerOptions { bind: "127.0.0.1".to_owned(), ..ServerOptions::default() };
    Arc::new(TcpStore::host(server, client, &soon()).unwrap())
}

/// In a file that goes with it.
fn file() -> Arc<dyn Store> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let serial = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("dist-conformance-{}-{serial}", std::process::id());
    let path = std::env::temp_dir().join(name);
    Arc::new(FileStore::open(&path, &FileOptions::default(), &soon()).unwrap())
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
        mod tcp_under_prefix {
            $(#[test] fn $test() {
                super::$test(&(super::Arc::new(super::PrefixStore::new("pre", super::tcp())) as _));
            })+
        }
    };
}

conformance! {
    values_are_kept_as_they_are
    counters_are_text
    adding_to_text_is_refused_and_harms_nothing
    compare_and_set_follows_c10d
    appending_makes_and_extends
    keys_are_counted_and_deleted
    lists_keep_their_order
    checks_tell_without_waiting
    a_wait_ends_when_the_last_key_comes
    every_kind_of_write_wakes
    a_failed_compare_wakes_nobody
    a_timed_out_wait_names_what_is_missing
    a_wait_that_is_over_at_once_needs_no_time
    a_waiter_holds_up_nobody
    many_threads_count_without_loss
    keys_are_listed
    queues_keep_their_order
    a_pop_waits_for_its_item
    items_go_to_one_of_many
    a_timed_out_pop_names_the_queue_and_takes_nothing
    a_barrier_lets_go_when_all_have_come
    a_timed_out_barrier_says_how_many_have_come
}

fn values_are_kept_as_they_are(store: &Arc<dyn Store>) {
    let long = vec![7; 300_000];
    for (key, value) in
        [(&b"k"[..], &b"v"[..]), (b"", b"of the empty key"), (b"empty", b""), (b"\0\xff\n", &long)]
    {
        store.set(key, value, &soon()).unwrap();
        assert_eq!(store.get(key, &soon()).unwrap(), value);
    }
    store.set(b"k", b"other", &soon()).unwrap();
    assert_eq!(store.get(b"k", &soon()).unwrap(), b"other");
}

fn counters_are_text(store: &Arc<dyn Store>) {
    assert_eq!(store.add(b"n", 5, &soon()).unwrap(), 5);
    assert_eq!(store.add(b"n", -2, &soon()).unwrap(), 3);
    assert_eq!(store.get(b"n", &soon()).unwrap(), b"3");
    assert_eq!(store.add(b"n", i64::MAX, &soon()).unwrap(), i64::MIN + 2);
    store.set(b"n", b" 12abc", &soon()).unwrap();
    assert_eq!(store.add(b"n", 1, &soon()).unwrap(), 13);
}

fn adding_to_text_is_refused_and_harms_nothing(store: &Arc<dyn Store>) {
    store.set(b"text", b"abc", &soon()).unwrap();
    store.set(b"empty", b"", &soon()).unwrap();
    for key in [&b"text"[..], b"empty"] {
        let error = store.add(key, 1, &soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotANumber, "{error}");
    }
    assert_eq!(store.get(b"text", &soon()).unwrap(), b"abc");
    assert_eq!(store.add(b"n", 1, &soon()).unwrap(), 1);
}

fn compare_and_set_follows_c10d(store: &Arc<dyn Store>) {
    let run = |expected: &[u8], desired: &[u8]| {
        store.compare_set(b"cs", expected, desired, &soon()).unwrap()
    };
    assert_eq!(run(b"exp", b"new"), b"exp");
    assert!(!store.check(&[b"cs"], &soon()).unwrap());
    assert_eq!(run(b"", b"a"), b"a");
    assert_eq!(run(b"a", b"bb"), b"bb");
    assert_eq!(run(b"WRONG", b"ccc"), b"bb");
    assert_eq!(store.get(b"cs", &soon()).unwrap(), b"bb");
}

fn appending_makes_and_extends(store: &Arc<dyn Store>) {
    store.append(b"ap", b"xx", &soon()).unwrap();
    store.append(b"ap", b"yy", &soon()).unwrap();
    assert_eq!(store.get(b"ap", &soon()).unwrap(), b"xxyy");
}

fn keys_are_counted_and_deleted(store: &Arc<dyn Store>) {
    assert_eq!(store.num_keys(&soon()).unwrap(), 0);
    store.set(b"a", b"1", &soon()).unwrap();
    store.set(b"b", b"2", &soon()).unwrap();
    assert_eq!(store.num_keys(&soon()).unwrap(), 2);
    assert!(store.delete_key(b"a", &soon()).unwrap());
    assert!(!store.delete_key(b"a", &soon()).unwrap());
    assert_eq!(store.num_keys(&soon()).unwrap(), 1);
    assert!(!store.check(&[b"a"], &soon()).unwrap());
}

fn lists_keep_their_order(store: &Arc<dyn Store>) {
    store.multi_set(&[(b"a", b"1"), (b"b", b"22"), (b"c", b"")], &soon()).unwrap();
    let values = store.multi_get(&[b"b", b"c", b"a", b"b"], &soon()).unwrap();
    assert_eq!(values, [&b"22"[..], b"", b"1", b"22"]);
    store.multi_set(&[], &soon()).unwrap();
    assert!(store.multi_get(&[], &soon()).unwrap().is_empty());
    store.wait(&[], &soon()).unwrap();
}

fn checks_tell_without_waiting(store: &Arc<dyn Store>) {
    store.set(b"k", b"v", &soon()).unwrap();
    assert!(store.check(&[b"k"], &soon()).unwrap());
    assert!(!store.check(&[b"k", b"zz"], &soon()).unwrap());
    assert!(store.check(&[], &soon()).unwrap());
}

/// Runs `act` on another thread, and gives its outcome.
fn aside<T: Send + 'static>(
    store: &Arc<dyn Store>,
    act: impl FnOnce(&dyn Store) -> T + Send + 'static,
) -> mpsc::Receiver<T> {
    let (sender, receiver) = mpsc::channel();
    let store = store.clone();
    let run = move || {
        let outcome = act(&*store);
        // Before the test can end, so that the last one to drop a store does so before the process
        // ends.
        drop(store);
        drop(sender.send(outcome));
    };
    drop(thread::spawn("test-aside", run).unwrap());
    receiver
}

fn a_wait_ends_when_the_last_key_comes(store: &Arc<dyn Store>) {
    let got = aside(store, |store| store.multi_get(&[b"x", b"y", b"x"], &soon()));
    let waited = aside(store, |store| store.wait(&[b"y"], &soon()));
    store.set(b"x", b"1", &soon()).unwrap();
    store.set(b"x", b"2", &soon()).unwrap();
    assert_eq!(got.try_recv().unwrap_err(), mpsc::TryRecvError::Empty);
    assert_eq!(waited.try_recv().unwrap_err(), mpsc::TryRecvError::Empty);
    store.set(b"y", b"3", &soon()).unwrap();
    assert_eq!(got.recv_timeout(soon().left()).unwrap().unwrap(), [b"2", b"3", b"2"]);
    waited.recv_timeout(soon().left()).unwrap().unwrap();
}

fn every_kind_of_write_wakes(store: &Arc<dyn Store>) {
    fn woken_by(store: &Arc<dyn Store>, key: &'static [u8], write: impl FnOnce(&[u8])) {
        let waited = aside(store, move |store| store.wait(&[key], &soon()));
        write(key);
        waited.recv_timeout(soon().left()).unwrap().unwrap();
    }
    woken_by(store, b"set", |key| store.set(key, b"v", &soon()).unwrap());
    woken_by(store, b"add", |key| assert_eq!(store.add(key, 1, &soon()).unwrap(), 1));
    woken_by(store, b"append", |key| store.append(key, b"v", &soon()).unwrap());
    woken_by(store, b"multi_set", |key| store.multi_set(&[(key, b"v")], &soon()).unwrap());
    woken_by(store, b"compare_set", |key| {
        assert_eq!(store.compare_set(key, b"", b"v", &soon()).unwrap(), b"v");
    });
}

fn a_failed_compare_wakes_nobody(store: &Arc<dyn Store>) {
    let waited = aside(store, |store| store.wait(&[b"k"], &Deadline::after_ms(100)));
    store.compare_set(b"k", b"something", b"else", &soon()).unwrap();
    let error = waited.recv_timeout(soon().left()).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

fn a_timed_out_wait_names_what_is_missing(store: &Arc<dyn Store>) {
    store.set(b"there", b"v", &soon()).unwrap();
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
    // What timed out leaves nothing behind that a later call could trip over.
    store.set(b"absent", b"come", &soon()).unwrap();
    assert_eq!(store.get(b"absent", &soon()).unwrap(), b"come");
}

fn a_wait_that_is_over_at_once_needs_no_time(store: &Arc<dyn Store>) {
    store.set(b"k", b"v", &soon()).unwrap();
    let passed = Deadline::after_ms(0);
    store.wait(&[b"k"], &passed).unwrap();
    assert_eq!(store.get(b"k", &passed).unwrap(), b"v");
    assert_eq!(store.wait(&[b"zz"], &passed).unwrap_err().kind(), ErrorKind::Timeout);
}

fn a_waiter_holds_up_nobody(store: &Arc<dyn Store>) {
    let waiters: Vec<_> =
        (0..6).map(|_| aside(store, |store| store.get(b"last", &soon()))).collect();
    for number in 0..20 {
        assert_eq!(store.add(b"n", 1, &soon()).unwrap(), number + 1);
    }
    store.set(b"last", b"v", &soon()).unwrap();
    for waiter in waiters {
        assert_eq!(waiter.recv_timeout(soon().left()).unwrap().unwrap(), b"v");
    }
}

fn many_threads_count_without_loss(store: &Arc<dyn Store>) {
    let threads: Vec<_> = (0..8)
        .map(|_| {
            aside(store, |store| (0..50).try_for_each(|_| store.add(b"n", 1, &soon()).map(drop)))
        })
        .collect();
    for thread in threads {
        thread.recv_timeout(soon().left()).unwrap().unwrap();
    }
    assert_eq!(store.add(b"n", 0, &soon()).unwrap(), 400);
}

fn keys_are_listed(store: &Arc<dyn Store>) {
    assert!(store.list_keys(&soon()).unwrap().is_empty());
    store.multi_set(&[(b"a", b"1"), (b"b/c", b"")], &soon()).unwrap();
    store.add(b"n", 1, &soon()).unwrap();
    store.delete_key(b"a", &soon()).unwrap();
    let mut keys = store.list_keys(&soon()).unwrap();
    keys.sort();
    assert_eq!(keys, [&b"b/c"[..], b"n"]);
}

fn queues_keep_their_order(store: &Arc<dyn Store>) {
    assert_eq!(store.queue_len(b"q", &soon()).unwrap(), 0);
    assert_eq!(store.queue_try_pop(b"q", &soon()).unwrap(), None);
    for item in [&b"1"[..], b"", b"3"] {
        store.queue_push(b"q", item, &soon()).unwrap();
    }
    store.queue_push(b"other", b"x", &soon()).unwrap();
    assert_eq!(store.queue_len(b"q", &soon()).unwrap(), 3);
    assert_eq!(store.queue_try_pop(b"q", &soon()).unwrap().unwrap(), b"1");
    assert_eq!(store.queue_pop(b"q", &soon()).unwrap(), b"");
    store.queue_push(b"q", b"4", &soon()).unwrap();
    assert_eq!(store.queue_pop(b"q", &soon()).unwrap(), b"3");
    assert_eq!(store.queue_pop(b"q", &soon()).unwrap(), b"4");
    assert_eq!(store.queue_try_pop(b"q", &soon()).unwrap(), None);
    assert_eq!(store.queue_len(b"q", &soon()).unwrap(), 0);
    assert!(!store.check(&[b"q"], &soon()).unwrap());
}

fn a_pop_waits_for_its_item(store: &Arc<dyn Store>) {
    let popped = aside(store, |store| store.queue_pop(b"q", &soon()));
    // A key of the same name is something else.
    store.set(b"q", b"key", &soon()).unwrap();
    store.queue_push(b"q", b"item", &soon()).unwrap();
    assert_eq!(popped.recv_timeout(soon().left()).unwrap().unwrap(), b"item");
    assert_eq!(store.get(b"q", &soon()).unwrap(), b"key");
}

fn items_go_to_one_of_many(store: &Arc<dyn Store>) {
    let poppers: Vec<_> = (0..4)
        .map(|_| {
            aside(store, |store| {
                (0..10).map(|_| store.queue_pop(b"q", &soon())).collect::<Result<Vec<_>, _>>()
            })
        })
        .collect();
    for number in 0..40_u8 {
        store.queue_push(b"q", &[number], &soon()).unwrap();
    }
    let mut got = Vec::new();
    for popper in poppers {
        let items = popper.recv_timeout(soon().left()).unwrap().unwrap();
        assert!(items.is_sorted(), "one caller gets items in their order: {items:?}");
        got.extend(items.concat());
    }
    got.sort_unstable();
    assert_eq!(got, (0..40).collect::<Vec<u8>>());
}

fn a_timed_out_pop_names_the_queue_and_takes_nothing(store: &Arc<dyn Store>) {
    let error = store.queue_pop(b"empty-one", &Deadline::after_ms(50)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("empty-one"), "{error}");
    store.queue_push(b"empty-one", b"late", &soon()).unwrap();
    assert_eq!(store.queue_pop(b"empty-one", &soon()).unwrap(), b"late");
}

fn a_barrier_lets_go_when_all_have_come(store: &Arc<dyn Store>) {
    store.barrier(b"nobody", 0, &soon()).unwrap();
    store.barrier(b"alone", 1, &soon()).unwrap();
    let others: Vec<_> =
        (0..2).map(|_| aside(store, |store| store.barrier(b"bar", 3, &soon()))).collect();
    for other in &others {
        assert_eq!(other.try_recv().unwrap_err(), mpsc::TryRecvError::Empty);
    }
    store.barrier(b"bar", 3, &soon()).unwrap();
    for other in others {
        other.recv_timeout(soon().left()).unwrap().unwrap();
    }
    // Whoever comes later passes.
    store.barrier(b"bar", 3, &soon()).unwrap();
}

fn a_timed_out_barrier_says_how_many_have_come(store: &Arc<dyn Store>) {
    let error = store.barrier(b"bar", 2, &Deadline::after_ms(50)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("1 of 2"), "{error}");
    // It has been counted all the same.
    store.barrier(b"bar", 2, &soon()).unwrap();
}
