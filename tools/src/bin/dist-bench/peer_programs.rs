//! The programs of the peer libraries. The module finds installed programs, and compiles the peer
//! programs of dist-bench unless they are cached.

use crate::run_context::RunContext;
use dist::base::config::{self, EnvVariable};
use dist::base::deadline::Deadline;
use dist::sys::host;
use dist_terminal::Progress;
use dist_tools::Failure;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The timeout of one compilation.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(120);

const CACHE: EnvVariable = EnvVariable {
    name: "XDG_CACHE_HOME",
    set_by: "user",
    default: ".cache in HOME",
    meaning: "The folder of the user's caches; dist-bench stores compiled peer programs in it.",
};
const HOME: EnvVariable = EnvVariable {
    name: "HOME",
    set_by: "login",
    default: "none",
    meaning: "The user's home folder.",
};
const PATH: EnvVariable = EnvVariable {
    name: "PATH",
    set_by: "login",
    default: "none",
    meaning: "The folders in which dist-bench searches for programs.",
};

/// Returns the path of an installed program. If the program is missing, returns an error with
/// `remedy`.
pub(crate) fn find_program(program: &str, remedy: &str) -> Result<PathBuf, Failure> {
    let path = config::read_text(PATH)?.unwrap_or_default();
    let mut candidates = std::env::split_paths(&path).map(|folder| folder.join(program));
    let found = candidates.find(|file| file.is_file());
    found.ok_or_else(|| Failure::new(format!("{program} not found: {remedy}")))
}

/// The source of a program in C or C++.
#[derive(Debug)]
pub(crate) struct ProgramSource {
    /// The name of the program in the cache.
    pub(crate) name: &'static str,
    /// The names and contents of the source files. The first file is compiled, and the others are
    /// headers.
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// The arguments of the compiler before the file name.
    pub(crate) options: &'static [&'static str],
    /// The arguments of the compiler after the file name.
    pub(crate) libraries: &'static [&'static str],
    /// The folder in which the library is installed, if the compiler does not know it.
    pub(crate) prefix: Option<PathBuf>,
}

impl ProgramSource {
    /// Returns the compiled program, from the cache or newly compiled.
    pub(crate) fn find_or_compile(
        &self,
        compiler: &Path,
        remedy: &str,
        context: &mut RunContext,
    ) -> Result<PathBuf, Failure> {
        let mut hasher = DefaultHasher::new();
        // If the modification time of the compiler has changed, its version may have changed, so
        // compile again.
        let changed = fs::metadata(compiler).and_then(|data| data.modified()).ok();
        let Self { files, options, libraries, prefix, .. } = self;
        (files, options, libraries, prefix, compiler, changed).hash(&mut hasher);
        let name = format!("{}-{:016x}", self.name, hasher.finish());
        let folder = cache_folder(context)?;
        let program = folder.join(&name);
        if program.is_file() {
            return Ok(program);
        }
        let folder_failure =
            |cause: std::io::Error| Failure::new(format!("{}: {cause}", folder.display()));
        fs::create_dir_all(&folder).map_err(folder_failure)?;
        let compiled = self.compile(&name, compiler, remedy, context)?;
        // Copy the program into the cache folder, which may be on another file system. Then rename
        // it, so that the program appears atomically: other processes may do the same at this time.
        let temporary_path = folder.join(format!("{name}.{}", host::pid()));
        fs::copy(&compiled, &temporary_path)
            .and_then(|_| fs::rename(&temporary_path, &program))
            .map_err(folder_failure)?;
        Ok(program)
    }

    /// Compiles the program in a new folder.
    fn compile(
        &self,
        name: &str,
        compiler: &Path,
        remedy: &str,
        context: &mut RunContext,
    ) -> Result<PathBuf, Failure> {
        let folder = context.folder().join(name);
        let folder_failure =
            |cause: std::io::Error| Failure::new(format!("{}: {cause}", folder.display()));
        fs::create_dir(&folder).map_err(folder_failure)?;
        for (file, text) in self.files {
            fs::write(folder.join(file), text).map_err(folder_failure)?;
        }
        let (compiled, log) = (folder.join("program"), folder.join("log"));
        let mut command = Command::new(compiler);
        command.args(self.options).arg("-o").arg(&compiled);
        if let Some(prefix) = &self.prefix {
            command.arg("-isystem").arg(prefix.join("include"));
        }
        command.args(self.files.first().map(|(file, _)| folder.join(file)));
        if let Some(prefix) = &self.prefix {
            let library_folder = prefix.join("lib");
            command.arg("-L").arg(&library_folder);
            command.arg(format!("-Wl,-rpath,{}", library_folder.display()));
        }
        command.args(self.libraries);
        let compiling = [context.start(&mut command, &log)?];
        let _progress = Progress::of_wait(format!("{} compiles {}", compiler.display(), self.name));
        let has_ended = context.await_exits(&compiling, &Deadline::after(COMPILE_TIMEOUT))?;
        if has_ended && context.exit_status(compiling[0]).is_some_and(|exit| exit.is_success()) {
            return Ok(compiled);
        }
        context.terminate(&compiling)?;
        let compiler_output = fs::read_to_string(&log).unwrap_or_default();
        let problem = if has_ended { "failed" } else { "took too long" };
        let compiler = compiler.display();
        Err(Failure::new(format!("{compiler} {problem}: {remedy}\n{}", compiler_output.trim_end())))
    }
}

/// Returns the cache folder. If the user has no cache folder, returns the folder of this run.
fn cache_folder(context: &RunContext) -> Result<PathBuf, Failure> {
    let program_cache = |name: OsString| PathBuf::from(name).join("dist-bench");
    if let Some(folder) = config::read_text(CACHE)? {
        return Ok(program_cache(folder.into()));
    }
    let home = config::read_text(HOME)?;
    Ok(home.map_or_else(
        || context.folder().join("cache"),
        |home| program_cache(Path::new(&home).join(".cache").into_os_string()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_is_reported_with_remedy() {
        let failure = find_program("mpicc.nowhere", "install it").unwrap_err();
        assert_eq!(failure.message, "mpicc.nowhere not found: install it");
    }
}
