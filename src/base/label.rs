//! The label of a call: a short text from the caller, by which the ranks distinguish calls with
//! equal arguments.
//!
//! A label is a value of four words. A copy needs no allocation, and shared memory holds the label
//! as atomic words. To detect a mismatch, ranks compare only [`Label::hash`]. A rank reads the text
//! of another rank's label only for the error message.

use super::error::{Error, Result};
use std::fmt;

/// The maximum length of a label in bytes.
pub const LABEL_BYTES: usize = 32;

/// The number of words of a label.
pub const LABEL_WORDS: usize = LABEL_BYTES / 8;

/// The label of a call, or no label.
///
/// The text is UTF-8 without zero bytes. It is stored in little-endian words, padded with zeros.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Label([u64; LABEL_WORDS]);

impl Label {
    /// The value for no label.
    pub const NONE: Self = Self([0; LABEL_WORDS]);

    /// The value for another rank's label whose text is not known. The value starts with a byte
    /// that UTF-8 does not contain, so no label with a text is equal to it.
    pub const UNKNOWN: Self = Self([0xff, 0, 0, 0]);

    /// Returns the label with this text; an empty text gives no label.
    ///
    /// # Errors
    /// `InvalidArgument` for a text that is too long or contains a zero byte.
    pub fn new(text: &str) -> Result<Self> {
        let invalid_label = || {
            let length = text.len();
            let limit = format!("the limit is {LABEL_BYTES} bytes without a zero byte");
            Error::invalid(format!("the label of {length} bytes is invalid: {limit}"))
        };
        if text.contains('\0') {
            return Err(invalid_label());
        }
        Self::from_bytes(text.as_bytes()).map_err(|_| invalid_label())
    }

    /// Returns the label of an operation that consists of several calls. The result is:
    ///
    /// * no label, if no call has one;
    /// * the texts in order, separated by commas, if each call has a label without a comma and the
    ///   list fits;
    /// * otherwise the number of calls and a hash of all labels.
    pub fn of_calls(labels: &[Self]) -> Self {
        match labels {
            [label] => return *label,
            _ if labels.iter().all(Self::is_none) => return Self::NONE,
            _ => {}
        }
        let texts: Vec<String> = labels.iter().map(Self::text).collect();
        let is_clear = texts.iter().all(|text| !text.is_empty() && !text.contains(','));
        let joined = Self::new(&texts.join(", ")).ok().filter(|_| is_clear);
        joined.unwrap_or_else(|| {
            // The rotation makes the hash depend on the order.
            let add = |hash: u64, label: &Self| {
                (hash.rotate_left(23) ^ label.hash()).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            };
            let hash = labels.iter().fold(0, add);
            Self::new(&format!("{} labels #{hash:016x}", labels.len())).unwrap_or(Self::UNKNOWN)
        })
    }

    /// Returns the label with these words, or `None` if they contain no valid text. This function
    /// checks words that came from other processes.
    pub fn from_words(words: [u64; LABEL_WORDS]) -> Option<Self> {
        let label = Self(words);
        let bytes = label.padded_bytes();
        let (text, padding) = bytes.split_at(label.len());
        let is_valid = padding.iter().all(|&byte| byte == 0) && std::str::from_utf8(text).is_ok();
        is_valid.then_some(label)
    }

    /// Returns the label with this text, which must have no zero byte.
    ///
    /// The last word is usually partial. It is made from the last eight bytes of the text by a
    /// shift. The alternative, to store the single bytes in memory and load them as one word, is
    /// slower: the load would wait until all these stores have left the store buffer.
    ///
    /// # Errors
    /// The reason why the text is not a label.
    #[inline]
    pub fn from_bytes(text: &[u8]) -> std::result::Result<Self, InvalidLabel> {
        const NOT_ASCII: u64 = 0x8080_8080_8080_8080;
        if text.len() > LABEL_BYTES {
            return Err(InvalidLabel::TooLong);
        }
        let mut words = [0; LABEL_WORDS];
        let (whole, rest) = text.as_chunks::<8>();
        for (slot, word) in words.iter_mut().zip(whole) {
            *slot = u64::from_le_bytes(*word);
        }
        if let Some(slot) = words.get_mut(whole.len()).filter(|_| !rest.is_empty()) {
            *slot = match text.last_chunk::<8>() {
                Some(last) => u64::from_le_bytes(*last) >> (64 - 8 * rest.len()),
                None => rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
            };
        }
        if words.iter().fold(0, |all, word| all | word) & NOT_ASCII == 0 {
            return Ok(Self(words));
        }
        Self::from_words(words).ok_or(InvalidLabel::NotUtf8)
    }

    /// Returns the words.
    #[inline]
    pub fn words(&self) -> &[u64; LABEL_WORDS] {
        &self.0
    }

    /// Returns whether there is no label.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.0[0] == 0
    }

    /// Returns whether there is a label whose text is not known.
    pub fn is_unknown(&self) -> bool {
        *self == Self::UNKNOWN
    }

    /// Returns the label with an unknown text, or no label. This is the state before the rank with
    /// the label has sent its text.
    #[must_use]
    pub fn without_text(&self) -> Self {
        if self.is_none() { Self::NONE } else { Self::UNKNOWN }
    }

    /// Returns a 64-bit hash of the text. The words are multiplied independently, so that the
    /// processor overlaps the multiplications. The factors are SHA-512's initial hash values
    /// (fractional parts of square roots of primes), made odd.
    #[inline]
    pub fn hash(&self) -> u64 {
        const FACTORS: [u64; LABEL_WORDS] = [
            0x6a09_e667_f3bc_c909,
            0xbb67_ae85_84ca_a73b,
            0x3c6e_f372_fe94_f82b,
            0xa54f_f53a_5f1d_36f1,
        ];
        let mut hash = 0_u64;
        for (&word, factor) in self.0.iter().zip(FACTORS) {
            let product = u128::from(word ^ factor.rotate_left(32)) * u128::from(factor);
            let (low, high) = (product & u128::from(u64::MAX), product >> 64);
            // Both halves fit in 64 bits.
            let folded = u64::try_from(low ^ high).unwrap_or(0);
            hash = hash.rotate_left(19).wrapping_add(folded);
        }
        hash
    }

    /// Returns the text, or an empty string if there is none or it is not known.
    pub fn text(&self) -> String {
        let bytes = self.padded_bytes();
        String::from_utf8(bytes[..self.len()].to_vec()).unwrap_or_default()
    }

    fn padded_bytes(&self) -> [u8; LABEL_BYTES] {
        let mut bytes = [0; LABEL_BYTES];
        let (words, _) = bytes.as_chunks_mut::<8>();
        for (slot, word) in words.iter_mut().zip(self.0) {
            *slot = word.to_le_bytes();
        }
        bytes
    }

    /// Returns the number of bytes before the first zero.
    fn len(&self) -> usize {
        self.padded_bytes().iter().position(|&byte| byte == 0).unwrap_or(LABEL_BYTES)
    }
}

/// The reason why a text is not a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidLabel {
    /// The text has more than [`LABEL_BYTES`] bytes.
    TooLong,
    /// The bytes are not UTF-8.
    NotUtf8,
}

impl fmt::Display for Label {
    /// Writes the text in quotation marks, with unprintable characters escaped. Writes nothing if
    /// there is no label.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            Ok(())
        } else if self.is_unknown() {
            f.write_str("\"?\"")
        } else {
            write!(f, "\"{}\"", self.text().escape_debug())
        }
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Label({self})")
    }
}

/// Displays a label as a suffix of other text: a space and the label, or nothing if there is no
/// label.
#[derive(Clone, Copy, Debug)]
pub struct LabelSuffix(pub Label);

impl fmt::Display for LabelSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_none() { Ok(()) } else { write!(f, " {}", self.0) }
    }
}

/// The name of an operation with the label of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelledName {
    /// The name of the operation, as in the C function.
    pub name: &'static str,
    /// The label of the call.
    pub label: Label,
}

impl fmt::Display for LabelledName {
    /// Writes for instance `all_reduce "layer3.weight"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, LabelSuffix(self.label))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn label_text_round_trips_through_words() {
        for text in ["", "a", "layer3.weight", "schön", "0123456789abcdef0123456789abcdef"] {
            let label = Label::new(text).unwrap();
            assert_eq!(label.text(), text);
            assert_eq!(label.is_none(), text.is_empty());
            assert_eq!(Label::from_words(*label.words()), Some(label));
        }
        // The lengths cover each way to load the last word.
        let long = "0123456789abcdefghijklmnopqrstuv";
        for end in 0..=LABEL_BYTES {
            let text = &long[..end];
            assert_eq!(Label::from_bytes(text.as_bytes()).unwrap().text(), text);
        }
    }

    #[test]
    fn long_texts_and_zero_bytes_are_refused() {
        for text in ["0123456789abcdef0123456789abcdef0", "a\0b", "\0"] {
            assert!(Label::new(text).unwrap_err().message().contains("the limit is 32 bytes"));
        }
        let cut = "0123456789abcdef0123456789abcde\u{e9}".as_bytes();
        let not_utf8 = Err(InvalidLabel::NotUtf8);
        assert_eq!(
            (Label::from_bytes(&[0xff]), Label::from_bytes(&cut[..32])),
            (not_utf8, not_utf8)
        );
        assert_eq!(Label::from_bytes(&[b'x'; 33]), Err(InvalidLabel::TooLong));
    }

    #[test]
    fn words_of_other_processes_are_checked() {
        assert_eq!(Label::from_words([0xff; LABEL_WORDS]), None);
        assert_eq!(Label::from_words(*Label::UNKNOWN.words()), None);
        // The words have bytes after the terminating zero.
        assert_eq!(Label::from_words([0x61, 0x62, 0, 0]), None);
        assert_eq!(Label::from_words([0x0061_0061, 0, 0, 0]), None);
        assert_eq!(Label::from_words([0; LABEL_WORDS]), Some(Label::NONE));
    }

    #[test]
    fn combined_label_depends_on_the_order() {
        let combine = |texts: &[&str]| {
            let labels: Vec<Label> = texts.iter().map(|text| Label::new(text).unwrap()).collect();
            Label::of_calls(&labels).text()
        };
        assert_eq!(
            (combine(&[]), combine(&["", ""]), combine(&["a", "b"])),
            ("".into(), "".into(), "a, b".into())
        );
        let lists: [&[&str]; 8] = [
            &["a", "b"],
            &["b", "a"],
            &["a, b"],
            &["a", ""],
            &["", "a"],
            &["a", "a longer label of some layer", "b"],
            &["b", "a longer label of some layer", "a"],
            &["a", "a longer label of some layer", ""],
        ];
        let different: HashSet<String> = lists.iter().map(|list| combine(list)).collect();
        assert_eq!(
            different.len(),
            lists.len() - 1,
            "one label alone is that label: {different:?}"
        );
        assert!(combine(lists[5]).starts_with("3 labels #"));
        let many: Vec<&str> = vec!["a longer label of some layer"; 65_536];
        assert!(combine(&many).starts_with("65536 labels #"));
    }

    #[test]
    fn similar_labels_have_different_hashes() {
        let mut seen = HashSet::new();
        for layer in 0..300 {
            for part in ["weight", "bias", "Weight", "weight.", "a.very.long.one.of.weights"] {
                let label = Label::new(&format!("{layer}.{part}")).unwrap();
                assert!(seen.insert(label.hash()), "{label}");
            }
        }
        assert!(seen.insert(Label::NONE.hash()));
    }

    #[test]
    fn labels_are_displayed_in_quotation_marks() {
        let displayed = |text| Label::new(text).unwrap().to_string();
        assert_eq!(displayed("schön"), "\"schön\"");
        assert_eq!(displayed("a \"b\"\n"), "\"a \\\"b\\\"\\n\"");
        assert_eq!(displayed(""), "");
        assert_eq!(Label::UNKNOWN.to_string(), "\"?\"");
        let label = Label::new("x").unwrap();
        assert_eq!(LabelledName { name: "barrier", label }.to_string(), "barrier \"x\"");
        let name = LabelledName { name: "barrier", label: Label::NONE };
        assert_eq!(name.to_string(), "barrier");
    }
}
