//! Entry points for the fuzz targets in `fuzz/`: each takes arbitrary bytes as a script, and panics where
//! something that must always hold does not. The tests below run the committed corpus through the same functions.
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

/// Bytes that say what to do, and end anywhere: what is missing is not done, or done with less.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// So many bytes, or all that are left.
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// The next bytes as a number; zeros where there are none.
    fn number(&mut self) -> i64 {
        let mut bytes = [0; 8];
        let taken = self.take(8);
        bytes[..taken.len()].copy_from_slice(taken);
        i64::from_le_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::corpus::replay;

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
