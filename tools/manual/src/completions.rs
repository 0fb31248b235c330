//! The completions of a program for bash, zsh and fish, at the paths where these shells look.

use crate::GeneratedFile;
use clap::Command;
use clap_complete::Shell;

/// Returns the completions of a program.
pub(crate) fn completions_of(program: Command) -> Vec<GeneratedFile> {
    let name = program.get_name().to_owned();
    let shells = [
        (Shell::Bash, format!("bash-completion/completions/{name}")),
        (Shell::Zsh, format!("zsh/site-functions/_{name}")),
        (Shell::Fish, format!("fish/vendor_completions.d/{name}.fish")),
    ];
    let file = |(shell, path)| {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut program.clone(), &name, &mut text);
        GeneratedFile::new(path, String::from_utf8(text).expect("a completion is text"))
    };
    shells.map(file).into()
}
