//! Fuzz target for the decoder of control frames: a sequence of frames in arbitrary bytes.
//!
//! The first byte of a script gives the number of ranks. The frames follow.

use super::super::control_frame::{ControlFrame, MAX_BYTES};
use crate::base::fuzz::FuzzScript;
use crate::transport::abort::TEXT_BYTES;
use crate::transport::heartbeat::ACTIVITY_BYTES;

/// Runs a script.
///
/// # Panics
/// If a frame is not stable, or a part of a frame is decoded differently.
pub fn control(input: &[u8]) {
    let mut script = FuzzScript(input);
    let ranks = usize::from(script.next_byte().unwrap_or_default() % 8) + 1;
    let mut rest = script.0;
    while let Ok(Some((frame, len))) = ControlFrame::decode(rest, ranks) {
        check(&frame, &rest[..len], ranks);
        for part in 0..len {
            assert_eq!(ControlFrame::decode(&rest[..part], ranks), Ok(None), "{part} bytes");
        }
        rest = &rest[len..];
    }
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
