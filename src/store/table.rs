//! The values of a store and the effect of each operation on them. The in-process store, the file
//! store and the TCP server share this table, so that their semantics are equal. The table is
//! independent of waits, threads and sockets.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

/// The approximate memory that a key or a queued item takes in addition to its bytes: its slot in
/// the map and the overhead of its allocations.
const ENTRY_OVERHEAD_BYTES: usize = 96;

/// The largest growth of the table by one `add` that is accepted while the limit leaves room for a
/// key and its value: the overhead and the digits of a number.
#[cfg(any(test, fuzzing))]
pub(super) const MAX_ADD_GROWTH_BYTES: usize = ENTRY_OVERHEAD_BYTES + 20;

/// Keys with their values, and queues in a namespace of their own: a name may be a key and a queue.
#[derive(Debug, Default)]
pub(super) struct KeyValueTable {
    values: HashMap<Vec<u8>, Vec<u8>>,
    /// No queue in the map is empty.
    queues: HashMap<Vec<u8>, VecDeque<Vec<u8>>>,
    /// The approximate memory of all values and queues in bytes.
    bytes: usize,
}

/// The result of a compare-and-set.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CompareSetOutcome {
    /// The value that the caller receives.
    pub(super) value: Vec<u8>,
    /// True if the desired value is stored.
    pub(super) stored: bool,
}

/// The error of [`KeyValueTable::add`] if the stored value is not a number.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotANumber;

impl KeyValueTable {
    pub(super) fn set(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.bytes += value.len();
        match self.values.entry(key) {
            Entry::Occupied(mut old) => self.bytes -= old.insert(value).len(),
            Entry::Vacant(vacant) => {
                self.bytes += vacant.key().len() + ENTRY_OVERHEAD_BYTES;
                vacant.insert(value);
            }
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.values.get(key).map(Vec::as_slice)
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        self.values.contains_key(key)
    }

    /// Returns true if a wait for `key` is complete: the key exists, or the queue has items.
    pub(super) fn has_key_or_queue(&self, key: &[u8]) -> bool {
        self.contains(key) || self.queues.contains_key(key)
    }

    /// Returns the number of keys, without queues.
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns all keys in no particular order, without queues.
    pub(super) fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.values.keys().map(Vec::as_slice)
    }

    /// Returns the approximate memory of all values and queues in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn delete(&mut self, key: &[u8]) -> bool {
        let Some(value) = self.values.remove(key) else { return false };
        self.bytes -= key.len() + value.len() + ENTRY_OVERHEAD_BYTES;
        true
    }

    pub(super) fn append(&mut self, key: Vec<u8>, bytes: &[u8]) {
        let key_bytes = key.len();
        self.bytes += bytes.len();
        let added = &mut self.bytes;
        let value = self.values.entry(key).or_insert_with(|| {
            *added += key_bytes + ENTRY_OVERHEAD_BYTES;
            Vec::new()
        });
        value.extend_from_slice(bytes);
    }

    pub(super) fn add(&mut self, key: Vec<u8>, amount: i64) -> Result<i64, NotANumber> {
        let sum = self.sum(&key, amount)?;
        self.set(key, sum.to_string().into_bytes());
        Ok(sum)
    }

    /// Returns the sum that [`KeyValueTable::add`] would store.
    pub(super) fn sum(&self, key: &[u8], amount: i64) -> Result<i64, NotANumber> {
        let before = match self.get(key) {
            Some(text) => parse_number(text).ok_or(NotANumber)?,
            None => 0,
        };
        Ok(before.wrapping_add(amount))
    }

    pub(super) fn compare_set(
        &mut self,
        key: Vec<u8>,
        expected: &[u8],
        desired: &[u8],
    ) -> CompareSetOutcome {
        let outcome = self.compare(&key, expected, desired);
        if outcome.stored {
            self.set(key, desired.to_vec());
        }
        outcome
    }

    /// Returns the result that [`KeyValueTable::compare_set`] would have.
    pub(super) fn compare(&self, key: &[u8], expected: &[u8], desired: &[u8]) -> CompareSetOutcome {
        let matches = match self.get(key) {
            Some(value) => value == expected,
            None if expected.is_empty() => true,
            // This is c10d's behaviour: the caller gets `expected`, although the key is missing and
            // nothing is stored. The result does not tell the caller that the key is missing.
            None => return CompareSetOutcome { value: expected.to_vec(), stored: false },
        };
        let value = if matches { desired } else { self.get(key).unwrap_or_default() };
        CompareSetOutcome { value: value.to_vec(), stored: matches }
    }

    pub(super) fn push(&mut self, queue: Vec<u8>, item: Vec<u8>) {
        self.bytes += queue.len() + item.len() + ENTRY_OVERHEAD_BYTES;
        self.queues.entry(queue).or_default().push_back(item);
    }

    /// Returns the item that [`KeyValueTable::pop`] would take.
    pub(super) fn peek(&self, queue: &[u8]) -> Option<&[u8]> {
        self.queues.get(queue)?.front().map(Vec::as_slice)
    }

    pub(super) fn pop(&mut self, queue: &[u8]) -> Option<Vec<u8>> {
        let items = self.queues.get_mut(queue)?;
        let item = items.pop_front()?;
        if items.is_empty() {
            self.queues.remove(queue);
        }
        self.bytes -= queue.len() + item.len() + ENTRY_OVERHEAD_BYTES;
        Some(item)
    }

    /// Returns the names of all queues.
    #[cfg(any(test, fuzzing))]
    pub(super) fn queues(&self) -> impl Iterator<Item = &[u8]> {
        self.queues.keys().map(Vec::as_slice)
    }

    /// Returns true if the field `bytes` equals the sum over all values and queued items, and no
    /// queue is empty.
    #[cfg(any(test, fuzzing))]
    pub(super) fn has_consistent_size(&self) -> bool {
        let cost = |name: &[u8], bytes: &[u8]| name.len() + bytes.len() + ENTRY_OVERHEAD_BYTES;
        let values = self.values.iter().map(|(key, value)| cost(key, value));
        let queues = self.queues.iter();
        let items = queues.flat_map(|(name, items)| items.iter().map(|item| cost(name, item)));
        self.bytes == values.chain(items).sum::<usize>()
            && self.queues.values().all(|q| !q.is_empty())
    }

    pub(super) fn queue_len(&self, queue: &[u8]) -> usize {
        self.queues.get(queue).map_or(0, VecDeque::len)
    }
}

/// Converts a length to the integer type of the store interface.
pub(super) fn len_as_i64(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

/// Parses a counter like C's `strtoll`, which torch's server uses: it accepts leading blanks and a
/// sign, and ignores text after the digits. Returns `None` if there are no digits or the number
/// does not fit.
pub(super) fn parse_number(text: &[u8]) -> Option<i64> {
    let blanks = text.iter().take_while(|b| matches!(b, b' ' | b'\t'..=b'\r')).count();
    let text = &text[blanks..];
    let signed = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let digits = text[signed..].iter().take_while(|b| b.is_ascii_digit()).count();
    if digits == 0 {
        return None;
    }
    std::str::from_utf8(&text[..signed + digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_parsed_like_strtoll() {
        assert_eq!(parse_number(b"12"), Some(12));
        assert_eq!(parse_number(b" \t\r\n\x0b\x0c12"), Some(12));
        assert_eq!(parse_number(b"12abc"), Some(12));
        assert_eq!(parse_number(b"-12 "), Some(-12));
        assert_eq!(parse_number(b"+7"), Some(7));
        assert_eq!(parse_number(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(parse_number(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_number(b"9223372036854775808"), None);
        for text in [&b""[..], b"abc", b" ", b"-", b"+-1", b"\xff1"] {
            assert_eq!(parse_number(text), None, "{text:?}");
        }
    }

    #[test]
    fn add_wraps_and_leaves_non_numbers_unchanged() {
        let mut table = KeyValueTable::default();
        assert_eq!(table.add(b"n".to_vec(), i64::MAX), Ok(i64::MAX));
        assert_eq!(table.add(b"n".to_vec(), 1), Ok(i64::MIN));
        table.set(b"t".to_vec(), b"text".to_vec());
        assert_eq!(table.add(b"t".to_vec(), 1), Err(NotANumber));
        assert_eq!(table.get(b"t"), Some(&b"text"[..]));
    }

    #[test]
    fn compare_and_set_follows_c10d() {
        let mut table = KeyValueTable::default();
        let mut run = |expected: &[u8], desired: &[u8]| {
            let done = table.compare_set(b"k".to_vec(), expected, desired);
            (done.value, done.stored)
        };
        assert_eq!(run(b"exp", b"new"), (b"exp".to_vec(), false));
        assert_eq!(run(b"", b"a"), (b"a".to_vec(), true));
        assert_eq!(run(b"WRONG", b"c"), (b"a".to_vec(), false));
        assert_eq!(run(b"", b"c"), (b"a".to_vec(), false));
        assert_eq!(run(b"a", b"bb"), (b"bb".to_vec(), true));
    }

    #[test]
    fn queues_and_keys_are_separate_namespaces() {
        let mut table = KeyValueTable::default();
        table.push(b"q".to_vec(), b"1".to_vec());
        table.push(b"q".to_vec(), b"2".to_vec());
        assert_eq!((table.len(), table.queue_len(b"q"), table.contains(b"q")), (0, 2, false));
        assert!(table.has_key_or_queue(b"q") && !table.delete(b"q"));
        assert_eq!(table.pop(b"q").as_deref(), Some(&b"1"[..]));
        assert_eq!(table.pop(b"q").as_deref(), Some(&b"2"[..]));
        assert_eq!(table.pop(b"q"), None);
        assert!(!table.has_key_or_queue(b"q"));
    }

    #[test]
    fn an_emptied_table_takes_no_memory() {
        let mut table = KeyValueTable::default();
        table.set(b"k".to_vec(), vec![0; 100]);
        assert!(table.bytes() > 100);
        table.set(b"k".to_vec(), Vec::new());
        table.append(b"k".to_vec(), b"abc");
        table.append(b"l".to_vec(), b"abc");
        table.push(b"q".to_vec(), vec![0; 10]);
        table.add(b"n".to_vec(), 1234).unwrap();
        table.compare_set(b"n".to_vec(), b"1234", b"5");
        for key in [&b"k"[..], b"l", b"n"] {
            assert!(table.delete(key));
        }
        table.pop(b"q");
        assert_eq!(table.bytes(), 0);
    }
}
