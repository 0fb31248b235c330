//! [`RequestFailure`]: the reason why a request failed, as the client sees it.

use super::handshake::AuthFailure;
use super::proto;
use std::io;

/// The reason why a request failed.
#[derive(Debug)]
pub(super) enum RequestFailure {
    /// The deadline passed before the reply arrived.
    Timeout,
    /// The server closed the connection, or the network failed.
    Lost {
        /// The system error.
        cause: io::Error,
        /// False if no byte of the request was sent.
        was_sent: bool,
    },
    /// The server sent a malformed reply.
    Malformed(String),
    /// One side did not prove that it holds the job's secret.
    AuthFailed(AuthFailure),
    /// The server rejected this client: it sent a status word instead of the reply to PING.
    Refused(proto::StatusWord),
}

/// The result of one request.
pub(super) type RequestResult<T> = Result<T, RequestFailure>;

impl RequestFailure {
    /// Returns the failure for a word that the server sent instead of the reply to PING, or `None`
    /// if the word is not a status word.
    pub(super) fn from_word(word: proto::StatusWord) -> Option<Self> {
        if let Some(auth_failure) = AuthFailure::from_word(word) {
            return Some(Self::AuthFailed(auth_failure));
        }
        proto::STATUS_WORDS.contains(&word).then_some(Self::Refused(word))
    }

    /// Returns what an unexpected server did, as the end of a sentence that begins with the server,
    /// for example "sent byte 7 in reply to CHECK". Returns `None` for a failure without an
    /// unexpected reply.
    pub(super) fn reply_error(&self) -> Option<String> {
        match self {
            Self::Malformed(answer) => Some(format!("sent {answer}")),
            Self::Refused(word) => {
                Some(format!("sent the status word \"{}\"", word.escape_ascii()))
            }
            Self::Timeout | Self::Lost { .. } | Self::AuthFailed(_) => None,
        }
    }

    /// Returns the failure for a reply byte that the protocol does not allow for this request.
    pub(super) fn unexpected_byte(request: &str, byte: u8) -> Self {
        Self::Malformed(format!("byte {byte} in reply to {request}"))
    }
}
