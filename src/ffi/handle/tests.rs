//! Tests of the handles.

use super::*;
use std::sync::Weak;
use std::sync::atomic::AtomicBool;

#[test]
fn only_live_handles_of_the_right_kind_are_found() {
    static GROUPS: HandleTable<i32> = HandleTable::new(HandleKind::Group);
    static STORES: HandleTable<i32> = HandleTable::new(HandleKind::Store);
    let first: *mut u8 = GROUPS.insert(Arc::new(1)).unwrap();
    let store: *mut u8 = STORES.insert(Arc::new(2)).unwrap();
    assert_eq!(**GROUPS.get(first).unwrap(), 1);
    assert!(GROUPS.get(store).is_err());
    assert!(GROUPS.get(std::ptr::null::<u8>()).is_err());
    for token in
        [0xdead_beef, usize::MAX, first.addr() ^ 1 << 31, first.addr() + (1 << GENERATION_SHIFT)]
    {
        assert!(GROUPS.get(std::ptr::without_provenance::<u8>(token)).is_err(), "{token:#x}");
    }
    assert_eq!(*GROUPS.remove(first).unwrap(), 1);
    assert!(GROUPS.remove(first).is_err());
    let second: *mut u8 = GROUPS.insert(Arc::new(3)).unwrap();
    assert_ne!(first, second);
    assert!(GROUPS.get(first).is_err());
    assert_eq!(**GROUPS.get(second).unwrap(), 3);
}

#[test]
fn a_removed_object_lives_while_it_is_used() {
    static TABLE: HandleTable<String> = HandleTable::new(HandleKind::Blob);
    let value = Arc::new("x".to_owned());
    let weak: Weak<String> = Arc::downgrade(&value);
    let handle: *mut u8 = TABLE.insert(value).unwrap();
    let (first, second) = (TABLE.get(handle).unwrap(), TABLE.get(handle).unwrap());
    drop(TABLE.remove(handle).unwrap());
    assert!(TABLE.get(handle).is_err());
    // The slot is in use, so the next object gets another slot.
    let next: *mut u8 = TABLE.insert(Arc::new("y".to_owned())).unwrap();
    assert_ne!(next.addr() & 0xffff_ffff, handle.addr() & 0xffff_ffff);
    drop(first);
    assert_eq!(*second.as_str(), *"x");
    assert!(weak.upgrade().is_some());
    drop(second);
    assert!(weak.upgrade().is_none());
    let reused: *mut u8 = TABLE.insert(Arc::new("z".to_owned())).unwrap();
    assert_eq!(reused.addr() & 0xffff_ffff, handle.addr() & 0xffff_ffff);
    assert!(TABLE.get(handle).is_err());
}

#[test]
fn every_index_has_its_own_slot() {
    let mut next = (0, 0);
    for index in 0..10_000 {
        assert_eq!(chunk_of(index), next);
        next.1 += 1;
        if next.1 == FIRST_CHUNK << next.0 {
            next = (next.0 + 1, 0);
        }
    }
    let last = FIRST_CHUNK * ((1 << CHUNKS) - 1) - 1;
    assert_eq!(chunk_of(last), (CHUNKS - 1, (FIRST_CHUNK << (CHUNKS - 1)) - 1));
    assert_eq!(chunk_of(last + 1).0, CHUNKS);
}

#[test]
fn all_has_the_objects_with_live_handles() {
    static TABLE: HandleTable<usize> = HandleTable::new(HandleKind::Work);
    let handles: Vec<*mut u8> = (0..100).map(|i| TABLE.insert(Arc::new(i)).unwrap()).collect();
    for handle in handles.iter().step_by(2) {
        TABLE.remove(*handle).unwrap();
    }
    let mut all: Vec<usize> = TABLE.all().iter().map(|it| **it).collect();
    all.sort_unstable();
    assert_eq!(all, (1..100).step_by(2).collect::<Vec<_>>());
    let mut removed: Vec<usize> = TABLE.remove_all().iter().map(|it| **it).collect();
    removed.sort_unstable();
    assert_eq!(removed, all);
    assert!(TABLE.all().is_empty() && handles.iter().all(|handle| TABLE.get(*handle).is_err()));
}

#[test]
fn concurrent_use_and_removal_drop_each_object_once() {
    /// An object that must not be dropped while a lookup uses it.
    struct Whole {
        number: usize,
        is_whole: AtomicBool,
        dropped: &'static AtomicU64,
    }
    impl Drop for Whole {
        fn drop(&mut self) {
            assert!(self.is_whole.swap(false, Ordering::Relaxed));
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
    static DROPPED: AtomicU64 = AtomicU64::new(0);
    static TABLE: HandleTable<Whole> = HandleTable::new(HandleKind::Work);
    static CURRENT: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
    static DONE: AtomicBool = AtomicBool::new(false);
    const ROUNDS: usize = 20_000;
    let removed = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !DONE.load(Ordering::Relaxed) {
                    for cell in &CURRENT {
                        let token = usize::try_from(cell.load(Ordering::Relaxed)).unwrap();
                        let Ok(found) = TABLE.get(std::ptr::without_provenance::<u8>(token)) else {
                            continue;
                        };
                        assert!(found.is_whole.load(Ordering::Relaxed) && found.number < ROUNDS);
                    }
                }
            });
        }
        let changer = scope.spawn(|| {
            for number in 0..ROUNDS {
                let cell = &CURRENT[number % CURRENT.len()];
                let old = usize::try_from(cell.load(Ordering::Relaxed)).unwrap();
                if old != 0 {
                    drop(TABLE.remove(std::ptr::without_provenance::<u8>(old)).unwrap());
                }
                let object = Whole { number, is_whole: AtomicBool::new(true), dropped: &DROPPED };
                let handle: *mut u8 = TABLE.insert(Arc::new(object)).unwrap();
                cell.store(handle.addr() as u64, Ordering::Relaxed);
            }
            DONE.store(true, Ordering::Relaxed);
            ROUNDS - CURRENT.len()
        });
        changer.join().unwrap()
    });
    assert_eq!(DROPPED.load(Ordering::Relaxed), removed as u64);
    // The slots are reused, so the size of the table does not depend on the number of objects.
    assert!(TABLE.free_slots.lock().unwrap().next <= 16);
}
