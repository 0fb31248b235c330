//! Finds dist-bench in the other tree's release build, and starts its processes as ranks. This
//! tree's program is the driver of both sides. So any tree can be compared whose ranks accept the
//! same requests.

use crate::cell::BenchCell;
use crate::engine::EngineLauncher;
use crate::libdist_engine::LibdistEngine;
use dist_tools::Failure;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program's path below a source tree.
const RELEASE_PROGRAM: &str = "target/release/dist-bench";

/// The program's name in a folder of programs.
const PROGRAM_NAME: &str = "dist-bench";

/// The other tree's engine.
#[derive(Debug)]
pub(super) struct OtherTree {
    pub(super) program: PathBuf,
    /// The engine of this tree. The other tree's ranks get the same arguments.
    libdist: LibdistEngine,
}

impl OtherTree {
    /// Finds the program in a source tree or a folder of programs, or accepts the path of the
    /// program itself.
    pub(super) fn find(path: &Path, ours: LibdistEngine) -> Result<Self, Failure> {
        let candidates = [path.to_path_buf(), path.join(RELEASE_PROGRAM), path.join(PROGRAM_NAME)];
        let program = candidates.into_iter().find(|file| file.is_file());
        let program = program.ok_or_else(|| program_missing(path))?;
        let program = program
            .canonicalize()
            .map_err(|cause| Failure::new(format!("--against {}: {cause}", program.display())))?;
        Ok(Self { program, libdist: ours })
    }
}

/// Builds the error for a missing program, with the remedy.
fn program_missing(path: &Path) -> Failure {
    let (shown, manifest) = (path.display(), path.join("Cargo.toml"));
    Failure::new(match manifest.is_file() {
        true => format!(
            "--against {shown}: this source tree has no {RELEASE_PROGRAM}; build it: cargo build --release --bin dist-bench \
             --manifest-path {}",
            manifest.display()
        ),
        false => format!(
            "--against {shown}: not a source tree with {RELEASE_PROGRAM}, not a folder with {PROGRAM_NAME}, and not a program; \
             name the folder that has the other tree's Cargo.toml, and first run \
             `cargo build --release --bin dist-bench` in it"
        ),
    })
}

impl EngineLauncher for OtherTree {
    fn name(&self) -> &str {
        super::BASELINE
    }

    fn commands(&self, ranks: usize, path_prefix: &Path) -> Result<Vec<Command>, Failure> {
        Ok(self.libdist.rank_commands(&self.program, ranks, path_prefix))
    }

    fn supports_cell(&self, _cell: &BenchCell) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: LibdistEngine = LibdistEngine { transport: "auto", device: "" };

    #[test]
    fn tree_without_program_is_refused_with_remedy() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let unbuilt = source.join("docs");
        let failure = OtherTree::find(&unbuilt, OURS).unwrap_err();
        assert!(failure.message.contains("not a source tree"), "{}", failure.message);
        let failure = program_missing(source);
        assert!(failure.message.contains("cargo build --release --bin"), "{}", failure.message);
    }

    #[test]
    fn the_program_itself_is_accepted() {
        let own = std::env::current_exe().unwrap();
        let tree = OtherTree::find(&own, OURS).unwrap();
        let commands = tree.commands(3, Path::new("/tmp/x")).unwrap();
        let words: Vec<&str> = commands[2].get_args().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(words, ["--as-rank", "2", "3", "auto", "/tmp/x", ""]);
    }
}
