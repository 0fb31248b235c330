//! The fuzz targets' corpora as tests.

use std::path::Path;

/// What every corpus has at least.
const FEW: usize = 10;

/// Runs every file of `fuzz/corpus/<target>` through the target's entry point.
pub(super) fn replay(target: &str, entry: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= FEW, "{} files in {}", paths.len(), folder.display());
    for path in paths {
        let input = std::fs::read(&path).unwrap();
        let name = path.display();
        // Names the file in the test's output, which is shown where it fails.
        println!("{name}: {} bytes", input.len());
        entry(&input);
    }
}
