//! Fuzz target for the replacement of broken connections: a sender and a receiver of one channel,
//! with a network between them that a script cuts. Bytes that are in the network are lost.
//!
//! A script is a list of steps. In a step, the sender sends a message, which is copied or lent, or
//! ends its loans. Or the network moves bytes, or the receiver takes bytes. Or the connection
//! breaks, and is replaced.

use super::super::incoming_channel::{IncomingChannel, WINDOW};
use super::super::incoming_link::IncomingLink;
use super::super::link_frame::ChannelRanks;
use super::super::link_owner::LinkOwner;
use super::super::link_table::LinkTable;
use super::super::link_user::{LinkKey, no_user};
use super::super::outgoing_channel::{OutgoingChannel, SendOutcome, SendQueue};
use crate::base::buffer::{Dst, Src};
use crate::base::fuzz::FuzzScript;
use crate::base::ids::Nonce;
use crate::sys::stream::{SocketStream, is_transient};
use crate::sys::unix;
use crate::transport::Channel;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, LazyLock};

const RANKS: ChannelRanks = ChannelRanks { group: Nonce([3; 16]), from: 1, to: 0 };
const KEY: LinkKey =
    LinkKey { own: Nonce([1; 16]), peer: Nonce([2; 16]), channel: Channel::Collective(0) };

/// The text from which all messages are taken, one after another.
static TEXT: LazyLock<Vec<u8>> = LazyLock::new(|| (0..251).cycle().take(1 << 20).collect());

/// One connection: the ends of the sender and the receiver, and the network between them.
struct Network {
    sender: SocketStream,
    from_sender: SocketStream,
    to_receiver: SocketStream,
}

impl Network {
    /// Returns a connection, and the receiver's end of it.
    fn new() -> (Self, Arc<SocketStream>) {
        let pair = || {
            let (first, second) = unix::pair().expect("a socket pair");
            [first, second].map(|end| SocketStream::from_unix(end).expect("a stream"))
        };
        let ([sender, from_sender], [to_receiver, receiver]) = (pair(), pair());
        (Self { sender, from_sender, to_receiver }, Arc::new(receiver))
    }

    /// Moves at most this number of bytes. They arrive: the receiver reads if its socket is full.
    fn carry(&self, count: usize, link: &IncomingLink) -> usize {
        let mut bytes = vec![0; count];
        let got = self.from_sender.receive(&mut bytes).unwrap_or_default();
        let mut rest = &bytes[..got];
        while !rest.is_empty() {
            match self.to_receiver.send(rest) {
                Ok(sent) => rest = &rest[sent..],
                Err(cause) if is_transient(&cause) => link.drain(),
                Err(cause) => panic!("the receiver has ended: {cause}"),
            }
        }
        got
    }
}

/// The sending end of the channel.
struct Sender {
    queue: SendQueue,
    channel: OutgoingChannel,
    /// The number of bytes of the text that the system has taken.
    sent: usize,
    /// The end of the message that is being sent.
    end: usize,
}

impl Sender {
    /// Sends the rest of the present message, or begins the next one.
    fn send(&mut self, network: &Network, len: usize, is_lent: bool) {
        if self.sent == self.end {
            self.end = TEXT.len().min(self.end + len);
        }
        let message = Src::from(&TEXT[self.sent..self.end]);
        let lent = if is_lent { message } else { Src::empty() };
        match self.queue.send(&network.sender, &self.channel, &[message], lent) {
            Ok(SendOutcome::Sent(sent)) => self.sent += sent,
            Ok(_) => {}
            Err(cause) => assert!(is_transient(&cause), "{cause}"),
        }
    }
}

/// Runs a script.
///
/// # Panics
/// If a byte is lost, arrives twice, or was not sent.
pub fn resume(input: &[u8]) {
    let table = LinkTable::new().expect("a table");
    let owner: Arc<dyn LinkOwner> = table.clone();
    let (mut network, receiver) = Network::new();
    let link = IncomingLink::new(KEY, 0, receiver, Arc::downgrade(&owner));
    let incoming = table.open_channel(&KEY, &RANKS).expect("a channel").expect("a group");
    let mut sender =
        Sender { queue: SendQueue::default(), channel: outgoing_channel(), sent: 0, end: 0 };
    let (mut script, mut received) = (FuzzScript(input), Vec::new());
    while let Some(step) = script.next_byte() {
        let number = usize::from(script.next_byte().unwrap_or_default());
        match step % 8 {
            0 => sender.send(&network, number + 1, false),
            1 => sender.send(&network, 16 * number + 1, false),
            2 | 3 => sender.send(&network, 64 * number + 1, true),
            4 => sender.queue.end_loans(Some(&network.sender)),
            5 => drop(network.carry(32 * number + 1, &link)),
            6 => drop(take(&link, &incoming, 8 * number + 1, &mut received)),
            _ => network = replace(network, &link, &mut sender.queue),
        }
    }
    // Everything arrives.
    let mut is_over = false;
    while !is_over {
        sender.send(&network, 0, false);
        let has_moved = network.carry(1 << 16, &link) > 0;
        is_over = !take(&link, &incoming, 4096, &mut received) && !has_moved;
        is_over &= sender.queue.flush(&network.sender).unwrap_or(false);
    }
    assert!(received[..] == TEXT[..received.len()], "bytes were lost, or arrived twice");
    assert_eq!(received.len(), sender.sent, "bytes are missing");
    // Another process may name any position.
    let position = u64::from_le_bytes(std::array::from_fn(|_| script.next_byte().unwrap_or(7)));
    drop(sender.queue.kept.rewind(position));
}

/// Breaks the connection. The bytes in the network are lost.
fn replace(network: Network, link: &IncomingLink, queue: &mut SendQueue) -> Network {
    let (next, receiver) = Network::new();
    let mut position = 0;
    link.replace_stream(&receiver, |received| position = received).expect("a link that lives");
    drop(network);
    let again = queue.kept.rewind(position).expect("bytes that were kept");
    queue.pending.push_front(&again);
    next
}

fn outgoing_channel() -> OutgoingChannel {
    OutgoingChannel {
        number: 7,
        ranks: RANKS,
        user: no_user(),
        is_opened: AtomicBool::new(false),
        sent: AtomicU64::new(0),
        limit: AtomicU64::new(WINDOW),
        copied: AtomicUsize::new(0),
        awaits_room: AtomicBool::new(false),
    }
}

/// Receives at most `count` bytes. Returns false if there are none.
fn take(
    link: &IncomingLink,
    channel: &Arc<IncomingChannel>,
    count: usize,
    received: &mut Vec<u8>,
) -> bool {
    let mut bytes = vec![0; count];
    let got = link.receive(channel, Dst::from(bytes.as_mut_slice()));
    received.extend_from_slice(&bytes[..got]);
    got > 0
}
