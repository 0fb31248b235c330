//! Tests of the record layer, with a cipher that is not secret but depends on each bit of its
//! input. `security/tests.rs` repeats the essential ones with the real ciphers.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use std::hash::{DefaultHasher, Hasher as _};

/// A cipher for tests.
#[derive(Debug)]
pub(in crate::sys) struct ToyCipher(pub(in crate::sys) u64);

impl ToyCipher {
    fn hash(&self, number: u64, parts: &[&[u8]]) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher.write_u64(number);
        parts.iter().for_each(|part| hasher.write(part));
        hasher.finish()
    }

    fn mask(&self, number: u64, text: &mut [u8]) {
        let pad = self.hash(number, &[b"pad"]).to_le_bytes();
        text.iter_mut().zip(pad.iter().cycle()).for_each(|(byte, pad)| *byte ^= pad);
    }

    fn tag(&self, number: u64, header: &[u8], sealed: &[u8]) -> RecordTag {
        let half = |name: &[u8]| self.hash(number, &[name, header, sealed]).to_le_bytes();
        let mut tag = [0; TAG_BYTES];
        tag[..8].copy_from_slice(&half(b"first"));
        tag[8..].copy_from_slice(&half(b"second"));
        tag
    }
}

impl RecordCipher for ToyCipher {
    fn seal(&self, number: u64, header: &[u8], text: &mut [u8]) -> RecordTag {
        self.mask(number, text);
        self.tag(number, header, text)
    }

    fn open(
        &self,
        number: u64,
        header: &[u8],
        text: &mut [u8],
        tag: &RecordTag,
    ) -> Result<(), WrongTag> {
        if self.tag(number, header, text) != *tag {
            return Err(WrongTag);
        }
        self.mask(number, text);
        Ok(())
    }

    fn rekey(&mut self) {
        self.0 = self.hash(u64::MAX, &[b"next key"]);
    }
}

fn sealer() -> RecordSealer {
    RecordSealer::new(Box::new(ToyCipher(7)))
}

fn opener() -> RecordOpener {
    RecordOpener::new(Box::new(ToyCipher(7)))
}

/// Seals the text in records of these lengths, repeated, and the end. Returns each record.
fn records(text: &[u8], lens: &[usize]) -> Vec<Vec<u8>> {
    let mut sealer = sealer();
    let (mut records, mut rest, mut lens) = (Vec::new(), text, lens.iter().cycle());
    let mut take = |sealer: &mut RecordSealer| {
        records.push(sealer.unsent().to_vec());
        sealer.mark_sent(usize::MAX / 2);
        assert!(sealer.unsent().is_empty());
    };
    while !rest.is_empty() {
        let (now, later) = rest.split_at(rest.len().min(*lens.next().unwrap()));
        sealer.seal_text(now.len(), |into| into.copy_from_slice(now)).unwrap();
        take(&mut sealer);
        rest = later;
    }
    sealer.seal_end().unwrap();
    take(&mut sealer);
    records
}

/// Takes all text that the opener has. Reads it in pieces of at most `len` bytes.
fn take_all(opener: &mut RecordOpener, len: usize, text: &mut Vec<u8>) {
    let mut piece = vec![0; len];
    while opener.open_next() {
        let count = opener.take_text(Dst::from(piece.as_mut_slice()));
        assert!(count > 0);
        text.extend(&piece[..count]);
    }
}

/// Opens these bytes, which arrive in pieces of these lengths, repeated. Returns the text and the
/// last state.
fn open_all(bytes: &[u8], pieces: &[usize], read_len: usize) -> (Vec<u8>, OpenerState) {
    let (mut opener, mut text, mut rest) = (opener(), Vec::new(), bytes);
    for &piece in pieces.iter().cycle() {
        take_all(&mut opener, read_len, &mut text);
        if opener.state() != OpenerState::Open {
            break;
        }
        assert!(!opener.is_ready());
        if rest.is_empty() {
            opener.end_input();
            break;
        }
        let space = opener.space();
        let count = space.len().min(piece).min(rest.len());
        assert!(count > 0, "no space for {} bytes", rest.len());
        space[..count].copy_from_slice(&rest[..count]);
        opener.add(count);
        rest = &rest[count..];
    }
    assert!(opener.is_ready());
    // A later call changes nothing.
    let state = opener.state();
    take_all(&mut opener, read_len, &mut text);
    assert_eq!(opener.state(), state);
    (text, state)
}

const FORGED: OpenerState = OpenerState::Failed(RecordError::Forged);
const CUT: OpenerState = OpenerState::Failed(RecordError::Cut);

/// Opens a changed stream. Checks that it gives no wrong byte, and returns the last state.
fn open_changed(records: &[&[u8]], text: &[u8]) -> OpenerState {
    let (opened, state) = open_all(&records.concat(), &[1 << 20], 1 << 20);
    assert!(text.starts_with(&opened));
    state
}

proptest! {
    #[test]
    fn text_arrives_with_any_division_into_records_pieces_and_reads(
        text in vec(any::<u8>(), 0..6000), lens in vec(1_usize..3000, 1..6),
        pieces in vec(1_usize..5000, 1..6), read_len in 1_usize..4000,
    ) {
        let bytes = records(&text, &lens).concat();
        prop_assert_eq!(open_all(&bytes, &pieces, read_len), (text, OpenerState::Ended));
    }

    #[test]
    fn changed_byte_gives_no_wrong_text(
        text in vec(any::<u8>(), 1..2000), len in 1_usize..700, at in any::<Index>(),
        bits in 1..=u8::MAX, pieces in vec(1_usize..500, 1..4),
    ) {
        let mut bytes = records(&text, &[len]).concat();
        let at = at.index(bytes.len());
        bytes[at] ^= bits;
        let (opened, state) = open_all(&bytes, &pieces, 1000);
        // A changed length can ask for more bytes than arrive.
        prop_assert!(state == FORGED || state == CUT, "{state:?}");
        prop_assert!(opened.len() <= at && text.starts_with(&opened));
    }

    #[test]
    fn cut_stream_is_reported(
        text in vec(any::<u8>(), 0..2000), len in 1_usize..700, at in any::<Index>(),
        pieces in vec(1_usize..500, 1..4),
    ) {
        let bytes = records(&text, &[len]).concat();
        let (opened, state) = open_all(&bytes[..at.index(bytes.len())], &pieces, 1000);
        prop_assert_eq!(state, CUT);
        prop_assert!(text.starts_with(&opened));
    }

    #[test]
    fn moved_repeated_and_missing_records_are_refused(
        text in vec(any::<u8>(), 200..2000), len in 1_usize..60, at in any::<Index>(),
        to in any::<Index>(),
    ) {
        let records = records(&text, &[len]);
        let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        let (at, to) = (at.index(records.len() - 1), to.index(records.len()));
        let mut missing = records.clone();
        missing.remove(at);
        prop_assert_eq!(open_changed(&missing, &text), FORGED);
        let mut repeated = records.clone();
        repeated.insert(to, records[at]);
        prop_assert_eq!(open_changed(&repeated, &text), FORGED);
        let mut exchanged = records.clone();
        exchanged.swap(at, to);
        prop_assert_eq!(open_changed(&exchanged, &text) == FORGED, at != to);
    }

    #[test]
    fn arbitrary_bytes_give_no_text(
        bytes in vec(prop_oneof![Just(0_u8), Just(1_u8), any::<u8>()], 0..3000),
        pieces in vec(1_usize..900, 1..4),
    ) {
        let (text, state) = open_all(&bytes, &pieces, 100);
        prop_assert!(text.is_empty() && state != OpenerState::Ended, "{state:?}");
    }
}

#[test]
fn bytes_after_the_end_are_refused() {
    let mut bytes = records(b"text", &[4]).concat();
    assert_eq!(open_all(&bytes, &[100], 9).1, OpenerState::Ended);
    bytes.push(0);
    for piece in [1, 100] {
        let (text, state) = open_all(&bytes, &[piece], 9);
        assert_eq!(text, b"text");
        // Bytes that have not arrived with the end are not read.
        assert_eq!(state, if piece == 1 { OpenerState::Ended } else { FORGED });
    }
}

#[test]
fn too_long_record_is_refused_at_its_header() {
    let text = vec![5; MAX_TEXT_BYTES + 1];
    let bytes = records(&text, &[MAX_TEXT_BYTES]).concat();
    assert_eq!(open_all(&bytes, &[3000, 70_000], 1 << 20), (text, OpenerState::Ended));
    let header = (MAX_TEXT_BYTES + 1).to_le_bytes();
    assert_eq!(open_all(&header[..4], &[4], 9), (Vec::new(), FORGED));
    assert_eq!(sealer().seal_text(MAX_TEXT_BYTES + 1, |_| {}), Err(RecordError::Misuse));
    assert_eq!(sealer().seal_text(0, |_| {}), Err(RecordError::Misuse));
}

#[test]
fn numbers_do_not_wrap() {
    let (mut sealer, mut opener) = (sealer(), opener());
    sealer.cipher.next_number = u64::MAX - 1;
    opener.cipher.next_number = u64::MAX - 1;
    sealer.seal_text(1, |text| text.fill(3)).unwrap();
    opener.add_bytes(sealer.unsent());
    assert!(opener.open_next());
    for _ in 0..2 {
        assert_eq!(sealer.seal_text(1, |text| text.fill(3)), Err(RecordError::Exhausted));
    }
    let before = sealer.unsent().to_vec();
    opener.take_text(Dst::from(&mut [0][..]));
    opener.add_bytes(&before);
    assert!(!opener.open_next());
    assert_eq!(opener.state(), OpenerState::Failed(RecordError::Exhausted));
}

#[test]
fn both_sides_replace_the_key_at_the_same_record() {
    let run = |interval_of_opener| {
        let (mut sealer, mut opener) = (sealer(), opener());
        sealer.cipher.rekey_interval = 3;
        opener.cipher.rekey_interval = interval_of_opener;
        let mut text = Vec::new();
        for number in 0..10 {
            sealer.seal_text(1, |text| text.fill(number)).unwrap();
        }
        opener.add_bytes(sealer.unsent());
        take_all(&mut opener, 5, &mut text);
        (text, opener.state())
    };
    assert_eq!(run(3), ((0..10).collect(), OpenerState::Open));
    // The first record has number 1, so the third one has the next key.
    assert_eq!(run(4), (vec![0, 1], FORGED));
}

#[test]
fn small_buffers_are_kept_and_large_ones_released() {
    let (mut sealer, mut opener) = (sealer(), opener());
    let mut buffers = std::collections::BTreeSet::new();
    for round in 0..100 {
        sealer.seal_text(4, |text| text.fill(round)).unwrap();
        let space = opener.space();
        space[..24].copy_from_slice(sealer.unsent());
        opener.add(24);
        let mut text = [0; 4];
        assert!(opener.open_next());
        assert_eq!(opener.take_text(Dst::from(&mut text[..])), 4);
        assert_eq!(text, [round; 4]);
        buffers.insert((sealer.buffer.as_ptr(), opener.buffer.as_ptr()));
        sealer.mark_sent(24);
        sealer.release_buffer();
        opener.release_buffer();
    }
    assert_eq!(buffers.len(), 1);
    sealer.seal_text(MAX_TEXT_BYTES, |text| text.fill(1)).unwrap();
    opener.add_bytes(sealer.unsent());
    sealer.release_buffer();
    assert!(!sealer.unsent().is_empty(), "unsent bytes are not released");
    sealer.mark_sent(MAX_TEXT_BYTES + OVERHEAD_BYTES);
    assert!(opener.open_next());
    opener.release_buffer();
    opener.take_text(Dst::from(vec![0; MAX_TEXT_BYTES].as_mut_slice()));
    sealer.release_buffer();
    opener.release_buffer();
    assert_eq!((sealer.buffer.len(), opener.buffer.len()), (0, 0));
}
