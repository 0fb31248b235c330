//! The keys of an encrypted connection, one for each direction, and the ciphers of its records
//! ([`record_layer`](crate::sys::record_layer)).
//!
//! A record is a transport message of the Noise protocol. The keys are those of the protocol's
//! `Split`. The number of the record is the nonce, and its header is the associated data.
//! [`RecordCipher::rekey`] is the protocol's `REKEY`. Number 0 of each direction is used by the
//! confirmation and the acceptance of the handshake.

use super::cipher::CipherSuite;
use super::secret::erase;
use crate::sys::record_layer::{RecordCipher, RecordCiphers, RecordTag, TAG_BYTES, WrongTag};
use chacha20poly1305::aead::{AeadInPlace as _, KeyInit as _};
use chacha20poly1305::{ChaCha20Poly1305, Nonce, Tag};
use graviola::aead::AesGcm;
use std::fmt;

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 12;

/// The number with which the Noise protocol derives the next key. No record has it.
const REKEY_NUMBER: u64 = u64::MAX;

/// The keys of one side of an encrypted connection. They are erased when they are dropped.
pub struct ConnectionKeys {
    cipher: CipherSuite,
    sending: [u8; KEY_BYTES],
    receiving: [u8; KEY_BYTES],
}

impl ConnectionKeys {
    pub(super) fn new(
        cipher: CipherSuite,
        sending: [u8; KEY_BYTES],
        receiving: [u8; KEY_BYTES],
    ) -> Self {
        Self { cipher, sending, receiving }
    }

    /// Returns the ciphers of the records.
    pub fn record_ciphers(&self) -> RecordCiphers {
        RecordCiphers {
            sealing: record_cipher(self.cipher, &self.sending),
            opening: record_cipher(self.cipher, &self.receiving),
        }
    }
}

impl Drop for ConnectionKeys {
    fn drop(&mut self) {
        erase(&mut self.sending);
        erase(&mut self.receiving);
    }
}

impl fmt::Debug for ConnectionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionKeys").field("cipher", &self.cipher).finish_non_exhaustive()
    }
}

/// Returns the cipher of this suite with this key. The processor must support the suite, which a
/// completed handshake proves.
pub(super) fn record_cipher(suite: CipherSuite, key: &[u8; KEY_BYTES]) -> Box<dyn RecordCipher> {
    match suite {
        CipherSuite::AesGcm => Box::new(AesGcmRecords(AesGcm::new(key))),
        CipherSuite::ChaChaPoly => Box::new(ChaChaPolyRecords(ChaCha20Poly1305::new(key.into()))),
    }
}

/// Returns the next key: the Noise protocol encrypts 32 zero bytes with [`REKEY_NUMBER`].
fn next_key(cipher: &dyn RecordCipher) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    cipher.seal(REKEY_NUMBER, &[], &mut key);
    key
}

/// AES-256-GCM of graviola. The nonce has 4 zero bytes and the number in big-endian order.
struct AesGcmRecords(AesGcm);

impl AesGcmRecords {
    fn nonce(number: u64) -> [u8; NONCE_BYTES] {
        let mut nonce = [0; NONCE_BYTES];
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        nonce
    }
}

impl fmt::Debug for AesGcmRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AesGcmRecords")
    }
}

impl RecordCipher for AesGcmRecords {
    fn seal(&self, number: u64, header: &[u8], text: &mut [u8]) -> RecordTag {
        let mut tag = [0; TAG_BYTES];
        self.0.encrypt(&Self::nonce(number), header, text, &mut tag);
        tag
    }

    fn open(
        &self,
        number: u64,
        header: &[u8],
        text: &mut [u8],
        tag: &RecordTag,
    ) -> Result<(), WrongTag> {
        self.0.decrypt(&Self::nonce(number), header, text, tag).map_err(|_| WrongTag)
    }

    fn rekey(&mut self) {
        let mut key = next_key(self);
        self.0 = AesGcm::new(&key);
        erase(&mut key);
    }
}

/// ChaCha20-Poly1305 of RustCrypto. The nonce has 4 zero bytes and the number in little-endian
/// order.
struct ChaChaPolyRecords(ChaCha20Poly1305);

impl ChaChaPolyRecords {
    fn nonce(number: u64) -> Nonce {
        let mut nonce = [0; NONCE_BYTES];
        nonce[4..].copy_from_slice(&number.to_le_bytes());
        nonce.into()
    }
}

impl fmt::Debug for ChaChaPolyRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChaChaPolyRecords")
    }
}

impl RecordCipher for ChaChaPolyRecords {
    fn seal(&self, number: u64, header: &[u8], text: &mut [u8]) -> RecordTag {
        match self.0.encrypt_in_place_detached(&Self::nonce(number), header, text) {
            Ok(tag) => tag.into(),
            // Only for texts of more than 256 GiB, which no record has. The peer refuses this tag.
            Err(_) => {
                erase(text);
                [0; TAG_BYTES]
            }
        }
    }

    fn open(
        &self,
        number: u64,
        header: &[u8],
        text: &mut [u8],
        tag: &RecordTag,
    ) -> Result<(), WrongTag> {
        self.0
            .decrypt_in_place_detached(&Self::nonce(number), header, text, Tag::from_slice(tag))
            .map_err(|_| WrongTag)
    }

    fn rekey(&mut self) {
        let mut key = next_key(self);
        self.0 = ChaCha20Poly1305::new((&key).into());
        erase(&mut key);
    }
}
