//! Programs that peers are made of: found where the user has them, and compiled unless that was
//! done before.

use crate::Failure;
use crate::stage::Stage;
use dist::base::config::{self, Variable};
use dist::base::deadline::Deadline;
use dist::sys::host;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long compiling one may take.
const COMPILING: Duration = Duration::from_secs(120);

const CACHE: Variable = Variable {
    name: "XDG_CACHE_HOME",
    set_by: "user",
    default: ".cache in HOME",
    meaning: "Where programs keep what they can make again.",
};
const HOME: Variable =
    Variable { name: "HOME", set_by: "login", default: "none", meaning: "The user's own folder." };
const PATH: Variable = Variable {
    name: "PATH",
    set_by: "login",
    default: "none",
    meaning: "Where programs are looked for.",
};

/// Where a program is; `remedy` is what to do where it is not.
pub(crate) fn find(program: &str, remedy: &str) -> Result<PathBuf, Failure> {
    let path = config::text(PATH)?.unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(program));
    let found = places.find(|file| file.is_file());
    found.ok_or_else(|| Failure::new(format!("{program} not found: {remedy}")))
}

/// A program in C or C++.
#[derive(Debug)]
pub(crate) struct Source {
    /// What the program is called in the cache.
    pub(crate) name: &'static str,
    /// The files by their names; the first one is compiled.
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// What the compiler is told, before and after the names of the files.
    pub(crate) options: &'static [&'static str],
    pub(crate) libraries: &'static [&'static str],
}

impl Source {
    /// The compiled program: from the cache, or made.
    pub(crate) fn compiled(
        &self,
        compiler: &Path,
        remedy: &str,
        stage: &mut Stage,
    ) -> Result<PathBuf, Failure> {
        let mut hasher = DefaultHasher::new();
        // Another version of the compiler's files is another compiler.
        let changed = fs::metadata(compiler).and_then(|data| data.modified()).ok();
        (self.files, self.options, self.libraries, compiler, changed).hash(&mut hasher);
        let name = format!("{}-{:016x}", self.name, hasher.finish());
        let folder = cache(stage)?;
        let program = folder.join(&name);
        if program.is_file() {
            return Ok(program);
        }
        let made = |cause: std::io::Error| Failure::new(format!("{}: {cause}", folder.display()));
        fs::create_dir_all(&folder).map_err(made)?;
        let fresh = self.compile(&name, compiler, remedy, stage)?;
        // The cache may be on another file system; put in place in one step, since others may be
        // doing the same.
        let beside = folder.join(format!("{name}.{}", host::pid()));
        fs::copy(&fresh, &beside).and_then(|_| fs::rename(&beside, &program)).map_err(made)?;
        Ok(program)
    }

    /// Compiles it in a folder of its own.
    fn compile(
        &self,
        name: &str,
        compiler: &Path,
        remedy: &str,
        stage: &mut Stage,
    ) -> Result<PathBuf, Failure> {
        let folder = stage.folder().join(name);
        let made = |cause: std::io::Error| Failure::new(format!("{}: {cause}", folder.display()));
        fs::create_dir(&folder).map_err(made)?;
        for (file, text) in self.files {
            fs::write(folder.join(file), text).map_err(made)?;
        }
        let (fresh, log) = (folder.join("program"), folder.join("log"));
        let mut command = Command::new(compiler);
        command.args(self.options).arg("-o").arg(&fresh);
        command.args(self.files.first().map(|(file, _)| folder.join(file))).args(self.libraries);
        let compiling = [stage.start(&mut command, &log)?];
        let has_ended = stage.await_ends(&compiling, &Deadline::after(COMPILING))?;
        if has_ended && stage.ending(compiling[0]).is_some_and(|ending| ending.is_success()) {
            return Ok(fresh);
        }
        stage.end(&compiling)?;
        let said = fs::read_to_string(&log).unwrap_or_default();
        let why = if has_ended { "failed" } else { "takes too long" };
        let compiler = compiler.display();
        Err(Failure::new(format!("{compiler} {why}: {remedy}\n{}", said.trim_end())))
    }
}

/// Where compiled programs are kept: for this run only, where the user has no place.
fn cache(stage: &Stage) -> Result<PathBuf, Failure> {
    let own = |name: OsString| PathBuf::from(name).join("dist-bench");
    if let Some(folder) = config::text(CACHE)? {
        return Ok(own(folder.into()));
    }
    let home = config::text(HOME)?;
    Ok(home.map_or_else(
        || stage.folder().join("cache"),
        |home| own(Path::new(&home).join(".cache").into_os_string()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_told_with_what_to_do() {
        let failure = find("mpicc.nowhere", "install it").unwrap_err();
        assert_eq!(failure.message, "mpicc.nowhere not found: install it");
    }
}
