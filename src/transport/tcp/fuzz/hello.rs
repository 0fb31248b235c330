//! Fuzz target for malformed and forged hellos. They are sent to the acceptor, or to the connecting
//! side as the answer to its hello.
//!
//! The first byte of a script selects the side that is tested. The next two bytes select the
//! sender, the purpose and the security setting of an expected hello. The changes to this hello
//! follow, each as a position and the bits to flip. After them come the lengths of the pieces in
//! which the hello is sent. The rest replaces the bytes of the hello, or contains one more change:
//! to the confirmation.

use super::super::advert::AddressAdvert;
use super::super::hello::{
    ANSWER_BYTES, CONFIRM, CONFIRM_BYTES, ConnectionPurpose, HELLO_BYTES, Hello, HelloReadState,
    HelloReader, HelloRefusal, PREFIX_BYTES, WELCOME, parse_answer, parse_end,
};
use super::super::link_proof::{AcceptProof, ConnectProof, LinkTerms};
use super::super::members::{ExpectedPeers, TcpMember};
use crate::base::fuzz::FuzzScript;
use crate::base::ids::{Nonce, Rank};
use crate::security::{CipherSet, LinkSecurity, Secret, SecuritySetting};
use crate::transport::{Channel, PeerName};

const RANKS: usize = 5;
/// The node of each rank: three nodes with two, two and one ranks. The tested rank is [`ME`], the
/// leader of the second node.
const NODES: [usize; RANKS] = [0, 0, 1, 1, 2];
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
    let choice = script.next_byte().unwrap_or_default();
    let settings = [SecuritySetting::Auth, SecuritySetting::None, SecuritySetting::Encrypt];
    let link = TestedLink::new(from, purpose(choice), settings[usize::from(choice / 6 % 3)]);
    let (proof, message) = ConnectProof::begin(&link.terms, &link.hello).expect("random bytes");
    let original = [&link.hello.encode()[..], &message].concat();
    let mut bytes = original.clone();
    let mut acceptor = None;
    if mode & 1 != 0 {
        let (accepting, answer) =
            AcceptProof::answer(&link.terms, &link.hello, &message).expect("a right proof");
        bytes = [&[WELCOME][..], &answer].concat();
        acceptor = Some(accepting);
    }
    let right = bytes.clone();
    for _ in 0..mode >> 2 & 7 {
        let place = usize::from(script.next_byte().unwrap_or_default()) % bytes.len();
        bytes[place] ^= script.next_byte().unwrap_or_default();
    }
    let cuts = script.take_bytes(usize::from(mode >> 5));
    if mode & 2 != 0 {
        bytes = script.0.to_vec();
    }
    match acceptor {
        None => check_incoming(&link, proof, &original, &bytes, cuts, script),
        Some(accepting) => check_answer(&link, proof, accepting, &right, &bytes, cuts),
    }
}

/// A connection to the tested rank, as both sides know it.
struct TestedLink {
    hello: Hello,
    terms: LinkTerms,
    security: LinkSecurity,
    members: Vec<TcpMember>,
}

impl TestedLink {
    fn new(from: Rank, purpose: ConnectionPurpose, setting: SecuritySetting) -> Self {
        let secret = Secret::from_bytes(b"of the job").expect("of fit length");
        let security = LinkSecurity::new(setting, Some(&secret)).expect("with a secret");
        let members = members();
        let terms = LinkTerms::between(&security, &members[from], &members[ME]);
        let hello = hello_from(from, purpose, &terms);
        Self { hello, terms, security, members }
    }

    /// Returns true if these bytes are a hello with a proof that the tested rank must answer.
    fn is_expected(&self, bytes: &[u8], original: &[u8]) -> bool {
        let Some(hello) = bytes.get(..HELLO_BYTES) else { return false };
        if self.security.setting() != SecuritySetting::None {
            return hello == original && self.has_expected_prefix(hello);
        }
        // Without a secret, any number is a proof.
        self.has_expected_prefix(hello) && hello[PREFIX_BYTES + 16..] == [0; 32]
    }

    /// Returns true if a connection that the tested rank expects begins with these bytes.
    fn has_expected_prefix(&self, bytes: &[u8]) -> bool {
        let others = (0..RANKS).filter(|&rank| rank != ME);
        let mut all =
            others.flat_map(|from| (0..PURPOSES).map(move |choice| (from, purpose(choice))));
        all.any(|(from, purpose)| {
            let exists = match purpose {
                ConnectionPurpose::Stream(Channel::Collective(lane))
                | ConnectionPurpose::Resume(Channel::Collective(lane)) => lane < LANES,
                ConnectionPurpose::Reconnect => false,
                _ => true,
            };
            let known = hello_from(from, purpose, &self.terms).encode();
            let count = bytes.len().min(PREFIX_BYTES);
            exists && known[..count] == bytes[..count]
        })
    }

    /// Answers a hello as the tested rank.
    fn answer(
        &self,
        hello: &Hello,
        message: &[u8; 48],
    ) -> Result<(AcceptProof, [u8; 48]), HelloRefusal> {
        if (hello.group, hello.to) != (GROUP, ME) {
            return Err(HelloRefusal::NoSuchRank);
        }
        let members = &self.members;
        ExpectedPeers { epoch: EPOCH, me: ME, members, lanes: LANES }.check(hello)?;
        let terms = LinkTerms::between(&self.security, &members[hello.from], &members[ME]);
        terms.check(hello)?;
        AcceptProof::answer(&terms, hello, message)
    }
}

/// The number of purposes of connections to a rank.
const PURPOSES: u8 = 11;

fn purpose(choice: u8) -> ConnectionPurpose {
    match choice % PURPOSES {
        lane @ 0..4 => ConnectionPurpose::Stream(Channel::Collective(lane)),
        4 => ConnectionPurpose::Stream(Channel::PointToPoint),
        lane @ 5..9 => ConnectionPurpose::Resume(Channel::Collective(lane - 5)),
        9 => ConnectionPurpose::Resume(Channel::PointToPoint),
        _ => ConnectionPurpose::Probe(Channel::PointToPoint),
    }
}

fn nonce(rank: Rank) -> Nonce {
    Nonce([b'a' + u8::try_from(rank).unwrap_or_default(); 16])
}

fn hello_from(from: Rank, purpose: ConnectionPurpose, terms: &LinkTerms) -> Hello {
    let (security, cipher) = (terms.setting(), terms.cipher());
    Hello { purpose, group: GROUP, epoch: EPOCH, from, to: ME, security, cipher }
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
            ciphers: CipherSet::of_this_processor(),
            death_hash: None,
            reason,
        };
        let name = PeerName::new(rank, 1, "".into());
        TcpMember { name, nonce: nonce(rank), process: nonce(rank), node: NODES[rank], advert }
    };
    (0..RANKS).map(member).collect()
}

/// Connects, sends these bytes, and then the confirmation with one changed byte or none.
fn check_incoming(
    link: &TestedLink,
    proof: ConnectProof,
    original: &[u8],
    bytes: &[u8],
    cuts: &[u8],
    mut script: FuzzScript<'_>,
) {
    let mut reader = HelloReader::default();
    let mut answered = None;
    let outcome = feed(&mut reader, &bytes[..bytes.len().min(HELLO_BYTES)], cuts, |state| {
        let HelloReadState::Hello(hello, message) = state else {
            panic!("a confirmation before the hello was answered")
        };
        answered = Some(link.answer(&hello, &message)?);
        Ok(())
    });
    let is_expected = link.is_expected(bytes, original);
    assert_eq!(answered.is_some(), is_expected, "{outcome:?}");
    // A prefix of an expected hello is not refused.
    if bytes.len() < HELLO_BYTES && link.has_expected_prefix(bytes) {
        assert_eq!(outcome, Ok(()));
    }
    // The connecting side of the test has the proof of the original hello only.
    let Some((accepting, answer)) = answered.filter(|_| bytes.starts_with(original)) else {
        return;
    };
    let (confirmed, tag) = proof.finish(&answer).expect("a right answer");
    let mut confirmation = [&[CONFIRM][..], &tag].concat();
    let place = usize::from(script.next_byte().unwrap_or_default()) % CONFIRM_BYTES;
    confirmation[place] ^= script.next_byte().unwrap_or_default();
    let is_changed = confirmation[0] != CONFIRM || confirmation[1..] != tag;
    let (mut accepting, mut acceptance) = (Some(accepting), None);
    let outcome = feed(&mut reader, &confirmation, cuts, |state| {
        let HelloReadState::Confirmed(tag) = state else { panic!("a second hello") };
        acceptance = Some(accepting.take().expect("one confirmation").finish(&tag)?);
        Ok(())
    });
    assert_eq!(acceptance.is_some(), !is_changed, "{outcome:?}");
    if let Some(acceptance) = acceptance {
        let tag = parse_end(acceptance.message()).expect("an acceptance").expect("all of it");
        let keys = confirmed.check_acceptance(tag).expect("a right acceptance");
        assert_eq!(keys.is_some(), link.security.setting() == SecuritySetting::Encrypt);
        assert!(reader.free_space().is_empty(), "the reader takes bytes of the stream");
    }
}

/// Feeds bytes to the reader in pieces. Calls `on_state` for each complete message.
fn feed(
    reader: &mut HelloReader,
    bytes: &[u8],
    cuts: &[u8],
    mut on_state: impl FnMut(HelloReadState) -> Result<(), HelloRefusal>,
) -> Result<(), HelloRefusal> {
    for mut piece in pieces(bytes, cuts) {
        while !piece.is_empty() {
            let room = reader.free_space();
            let count = room.len().min(piece.len());
            assert!(count > 0, "the reader has no space for a part of the handshake");
            room[..count].copy_from_slice(&piece[..count]);
            piece = &piece[count..];
            match reader.advance(count)? {
                HelloReadState::Incomplete => {}
                state => on_state(state)?,
            }
        }
    }
    Ok(())
}

/// Checks how the connecting side handles this answer to its hello.
fn check_answer(
    link: &TestedLink,
    proof: ConnectProof,
    accepting: AcceptProof,
    right: &[u8],
    bytes: &[u8],
    cuts: &[u8],
) {
    let (mut answer, mut outcome) = (Vec::new(), Ok(None));
    for piece in pieces(bytes, cuts) {
        let room = ANSWER_BYTES - answer.len();
        answer.extend(&piece[..piece.len().min(room)]);
        outcome = parse_answer(&answer).map(|message| message.copied());
        if outcome != Ok(None) {
            break;
        }
    }
    assert!(!right.starts_with(&answer) || outcome.is_ok(), "{outcome:?}");
    let is_complete = bytes.len() >= ANSWER_BYTES;
    let is_right = match link.security.setting() {
        SecuritySetting::Auth | SecuritySetting::Encrypt => bytes.starts_with(right),
        // Without a secret, any number of the acceptor is valid.
        SecuritySetting::None => {
            is_complete && bytes[0] == WELCOME && bytes[17..ANSWER_BYTES] == right[17..]
        }
    };
    let verdict = outcome.and_then(|message| match message {
        Some(message) => proof.finish(&message).map(Some),
        None => Ok(None),
    });
    assert_eq!(matches!(verdict, Ok(Some(_))), is_right, "{verdict:?}");
    if let Ok(Some((_, tag))) = verdict
        && bytes.starts_with(right)
    {
        assert!(accepting.finish(&tag).is_ok());
    }
}

/// Splits the bytes into pieces; each number is the length of a piece.
fn pieces<'a>(bytes: &'a [u8], cuts: &[u8]) -> Vec<&'a [u8]> {
    let mut rest = FuzzScript(bytes);
    let mut pieces: Vec<_> = cuts.iter().map(|&cut| rest.take_bytes(cut.into())).collect();
    pieces.push(rest.0);
    pieces
}
