//! Writing a small file so that whoever reads it finds all of it or what was there before.

use crate::base::error::{Error, Result};
use crate::sys::{file, host};
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// Writes a file under another name in the same folder, and gives it its own name when it is whole.
/// Neither follows a link that somebody has left under one of the names. A file that may not grow
/// so large is an error, and no signal.
///
/// # Errors
/// `OutOfMemory` where the disk is full, else `System`; then nothing is left of it.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{}.tmp", host::pid()));
    let draft = PathBuf::from(draft);
    let written = create_new(&draft, bytes).and_then(|()| fs::rename(&draft, path));
    written.map_err(|cause| {
        // It may not have come to be.
        drop(fs::remove_file(&draft));
        Error::system(format_args!("writing {}", path.display()), &cause)
    })
}

fn create_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // What is left of an earlier process of the same id.
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
        _ => {}
    }
    let new = OpenOptions::new().write(true).create_new(true).open(path)?;
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
        // A name that is a folder's cannot be taken.
        fs::create_dir_all(folder.join("taken/inside")).unwrap();
        assert!(write(&folder.join("taken"), b"x").is_err());
        let left = fs::read_dir(&folder).unwrap().count();
        assert_eq!(left, 2, "f and taken");
        fs::remove_dir_all(&folder).unwrap();
    }
}
