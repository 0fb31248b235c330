//! The decoder against random requests cut at random places, and against random bytes.

use crate::store::tcp::proto::{
    Bytes, Decoder, MAX_KEY_BYTES, MAX_KEYS, MAX_VALUE_BYTES, Opcode, Request, Violation,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn text() -> impl Strategy<Value = Bytes<'static>> {
    vec(any::<u8>(), 0..40).prop_map(Bytes::Owned)
}

fn request() -> impl Strategy<Value = Request<'static>> {
    prop_oneof![
        any::<u32>().prop_map(Request::Validate),
        (text(), text()).prop_map(|(k, v)| Request::Set(k, v)),
        (text(), text(), text()).prop_map(|(k, e, d)| Request::CompareSet(k, e, d)),
        text().prop_map(Request::Get),
        (text(), any::<i64>()).prop_map(|(k, n)| Request::Add(k, n)),
        vec(text(), 0..5).prop_map(Request::Check),
        vec(text(), 0..5).prop_map(Request::Wait),
        Just(Request::NumKeys),
        text().prop_map(Request::DeleteKey),
        (text(), text()).prop_map(|(k, v)| Request::Append(k, v)),
        vec(text(), 0..5).prop_map(Request::MultiGet),
        vec((text(), text()), 0..5).prop_map(Request::MultiSet),
        Just(Request::CancelWait),
        any::<u32>().prop_map(Request::Ping),
        (text(), text()).prop_map(|(k, v)| Request::QueuePush(k, v)),
        text().prop_map(Request::QueuePop),
        text().prop_map(Request::QueueLen),
        Just(Request::ListKeys),
        (text(), any::<i64>()).prop_map(|(k, n)| Request::Barrier(k, n)),
    ]
}

/// Decodes bytes that arrive in pieces of these sizes, over and over.
fn decode(bytes: &[u8], sizes: &[usize]) -> Result<Vec<Request<'static>>, Violation> {
    let mut decoder = Decoder::default();
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
    fn requests_survive_any_cutting(
        requests in vec(request(), 0..12),
        sizes in vec(1_usize..50, 1..10),
    ) {
        let mut bytes = Vec::new();
        requests.iter().for_each(|request| request.encode(&mut bytes));
        prop_assert_eq!(decode(&bytes, &sizes), Ok(requests));
    }

    #[test]
    fn random_bytes_never_do_harm(bytes in vec(prop_oneof![0_u8..21, any::<u8>()], 0..400)) {
        let whole = decode(&bytes, &[usize::MAX]);
        prop_assert_eq!(decode(&bytes, &[1]), whole);
    }
}

fn offence(bytes: &[u8]) -> Violation {
    decode(bytes, &[usize::MAX]).unwrap_err()
}

#[test]
fn a_length_is_refused_as_soon_as_it_is_read() {
    let with = |opcode: Opcode, number: usize| {
        [&[opcode as u8], &(number as u64).to_le_bytes()[..]].concat()
    };
    let key = with(Opcode::Get, MAX_KEY_BYTES + 1);
    assert_eq!(offence(&key), Violation::KeyTooLong(8193));
    let keys = with(Opcode::Wait, MAX_KEYS + 1);
    assert_eq!(offence(&keys), Violation::TooManyKeys(131_073));
    let value = [with(Opcode::Set, 0), (MAX_VALUE_BYTES as u64 + 1).to_le_bytes().to_vec()];
    assert_eq!(offence(&value.concat()), Violation::ValueTooLong(8_388_609));
    assert_eq!(offence(&[19]), Violation::UnknownOpcode(19));
}

#[test]
fn a_request_of_many_large_values_has_an_end() {
    let mut bytes = Vec::new();
    let value = |bytes| (Bytes::Borrowed(&b"k"[..]), Bytes::Owned(vec![0; bytes]));
    Request::MultiSet(vec![value(400), value(598)]).encode(&mut bytes);
    let mut decoder = Decoder::with_limit(1000);
    assert!(matches!(decoder.next(&mut &bytes[..]), Ok(Some(Request::MultiSet(_)))));
    // The next request is counted anew.
    assert!(matches!(decoder.next(&mut &bytes[..]), Ok(Some(Request::MultiSet(_)))));
    assert_eq!(Decoder::with_limit(999).next(&mut &bytes[..]), Err(Violation::RequestTooLong));
}

#[test]
fn a_text_that_is_only_announced_takes_no_memory() {
    let mut decoder = Decoder::default();
    let announced =
        [&[Opcode::Set as u8][..], &[0; 8], &(MAX_VALUE_BYTES as u64).to_le_bytes()].concat();
    assert_eq!(decoder.next(&mut &announced[..]), Ok(None));
    assert!(decoder.held() < 100, "{}", decoder.held());
    assert_eq!(decoder.next(&mut &[7; 1000][..]), Ok(None));
    assert!((1000..1100).contains(&decoder.held()), "{}", decoder.held());
}

#[test]
fn numbers_of_operations_are_the_protocols() {
    for byte in 0..=18 {
        assert_eq!(Opcode::from_byte(byte).map(|opcode| opcode as u8), Some(byte));
    }
    assert_eq!(Opcode::from_byte(19), None);
}
