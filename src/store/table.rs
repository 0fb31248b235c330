//! The values of a store and what each operation does to them; shared by the in-process store and by
//! the TCP server, so that the two cannot differ. Knows nothing of waiting, threads or sockets.

use std::collections::HashMap;

/// Keys and their values.
#[derive(Debug, Default)]
pub(super) struct Table {
    values: HashMap<Vec<u8>, Vec<u8>>,
}

/// What a compare-and-set did.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Compared {
    /// What the caller is told.
    pub(super) value: Vec<u8>,
    /// Whether the desired value was stored.
    pub(super) stored: bool,
}

/// An addition met something that is not a number.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotANumber;

impl Table {
    pub(super) fn set(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.values.insert(key, value);
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.values.get(key).map(Vec::as_slice)
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        self.values.contains_key(key)
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn delete(&mut self, key: &[u8]) -> bool {
        self.values.remove(key).is_some()
    }

    pub(super) fn append(&mut self, key: Vec<u8>, bytes: &[u8]) {
        self.values.entry(key).or_default().extend_from_slice(bytes);
    }

    pub(super) fn add(&mut self, key: Vec<u8>, amount: i64) -> Result<i64, NotANumber> {
        let before = match self.get(&key) {
            Some(text) => parse_number(text).ok_or(NotANumber)?,
            None => 0,
        };
        let sum = before.wrapping_add(amount);
        self.values.insert(key, sum.to_string().into_bytes());
        Ok(sum)
    }

    pub(super) fn compare_set(
        &mut self,
        key: Vec<u8>,
        expected: &[u8],
        desired: &[u8],
    ) -> Compared {
        let matches = match self.get(&key) {
            Some(value) => value == expected,
            None if expected.is_empty() => true,
            // Kept from c10d: the caller cannot tell this from success.
            None => return Compared { value: expected.to_vec(), stored: false },
        };
        if matches {
            self.values.insert(key, desired.to_vec());
            return Compared { value: desired.to_vec(), stored: true };
        }
        let value = self.get(&key).unwrap_or_default().to_vec();
        Compared { value, stored: false }
    }
}

/// Reads a counter as C's `strtoll` does, which is what torch's server uses: leading blanks and a
/// sign are allowed, and what follows the digits is ignored. `None` where there are no digits or the
/// number does not fit.
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
    fn numbers_are_read_as_c_reads_them() {
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
    fn additions_wrap_and_spare_what_is_no_number() {
        let mut table = Table::default();
        assert_eq!(table.add(b"n".to_vec(), i64::MAX), Ok(i64::MAX));
        assert_eq!(table.add(b"n".to_vec(), 1), Ok(i64::MIN));
        table.set(b"t".to_vec(), b"text".to_vec());
        assert_eq!(table.add(b"t".to_vec(), 1), Err(NotANumber));
        assert_eq!(table.get(b"t"), Some(&b"text"[..]));
    }

    #[test]
    fn compare_and_set_follows_c10d() {
        let mut table = Table::default();
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
}
