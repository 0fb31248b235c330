//! The programs of the machine. The module finds programs on the search path, finds the C and C++
//! compilers, and installs missing programs with apt if this is allowed.

use crate::run;
use std::path::{Path, PathBuf};
use std::time::Duration;

const QUERY_TIMEOUT: Duration = Duration::from_secs(30);
const DOWNLOAD: Duration = Duration::from_secs(900);

/// A program that some checks need, and the Debian package that contains it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool {
    pub(crate) program: &'static str,
    pub(crate) package: &'static str,
    /// The purpose of the tool.
    pub(crate) purpose: &'static str,
}

/// Returns the path of a program on the search path.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Returns the search path with a folder before all others.
pub(crate) fn search_path_with(folder: &Path) -> Result<std::ffi::OsString, String> {
    let present = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_path_buf()).chain(std::env::split_paths(&present));
    std::env::join_paths(folders).map_err(|cause| cause.to_string())
}

pub(crate) fn has_program(program: &str) -> bool {
    match program {
        LIBCLANG => has_libclang(),
        PYTHON_VENV => has_python_venv(),
        _ => find_program(program).is_some(),
    }
}

/// The module of Python that creates virtual environments with pip. Some systems have it in a
/// package of its own.
pub(crate) const PYTHON_VENV: &str = "the module venv of python3";

fn has_python_venv() -> bool {
    let mut python = run::command("python3");
    python.args(["-c", "import venv, ensurepip"]);
    has_program("python3")
        && run::run_quietly(&mut python, QUERY_TIMEOUT).is_ok_and(|done| done.success())
}

/// The library that bindgen uses to read headers.
pub(crate) const LIBCLANG: &str = "libclang.so";

fn has_libclang() -> bool {
    let has_it = |folder: PathBuf| folder.join("lib").join(LIBCLANG).exists();
    std::env::var_os("LIBCLANG_PATH").is_some()
        || find_program("clang").is_some()
        || std::fs::read_dir("/usr/lib")
            .is_ok_and(|entries| entries.flatten().any(|entry| has_it(entry.path())))
}

/// Returns the name that the Rust compiler has for the platform of this machine.
pub(crate) fn host_target() -> Result<String, String> {
    let mut rustc = run::command("rustc");
    let text = run::run_checked(
        rustc.arg("-vV").current_dir(crate::workspace::repository_root()),
        QUERY_TIMEOUT,
    )?
    .text;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "the output of rustc -vV names no host".into())
}

/// Returns the C compiler: `CC` if it is set, otherwise the first available of the usual names.
pub(crate) fn c_compiler() -> Result<String, String> {
    if let Ok(chosen) = std::env::var("CC")
        && !chosen.trim().is_empty()
    {
        return Ok(chosen);
    }
    let usual = ["cc", "gcc", "clang"].into_iter().find(|name| has_program(name));
    usual.map(String::from).ok_or_else(|| {
        "no C compiler found: install gcc or clang (Debian, Ubuntu: `apt-get install gcc libc6-dev`), or set CC"
            .to_string()
    })
}

/// Returns the C++ compiler: `CXX` if it is set, otherwise the first available of the usual names.
pub(crate) fn cxx_compiler() -> Result<String, String> {
    if let Ok(chosen) = std::env::var("CXX")
        && !chosen.trim().is_empty()
    {
        return Ok(chosen);
    }
    let usual = ["c++", "g++", "clang++"].into_iter().find(|name| has_program(name));
    usual.map(String::from).ok_or_else(|| {
        "no C++ compiler found: install g++ or clang (Debian, Ubuntu: `apt-get install g++`), or set CXX".to_string()
    })
}

/// Installs missing tools with apt, if this is possible without a question to the user. Otherwise
/// prints the packages to install. A check that needs a tool reports later if the tool is still
/// missing.
pub(crate) fn install_missing(tools: &[Tool], may_install: bool) {
    let missing: Vec<Tool> =
        tools.iter().filter(|tool| !has_program(tool.program)).copied().collect();
    if missing.is_empty() {
        return;
    }
    for tool in &missing {
        println!("missing: {} ({})", tool.program, tool.purpose);
    }
    let mut packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    packages.dedup();
    let by_hand = format!("apt-get install {}", packages.join(" "));
    let refusal = if may_install { apt_refusal() } else { Some("--no-install is set".into()) };
    if let Some(reason) = refusal {
        println!("not installed: {reason}. On Debian or Ubuntu: `{by_hand}`");
        return;
    }
    println!("installing: {by_hand}");
    if apt_install(&packages).is_ok() {
        return;
    }
    // Another system may lack one of the packages. Install the others.
    for package in packages {
        if let Err(problem) = apt_install(&[package]) {
            println!("{package} is not installed: {problem}");
        }
    }
}

/// Returns the reason why apt may not be used on this machine, or `None` if it may be used.
fn apt_refusal() -> Option<String> {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let debian = release.lines().any(|line| {
        (line.starts_with("ID=") || line.starts_with("ID_LIKE="))
            && (line.contains("debian") || line.contains("ubuntu"))
    });
    if !debian {
        return Some("the system is not Debian or Ubuntu".into());
    }
    if !has_program("apt-get") {
        return Some("apt-get does not exist".into());
    }
    if is_root() || sudo_works() {
        return None;
    }
    Some("this user is not root and cannot use sudo without a password".into())
}

fn is_root() -> bool {
    run::run_quietly(run::command("id").arg("-u"), QUERY_TIMEOUT)
        .is_ok_and(|done| done.text.trim() == "0")
}

fn sudo_works() -> bool {
    has_program("sudo")
        && run::run_quietly(run::command("sudo").args(["-n", "true"]), QUERY_TIMEOUT)
            .is_ok_and(|done| done.success())
}

fn apt_install(packages: &[&str]) -> Result<(), String> {
    let install: Vec<&str> =
        ["install", "-y", "--no-install-recommends"].iter().chain(packages).copied().collect();
    if apt_get(&install).is_ok() {
        return Ok(());
    }
    // A new machine has no package lists, so update them.
    apt_get(&["update"])?;
    apt_get(&install)
}

fn apt_get(arguments: &[&str]) -> Result<(), String> {
    let mut command = run::command(if is_root() { "env" } else { "sudo" });
    if !is_root() {
        command.args(["-n", "env"]);
    }
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-q"]).args(arguments);
    run::run_checked(&mut command, DOWNLOAD).map(|_| ())
}

/// Returns true if the output of `program --version` contains one of the words. The words
/// distinguish the implementations of a command, for example of mpirun.
pub(crate) fn version_mentions(program: &str, words: &[&str]) -> bool {
    has_program(program)
        && run::run_quietly(run::command(program).arg("--version"), QUERY_TIMEOUT)
            .is_ok_and(|done| words.iter().any(|word| done.text.contains(word)))
}

/// Creates an empty folder. If the folder exists from an earlier run, removes it before.
pub(crate) fn recreate_folder(path: &Path) -> Result<(), String> {
    if path.exists() {
        std::fs::remove_dir_all(path)
            .map_err(|cause| format!("cannot remove {}: {cause}", path.display()))?;
    }
    std::fs::create_dir_all(path)
        .map_err(|cause| format!("cannot create {}: {cause}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_on_the_search_path() {
        assert!(has_program("sh"));
        assert!(!has_program("no-such-program"));
    }
}
