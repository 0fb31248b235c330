//! Why a rank leaves a group that has failed, told on the streams to it. Bytes go one way on a
//! stream; after the hello the other way is free, and carries this frame or nothing before it ends.
//! Leaders tell the same, and sooner; but where a leader has left already, its node hears it from
//! nobody else.

use super::frame::{Frame, MAX_BYTES};
use crate::base::error::Error;
use crate::sys::stream::Stream;

/// Tells it to the rank that the stream comes from.
pub(super) fn say(stream: &Stream, reason: Error) {
    let mut bytes = Vec::with_capacity(MAX_BYTES);
    Frame::Abort(reason).encode(&mut bytes);
    // Nothing else has gone this way, so that there is room; whoever has died does not mind.
    drop(stream.send(&bytes));
}

/// What the rank has told that the stream goes to, which has ended. Ranks must be below `ranks`.
pub(super) fn heard(stream: &Stream, ranks: usize) -> Option<Error> {
    let mut bytes = [0; MAX_BYTES];
    let mut filled = 0;
    while let Ok(got @ 1..) = stream.receive(&mut bytes[filled..]) {
        filled += got;
    }
    match Frame::decode(&bytes[..filled], ranks) {
        Ok(Some((Frame::Abort(reason), _))) => Some(reason),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;
    use crate::sys::unix;
    use crate::transport::abort::TEXT_BYTES;

    fn pair() -> (Stream, Stream) {
        let (a, b) = unix::pair().unwrap();
        (Stream::from_unix(a).unwrap(), Stream::from_unix(b).unwrap())
    }

    #[test]
    fn a_reason_of_any_length_is_heard_and_nothing_is_none() {
        for text in [String::new(), "rank 2 died".to_owned(), "x".repeat(TEXT_BYTES)] {
            let (here, there) = pair();
            let reason = Error::new(ErrorKind::PeerFailed, text).with_culprit(2);
            say(&there, reason.clone());
            there.end_sending();
            assert_eq!(heard(&here, 3), Some(reason));
        }
        let (here, there) = pair();
        there.end_sending();
        assert_eq!(heard(&here, 3), None);
    }

    #[test]
    fn what_is_no_reason_is_not_believed() {
        let mut abort = Vec::new();
        let reason = Error::new(ErrorKind::PeerFailed, "rank 3 died").with_culprit(3);
        Frame::Abort(reason).encode(&mut abort);
        let half = &abort[..abort.len() - 1];
        for bytes in [&abort[..], half, &[2, 1, 0, 0, 0], &[0xff; 2 * MAX_BYTES]] {
            let (here, there) = pair();
            there.send(bytes).unwrap();
            there.end_sending();
            assert_eq!(heard(&here, 3), None);
        }
    }
}
