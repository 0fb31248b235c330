//! Fuzz target for malformed and forged hellos. They are sent to the acceptor, or to the connecting
//! side as the answer to its hello.
//!
//! The first byte of a script selects the side that is tested. The next two bytes select the sender
//! and the purpose of an expected hello. The changes to this hello follow, each as a position and
//! the bits to flip. After them come the lengths of the pieces in which the hello is sent, and
//! finally bytes that replace the bytes of the hello.

use super::super::advert::AddressAdvert;
use super::super::hello::{
    CONFIRM, ConnectionPurpose, HELLO_BYTES, Hello, HelloReadState, HelloReader, HelloRefusal,
    WELCOME, has_valid_answer,
};
use super::super::members::{ExpectedPeers, TcpMember};
use crate::base::fuzz::FuzzScript;
use crate::base::ids::{Nonce, Rank};
use crate::transport::{Channel, PeerName};

const RANKS: usize = 5;
/// The node of each rank: three nodes with two, two and one ranks. The tested rank is [`ME`], the
/// leader of the second node.
const NODES: [usize; RANKS] = [0, 0, 1, 1, 2];
const LEADERS: [Rank; 3] = [0, 2, 4];
const ME: Rank = 2;
const LANES: u8 = 3;
const EPOCH: u32 = 7;
const GROUP: Nonce = Nonce(*b"the fuzzed group");

/// Runs a script.
///
/// # Panics
/// If the acceptor accepts an unexpected hello or refuses an expected one.
pub fn hello(input: &[u8]) {
    let mut script = FuzzScript(input);
    let mode = script.next_byte().unwrap_or_default();
    let from = Rank::from(script.next_byte().unwrap_or_default()) % RANKS;
    let purpose = purpose(script.next_byte().unwrap_or_default());
    let expected = hello_from(from, purpose);
    let mut bytes = match mode & 1 {
        0 => [&expected.encode()[..], &[CONFIRM]].concat(),
        _ => [&[WELCOME][..], &expected.expected_answer().encode()].concat(),
    };
    for _ in 0..mode >> 2 & 7 {
        let place = usize::from(script.next_byte().unwrap_or_default()) % bytes.len();
        bytes[place] ^= script.next_byte().unwrap_or_default();
    }
    let cuts = script.take_bytes(usize::from(mode >> 5));
    if mode & 2 != 0 {
        bytes = script.0.to_vec();
    }
    match mode & 1 {
        0 => check_incoming(&bytes, cuts),
        _ => check_answer(&expected, &bytes, cuts),
    }
}

fn purpose(choice: u8) -> ConnectionPurpose {
    match choice % 6 {
        lane @ 0..4 => ConnectionPurpose::Stream(Channel::Collective(lane)),
        4 => ConnectionPurpose::Stream(Channel::PointToPoint),
        _ => ConnectionPurpose::Control,
    }
}

fn nonce(rank: Rank) -> Nonce {
    Nonce([b'a' + u8::try_from(rank).unwrap_or_default(); 16])
}

fn hello_from(from: Rank, purpose: ConnectionPurpose) -> Hello {
    let (nonce, expected) = (nonce(from), nonce(ME));
    Hello { purpose, group: GROUP, epoch: EPOCH, from, to: ME, nonce, expected_nonce: expected }
}

fn members() -> Vec<TcpMember> {
    let member = |rank: Rank| {
        let (space, reason) = (String::new(), String::new());
        let (routable, same_netns) = (Vec::new(), Vec::new());
        let advert = AddressAdvert {
            routable,
            same_netns,
            network_namespace: space,
            rails: 1,
            lanes: LANES,
            reason,
        };
        let name = PeerName::new(rank, 1, "".into());
        TcpMember { name, nonce: nonce(rank), node: NODES[rank], advert }
    };
    (0..RANKS).map(member).collect()
}

/// Returns true if these bytes are the hello of a connection that the tested rank expects.
fn is_expected(hello: &[u8]) -> bool {
    let others = (0..RANKS).filter(|&rank| rank != ME);
    let mut all =
        others.flat_map(|from| (0..6).map(move |choice| hello_from(from, purpose(choice))));
    all.any(|known| {
        let exists = match known.purpose {
            ConnectionPurpose::Stream(Channel::Collective(lane)) => lane < LANES,
            ConnectionPurpose::Stream(Channel::PointToPoint) => true,
            ConnectionPurpose::Control => known.from == 4,
            ConnectionPurpose::Reconnect => false,
        };
        exists && known.encode() == hello
    })
}

/// Connects, sends these bytes, and waits for the answer.
fn check_incoming(bytes: &[u8], cuts: &[u8]) {
    let members = members();
    let expected_peers =
        ExpectedPeers { epoch: EPOCH, me: ME, members: &members, leaders: &LEADERS, lanes: LANES };
    let mut reader = HelloReader::default();
    let (mut consumed, mut accepted_hello, mut is_confirmed) = (0, None, false);
    let refusal = pieces(bytes, cuts).into_iter().find_map(|mut piece| {
        while !piece.is_empty() && !is_confirmed {
            let room = reader.free_space();
            let count = room.len().min(piece.len());
            assert!(count > 0, "the reader has no space for a part of the handshake");
            room[..count].copy_from_slice(&piece[..count]);
            (piece, consumed) = (&piece[count..], consumed + count);
            let outcome = match reader.advance(count) {
                Ok(HelloReadState::Incomplete) => Ok(()),
                Ok(HelloReadState::Hello(hello)) if (hello.group, hello.to) != (GROUP, ME) => {
                    Err(HelloRefusal::NoSuchRank)
                }
                Ok(HelloReadState::Hello(hello)) => {
                    expected_peers.check(&hello).map(|()| accepted_hello = Some(hello))
                }
                Ok(HelloReadState::Confirmed) => {
                    is_confirmed = true;
                    Ok(())
                }
                Err(refusal) => Err(refusal),
            };
            if outcome.is_err() {
                return outcome.err();
            }
        }
        None
    });
    assert!(consumed <= HELLO_BYTES + 1, "the reader consumed bytes of the stream");
    let is_greeted = bytes.get(..HELLO_BYTES).is_some_and(is_expected);
    assert_eq!(accepted_hello.is_some(), is_greeted, "{accepted_hello:?}, {refusal:?}");
    assert_eq!(is_confirmed, is_greeted && bytes.get(HELLO_BYTES) == Some(&CONFIRM), "{refusal:?}");
    // A prefix of an expected hello is not refused.
    let is_valid_prefix = (0..RANKS * 6).any(|i| {
        let known = hello_from(i / 6, purpose(u8::try_from(i % 6).unwrap_or_default())).encode();
        is_expected(&known) && [&known[..], &[CONFIRM]].concat().starts_with(bytes)
    });
    assert!(!is_valid_prefix || refusal.is_none(), "{refusal:?}");
}

/// Checks how the connecting side handles this answer to its hello.
fn check_answer(hello: &Hello, bytes: &[u8], cuts: &[u8]) {
    let right = [&[WELCOME][..], &hello.expected_answer().encode()].concat();
    let (mut answer, mut outcome) = (Vec::new(), Ok(false));
    for piece in pieces(bytes, cuts) {
        let room = right.len() - answer.len();
        answer.extend(&piece[..piece.len().min(room)]);
        outcome = has_valid_answer(hello, &answer);
        if outcome != Ok(false) {
            break;
        }
    }
    assert_eq!(outcome == Ok(true), bytes.starts_with(&right), "{outcome:?}");
    assert!(!right.starts_with(&answer) || outcome.is_ok(), "{outcome:?}");
}

/// Splits the bytes into pieces; each number is the length of a piece.
fn pieces<'a>(bytes: &'a [u8], cuts: &[u8]) -> Vec<&'a [u8]> {
    let mut rest = FuzzScript(bytes);
    let mut pieces: Vec<_> = cuts.iter().map(|&cut| rest.take_bytes(cut.into())).collect();
    pieces.push(rest.0);
    pieces
}
