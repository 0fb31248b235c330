//! The job's secret: bytes that only the processes of a job know. A process that holds the secret
//! may use the job's store, and may connect to the ranks of the job.
//!
//! The library does not keep the secret, only a key that is derived from it. All clones of a
//! [`Secret`] share one copy of this key. No error, log line or `Debug` output contains a byte of
//! the secret or the key. The module [`handshake`](super::handshake) uses the key to prove that
//! both sides of a connection hold the secret.

use crate::base::{Error, Result};
use crate::sys::{host, shm, small_file};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

/// The largest number of bytes in a secret.
pub const MAX_SECRET_BYTES: usize = 4096;

/// The context text of the key derivation. A future version of the handshake must use a different
/// text.
const KEY_DERIVATION_CONTEXT: &str =
    "libdist 2026 Noise handshake 1: pre-shared key from the job's secret";

/// The permissions that a secret file must not grant: those of group and others.
const GROUP_AND_OTHERS_MODE: u32 = 0o077;

/// A secret that all processes of a job share.
#[derive(Clone)]
pub struct Secret(Arc<SecretKey>);

struct SecretKey([u8; blake3::KEY_LEN]);

impl Secret {
    /// Creates a secret from 1 to [`MAX_SECRET_BYTES`] bytes. Use random bytes. A process that
    /// reaches the server's port may try any number of secrets, so a secret that can be guessed
    /// gives no protection.
    ///
    /// # Errors
    /// `InvalidArgument` if the length is out of range.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        match bytes.len() {
            0 => Err(Error::invalid("the store's secret is empty")),
            1..=MAX_SECRET_BYTES => {
                Ok(Self(Arc::new(SecretKey(blake3::derive_key(KEY_DERIVATION_CONTEXT, bytes)))))
            }
            _ => {
                let message = format!("the store's secret is longer than {MAX_SECRET_BYTES} bytes");
                Err(Error::invalid(message))
            }
        }
    }

    /// Reads the secret from a file. Only the file's owner may have access to the file. Ignores one
    /// newline at the end of the file.
    ///
    /// # Errors
    /// `InvalidArgument` if the file is not a regular file, belongs neither to this user nor to
    /// root, grants access to other users, is empty, or is too long. `System` if the file cannot be
    /// read. Each error names the file.
    pub fn from_file(path: &Path) -> Result<Self> {
        let name = path.display();
        let file = small_file::open(path)
            .map_err(|cause| Error::system(format_args!("cannot open {name}"), cause))?;
        let invalid = |problem: String| Err(Error::invalid(format!("{name} {problem}")));
        let metadata = file.metadata().map_err(|cause| {
            Error::system(format_args!("cannot get the status of {name}"), cause)
        })?;
        let (owner, user, mode) = (metadata.uid(), host::uid(), metadata.mode() & 0o7777);
        if !metadata.is_file() {
            return invalid("is not a regular file".to_owned());
        }
        if owner != user && owner != 0 {
            return invalid(format!(
                "belongs to user {owner}; it must belong to user {user} or to root"
            ));
        }
        if mode & GROUP_AND_OTHERS_MODE != 0 {
            return invalid(format!(
                "has mode {mode:04o}, which gives other users access; run chmod 600 {name}"
            ));
        }
        read_secret(&file, &name)
    }

    /// Reads the secret from the file behind an inherited descriptor. The read starts at offset 0
    /// and does not move the file position, so that many processes can share the descriptor.
    /// Ignores one newline at the end of the file. The descriptor stays open in this process, and
    /// the programs that this process executes do not inherit it.
    ///
    /// # Errors
    /// `InvalidArgument` if the descriptor does not exist, or if its file is not a regular file, is
    /// empty, or is too long. `System` if the file cannot be read. Each error names the descriptor.
    pub fn from_fd(fd: RawFd) -> Result<Self> {
        let name = format!("descriptor {fd}");
        let invalid = |problem: &str| Err(Error::invalid(format!("{name} {problem}")));
        let file = match small_file::from_inherited_fd(fd) {
            Ok(file) => file,
            Err(cause) => {
                return invalid(&format!(
                    "cannot be used ({cause}); it was probably not inherited"
                ));
            }
        };
        match file.metadata() {
            Ok(metadata) if metadata.is_file() => read_secret(&file, &name),
            Ok(_) => invalid("is neither a regular file nor a memory file"),
            Err(cause) => {
                Err(Error::system(format_args!("cannot get the status of {name}"), cause))
            }
        }
    }

    /// Creates a secret of 32 random bytes, and writes it to a sealed memory file. A process that
    /// inherits the file's descriptor reads the same secret with [`Secret::from_fd`].
    ///
    /// # Errors
    /// `System` or `OutOfMemory`.
    pub fn generate() -> Result<(Self, OwnedFd)> {
        let (secret, text) = Self::generate_text()?;
        Ok((secret, shm::create_sealed_file(text.as_bytes())?))
    }

    /// Creates a secret of 32 random bytes. Returns it with the text from which
    /// [`Secret::from_bytes`] makes the same secret.
    ///
    /// # Errors
    /// `System`.
    pub fn generate_text() -> Result<(Self, SecretText)> {
        let mut random: [u8; 32] = host::random_bytes()?;
        // Hexadecimal digits: a last byte of 10 would be taken for the newline that `from_fd`
        // ignores.
        let mut text = SecretText([0; 64]);
        for (digits, byte) in text.0.chunks_exact_mut(2).zip(random) {
            digits[0] = hex_digit(byte >> 4);
            digits[1] = hex_digit(byte & 15);
        }
        erase(&mut random);
        Ok((Self::from_bytes(&text.0)?, text))
    }

    /// Returns the pre-shared key of the handshake.
    pub(super) fn handshake_key(&self) -> &[u8; blake3::KEY_LEN] {
        &self.0.0
    }
}

/// The text of a secret, which is erased when it is dropped.
pub struct SecretText([u8; 64]);

impl SecretText {
    /// Returns the text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for SecretText {
    fn drop(&mut self) {
        erase(&mut self.0);
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(…)")
    }
}

impl PartialEq for Secret {
    /// Compares in constant time.
    fn eq(&self, other: &Self) -> bool {
        blake3::Hash::from_bytes(self.0.0) == blake3::Hash::from_bytes(other.0.0)
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Drop for SecretKey {
    fn drop(&mut self) {
        erase(&mut self.0);
    }
}

/// Reads the secret from an open file.
fn read_secret(file: &File, name: &dyn fmt::Display) -> Result<Secret> {
    // Read up to two bytes more than a secret may have: one for the newline, and one to detect that
    // the file is too long.
    let mut bytes = vec![0; MAX_SECRET_BYTES + 2];
    let outcome = small_file::read_from_start(file, &mut bytes)
        .map_err(|cause: io::Error| Error::system(format_args!("cannot read {name}"), cause))
        .and_then(|length| {
            let content = &bytes[..length];
            Secret::from_bytes(content.strip_suffix(b"\n").unwrap_or(content))
                .map_err(|error| error.context(name))
        });
    erase(&mut bytes);
    outcome
}

fn hex_digit(digit: u8) -> u8 {
    if digit < 10 { b'0' + digit } else { b'a' + digit - 10 }
}

/// Overwrites bytes that are no longer needed, and prevents the compiler from removing the write.
/// Copies in registers and on the stack cannot be erased.
pub(super) fn erase(bytes: &mut [u8]) {
    bytes.fill(0);
    std::hint::black_box(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ErrorKind;
    use std::fs;
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
    use std::path::PathBuf;

    const TEST_SECRET_BYTES: &[u8] = b"correct horse battery staple";

    /// A folder for one test.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            let name = format!("libdist-secret-{}", host::random_nonce().unwrap());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn file(&self, content: &[u8], mode: u32) -> PathBuf {
            let path = self.0.join(host::random_nonce().unwrap().to_string());
            let mut options = fs::OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&path).unwrap();
            file.write_all(content).unwrap();
            file.set_permissions(fs::Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    fn is_same(left: &Secret, right: &Secret) -> bool {
        left.handshake_key() == right.handshake_key()
    }

    fn test_secret() -> Secret {
        Secret::from_bytes(TEST_SECRET_BYTES).unwrap()
    }

    #[test]
    fn equal_bytes_give_equal_secrets() {
        assert!(is_same(&test_secret(), &test_secret()));
        let other = Secret::from_bytes(b"correct horse battery stapl").unwrap();
        assert!(!is_same(&test_secret(), &other));
        for (length, ok) in [(0, false), (1, true), (4096, true), (4097, false)] {
            let secret = Secret::from_bytes(&vec![7; length]);
            assert_eq!(secret.is_ok(), ok, "{length} bytes");
        }
    }

    #[test]
    fn file_and_its_descriptor_give_the_same_secret() {
        let folder = Folder::new();
        let with = |end: &[u8]| folder.file(&[TEST_SECRET_BYTES, end].concat(), 0o600);
        for (path, ok) in [(with(b""), true), (with(b"\n"), true), (with(b"\n\n"), false)] {
            let file = File::open(&path).unwrap();
            assert_eq!(is_same(&Secret::from_file(&path).unwrap(), &test_secret()), ok);
            assert_eq!(is_same(&Secret::from_fd(file.as_raw_fd()).unwrap(), &test_secret()), ok);
        }
        let link = folder.0.join("link");
        symlink(folder.file(TEST_SECRET_BYTES, 0o400), &link).unwrap();
        assert!(is_same(&Secret::from_file(&link).unwrap(), &test_secret()));
        let longest = folder.file(&[&[7; 4096][..], b"\n"].concat(), 0o600);
        assert!(is_same(
            &Secret::from_file(&longest).unwrap(),
            &Secret::from_bytes(&[7; 4096]).unwrap()
        ));
    }

    #[test]
    fn invalid_secret_file_is_refused_without_leaking_it() {
        let folder = Folder::new();
        let long = [TEST_SECRET_BYTES, &[b'x'; 5000]].concat();
        for (path, problem) in [
            (folder.file(TEST_SECRET_BYTES, 0o640), "mode 0640"),
            (folder.file(TEST_SECRET_BYTES, 0o604), "mode 0604"),
            (folder.file(TEST_SECRET_BYTES, 0o620), "chmod 600"),
            (folder.file(b"", 0o600), "is empty"),
            (folder.file(b"\n", 0o600), "is empty"),
            (folder.file(&long, 0o600), "longer than 4096"),
            (folder.0.clone(), "not a regular file"),
            (folder.0.join("missing"), "missing"),
            (PathBuf::from("/dev/zero"), "not a regular file"),
        ] {
            let error = Secret::from_file(&path).unwrap_err();
            assert!(error.message().contains(problem), "{problem}: {error}");
            assert!(error.message().contains(&path.display().to_string()), "{error}");
            assert!(!error.message().contains("horse"), "{error}");
        }
    }

    #[test]
    fn invalid_secret_descriptor_is_refused() {
        let refusal = |fd| Secret::from_fd(fd).unwrap_err();
        let (reader, _writer) = io::pipe().unwrap();
        let pipe = refusal(reader.as_raw_fd());
        assert!(pipe.message().contains("neither a regular file"), "{pipe}");
        let empty = shm::create_sealed_file(b"").unwrap();
        let empty = refusal(empty.as_raw_fd());
        assert!(empty.message().contains("is empty"), "{empty}");
        for fd in [-1, i32::MAX] {
            let error = refusal(fd);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains(&format!("descriptor {fd}")), "{error}");
        }
    }

    #[test]
    fn generated_secret_matches_only_its_descriptor() {
        let (secret, fd) = Secret::generate().unwrap();
        for _ in 0..2 {
            assert!(is_same(&Secret::from_fd(fd.as_raw_fd()).unwrap(), &secret));
        }
        assert!(!is_same(&Secret::generate().unwrap().0, &secret));
    }

    #[test]
    fn debug_output_hides_the_secret() {
        assert_eq!(format!("{:?}", test_secret()), "Secret(..)");
    }
}
