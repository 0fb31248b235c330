//! Local jobs, alone and under attack by another user and by processes that send nothing.

use super::test_deadline;
use crate::base::{Deadline, ErrorKind};
use crate::security::Secret;
use crate::store::Store as _;
use crate::store::tcp::local_job::host_or_join;
use crate::store::tcp::local_job_search::first_name;
use crate::store::tcp::{ClientOptions, StoreSecurity, TcpStore};
use crate::sys::{host, unix};
use std::io::Read as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The number of ranks of a job.
const RANKS: usize = 3;

/// The longest delay by an attack.
const MAX_DELAY: Duration = Duration::from_secs(1);

fn with_secret(secret: Option<&Secret>) -> StoreSecurity {
    StoreSecurity { secret: secret.cloned(), ..StoreSecurity::default() }
}

fn open() -> StoreSecurity {
    StoreSecurity::default()
}

fn new_job_name() -> String {
    host::random_nonce().unwrap().to_string()
}

/// Runs all ranks of a job. Returns their stores and the time that the slowest rank needed.
fn run_job(job: &str, secret: Option<&Secret>) -> (Vec<TcpStore>, Duration) {
    let began = Instant::now();
    let deadline = test_deadline();
    let join = |rank| host_or_join(job, rank, RANKS, with_secret(secret), &deadline).unwrap();
    let stores = std::thread::scope(|scope| {
        let join = &join;
        let ranks: Vec<_> = (0..RANKS).map(|rank| scope.spawn(move || join(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    });
    let took = began.elapsed();
    stores[2].set(b"key", b"value", &deadline).unwrap();
    assert_eq!(stores[1].get(b"key", &deadline).unwrap(), b"value");
    (stores, took)
}

fn assert_not_delayed(took: Duration) {
    assert!(took < MAX_DELAY, "the job took {took:?} to start");
}

/// Waits until rank 0 of a job listens.
fn await_rank_0(job: &str) {
    let deadline = test_deadline();
    while unix::listening_names(&first_name(job)).unwrap().is_empty() {
        assert!(!deadline.has_passed(), "rank 0 does not listen");
        std::thread::yield_now();
    }
}

#[test]
fn ranks_of_a_local_job_get_a_secret() {
    let (stores, _) = run_job(&new_job_name(), None);
    let secrets: Vec<_> = stores.iter().map(|store| store.secret().unwrap()).collect();
    assert!(secrets.iter().all(|secret| *secret == secrets[0]));
    let (host, port) = stores[0].address().unwrap();
    for tcp_only in [false, true] {
        let options = ClientOptions { host: host.clone(), port, tcp_only, ..Default::default() };
        let error = TcpStore::connect(options, &test_deadline()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
    }
}

#[test]
fn secret_of_the_user_is_kept_and_not_sent() {
    let job = new_job_name();
    let secret = Secret::from_bytes(b"of the three").unwrap();
    let (stores, _) = run_job(&job, Some(&secret));
    assert!(stores.iter().all(|store| store.secret() == Some(&secret)));
    // A rank without the secret is refused.
    let deadline = Deadline::after_ms(20_000);
    std::thread::scope(|scope| {
        let rank_0 =
            scope.spawn(|| host_or_join(&job, 0, 2, with_secret(Some(&secret)), &deadline));
        let error = host_or_join(&job, 1, 2, open(), &deadline).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
        drop(rank_0.join().unwrap());
    });
}

#[test]
fn timeout_of_a_local_job_names_the_missing_ranks() {
    let job = new_job_name();
    let error = host_or_join(&job, 0, 3, open(), &Deadline::after_ms(30)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("ranks 1, 2"), "{error}");
    let error = host_or_join(&job, 1, 3, open(), &Deadline::after_ms(30)).unwrap_err();
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::Timeout, Some(0)));
}

#[test]
fn rank_outside_of_the_world_is_refused() {
    let job = new_job_name();
    std::thread::scope(|scope| {
        let rank_0 = scope.spawn(|| host_or_join(&job, 0, 2, open(), &Deadline::after_ms(20_000)));
        let error = host_or_join(&job, 2, 3, open(), &test_deadline()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Auth);
        assert!(error.message().contains("different world sizes"), "{error}");
        host_or_join(&job, 1, 2, open(), &test_deadline()).unwrap();
        rank_0.join().unwrap().unwrap();
    });
}

#[test]
fn second_job_of_the_same_user_and_name_is_refused() {
    let job = new_job_name();
    let _first = unix::listen(&first_name(&job)).unwrap();
    let error = host_or_join(&job, 0, 2, open(), &test_deadline()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::System, "{error}");
}

/// Returns sockets of another user that have the first name of a job, and many second names.
fn take_names(job: &str) -> Option<Vec<UnixListener>> {
    let first = first_name(job);
    let second = |number: u32| format!("{first}-{number:032x}");
    let listen = |name: String| {
        let listener = unix::listen(&name).unwrap();
        // The queue has room for one connection.
        unix::shorten_queue(&listener).unwrap();
        listener
    };
    unix::run_as_other_user(|| {
        let names = std::iter::once(first.clone()).chain((0..200).map(second));
        names.map(listen).collect()
    })
}

/// Asserts that no process has sent a byte to a listener.
fn assert_nothing_was_sent(listener: &UnixListener) {
    while let Ok(mut stream) = unix::accept(listener) {
        stream.set_read_timeout(Some(test_deadline().remaining())).unwrap();
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
    }
}

#[test]
fn other_user_that_takes_the_names_does_not_get_the_job() {
    let job = new_job_name();
    let Some(squatters) = take_names(&job) else { return };
    let (_, took) = run_job(&job, None);
    assert_not_delayed(took);
    squatters.iter().for_each(assert_nothing_was_sent);
}

/// A listener whose queue is full hides its user from the ranks.
#[test]
fn other_user_with_a_full_queue_does_not_stop_the_job() {
    let job = new_job_name();
    let Some(squatters) = take_names(&job) else { return };
    let fill = |_| unix::connect(&first_name(&job)).ok();
    let filling: Vec<_> = (0..100).map_while(fill).collect();
    assert!((1..100).contains(&filling.len()));
    let (_, took) = run_job(&job, None);
    assert_not_delayed(took);
    drop((squatters, filling));
}

/// Connects to rank 0 of a job until the attack ends, as another user.
fn flood(job: &str, is_over: &AtomicBool) {
    let name = first_name(job);
    unix::run_as_other_user(|| {
        while !is_over.load(Ordering::Relaxed) {
            drop(unix::connect(&name));
        }
    });
}

#[test]
fn silent_connections_do_not_delay_the_ranks() {
    let job = new_job_name();
    let (deadline, is_over) = (test_deadline(), AtomicBool::new(false));
    let join = |rank| host_or_join(&job, rank, RANKS, open(), &deadline).unwrap();
    std::thread::scope(|scope| {
        let rank_0 = scope.spawn(|| join(0));
        await_rank_0(&job);
        let mut silent: Vec<UnixStream> = Vec::new();
        while silent.len() < 100 {
            // The queue may be full.
            silent.extend(unix::connect(&first_name(&job)).ok());
            assert!(!deadline.has_passed(), "rank 0 does not accept");
        }
        scope.spawn(|| flood(&job, &is_over));
        let began = Instant::now();
        let ranks = [1, 2].map(|rank| scope.spawn(move || join(rank)));
        let stores = ranks.map(|rank| rank.join().unwrap());
        drop((rank_0.join().unwrap(), stores));
        let took = began.elapsed();
        is_over.store(true, Ordering::Relaxed);
        assert_not_delayed(took);
    });
}

#[test]
fn connection_of_another_user_is_closed_unread() {
    let job = new_job_name();
    let deadline = test_deadline();
    std::thread::scope(|scope| {
        let rank_0 = scope.spawn(|| host_or_join(&job, 0, 2, open(), &deadline));
        await_rank_0(&job);
        let stranger = unix::run_as_other_user(|| unix::connect(&first_name(&job)).unwrap());
        if let Some(mut stranger) = stranger {
            stranger.set_nonblocking(false).unwrap();
            stranger.set_read_timeout(Some(deadline.remaining())).unwrap();
            let began = Instant::now();
            assert_eq!(stranger.read(&mut [0; 8]).unwrap(), 0);
            assert_not_delayed(began.elapsed());
        }
        host_or_join(&job, 1, 2, open(), &deadline).unwrap();
        rank_0.join().unwrap().unwrap();
    });
}
