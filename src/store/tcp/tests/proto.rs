//! Tests of the decoder with random requests in random pieces, and with random bytes.

use crate::store::tcp::decoder::RequestDecoder;
use crate::store::tcp::proto::{
    Bytes, MAX_KEY_BYTES, MAX_KEYS, MAX_VALUE_BYTES, Opcode, ProtocolViolation, StoreRequest,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn string_bytes() -> impl Strategy<Value = Bytes<'static>> {
    vec(any::<u8>(), 0..40).prop_map(Bytes::Owned)
}

fn request() -> impl Strategy<Value = StoreRequest<'static>> {
    prop_oneof![
        any::<u32>().prop_map(StoreRequest::Validate),
        (string_bytes(), string_bytes()).prop_map(|(k, v)| StoreRequest::Set(k, v)),
        (string_bytes(), string_bytes(), string_bytes())
            .prop_map(|(k, e, d)| StoreRequest::CompareSet(k, e, d)),
        string_bytes().prop_map(StoreRequest::Get),
        (string_bytes(), any::<i64>()).prop_map(|(k, n)| StoreRequest::Add(k, n)),
        vec(string_bytes(), 0..5).prop_map(StoreRequest::Check),
        vec(string_bytes(), 0..5).prop_map(StoreRequest::Wait),
        Just(StoreRequest::NumKeys),
        string_bytes().prop_map(StoreRequest::DeleteKey),
        (string_bytes(), string_bytes()).prop_map(|(k, v)| StoreRequest::Append(k, v)),
        vec(string_bytes(), 0..5).prop_map(StoreRequest::MultiGet),
        vec((string_bytes(), string_bytes()), 0..5).prop_map(StoreRequest::MultiSet),
        Just(StoreRequest::CancelWait),
        any::<u32>().prop_map(StoreRequest::Ping),
        (string_bytes(), string_bytes()).prop_map(|(k, v)| StoreRequest::QueuePush(k, v)),
        string_bytes().prop_map(StoreRequest::QueuePop),
        string_bytes().prop_map(StoreRequest::QueueLen),
        Just(StoreRequest::ListKeys),
        (string_bytes(), any::<i64>()).prop_map(|(k, n)| StoreRequest::Barrier(k, n)),
    ]
}

/// Decodes bytes that arrive in pieces. The sizes of the pieces are `sizes`, repeated cyclically.
fn decode(bytes: &[u8], sizes: &[usize]) -> Result<Vec<StoreRequest<'static>>, ProtocolViolation> {
    let mut decoder = RequestDecoder::default();
    let mut requests = Vec::new();
    let mut rest = bytes;
    for size in sizes.iter().cycle() {
        let (mut piece, later) = rest.split_at((*size).min(rest.len()));
        rest = later;
        while let Some(request) = decoder.next(&mut piece)? {
            requests.push(request);
        }
        assert!(piece.is_empty());
        if rest.is_empty() {
            break;
        }
    }
    Ok(requests)
}

proptest! {
    #[test]
    fn requests_decode_from_any_split(
        requests in vec(request(), 0..12),
        sizes in vec(1_usize..50, 1..10),
    ) {
        let mut bytes = Vec::new();
        requests.iter().for_each(|request| request.encode(&mut bytes));
        prop_assert_eq!(decode(&bytes, &sizes), Ok(requests));
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(prop_oneof![0_u8..21, any::<u8>()], 0..400)) {
        let whole = decode(&bytes, &[usize::MAX]);
        prop_assert_eq!(decode(&bytes, &[1]), whole);
    }
}

fn violation_of(bytes: &[u8]) -> ProtocolViolation {
    decode(bytes, &[usize::MAX]).unwrap_err()
}

#[test]
fn a_length_is_refused_as_soon_as_it_is_read() {
    let with = |opcode: Opcode, number: usize| {
        [&[opcode as u8], &(number as u64).to_le_bytes()[..]].concat()
    };
    let key = with(Opcode::Get, MAX_KEY_BYTES + 1);
    assert_eq!(violation_of(&key), ProtocolViolation::KeyTooLong(8193));
    let keys = with(Opcode::Wait, MAX_KEYS + 1);
    assert_eq!(violation_of(&keys), ProtocolViolation::TooManyKeys(131_073));
    let value = [with(Opcode::Set, 0), (MAX_VALUE_BYTES as u64 + 1).to_le_bytes().to_vec()];
    assert_eq!(violation_of(&value.concat()), ProtocolViolation::ValueTooLong(8_388_609));
    assert_eq!(violation_of(&[19]), ProtocolViolation::UnknownOpcode(19));
}

#[test]
fn request_size_limit_is_enforced() {
    let mut bytes = Vec::new();
    let value = |bytes| (Bytes::Borrowed(&b"k"[..]), Bytes::Owned(vec![0; bytes]));
    StoreRequest::MultiSet(vec![value(400), value(598)]).encode(&mut bytes);
    let mut decoder = RequestDecoder::with_limit(1000);
    assert!(matches!(decoder.next(&mut &bytes[..]), Ok(Some(StoreRequest::MultiSet(_)))));
    // The sum of the string lengths begins at 0 with each request.
    assert!(matches!(decoder.next(&mut &bytes[..]), Ok(Some(StoreRequest::MultiSet(_)))));
    assert_eq!(
        RequestDecoder::with_limit(999).next(&mut &bytes[..]),
        Err(ProtocolViolation::RequestTooLong)
    );
}

#[test]
fn announced_string_allocates_nothing() {
    let mut decoder = RequestDecoder::default();
    let announced =
        [&[Opcode::Set as u8][..], &[0; 8], &(MAX_VALUE_BYTES as u64).to_le_bytes()].concat();
    assert_eq!(decoder.next(&mut &announced[..]), Ok(None));
    assert!(decoder.buffered_bytes() < 100, "{}", decoder.buffered_bytes());
    assert_eq!(decoder.next(&mut &[7; 1000][..]), Ok(None));
    assert!((1000..1100).contains(&decoder.buffered_bytes()), "{}", decoder.buffered_bytes());
}

#[test]
fn opcodes_match_the_protocol() {
    for byte in 0..=18 {
        assert_eq!(Opcode::from_byte(byte).map(|opcode| opcode as u8), Some(byte));
    }
    assert_eq!(Opcode::from_byte(19), None);
}
