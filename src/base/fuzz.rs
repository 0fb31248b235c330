//! What the entry points of all fuzz targets share: a script to run, and the corpora as tests.
//!
//! Compiled for fuzzing and for tests alone; not a part of the library.

/// Bytes that say what to do, and end anywhere: what is missing is not done, or done with less.
pub(crate) struct FuzzScript<'a>(pub(crate) &'a [u8]);

impl<'a> FuzzScript<'a> {
    pub(crate) fn next_byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// So many bytes, or all that are left.
    pub(crate) fn take_bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// The next bytes as a number; zeros where there are none.
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
    /// What every corpus has at least.
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
        // Names the file in the test's output, which is shown where it fails.
        println!("{name}: {} bytes", input.len());
        entry(&input);
    }
}
