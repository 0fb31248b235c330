//! Tests of a rank whose peers publish data that cannot be decoded.

use super::bootstrap;
use crate::backend::{BootstrapExchange, GroupContext};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Nonce;
use crate::security::LinkSecurity;

/// An exchange in which rank 1 contributes these bytes.
#[derive(Debug)]
struct ForgedExchange(&'static [u8]);

impl BootstrapExchange for ForgedExchange {
    fn all_gather(
        &self,
        _: &str,
        own: &[u8],
        _: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        Ok(vec![own.to_vec(), self.0.to_vec()])
    }

    fn publish_failure(&self, _: &Error) {}

    fn peer_failure(&self) -> Option<Error> {
        None
    }
}

#[test]
fn malformed_peer_info_is_an_error_of_the_peer() {
    let deadline = Deadline::after_ms(20_000);
    let context = GroupContext {
        group: Nonce([11; 16]),
        name: "forged",
        timeout_ms: 1000,
        epoch: 0,
        rank: 0,
        size: 2,
        shown_ranks: None,
        store_address: None,
        security: &LinkSecurity::None,
        group_keys: None,
        options: "",
        device: None,
        parent: None,
        activity: None,
        deadline: &deadline,
    };
    for forged in [&b""[..], b"{}", b"\xff\xff", b"{\"pid\": -1}"] {
        let error = bootstrap::create(&context, &ForgedExchange(forged)).unwrap_err();
        assert_eq!((error.kind(), error.culprit()), (ErrorKind::Mismatch, Some(1)), "{error}");
        assert!(error.message().contains("the peer info of rank 1"), "{error}");
    }
}
