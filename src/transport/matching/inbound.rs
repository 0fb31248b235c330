//! Reading from the stream of a peer: the header of a frame, and then its body. One read may get
//! only a part of a header or body, so [`InboundFrame`] keeps the part that has arrived. The bytes
//! of a body go directly into the buffer of their message.

use super::frame::MessageFrame;
use super::link::{BodyDestination, InboundFrame, PeerLink};
use super::peer_streams::PeerStreams;
use super::requests::Requests;
use super::rts_table::RtsTable;
use super::unexpected::{MessageBody, UnexpectedMessage};
use crate::base::buffer::Dst;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::transport::SharedDomain;

/// The maximum number of bytes that one read discards, for a body without a destination.
const DISCARD_BYTES: usize = 4096;

/// Returns the error for an invalid frame.
pub(super) fn protocol_error<T>(reason: &str) -> Result<T> {
    Err(Error::internal(reason))
}

/// The result of one read.
#[derive(Debug)]
pub(super) struct ReadStep {
    /// The number of bytes read.
    pub(super) taken: usize,
    /// The header or body that this read has completed, if any.
    pub(super) completed: Option<CompletedPart>,
}

/// A header or a body that is complete.
#[derive(Debug)]
pub(super) enum CompletedPart {
    Header(MessageFrame),
    Body(BodyDestination),
}

impl PeerLink {
    /// Reads the next available bytes of the current frame.
    ///
    /// # Errors
    /// The error of the stream, or `Internal` for an invalid header.
    pub(super) fn read_next(
        &mut self,
        peer: Rank,
        domain: &dyn SharedDomain,
        requests: &mut Requests,
        rts_table: &mut RtsTable,
    ) -> Result<ReadStep> {
        match &mut self.inbound_frame {
            InboundFrame::Header { bytes, received } => {
                let into = Dst::from(&mut bytes[*received..]);
                let taken = self.streams.receive(domain, into)?;
                *received += taken;
                let completed = if taken == into.len() { Some(self.take_header()?) } else { None };
                Ok(ReadStep { taken, completed })
            }
            InboundFrame::Body { destination, received, len, is_bulk } => {
                let rest = *len - *received;
                let into = match destination {
                    BodyDestination::Unexpected(UnexpectedMessage {
                        body: MessageBody::Buffered(bytes),
                        ..
                    }) => Some(Dst::from(&mut bytes[*received..])),
                    BodyDestination::Receive(receive) => requests
                        .receive_mut(*receive)
                        .map(|receiving| receiving.buffer_range(*received, rest)),
                    BodyDestination::Fragment(number) => {
                        rts_table.get(peer, *number).and_then(|rts| {
                            let receiving = requests.receive_mut(rts.receive?)?;
                            Some(receiving.buffer_range(rts.received, rest))
                        })
                    }
                    BodyDestination::Unexpected(_) | BodyDestination::Discard => None,
                };
                let Some(into) = into else { return self.discard_body(domain, rest) };
                let taken = self.streams.receive_body(domain, into, *is_bulk)?;
                *received += taken;
                if let BodyDestination::Fragment(number) = destination
                    && let Some(rts) = rts_table.get_mut(peer, *number)
                {
                    rts.received += taken;
                }
                let completed = if taken == rest { self.take_body() } else { None };
                Ok(ReadStep { taken, completed })
            }
        }
    }

    /// Reads and drops bytes of a body without a destination. `rest` is the number of bytes of the
    /// body that have not been read.
    fn discard_body(&mut self, domain: &dyn SharedDomain, rest: usize) -> Result<ReadStep> {
        let mut bytes = [0; DISCARD_BYTES];
        let into = Dst::from(&mut bytes[..rest.min(DISCARD_BYTES)]);
        let InboundFrame::Body { received, is_bulk, .. } = &mut self.inbound_frame else {
            return Ok(ReadStep { taken: 0, completed: None });
        };
        let taken = self.streams.receive_body(domain, into, *is_bulk)?;
        *received += taken;
        let completed = if taken == rest { self.take_body() } else { None };
        Ok(ReadStep { taken, completed })
    }

    /// Decodes the header, which is complete.
    fn take_header(&mut self) -> Result<CompletedPart> {
        let frame = std::mem::replace(&mut self.inbound_frame, InboundFrame::AWAITING_HEADER);
        if let InboundFrame::Header { bytes, .. } = frame
            && let Some(frame) = MessageFrame::decode(&bytes)
        {
            return Ok(CompletedPart::Header(frame));
        }
        protocol_error("it sent an invalid frame")
    }

    /// Takes the destination of the body, which is complete.
    fn take_body(&mut self) -> Option<CompletedPart> {
        match std::mem::replace(&mut self.inbound_frame, InboundFrame::AWAITING_HEADER) {
            InboundFrame::Body { destination, .. } => Some(CompletedPart::Body(destination)),
            InboundFrame::Header { .. } => None,
        }
    }

    /// Prepares to read the body of the last header. An empty body is complete already: then
    /// returns its destination.
    ///
    /// # Errors
    /// `Internal` if the body is in a bulk ring that does not exist.
    pub(super) fn expect_body(
        &mut self,
        destination: BodyDestination,
        len: usize,
        is_bulk: bool,
    ) -> Result<Option<BodyDestination>> {
        if is_bulk && !matches!(self.streams, PeerStreams::Rings { .. }) {
            return protocol_error("it sent a message in a bulk ring that does not exist");
        }
        if len == 0 {
            return Ok(Some(destination));
        }
        self.inbound_frame = InboundFrame::Body { destination, received: 0, len, is_bulk };
        Ok(None)
    }

    /// If a fragment of the announced message `number` is being read, discards the rest of the
    /// fragment.
    pub(super) fn discard_fragment(&mut self, number: u64) {
        if let InboundFrame::Body { destination, .. } = &mut self.inbound_frame
            && matches!(destination, BodyDestination::Fragment(of) if *of == number)
        {
            *destination = BodyDestination::Discard;
        }
    }
}
