//! Why a rank leaves a group that has failed, told on the streams to it. Bytes go one way on a
//! stream; after the hello the other way is free, and carries this frame or nothing before it ends.
//! Leaders tell the same, and sooner; but where a leader has left already, its node hears it from
//! nobody else.

use super::control_frame::{ControlFrame, MAX_BYTES};
use crate::base::error::Error;
use crate::sys::stream::SocketStream;

/// Tells it to the rank that the stream comes from.
pub(super) fn send_reason(stream: &SocketStream, reason: Error) {
    let mut bytes = Vec::with_capacity(MAX_BYTES);
    ControlFrame::Abort(reason).encode(&mut bytes);
    // Nothing else has gone this way, so that there is room; whoever has died does not mind.
    drop(stream.send(&bytes));
}

/// What the rank has told that the stream goes to, which has ended. Ranks must be below
/// `rank_count`.
pub(super) fn receive_reason(stream: &SocketStream, ranks: usize) -> Option<Error> {
    let mut bytes = [0; MAX_BYTES];
    let mut filled = 0;
    while let Ok(got @ 1..) = stream.receive(&mut bytes[filled..]) {
        filled += got;
    }
    match ControlFrame::decode(&bytes[..filled], ranks) {
        Ok(Some((ControlFrame::Abort(reason), _))) => Some(reason),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;
    use crate::sys::unix;
    use crate::transport::abort::TEXT_BYTES;

    fn pair() -> (SocketStream, SocketStream) {
        let (a, b) = unix::pair().unwrap();
        (SocketStream::from_unix(a).unwrap(), SocketStream::from_unix(b).unwrap())
    }

    #[test]
    fn reason_of_any_length_is_received() {
        for text in [String::new(), "rank 2 died".to_owned(), "x".repeat(TEXT_BYTES)] {
            let (here, there) = pair();
            let reason = Error::new(ErrorKind::PeerFailed, text).with_culprit(2);
            send_reason(&there, reason.clone());
            there.shutdown_write();
            assert_eq!(receive_reason(&here, 3), Some(reason));
        }
        let (here, there) = pair();
        there.shutdown_write();
        assert_eq!(receive_reason(&here, 3), None);
    }

    #[test]
    fn malformed_reason_is_ignored() {
        let mut abort = Vec::new();
        let reason = Error::new(ErrorKind::PeerFailed, "rank 3 died").with_culprit(3);
        ControlFrame::Abort(reason).encode(&mut abort);
        let half = &abort[..abort.len() - 1];
        for bytes in [&abort[..], half, &[2, 1, 0, 0, 0], &[0xff; 2 * MAX_BYTES]] {
            let (here, there) = pair();
            there.send(bytes).unwrap();
            there.shutdown_write();
            assert_eq!(receive_reason(&here, 3), None);
        }
    }
}
