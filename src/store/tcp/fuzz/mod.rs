//! Entry points for the fuzz targets in `fuzz/`. Each entry point takes arbitrary bytes as a
//! script, and panics if an invariant is violated. The tests in this module run the scripts of the
//! committed corpus.
//!
//! This module is compiled only for fuzzing and for tests. It is not a part of the library.
#![allow(clippy::panic, clippy::expect_used, reason = "a panic reports a finding")]

mod client;
mod model;
mod requests;
mod secret;
mod server;

pub use client::client;
pub use requests::requests;
pub use secret::secret;
pub use server::server;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::fuzz::replay_corpus;

    #[test]
    fn store_server_corpus_passes() {
        replay_corpus("store_server", server);
    }

    #[test]
    fn store_client_corpus_passes() {
        replay_corpus("store_client", client);
    }

    #[test]
    fn store_requests_corpus_passes() {
        replay_corpus("store_requests", requests);
    }

    #[test]
    fn store_secret_corpus_passes() {
        replay_corpus("store_secret", secret);
    }
}
