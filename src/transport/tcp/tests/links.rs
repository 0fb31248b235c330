//! The reader of a link, on a socket pair.

use crate::base::buffer::{Dst, Src};
use crate::base::ids::Nonce;
use crate::sys::stream::SocketStream;
use crate::sys::unix;
use crate::transport::Channel;
use crate::transport::tcp::incoming_link::IncomingLink;
use crate::transport::tcp::link_frame::{ChannelRanks, Frame, HEAD_BYTES, ShortPayload};
use crate::transport::tcp::link_owner::LinkOwner;
use crate::transport::tcp::link_table::LinkTable;
use crate::transport::tcp::link_user::LinkKey;
use std::sync::Arc;

/// A receiver waits only while nothing can be read from the stream. So no bytes may stay in the
/// buffer of the reader, also if it stops after a number of reads.
#[test]
fn bytes_behind_frames_of_another_channel_are_found() {
    for others in (0..4000).step_by(15) {
        let table = LinkTable::new().unwrap();
        let owner: Arc<dyn LinkOwner> = table.clone();
        let (peer, own) = unix::pair().unwrap();
        let peer = SocketStream::from_unix(peer).unwrap();
        let own = Arc::new(SocketStream::from_unix(own).unwrap());
        let channel = Channel::Collective(0);
        let key = LinkKey { own: Nonce([1; 16]), peer: Nonce([2; 16]), channel };
        let link = IncomingLink::new(key, 0, Arc::clone(&own), Arc::downgrade(&owner));
        let ranks = |from| ChannelRanks { group: Nonce([3; 16]), from, to: 0 };
        let wanted = table.open_channel(&key, &ranks(1)).unwrap().unwrap();
        let open = |number, from| Frame::Open { channel: number, ranks: ranks(from) }.encode();
        let short = |number, text: &[u8]| {
            let payload = ShortPayload::new([Src::from(text)]);
            Frame::Short { channel: number, payload }.encode()
        };
        let mut frames = [open(1, 1), open(2, 2)].concat();
        frames.extend(short(2, b"other").repeat(others));
        frames.extend(short(1, b"wanted"));
        if peer.send(&frames).unwrap() < frames.len() {
            assert!(others > 100, "the socket has little room");
            break;
        }
        let mut bytes = [0; 10];
        let mut receive = || link.receive(&wanted, Dst::from(&mut bytes[..]));
        let mut got = receive();
        while got == 0 && !own.is_open_and_silent() {
            got = receive();
        }
        assert_eq!(bytes[..got], *b"wanted", "{others} frames, {} bytes each", HEAD_BYTES);
    }
}
