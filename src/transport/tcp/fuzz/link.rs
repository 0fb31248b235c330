//! Fuzz target for the reader of a link: an authenticated peer that sends arbitrary bytes, split at
//! arbitrary positions, while the receiver takes bytes of one channel in pieces.
//!
//! A script is a list of steps. The first byte of a step selects the bytes: a valid frame with
//! fields from the script, or bytes of the script. After each step, the receiver may read.

use super::super::incoming_channel::IncomingChannel;
use super::super::incoming_link::IncomingLink;
use super::super::link_frame::{ChannelRanks, Frame, MAX_SHORT_PAYLOAD, ShortPayload, padding};
use super::super::link_owner::LinkOwner;
use super::super::link_table::LinkTable;
use super::super::link_user::LinkKey;
use crate::base::buffer::{Dst, Src};
use crate::base::fuzz::FuzzScript;
use crate::base::ids::Nonce;
use crate::sys::stream::{SocketStream, is_transient};
use crate::sys::unix;
use crate::transport::Channel;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const OWN: Nonce = Nonce([1; 16]);
const PEER: Nonce = Nonce([2; 16]);
const GROUP: Nonce = Nonce([3; 16]);
const KIND: Channel = Channel::Collective(0);

/// What the receiver must get on the channel that it reads.
#[derive(Default)]
struct Expected {
    sent: Vec<u8>,
    is_open: bool,
    /// Whether the sender has broken the protocol.
    is_broken: bool,
}

/// Runs a script.
///
/// # Panics
/// If bytes arrive that were not sent, or in another order, or if a valid byte is lost.
pub fn link(input: &[u8]) {
    let table = LinkTable::new().expect("a table");
    let owner: Arc<dyn LinkOwner> = table.clone();
    let (peer, own) = unix::pair().expect("a socket pair");
    let peer = SocketStream::from_unix(peer).expect("a stream");
    let own = SocketStream::from_unix(own).expect("a stream");
    let key = LinkKey { own: OWN, peer: PEER, channel: KIND };
    let link = IncomingLink::new(key, 0, Arc::new(own), Arc::downgrade(&owner));
    let ranks = ChannelRanks { group: GROUP, from: 1, to: 0 };
    let channel =
        table.open_channel(&key, &ranks).expect("a channel").expect("a group that nobody has left");
    let mut script = FuzzScript(input);
    let (mut expected, mut received) = (Expected::default(), Vec::new());
    while let Some(step) = script.next_byte() {
        let bytes = next_bytes(step, &mut script, ranks, &mut expected);
        if !send(&peer, &bytes, &link) {
            break;
        }
        if step & 0x40 != 0 {
            take(&link, &channel, usize::from(step) % 97 + 1, &mut received);
        }
        if step & 0x20 != 0 {
            link.drain();
        }
    }
    while take(&link, &channel, 61, &mut received) {}
    let common = received.len().min(expected.sent.len());
    assert!(expected.sent[..common] == received[..common], "bytes that were not sent");
    let is_complete = received.len() == expected.sent.len();
    assert!(expected.is_broken || is_complete, "{} bytes are lost", expected.sent.len());
    assert!(expected.is_broken || !link.is_over.load(Ordering::Acquire), "a valid link ended");
}

/// Sends bytes. If the socket is full, the receiver reads. Returns false if the link has ended.
fn send(peer: &SocketStream, bytes: &[u8], link: &IncomingLink) -> bool {
    let mut rest = bytes;
    while !rest.is_empty() && !link.is_over.load(Ordering::Acquire) {
        match peer.send(rest) {
            Ok(sent) => rest = &rest[sent..],
            Err(cause) if is_transient(&cause) => link.drain(),
            Err(_) => return false,
        }
    }
    rest.is_empty()
}

/// Receives at most `count` bytes. Returns false if there are none.
fn take(
    link: &IncomingLink,
    channel: &Arc<IncomingChannel>,
    count: usize,
    received: &mut Vec<u8>,
) -> bool {
    let mut bytes = vec![0; count];
    let mut got = link.receive(channel, Dst::from(bytes.as_mut_slice()));
    if got == 0 {
        got = channel.take(Dst::from(bytes.as_mut_slice())).0;
    }
    received.extend_from_slice(&bytes[..got]);
    got > 0
}

fn next_bytes(
    step: u8,
    script: &mut FuzzScript<'_>,
    ranks: ChannelRanks,
    expected: &mut Expected,
) -> Vec<u8> {
    let with_payload = |frame: Frame, payload: &[u8]| {
        [&frame.encode()[..], payload, &vec![0; padding(payload.len())]].concat()
    };
    let length = usize::from(script.next_byte().unwrap_or_default());
    match step % 6 {
        0 => {
            expected.is_broken |= std::mem::replace(&mut expected.is_open, true);
            Frame::Open { channel: 7, ranks }.encode().to_vec()
        }
        1 | 2 => {
            let payload = script.take_bytes(length.max(1)).to_vec();
            if payload.is_empty() {
                return Vec::new();
            }
            expected.is_broken |= !expected.is_open;
            if !expected.is_broken {
                expected.sent.extend_from_slice(&payload);
            }
            if step & 0x10 != 0 && payload.len() <= MAX_SHORT_PAYLOAD {
                let payload = ShortPayload::new([Src::from(&payload[..])]);
                return Frame::Short { channel: 7, payload }.encode().to_vec();
            }
            with_payload(Frame::Data { channel: 7, payload: payload.len() }, &payload)
        }
        3 if step & 0x80 != 0 => {
            let answer_on = Channel::Collective(length.try_into().unwrap_or(u8::MAX));
            Frame::Query { ranks, answer_on }.encode().to_vec()
        }
        3 => Frame::Grant { channel: u32::from(step), total: length as u64 }.encode().to_vec(),
        4 => Frame::Heartbeat.encode().to_vec(),
        _ => {
            let bytes = script.take_bytes(length).to_vec();
            expected.is_broken |= !bytes.is_empty();
            bytes
        }
    }
}
