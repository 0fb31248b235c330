//! Entry points for the fuzz targets in `fuzz/`: each takes arbitrary bytes as a script, and panics
//! where something that must always hold does not. The tests below run the committed corpus through
//! the same functions.
//!
//! Compiled for fuzzing and for tests alone; not a part of the library.
#![allow(clippy::panic, clippy::expect_used, reason = "a panic is how a finding is told")]

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
    use crate::base::fuzz::replay;

    #[test]
    fn the_servers_corpus() {
        replay("store_server", server);
    }

    #[test]
    fn the_clients_corpus() {
        replay("store_client", client);
    }

    #[test]
    fn the_requests_corpus() {
        replay("store_requests", requests);
    }

    #[test]
    fn the_secrets_corpus() {
        replay("store_secret", secret);
    }
}
