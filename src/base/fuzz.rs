//! The common part of all fuzz targets' entry points: [`FuzzScript`], the input that a target runs
//! as a sequence of steps, and the replay of stored inputs in tests.
//!
//! This module is compiled for fuzzing and for tests only.

/// The bytes of a fuzz script. The bytes may end within any step: the target then skips the step,
/// or runs the step with fewer bytes.
pub(crate) struct FuzzScript<'a>(pub(crate) &'a [u8]);

impl<'a> FuzzScript<'a> {
    pub(crate) fn next_byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// Returns the next `count` bytes, or all remaining bytes if there are fewer.
    pub(crate) fn take_bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Returns the next 8 bytes as a number; missing bytes are zero.
    pub(crate) fn next_number(&mut self) -> i64 {
        let mut bytes = [0; 8];
        let taken = self.take_bytes(8);
        bytes[..taken.len()].copy_from_slice(taken);
        i64::from_le_bytes(bytes)
    }
}

/// Runs every file of `fuzz/corpus/<target>` through the target's entry point.
#[cfg(test)]
pub(crate) fn replay_corpus(target: &str, entry: fn(&[u8])) {
    /// The minimum number of files of a corpus.
    const MIN_FILES: usize = 10;
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = root.join("fuzz/corpus").join(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= MIN_FILES, "{} files in {}", paths.len(), folder.display());
    for path in paths {
        let input = std::fs::read(&path).unwrap();
        let name = path.display();
        // Prints the file name, which the test output shows if the test fails.
        println!("{name}: {} bytes", input.len());
        entry(&input);
    }
}
