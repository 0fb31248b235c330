//! Loom models of handles: lookups, removals and reuse of a slot at the same time. Loom checks each
//! access to the object of a slot. The state of the slot must order the reads of the lookups, and
//! the writes that put an object into the slot or take it out.

use super::*;
use loom::thread;

/// Creates a table for one execution of a model.
fn leaked_table() -> &'static HandleTable<u64> {
    Box::leak(Box::new(HandleTable::new(HandleKind::Work)))
}

/// Looks up a handle. The object must be the one with this number, at the beginning and at the end
/// of the lookup.
fn check_lookup(table: &'static HandleTable<u64>, token: usize, number: u64) -> bool {
    let Ok(found) = table.get(std::ptr::without_provenance::<u8>(token)) else { return false };
    assert_eq!(**found, number);
    thread::yield_now();
    assert_eq!(**found, number);
    true
}

fn insert(table: &'static HandleTable<u64>, number: u64) -> usize {
    table.insert::<u8>(Arc::new(number)).unwrap().addr()
}

fn remove(table: &'static HandleTable<u64>, token: usize) -> bool {
    table.remove(std::ptr::without_provenance::<u8>(token)).is_ok()
}

#[test]
fn loom_lookup_finds_its_object_or_none() {
    loom::model(|| {
        let table = leaked_table();
        let first = insert(table, 1);
        let looking = thread::spawn(move || check_lookup(table, first, 1));
        assert!(remove(table, first));
        // The new object uses the same slot if the lookup has ended.
        let second = insert(table, 2);
        assert!(check_lookup(table, second, 2));
        looking.join().unwrap();
        assert!(!check_lookup(table, first, 1) && check_lookup(table, second, 2));
    });
}

#[test]
fn loom_handle_is_removed_once() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let table = leaked_table();
        let handle = insert(table, 1);
        let removing = thread::spawn(move || {
            check_lookup(table, handle, 1);
            remove(table, handle)
        });
        let is_removed = remove(table, handle);
        assert_ne!(removing.join().unwrap(), is_removed);
        assert!(!check_lookup(table, handle, 1));
        // No lookup runs, so the slot is free.
        assert_eq!(lock(&table.free_slots).free.len(), 1);
    });
}
