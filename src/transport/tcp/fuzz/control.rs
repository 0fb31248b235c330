//! Arbitrary bytes on a control connection, cut anywhere.
//!
//! A script's first byte says how many ranks there are, and the length of each piece is a byte
//! before it.

use super::super::frame::{Frame, Intake, MAX_BYTES};
use crate::base::fuzz::Script;
use crate::transport::abort::TEXT_BYTES;
use crate::transport::pulse::WORDS_BYTES;

/// Runs a script.
///
/// # Panics
/// Where frames are not what was sent, or more is held than one of them.
pub fn control(input: &[u8]) {
    let mut script = Script(input);
    let ranks = usize::from(script.byte().unwrap_or_default() % 8) + 1;
    let (mut intake, mut heard, mut said) = (Intake::default(), Vec::new(), Vec::new());
    let mut fault = None;
    while let Some(length) = script.byte().filter(|_| fault.is_none()) {
        let piece = script.take(usize::from(length));
        said.extend(piece);
        intake.add(piece);
        loop {
            match intake.next(ranks) {
                Ok(Some(frame)) => heard.push(frame),
                Ok(None) => break,
                Err(what) => {
                    fault = Some(what);
                    break;
                }
            }
        }
        assert!(fault.is_some() || intake.held() < MAX_BYTES, "{} bytes held", intake.held());
    }
    // At once, it is the same.
    let mut rest = &said[..];
    for frame in heard {
        let (same, len) = Frame::decode(rest, ranks).expect("a frame").expect("a whole one");
        assert_eq!(frame, same, "in pieces and at once");
        check(&frame, &rest[..len], ranks);
        rest = &rest[len..];
    }
    assert_eq!(Frame::decode(rest, ranks).err(), fault, "what comes after the frames");
    assert!(fault.is_some() || rest.len() == intake.held(), "bytes were lost");
}

/// A frame names nobody that does not exist, and survives being passed on.
fn check(frame: &Frame, bytes: &[u8], ranks: usize) {
    let mut again = Vec::new();
    frame.encode(&mut again);
    assert!(again.len() <= MAX_BYTES, "{} bytes of a frame", again.len());
    let decoded = Frame::decode(&again, ranks);
    match (frame, &decoded) {
        (Frame::Abort(error), Ok(Some((Frame::Abort(other), len)))) => {
            assert_eq!(*len, again.len());
            assert!(error.culprit().is_none_or(|rank| rank < ranks), "{error:?}");
            let reason = |it: &crate::base::error::Error| (it.kind(), it.culprit());
            assert_eq!(reason(error), reason(other));
            // What was no text takes more room than before, and is cut.
            assert!(error.message().starts_with(other.message()));
            let is_cut = error.message().len() > TEXT_BYTES;
            assert!(is_cut || error.message() == other.message(), "{error:?} became {other:?}");
        }
        (Frame::Does(rank, text), Ok(Some((Frame::Does(same, other), len)))) => {
            assert_eq!(*len, again.len());
            assert!(*rank < ranks && rank == same, "{frame:?}");
            assert!(text.starts_with(other) && (text == other || text.len() > WORDS_BYTES));
        }
        _ => {
            let rank = match frame {
                Frame::Left(rank) | Frame::Ask(rank) => *rank,
                Frame::AskLabels(rank, _) | Frame::Labels(rank, ..) => *rank,
                _ => 0,
            };
            assert!(rank < ranks, "{frame:?}");
            assert_eq!(again, bytes);
            assert_eq!(decoded, Ok(Some((frame.clone(), bytes.len()))));
        }
    }
}
