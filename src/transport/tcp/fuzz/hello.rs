//! Strangers and impostors at the door, and in the place of one whose door was looked for.
//!
//! A script's first byte says on which side the library is, the next two which hello is spoilt:
//! from whom, and for what. Then come a number of changes (place, bits) and the lengths of pieces,
//! and at last bytes instead of that hello's.

use super::super::advert::Advert;
use super::super::hello::{CONFIRM, HELLO_BYTES, Hello, Purpose, Refusal, WELCOME, is_answered};
use super::super::introduction::{Circle, Introduction, Said};
use super::super::join::Member;
use crate::base::fuzz::Script;
use crate::base::ids::{Nonce, Rank};
use crate::transport::{Channel, PeerName};

const RANKS: usize = 5;
/// Nodes of two ranks, of two and of one; the library is rank 2, which leads the second.
const NODES: [usize; RANKS] = [0, 0, 1, 1, 2];
const LEADERS: [Rank; 3] = [0, 2, 4];
const ME: Rank = 2;
const LANES: u8 = 3;
const EPOCH: u32 = 7;
const GROUP: Nonce = Nonce(*b"the fuzzed group");

/// Runs a script.
///
/// # Panics
/// Where somebody is let in who is not expected, or sent away who is.
pub fn hello(input: &[u8]) {
    let mut script = Script(input);
    let mode = script.byte().unwrap_or_default();
    let from = Rank::from(script.byte().unwrap_or_default()) % RANKS;
    let purpose = purpose(script.byte().unwrap_or_default());
    let right = said_by(from, purpose);
    let mut bytes = match mode & 1 {
        0 => [&right.encode()[..], &[CONFIRM]].concat(),
        _ => [&[WELCOME][..], &right.answer().encode()].concat(),
    };
    for _ in 0..mode >> 2 & 7 {
        let place = usize::from(script.byte().unwrap_or_default()) % bytes.len();
        bytes[place] ^= script.byte().unwrap_or_default();
    }
    let cuts = script.take(usize::from(mode >> 5));
    if mode & 2 != 0 {
        bytes = script.0.to_vec();
    }
    match mode & 1 {
        0 => at_the_door(&bytes, cuts),
        _ => away(&right, &bytes, cuts),
    }
}

fn purpose(choice: u8) -> Purpose {
    match choice % 6 {
        lane @ 0..4 => Purpose::Stream(Channel::Collective(lane)),
        4 => Purpose::Stream(Channel::PointToPoint),
        _ => Purpose::Control,
    }
}

fn nonce(rank: Rank) -> Nonce {
    Nonce([b'a' + u8::try_from(rank).unwrap_or_default(); 16])
}

fn said_by(from: Rank, purpose: Purpose) -> Hello {
    let (nonce, expected) = (nonce(from), nonce(ME));
    Hello { purpose, group: GROUP, epoch: EPOCH, from, to: ME, nonce, expected }
}

fn members() -> Vec<Member> {
    let member = |rank: Rank| {
        let (space, why) = (String::new(), String::new());
        let (anyone, near) = (Vec::new(), Vec::new());
        let advert = Advert { anyone, near, space, rails: 1, lanes: LANES, why };
        let name = PeerName { rank, pid: 1, host: "".into() };
        Member { name, nonce: nonce(rank), node: NODES[rank], advert }
    };
    (0..RANKS).map(member).collect()
}

/// The hellos of those who may come, as a list.
fn is_expected(hello: &[u8]) -> bool {
    let others = (0..RANKS).filter(|&rank| rank != ME);
    let mut all = others.flat_map(|from| (0..6).map(move |choice| said_by(from, purpose(choice))));
    all.any(|known| {
        let exists = match known.purpose {
            Purpose::Stream(Channel::Collective(lane)) => lane < LANES,
            Purpose::Stream(Channel::PointToPoint) => true,
            Purpose::Control => known.from == 4,
            Purpose::Reunion => false,
        };
        exists && known.encode() == hello
    })
}

/// Somebody comes, says these bytes, and waits.
fn at_the_door(bytes: &[u8], cuts: &[u8]) {
    let members = members();
    let circle =
        Circle { epoch: EPOCH, me: ME, members: &members, leaders: &LEADERS, lanes: LANES };
    let mut introduction = Introduction::default();
    let (mut taken, mut greeted, mut passes) = (0, None, false);
    let refusal = pieces(bytes, cuts).into_iter().find_map(|mut piece| {
        while !piece.is_empty() && !passes {
            let room = introduction.room();
            let count = room.len().min(piece.len());
            assert!(count > 0, "no room for what belongs to it");
            room[..count].copy_from_slice(&piece[..count]);
            (piece, taken) = (&piece[count..], taken + count);
            let outcome = match introduction.came(count) {
                Ok(Said::Part) => Ok(()),
                Ok(Said::Hello(hello)) if (hello.group, hello.to) != (GROUP, ME) => {
                    Err(Refusal::NotHere)
                }
                Ok(Said::Hello(hello)) => circle.check(&hello).map(|()| greeted = Some(hello)),
                Ok(Said::Confirmed) => {
                    passes = true;
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
    assert!(taken <= HELLO_BYTES + 1, "bytes of the stream were taken");
    let is_greeted = bytes.get(..HELLO_BYTES).is_some_and(is_expected);
    assert_eq!(greeted.is_some(), is_greeted, "{greeted:?}, {refusal:?}");
    assert_eq!(passes, is_greeted && bytes.get(HELLO_BYTES) == Some(&CONFIRM), "{refusal:?}");
    // Whoever says what an expected one says so far is not sent away.
    let may_be = (0..RANKS * 6).any(|i| {
        let known = said_by(i / 6, purpose(u8::try_from(i % 6).unwrap_or_default())).encode();
        is_expected(&known) && [&known[..], &[CONFIRM]].concat().starts_with(bytes)
    });
    assert!(!may_be || refusal.is_none(), "{refusal:?}");
}

/// The library has said a hello, and this is the answer.
fn away(hello: &Hello, bytes: &[u8], cuts: &[u8]) {
    let right = [&[WELCOME][..], &hello.answer().encode()].concat();
    let (mut answer, mut outcome) = (Vec::new(), Ok(false));
    for piece in pieces(bytes, cuts) {
        let room = right.len() - answer.len();
        answer.extend(&piece[..piece.len().min(room)]);
        outcome = is_answered(hello, &answer);
        if outcome != Ok(false) {
            break;
        }
    }
    assert_eq!(outcome == Ok(true), bytes.starts_with(&right), "{outcome:?}");
    assert!(!right.starts_with(&answer) || outcome.is_ok(), "{outcome:?}");
}

/// The bytes, cut after as many as each number says.
fn pieces<'a>(bytes: &'a [u8], cuts: &[u8]) -> Vec<&'a [u8]> {
    let mut rest = Script(bytes);
    let mut pieces: Vec<_> = cuts.iter().map(|&cut| rest.take(cut.into())).collect();
    pieces.push(rest.0);
    pieces
}
