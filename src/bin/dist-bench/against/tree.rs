//! The program of the other tree: found in its release build, started as ranks. Only its rank mode
//! is used, so that any tree whose ranks understand the same orders can be compared.

use crate::Failure;
use crate::cell::Cell;
use crate::engine::Launch;
use crate::ours::Ours;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program's path below a source tree.
const BUILT: &str = "target/release/dist-bench";

/// The program's name, in a folder of programs.
const NAME: &str = "dist-bench";

/// The other tree's engine.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) program: PathBuf,
    /// Its ranks are asked for the same as ours.
    ours: Ours,
}

impl Tree {
    /// Finds the program in a source tree or a folder of programs; or the path is that of the
    /// program.
    pub(super) fn find(path: &Path, ours: Ours) -> Result<Self, Failure> {
        let places = [path.to_path_buf(), path.join(BUILT), path.join(NAME)];
        let program = places.into_iter().find(|place| place.is_file());
        let program = program.ok_or_else(|| missing(path))?;
        let program = program
            .canonicalize()
            .map_err(|cause| Failure::new(format!("--against {}: {cause}", program.display())))?;
        Ok(Self { program, ours })
    }
}

/// The reason why there is no program, and the remedy.
fn missing(path: &Path) -> Failure {
    let (shown, manifest) = (path.display(), path.join("Cargo.toml"));
    Failure::new(match manifest.is_file() {
        true => format!(
            "--against {shown}: there is no {BUILT} in this source tree; build it: cargo build --release --bin \
             dist-bench --manifest-path {}",
            manifest.display()
        ),
        false => format!(
            "--against {shown}: this is no source tree with {BUILT}, no folder with {NAME}, and no program; give the \
             folder that has the other tree's Cargo.toml, after `cargo build --release --bin dist-bench` there"
        ),
    })
}

impl Launch for Tree {
    fn name(&self) -> &str {
        super::BASELINE
    }

    fn commands(&self, ranks: usize, place: &Path) -> Result<Vec<Command>, Failure> {
        Ok(self.ours.commands_of(&self.program, ranks, place))
    }

    fn takes(&self, _cell: &Cell) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Ours = Ours { transport: "auto", device: "" };

    #[test]
    fn a_tree_without_its_program_is_refused_with_the_remedy() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"));
        let unbuilt = source.join("docs");
        let failure = Tree::find(&unbuilt, OURS).unwrap_err();
        assert!(failure.message.contains("this is no source tree"), "{}", failure.message);
        let failure = missing(source);
        assert!(failure.message.contains("cargo build --release --bin"), "{}", failure.message);
    }

    #[test]
    fn the_program_itself_is_accepted() {
        let own = std::env::current_exe().unwrap();
        let tree = Tree::find(&own, OURS).unwrap();
        let commands = tree.commands(3, Path::new("/tmp/x")).unwrap();
        let words: Vec<&str> = commands[2].get_args().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(words, ["--as-rank", "2", "3", "auto", "/tmp/x", ""]);
    }
}
