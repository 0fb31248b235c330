//! The failure notice: a rank that leaves a failed group sends the reason of the failure on each of
//! its incoming streams before it closes the stream.
//!
//! The data of a stream flows in one direction of its TCP connection. After the hello, the opposite
//! direction carries no data. Before it ends, it carries nothing or one notice, which is a control
//! frame of the kind `Abort`.
//!
//! Most ranks already know the reason, because the node leaders send it over their control
//! connections. But if the leader of a node has already left, the ranks of that node receive the
//! reason only by this notice.

use super::control_frame::{ControlFrame, MAX_BYTES};
use crate::base::error::Error;
use crate::sys::stream::SocketStream;

/// Sends the failure notice to the rank at the other end of an incoming stream.
pub(super) fn send_reason(stream: &SocketStream, reason: Error) {
    let mut bytes = Vec::with_capacity(MAX_BYTES);
    ControlFrame::Abort(reason).encode(&mut bytes);
    // This direction has carried no data, so the socket buffer has room. If the peer has died, the
    // loss of the notice does not matter.
    drop(stream.send(&bytes));
}

/// Reads the failure notice from an outgoing stream that has ended. Returns `None` if there is no
/// valid notice. Every rank in the notice must be below `ranks`.
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
            let (local, remote) = pair();
            let reason = Error::new(ErrorKind::PeerFailed, text).with_culprit(2);
            send_reason(&remote, reason.clone());
            remote.shutdown_write();
            assert_eq!(receive_reason(&local, 3), Some(reason));
        }
        let (local, remote) = pair();
        remote.shutdown_write();
        assert_eq!(receive_reason(&local, 3), None);
    }

    #[test]
    fn malformed_reason_is_ignored() {
        let mut abort = Vec::new();
        let reason = Error::new(ErrorKind::PeerFailed, "rank 3 died").with_culprit(3);
        ControlFrame::Abort(reason).encode(&mut abort);
        let half = &abort[..abort.len() - 1];
        for bytes in [&abort[..], half, &[2, 1, 0, 0, 0], &[0xff; 2 * MAX_BYTES]] {
            let (local, remote) = pair();
            remote.send(bytes).unwrap();
            remote.shutdown_write();
            assert_eq!(receive_reason(&local, 3), None);
        }
    }
}
