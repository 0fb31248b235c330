//! Writes a small file atomically: a reader finds either the complete new content or the previous
//! content.
//!
//! The file is in this folder because the layers above, which must not import `sys`, write files
//! such as the dump of the flight recorder with it.

use crate::base::error::{Error, Result};
use crate::sys::descriptor::above_standard_streams;
use crate::sys::{file, host};
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// Writes a temporary file in the same folder, and renames it to `path` when it is complete. The
/// write and the rename follow no symbolic link. If the content exceeds the file size limit of this
/// process, this function returns an error and raises no SIGXFSZ.
///
/// # Errors
/// `OutOfMemory` if the disk is full, else `System`. After an error, no temporary file is left.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{}.tmp", host::pid()));
    let draft = PathBuf::from(draft);
    let written = create_new(&draft, bytes).and_then(|()| fs::rename(&draft, path));
    written.map_err(|cause| {
        // The removal fails if the temporary file does not exist, which is harmless.
        drop(fs::remove_file(&draft));
        Error::system(format_args!("writing {}", path.display()), cause)
    })
}

fn create_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Removes the temporary file of an earlier process with the same process ID.
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
        _ => {}
    }
    let new = OpenOptions::new().write(true).create_new(true).open(path);
    let new = above_standard_streams(new)?;
    file::write_all_at(&new, bytes, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_replaced_atomically_or_not_at_all() {
        let folder = std::env::temp_dir().join(format!("dist-whole-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("f");
        for text in ["a longer text", "short"] {
            write(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let error = write(&folder.join("none").join("f"), b"x").unwrap_err();
        assert!(error.message().contains("none/f"), "{error}");
        // A file cannot replace a folder.
        fs::create_dir_all(folder.join("taken/inside")).unwrap();
        assert!(write(&folder.join("taken"), b"x").is_err());
        let left = fs::read_dir(&folder).unwrap().count();
        assert_eq!(left, 2, "f and taken");
        fs::remove_dir_all(&folder).unwrap();
    }
}
