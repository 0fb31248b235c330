//! Writing to the stream of a peer: selects the next frame from the queues of the link, and writes
//! as much of it as the stream has room for.

use super::frame::{ExposedBuffer, HEADER_BYTES, MessageFrame};
use super::link::{FrameBody, FrameInProgress, PeerLink, QueuedItem};
use super::outstanding::SendStage;
use super::requests::Requests;
use crate::base::buffer::Src;
use crate::base::error::{Error, Result};
use crate::transport::{Delivery, SendRequest, SharedDomain};

/// The next frame of a link, before it is known whether the body goes to the bulk ring.
#[derive(Debug)]
pub(super) enum NextFrame {
    /// A frame without a body.
    Bodyless { frame: MessageFrame, body: FrameBody },
    /// The eager message of a send.
    Eager { number: u64, message: SendRequest },
    /// A fragment of a send, from `offset` on. `rest` is the number of bytes from `offset` to the
    /// end of the message, and so the longest possible length of the fragment.
    Fragment { number: u64, attempt: u32, offset: usize, rest: usize },
}

/// An eager message that was written completely or in part.
#[derive(Debug)]
pub(super) struct EagerWrite {
    header: [u8; HEADER_BYTES],
    /// The number of bytes of header and body that are in the stream.
    written: usize,
    is_bulk: bool,
}

impl EagerWrite {
    /// Returns whether the whole message of `len` bytes is in the stream.
    pub(super) fn is_complete(&self, len: usize) -> bool {
        self.written == HEADER_BYTES + len
    }

    /// Converts this write to the frame in progress of send `number`, so that the rest is written
    /// later.
    pub(super) fn into_frame(self, number: u64) -> FrameInProgress {
        let Self { header, written, is_bulk } = self;
        FrameInProgress { header, body: FrameBody::Eager { number, is_bulk }, written }
    }
}

impl PeerLink {
    /// Writes as much of an eager message as the stream has room for. The message needs a number
    /// only if this writes less than the whole message.
    ///
    /// # Errors
    /// The error of the stream.
    pub(super) fn write_eager(
        &mut self,
        domain: &dyn SharedDomain,
        message: &SendRequest,
        is_bulk: bool,
    ) -> Result<EagerWrite> {
        let SendRequest { tag, dtype, bytes, .. } = *message;
        let header = MessageFrame::Eager { tag, dtype, len: bytes.len() as u64, is_bulk }.encode();
        let outcome = self.streams.send_body(domain, [Src::from(&header[..]), bytes], is_bulk);
        self.streams.flush(domain);
        outcome.map(|written| EagerWrite { header, written, is_bulk })
    }

    /// Takes the next frame from the queues.
    pub(super) fn next_frame(&mut self, requests: &Requests) -> Option<NextFrame> {
        while let Some(item) = self.send_queue.pop_front() {
            let (frame, body) = match item {
                QueuedItem::Control(frame) => (frame, FrameBody::Empty(None)),
                QueuedItem::Fin { number, receive } => {
                    (MessageFrame::Fin { number }, FrameBody::Fin(receive))
                }
                QueuedItem::Eager(number) => {
                    let Some(sending) = requests.send(number) else { continue };
                    return Some(NextFrame::Eager { number, message: sending.message });
                }
                QueuedItem::Rts(number) => {
                    let Some(sending) = requests.send(number) else { continue };
                    let SendRequest { tag, dtype, bytes, .. } = sending.message;
                    let address = u64::try_from(bytes.as_ptr().addr()).unwrap_or(0);
                    let exposed = sending.exposure_slot.map(|slot| ExposedBuffer { address, slot });
                    let (len, is_awaited) = (bytes.len() as u64, sending.completion.is_awaited());
                    let frame = MessageFrame::Rts { tag, dtype, number, len, exposed, is_awaited };
                    (frame, FrameBody::Empty(Some(number)))
                }
            };
            return Some(NextFrame::Bodyless { frame, body });
        }
        while let Some(number) = self.fragment_queue.pop_front() {
            let Some(sending) = requests.send(number) else { continue };
            let SendStage::SendingFragments { attempt, sent: offset, .. } = sending.stage else {
                continue;
            };
            let rest = sending.message.bytes.len() - offset;
            return Some(NextFrame::Fragment { number, attempt, offset, rest });
        }
        None
    }

    /// Starts to write a frame, whose body goes to the bulk ring if `is_bulk`.
    pub(super) fn start_frame(&mut self, next: NextFrame, is_bulk: bool) {
        let (frame, body) = match next {
            NextFrame::Bodyless { frame, body } => (frame, body),
            NextFrame::Eager { number, message: SendRequest { tag, dtype, bytes, .. } } => {
                let frame = MessageFrame::Eager { tag, dtype, len: bytes.len() as u64, is_bulk };
                (frame, FrameBody::Eager { number, is_bulk })
            }
            NextFrame::Fragment { number, attempt, offset, rest } => {
                let len = rest.min(self.streams.max_fragment(is_bulk));
                let (at, size) = (offset as u64, len as u64);
                let frame =
                    MessageFrame::Fragment { number, attempt, offset: at, len: size, is_bulk };
                (frame, FrameBody::Fragment { number, attempt, offset, len, is_bulk })
            }
        };
        self.current_frame = Some(FrameInProgress { header: frame.encode(), body, written: 0 });
    }

    /// Writes the current frame to the stream, and adds the number of written bytes to `moved`.
    /// Returns true once all of the frame is in the stream.
    ///
    /// # Errors
    /// The error of the stream.
    pub(super) fn write_current_frame(
        &mut self,
        domain: &dyn SharedDomain,
        requests: &mut Requests,
        moved: &mut u64,
    ) -> Result<bool> {
        let Some(current) = &mut self.current_frame else { return Ok(true) };
        let message = |number| requests.send(number).map(|sending| sending.message.bytes);
        let bytes = match current.body {
            FrameBody::Empty(_) | FrameBody::Fin(_) => Some(Src::empty()),
            FrameBody::Eager { number, .. } => message(number),
            FrameBody::Fragment { number, offset, len, .. } => {
                message(number).map(|bytes| bytes.slice(offset, len))
            }
        };
        // A send stays outstanding until its last byte is in the stream, so its bytes still exist.
        let bytes =
            bytes.ok_or_else(|| Error::internal("a message completed while it was being sent"))?;
        let head = current.header.len();
        let skip = current.written.saturating_sub(head).min(bytes.len());
        let start = current.written.min(head);
        let (rest, body) =
            (Src::from(&current.header[start..]), bytes.slice(skip, bytes.len() - skip));
        let sent = if let FrameBody::Fragment { number, .. } = current.body
            && let Some(sending) = requests.send_mut(number)
            && self.streams.begin_loan(&mut sending.loan)
        {
            self.streams.send_lent(rest, body)?
        } else {
            self.streams.send_body(domain, [rest, body], current.body.is_bulk())?
        };
        *moved += sent as u64;
        current.written += sent;
        let (body, written) = (current.body, current.written);
        if written > 0
            && let FrameBody::Fragment { number, attempt: frame_attempt, .. } = body
            && let Some(sending) = requests.send_mut(number)
            && let SendStage::SendingFragments { attempt, has_begun, .. } = &mut sending.stage
            && *attempt == frame_attempt
        {
            *has_begun = true;
        }
        if written < head + bytes.len() {
            return Ok(false);
        }
        self.current_frame = None;
        self.on_frame_written(body, requests);
        Ok(true)
    }

    /// Handles a frame that is completely in the stream.
    fn on_frame_written(&mut self, body: FrameBody, requests: &mut Requests) {
        match body {
            FrameBody::Empty(_) => {}
            FrameBody::Fin(receive) => requests.complete_delivered(receive),
            FrameBody::Eager { number, .. } => {
                if let Some(sending) = requests.send(number) {
                    let SendRequest { to, tag, bytes, .. } = sending.message;
                    let delivery = Delivery { peer: to, tag, bytes: bytes.len() };
                    let slot = requests.complete_send(number, Ok(delivery));
                    debug_assert!(slot.is_none(), "the buffer of an eager message is not exposed");
                }
            }
            FrameBody::Fragment { number, attempt: frame_attempt, len, .. } => {
                if let Some(sending) = requests.send_mut(number)
                    && let SendStage::SendingFragments { attempt, sent, .. } = &mut sending.stage
                    && *attempt == frame_attempt
                {
                    *sent += len;
                    if *sent < sending.message.bytes.len() {
                        self.fragment_queue.push_back(number);
                    }
                }
            }
        }
    }
}
