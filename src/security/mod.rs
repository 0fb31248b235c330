//! The job's secret, and the handshake by which two processes prove to each other that they hold
//! it. Links between ranks and connections to the store use the same handshake.
//!
//! * [`secret`]: the job's secret, and the key that is derived from it.
//! * [`setting`]: the variable `DIST_SECURITY`, and the protection of the links of a group.
//! * [`handshake`]: the Noise handshake, as a conversion of bytes to bytes.
//! * [`connection_keys`]: the keys that the handshake gives, and the ciphers of the records.
//! * [`cipher`]: the cipher suites, and which of them a processor supports.
//! * [`resolver`]: the cryptography of the handshake, from graviola and RustCrypto.
//!
//! This layer contains no cryptographic construction of its own: `snow` implements the protocol. It
//! does no input or output, except that it reads the secret from a file.

pub mod cipher;
pub mod connection_keys;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod handshake;
mod resolver;
pub mod secret;
pub mod setting;
#[cfg(test)]
mod tests;

pub use cipher::{CipherSet, CipherSuite};
pub use secret::Secret;
pub use setting::{LinkSecurity, SecuritySetting};
