use super::*;
use crate::backend::Exchange as _;
use crate::store::HashStore;

pub(super) fn rendezvous<'a>(
    store: &Arc<dyn Store>,
    rank: Rank,
    size: WorldSize,
    nonce: u8,
    deadline: &'a Deadline,
) -> Rendezvous<'a> {
    let store = Arc::clone(store);
    let who = format!("process {nonce}");
    Rendezvous { store, name: "t", rank, size, nonce: Nonce([nonce; 16]), who, deadline }
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
fn all_get_one_id_and_each_attempt_another() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let first: Vec<_> = meet_all(&store, &[1, 2, 3]).into_iter().map(Result::unwrap).collect();
    // The store now holds the keys of the first attempt, as after a restart.
    let second: Vec<_> = meet_all(&store, &[4, 5, 6]).into_iter().map(Result::unwrap).collect();
    assert!(first.iter().all(|id| *id == first[0]));
    assert!(second.iter().all(|id| *id == second[0]));
    assert_ne!(first[0], second[0]);
}

#[test]
fn a_missing_rank_is_named() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let deadline = Deadline::after_ms(50);
    let error = rendezvous(&store, 0, 3, 1, &deadline).meet().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("ranks 1, 2"), "{error}");
}

#[test]
fn different_world_sizes_are_told_to_everybody() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let deadline = Deadline::after_ms(20_000);
    let (zero, one) = std::thread::scope(|scope| {
        let one = scope.spawn(|| rendezvous(&store, 1, 3, 2, &deadline).meet());
        let zero = rendezvous(&store, 0, 2, 1, &deadline).meet();
        (zero.unwrap_err(), one.join().unwrap().unwrap_err())
    });
    for error in [zero, one] {
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(
            error.message().contains("rank 1 (process 2) was told a world size of 3"),
            "{error}"
        );
    }
}

#[test]
fn a_rank_that_comes_twice_is_told() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let deadline = Deadline::after_ms(20_000);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| rendezvous(&store, 1, 3, 1, &deadline).meet());
        // The second process publishes over the first one's entry, once that is there.
        store.get(b"dist/t/rank/1", &deadline).unwrap();
        let entry = Entry { nonce: Nonce([2; 16]), size: 3, version: "1".into(), who: "b".into() };
        store.set(b"dist/t/rank/1", &entry.encode(), &deadline).unwrap();
        let error = first.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("taken by another process (b)"), "{error}");
    });
}

#[test]
fn a_rank_that_comes_after_its_leftover_was_offered_a_place_takes_part() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let deadline = Deadline::after_ms(20_000);
    let nonce = Nonce([9; 16]);
    // Of a job of another size, which must not matter either.
    let leftover =
        Entry { nonce, size: 7, version: env!("CARGO_PKG_VERSION").into(), who: "gone".into() };
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
fn a_rank_that_gives_up_is_not_waited_for() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let deadline = Deadline::after_ms(60_000);
    let join = |rank: Rank| rendezvous(&store, rank, 2, 1 + u8::try_from(rank).unwrap(), &deadline);
    std::thread::scope(|scope| {
        let zero = scope.spawn(|| {
            let rendezvous = join(0);
            let id = rendezvous.meet().unwrap();
            StoreExchange { rendezvous: &rendezvous, id }.all("phase", b"", &|| None).unwrap_err()
        });
        let rendezvous = join(1);
        let id = rendezvous.meet().unwrap();
        let exchange = StoreExchange { rendezvous: &rendezvous, id };
        exchange.give_up(&Error::new(ErrorKind::OutOfMemory, "no memory"));
        exchange.give_up(&Error::new(ErrorKind::System, "a later reason"));
        let error = zero.join().unwrap();
        assert_eq!(error.kind(), ErrorKind::PeerFailed);
        let text = "rank 1 (process 2) gave up starting the group: no memory";
        assert!(error.message().contains(text), "{error}");
        assert!(!deadline.has_passed());
    });
}

#[test]
fn a_wait_in_an_exchange_ends_with_the_callers_reason() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let deadline = Deadline::after_ms(60_000);
    let rendezvous = rendezvous(&store, 0, 2, 1, &deadline);
    let exchange = StoreExchange { rendezvous: &rendezvous, id: Nonce([7; 16]) };
    let reason = || Some(Error::new(ErrorKind::PeerFailed, "rank 1 died"));
    let error = exchange.all("phase", b"", &reason).unwrap_err();
    assert_eq!(error.message(), "rank 1 died");
}
