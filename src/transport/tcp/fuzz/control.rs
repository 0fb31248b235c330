//! Fuzz target for the decoder of control frames: arbitrary bytes, split at arbitrary positions.
//!
//! The first byte of a script gives the number of ranks. The pieces follow, each with one byte for
//! its length before it.

use super::super::control_frame::{ControlFrame, FrameBuffer, MAX_BYTES};
use crate::base::fuzz::FuzzScript;
use crate::transport::abort::TEXT_BYTES;
use crate::transport::heartbeat::ACTIVITY_BYTES;

/// Runs a script.
///
/// # Panics
/// If the decoded frames differ from the sent bytes, or if the buffer holds more than one frame.
pub fn control(input: &[u8]) {
    let mut script = FuzzScript(input);
    let ranks = usize::from(script.next_byte().unwrap_or_default() % 8) + 1;
    let (mut buffer, mut frames, mut sent) = (FrameBuffer::default(), Vec::new(), Vec::new());
    let mut fault = None;
    while let Some(length) = script.next_byte().filter(|_| fault.is_none()) {
        let piece = script.take_bytes(usize::from(length));
        sent.extend(piece);
        buffer.push_bytes(piece);
        loop {
            match buffer.next_frame(ranks) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(what) => {
                    fault = Some(what);
                    break;
                }
            }
        }
        assert!(
            fault.is_some() || buffer.buffered_len() < MAX_BYTES,
            "{} bytes are buffered",
            buffer.buffered_len()
        );
    }
    // Decoding all bytes at once gives the same frames.
    let mut rest = &sent[..];
    for frame in frames {
        let (same, len) =
            ControlFrame::decode(rest, ranks).expect("a frame").expect("a complete frame");
        assert_eq!(frame, same, "decoding in pieces and at once differs");
        check(&frame, &rest[..len], ranks);
        rest = &rest[len..];
    }
    assert_eq!(
        ControlFrame::decode(rest, ranks).err(),
        fault,
        "the error after the frames differs"
    );
    assert!(fault.is_some() || rest.len() == buffer.buffered_len(), "bytes were lost");
}

/// Checks that a frame names only existing ranks, and that encoding and decoding the frame again
/// preserves it.
fn check(frame: &ControlFrame, bytes: &[u8], ranks: usize) {
    let mut again = Vec::new();
    frame.encode(&mut again);
    assert!(again.len() <= MAX_BYTES, "a frame of {} bytes", again.len());
    let decoded = ControlFrame::decode(&again, ranks);
    match (frame, &decoded) {
        (ControlFrame::Abort(error), Ok(Some((ControlFrame::Abort(other), len)))) => {
            assert_eq!(*len, again.len());
            assert!(error.culprit().is_none_or(|rank| rank < ranks), "{error:?}");
            let reason = |it: &crate::base::error::Error| (it.kind(), it.culprit());
            assert_eq!(reason(error), reason(other));
            // A text that is not valid UTF-8 becomes longer when it is decoded, and is truncated.
            assert!(error.message().starts_with(other.message()));
            let is_cut = error.message().len() > TEXT_BYTES;
            assert!(is_cut || error.message() == other.message(), "{error:?} became {other:?}");
        }
        (
            ControlFrame::Activity(rank, text),
            Ok(Some((ControlFrame::Activity(same, other), len))),
        ) => {
            assert_eq!(*len, again.len());
            assert!(*rank < ranks && rank == same, "{frame:?}");
            assert!(text.starts_with(other) && (text == other || text.len() > ACTIVITY_BYTES));
        }
        _ => {
            let rank = match frame {
                ControlFrame::Left(rank) | ControlFrame::AskActivity(rank) => *rank,
                ControlFrame::AskLabels(rank, _) | ControlFrame::Labels(rank, ..) => *rank,
                _ => 0,
            };
            assert!(rank < ranks, "{frame:?}");
            assert_eq!(again, bytes);
            assert_eq!(decoded, Ok(Some((frame.clone(), bytes.len()))));
        }
    }
}
