//! The progress of posted messages. The functions send and receive stripes (the pieces of a
//! message, one per stream) as far as the streams allow. They check each header before they receive
//! its payload.

use super::exchange::{MessageExchange, PendingStripe, StripeTransfer};
use crate::base::buffer::Src;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::transport::Channel;
use crate::transport::collective_header::{CollectiveHeader, CollectiveMessageKind, HEADER_BYTES};
use crate::transport::loans::Loans;

impl MessageExchange<'_> {
    /// Advances all posted stripes as far as possible. Returns whether any stripe or presence
    /// message made progress.
    pub(super) fn progress(&mut self) -> Result<bool> {
        let mut moved = !self.history.presence_queue.is_empty() && self.send_presence();
        let mut i = 0;
        while let Some(stripe) = self.pending.get(i) {
            if self.pending[..i].iter().any(|earlier| earlier.is_same_stream(stripe)) {
                i += 1;
                continue;
            }
            let (bytes, over) = self.advance_stripe(i)?;
            moved |= bytes > 0;
            if over {
                self.last_completed_peer = self.pending.remove(i).peer;
            } else {
                i += 1;
            }
        }
        Ok(moved)
    }

    /// Advances one stripe. Returns the number of bytes moved, and whether the stripe is complete.
    fn advance_stripe(&mut self, i: usize) -> Result<(usize, bool)> {
        let PendingStripe { peer, stream, transfer: ref mut body, .. } = self.pending[i];
        match body {
            StripeTransfer::Out { header, payload, done } => {
                if stream == 0 && self.history.has_partial_presence(peer) {
                    return Ok((0, false));
                }
                let sent = send_remaining(&mut self.loans, peer, stream, header, *payload, *done)?;
                *done += sent;
                let over = *done == HEADER_BYTES + payload.len();
                if over && stream == 0 {
                    // The peer must read all earlier presence messages before it can read this
                    // message.
                    self.history.peers[peer].unread_presence = 0;
                }
                Ok((sent, over))
            }
            StripeTransfer::In { expected, payload, done } => {
                let (expected, payload, begun) = (*expected, *payload, *done);
                let mut moved = 0;
                let mut received = match begun {
                    Some(have) => have,
                    None => {
                        let found = self.match_header(peer, stream, &expected, &mut moved)?;
                        if !found {
                            return Ok((moved, false));
                        }
                        let ahead = self.history.read_ahead(peer, stream);
                        ahead.copy_out(payload)
                    }
                };
                if received < payload.len() {
                    let rest = payload.slice(received, payload.len() - received);
                    let count =
                        self.endpoint.try_receive(peer, Channel::Collective(stream), rest)?;
                    received += count;
                    moved += count;
                }
                if let StripeTransfer::In { done, .. } = &mut self.pending[i].transfer {
                    *done = Some(received);
                }
                Ok((moved, received == payload.len()))
            }
        }
    }

    /// Polls for the next header of a stream. Returns true if the header has arrived and is the
    /// expected header. Each poll consumes at most one presence message, so that a flood of
    /// presence messages cannot keep this rank from checking the deadline.
    fn match_header(
        &mut self,
        peer: Rank,
        stream: u8,
        expected: &CollectiveHeader,
        moved: &mut usize,
    ) -> Result<bool> {
        let Some(header) = self.next_header(peer, stream, moved)? else { return Ok(false) };
        *moved += 1;
        if (CollectiveHeader { blame: None, ..header }) == *expected {
            self.history.read_ahead(peer, stream).skip_header();
            let order_key = header.descriptor.order_key();
            self.history.peers[peer].record_seen(order_key, header.blame, None);
            return Ok(true);
        }
        match self.consume_presence(peer, stream, &header)? {
            true => Ok(false),
            false => Err(self.unexpected_header_error(peer, &header, expected)),
        }
    }

    /// Returns the next header of a stream, if it has arrived.
    pub(super) fn next_header(
        &mut self,
        peer: Rank,
        stream: u8,
        moved: &mut usize,
    ) -> Result<Option<CollectiveHeader>> {
        let name = |error: Error| error.context(self.endpoint.peer(peer)).with_culprit(peer);
        let ahead = self.history.read_ahead(peer, stream);
        if ahead.header().map_err(name)?.is_none() {
            *moved += ahead.fill(self.endpoint, peer, stream)?;
        }
        self.history.read_ahead(peer, stream).header().map_err(name)
    }

    /// Consumes a header from the stream if it is a presence message for this operation or an
    /// earlier operation. Returns false for any other header.
    pub(super) fn consume_presence(
        &mut self,
        peer: Rank,
        stream: u8,
        header: &CollectiveHeader,
    ) -> Result<bool> {
        let order_key = header.descriptor.order_key();
        if header.kind != CollectiveMessageKind::ArrivalNotice
            || order_key > self.operation.descriptor.order_key()
        {
            return Ok(false);
        }
        self.check_agreement(peer, header)?;
        self.history.read_ahead(peer, stream).skip_header();
        let peer = &mut self.history.peers[peer];
        peer.record_seen(order_key, None, header.blame.map(|blame| blame.rank));
        // A peer that sends presence messages is in a long wait, in which it also reads the
        // messages that have arrived.
        peer.unread_presence = 0;
        Ok(true)
    }
}

/// Sends the rest of a stripe, as far as the stream accepts it.
fn send_remaining<'x>(
    loans: &mut Loans<'x>,
    peer: Rank,
    stream: u8,
    header: &[u8; HEADER_BYTES],
    payload: Src<'x>,
    done: usize,
) -> Result<usize> {
    let header = header.get(done..).unwrap_or_default();
    let payload_done = done.saturating_sub(HEADER_BYTES);
    let payload = payload.slice(payload_done, payload.len() - payload_done);
    loans.try_send(peer, Channel::Collective(stream), Src::from(header), payload)
}
