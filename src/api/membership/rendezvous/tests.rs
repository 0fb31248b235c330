//! Tests of the rendezvous and of the bootstrap exchange through the store, with ranks that are
//! threads of this process.

use super::*;
use crate::backend::BootstrapExchange as _;
use crate::store::HashStore;

pub(super) fn rendezvous<'a>(
    store: &Arc<dyn Store>,
    rank: Rank,
    size: WorldSize,
    nonce: u8,
    deadline: &'a Deadline,
) -> Rendezvous<'a> {
    let store = Arc::clone(store);
    let process = format!("process {nonce}");
    let (nonce, security) = (Nonce([nonce; 16]), SecuritySetting::None);
    let (name, problem) = ("t", None);
    let find_lost_member = LostMemberFn(&|| None);
    Rendezvous {
        store,
        name,
        rank,
        size,
        security,
        problem,
        nonce,
        process,
        deadline,
        find_lost_member,
    }
}

pub(super) fn meet_all(store: &Arc<dyn Store>, nonces: &[u8]) -> Vec<Result<GroupId>> {
    let deadline = Deadline::after_ms(20_000);
    std::thread::scope(|scope| {
        let join = |(rank, &nonce): (usize, &u8)| {
            let deadline = &deadline;
            scope.spawn(move || rendezvous(store, rank, nonces.len(), nonce, deadline).meet())
        };
        let handles: Vec<_> = nonces.iter().enumerate().map(join).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}

#[test]
fn each_attempt_gives_all_ranks_one_new_id() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let first: Vec<_> = meet_all(&store, &[1, 2, 3]).into_iter().map(Result::unwrap).collect();
    // The store now has the keys of the first attempt, as after a restart.
    let second: Vec<_> = meet_all(&store, &[4, 5, 6]).into_iter().map(Result::unwrap).collect();
    assert!(first.iter().all(|id| *id == first[0]));
    assert!(second.iter().all(|id| *id == second[0]));
    assert_ne!(first[0], second[0]);
}

#[test]
fn timeout_names_the_missing_ranks() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let deadline = Deadline::after_ms(50);
    let error = rendezvous(&store, 0, 3, 1, &deadline).meet().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("ranks 1, 2"), "{error}");
}

#[test]
fn world_size_mismatch_fails_every_rank() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let deadline = Deadline::after_ms(20_000);
    let (zero, one) = std::thread::scope(|scope| {
        let one = scope.spawn(|| rendezvous(&store, 1, 3, 2, &deadline).meet());
        let zero = rendezvous(&store, 0, 2, 1, &deadline).meet();
        (zero.unwrap_err(), one.join().unwrap().unwrap_err())
    });
    for error in [zero, one] {
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(error.message().contains("rank 1 (process 2) has a world size of 3"), "{error}");
    }
}

#[test]
fn duplicate_rank_is_refused() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let deadline = Deadline::after_ms(20_000);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| rendezvous(&store, 1, 3, 1, &deadline).meet());
        // A second process overwrites the entry of the first process as soon as the entry exists.
        store.get(b"dist/t/rank/1", &deadline).unwrap();
        let entry = RendezvousEntry {
            nonce: Nonce([2; 16]),
            size: 3,
            security: "none".into(),
            version: "1".into(),
            process: "b".into(),
            process_key: String::new(),
        };
        store.set(b"dist/t/rank/1", &entry.encode(), &deadline).unwrap();
        let error = first.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("taken by another process (b)"), "{error}");
    });
}

#[test]
fn different_security_settings_fail_every_rank() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let deadline = Deadline::after_ms(20_000);
    let (zero, one) = std::thread::scope(|scope| {
        let own = Rendezvous {
            security: SecuritySetting::Auth,
            ..rendezvous(&store, 1, 2, 2, &deadline)
        };
        let one = scope.spawn(move || own.meet());
        let zero = rendezvous(&store, 0, 2, 1, &deadline).meet();
        (zero.unwrap_err(), one.join().unwrap().unwrap_err())
    });
    for error in [zero, one] {
        assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
        for setting in ["DIST_SECURITY=auth", "DIST_SECURITY=none"] {
            assert!(error.message().contains(setting), "{error}");
        }
    }
}

#[test]
fn late_rank_replaces_its_stale_entry() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let deadline = Deadline::after_ms(20_000);
    let nonce = Nonce([9; 16]);
    // The stale entry is from a job of another size, which must not cause an error.
    let leftover = RendezvousEntry {
        nonce,
        size: 7,
        security: "auth".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        process: "gone".into(),
        process_key: String::new(),
    };
    store.set(b"dist/t/rank/1", &leftover.encode(), &deadline).unwrap();
    let (zero, one) = std::thread::scope(|scope| {
        let zero = scope.spawn(|| rendezvous(&store, 0, 2, 1, &deadline).meet());
        store.get(format!("dist/t/offer/{nonce}/0").as_bytes(), &deadline).unwrap();
        let one = rendezvous(&store, 1, 2, 2, &deadline).meet();
        (zero.join().unwrap().unwrap(), one.unwrap())
    });
    assert_eq!(zero, one);
}

#[test]
fn exchange_ends_when_a_rank_gives_up() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let deadline = Deadline::after_ms(60_000);
    let join = |rank: Rank| rendezvous(&store, rank, 2, 1 + u8::try_from(rank).unwrap(), &deadline);
    std::thread::scope(|scope| {
        let zero = scope.spawn(|| {
            let rendezvous = join(0);
            let id = rendezvous.meet().unwrap();
            StoreExchange { rendezvous: &rendezvous, id }
                .all_gather("phase", b"", &|| None)
                .unwrap_err()
        });
        let rendezvous = join(1);
        let id = rendezvous.meet().unwrap();
        let exchange = StoreExchange { rendezvous: &rendezvous, id };
        exchange.publish_failure(&Error::new(ErrorKind::OutOfMemory, "no memory"));
        exchange.publish_failure(&Error::new(ErrorKind::System, "a later reason"));
        let error = zero.join().unwrap();
        assert_eq!(error.kind(), ErrorKind::PeerFailed);
        let text = "rank 1 (process 2) failed to create the group: no memory";
        assert!(error.message().contains(text), "{error}");
        assert!(!deadline.has_passed());
    });
}

#[test]
fn exchange_wait_ends_with_the_callers_error() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let deadline = Deadline::after_ms(60_000);
    let rendezvous = rendezvous(&store, 0, 2, 1, &deadline);
    let exchange = StoreExchange { rendezvous: &rendezvous, id: Nonce([7; 16]) };
    let reason = || Some(Error::new(ErrorKind::PeerFailed, "rank 1 died"));
    let error = exchange.all_gather("phase", b"", &reason).unwrap_err();
    assert_eq!(error.message(), "rank 1 died");
}

#[test]
fn death_between_the_phases_ends_the_exchange() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let deadline = Deadline::after_ms(60_000);
    let id = meet_all(&store, &[1, 2]).remove(0).unwrap();
    // The same process ID with another start time, as if the process of rank 1 had ended.
    let own_key = this_process::process_key();
    let mut parts = own_key.splitn(3, '/');
    let (pid, namespace) = (parts.next().unwrap(), parts.nth(1).unwrap());
    let entry = RendezvousEntry {
        nonce: Nonce([2; 16]),
        size: 2,
        security: "none".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        process: "b".into(),
        process_key: format!("{pid}/1/{namespace}"),
    };
    store.set(b"dist/t/rank/1", &entry.encode(), &deadline).unwrap();
    let zero = rendezvous(&store, 0, 2, 1, &deadline);
    let exchange = StoreExchange { rendezvous: &zero, id };
    let error = exchange.all_gather("card", b"0", &|| None).unwrap_err();
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::PeerFailed, Some(1)), "{error}");
    assert!(error.message().contains("died while the group was created"), "{error}");
    assert!(deadline.elapsed().as_secs() < 10);
}
