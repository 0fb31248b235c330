//! The cryptography behind snow's traits: graviola where the processor has the features that it
//! needs, and RustCrypto (snow's own resolver) elsewhere. Random numbers come from the kernel.
//!
//! graviola panics on a processor without these features. Therefore [`resolver`] asks
//! [`CipherSet::of_this_processor`] first.

use super::cipher::{CipherSet, CipherSuite};
use crate::sys::host;
use graviola::aead::AesGcm;
use graviola::hashing::{Hash as _, HashContext as _, Sha256};
use graviola::key_agreement::x25519::{PublicKey, StaticPrivateKey};
use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{BoxedCryptoResolver, CryptoResolver, DefaultResolver, FallbackResolver};
use snow::types::{Cipher, Dh, Hash, Random};

const KEY_BYTES: usize = 32;
const TAG_BYTES: usize = 16;
const SHA256_BYTES: usize = 32;
const SHA256_BLOCK_BYTES: usize = 64;

/// Returns the resolver for this processor.
pub(super) fn resolver() -> BoxedCryptoResolver {
    let every_processor =
        Box::new(FallbackResolver::new(Box::new(KernelRandomResolver), Box::new(DefaultResolver)));
    let own = CipherSet::of_this_processor();
    match own.best_common(own) {
        CipherSuite::AesGcm => {
            Box::new(FallbackResolver::new(Box::new(GraviolaResolver), every_processor))
        }
        CipherSuite::ChaChaPoly => every_processor,
    }
}

/// Provides random numbers of the kernel, and nothing else.
pub(super) struct KernelRandomResolver;

impl CryptoResolver for KernelRandomResolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(KernelRandom))
    }

    fn resolve_dh(&self, _choice: &DHChoice) -> Option<Box<dyn Dh>> {
        None
    }

    fn resolve_hash(&self, _choice: &HashChoice) -> Option<Box<dyn Hash>> {
        None
    }

    fn resolve_cipher(&self, _choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        None
    }
}

/// Provides X25519, SHA-256 and AES-256-GCM of graviola.
struct GraviolaResolver;

impl CryptoResolver for GraviolaResolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        None
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        match choice {
            DHChoice::Curve25519 => Some(Box::new(GraviolaX25519::default())),
            _ => None,
        }
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        match choice {
            HashChoice::SHA256 => Some(Box::new(GraviolaSha256(Sha256::new()))),
            _ => None,
        }
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        match choice {
            CipherChoice::AESGCM => Some(Box::new(GraviolaAesGcm(None))),
            _ => None,
        }
    }
}

struct KernelRandom;

impl Random for KernelRandom {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), Error> {
        for part in dest.chunks_mut(KEY_BYTES) {
            let random: [u8; KEY_BYTES] = host::random_bytes().map_err(|_| Error::Rng)?;
            part.copy_from_slice(&random[..part.len()]);
        }
        Ok(())
    }
}

#[derive(Default)]
struct GraviolaX25519 {
    private: [u8; KEY_BYTES],
    public: [u8; KEY_BYTES],
}

impl Drop for GraviolaX25519 {
    fn drop(&mut self) {
        super::secret::erase(&mut self.private);
    }
}

impl Dh for GraviolaX25519 {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_BYTES
    }

    fn priv_len(&self) -> usize {
        KEY_BYTES
    }

    fn set(&mut self, privkey: &[u8]) {
        let count = privkey.len().min(KEY_BYTES);
        self.private[..count].copy_from_slice(&privkey[..count]);
        self.public = StaticPrivateKey::from_array(&self.private).public_key().as_bytes();
    }

    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), Error> {
        let mut random = [0; KEY_BYTES];
        rng.try_fill_bytes(&mut random)?;
        self.set(&random);
        super::secret::erase(&mut random);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &self.private
    }

    fn dh(&self, pubkey: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let peer = pubkey.first_chunk().ok_or(Error::Dh)?;
        // graviola refuses the points of small order, whose result no private key influences.
        let shared = StaticPrivateKey::from_array(&self.private)
            .diffie_hellman(&PublicKey::from_array(peer))
            .map_err(|_| Error::Dh)?;
        out[..KEY_BYTES].copy_from_slice(&shared.0);
        Ok(())
    }
}

struct GraviolaSha256(<Sha256 as graviola::hashing::Hash>::Context);

impl Hash for GraviolaSha256 {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        SHA256_BLOCK_BYTES
    }

    fn hash_len(&self) -> usize {
        SHA256_BYTES
    }

    fn reset(&mut self) {
        self.0 = Sha256::new();
    }

    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        let context = std::mem::replace(&mut self.0, Sha256::new());
        out[..SHA256_BYTES].copy_from_slice(context.finish().as_ref());
    }
}

/// AES-256-GCM with its key, or `None` before the key is set.
struct GraviolaAesGcm(Option<AesGcm>);

impl GraviolaAesGcm {
    /// Returns the nonce of the Noise specification: 4 zero bytes and the big-endian number.
    fn nonce(number: u64) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        nonce
    }
}

impl Cipher for GraviolaAesGcm {
    fn name(&self) -> &'static str {
        "AESGCM"
    }

    fn set(&mut self, key: &[u8; KEY_BYTES]) {
        self.0 = Some(AesGcm::new(key));
    }

    fn encrypt(&self, nonce: u64, authtext: &[u8], plaintext: &[u8], out: &mut [u8]) -> usize {
        // snow encrypts only after it has set a key. Without a key, the message would be empty,
        // and the peer would refuse it.
        let Some(cipher) = &self.0 else { return 0 };
        let length = plaintext.len();
        out[..length].copy_from_slice(plaintext);
        let mut tag = [0; TAG_BYTES];
        cipher.encrypt(&Self::nonce(nonce), authtext, &mut out[..length], &mut tag);
        out[length..length + TAG_BYTES].copy_from_slice(&tag);
        length + TAG_BYTES
    }

    fn decrypt(
        &self,
        nonce: u64,
        authtext: &[u8],
        ciphertext: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let cipher = self.0.as_ref().ok_or(Error::Decrypt)?;
        let length = ciphertext.len().checked_sub(TAG_BYTES).ok_or(Error::Decrypt)?;
        let (body, tag) = ciphertext.split_at(length);
        let out = out.get_mut(..length).ok_or(Error::Decrypt)?;
        out.copy_from_slice(body);
        cipher.decrypt(&Self::nonce(nonce), authtext, out, tag).map_err(|_| Error::Decrypt)?;
        Ok(length)
    }
}
