//! `cargo xtask audit`: checks the packages of other projects that this project uses.
//!
//! | check | program | needs |
//! |---|---|---|
//! | licences, sources, duplicates (`deny.toml`) | cargo-deny | the registry |
//! | published weaknesses, withdrawn versions | cargo-deny, cargo-audit | rustsec/advisory-db |
//!
//! Both programs read the database of weaknesses, a repository on github.com. cargo-audit also
//! reports packages without a maintainer in all lock files, and cargo-deny decides by `deny.toml`.
//! `cargo xtask test` runs the first check if cargo-deny is installed, and the second one if both
//! programs are installed and the database can be fetched. The integration server runs this command
//! with `--if-reachable`, which skips the second check if the database cannot be fetched.

use crate::{Arguments, CommandResult, run, tools, workspace};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The folders with a workspace. Each has a lock file of its own.
const WORKSPACES: [&str; 3] = ["", "fuzz", "plugins/mpi"];

/// The programs and the versions that this command installs.
const CARGO_DENY: AuditTool = AuditTool { program: "cargo-deny", version: "0.20.2" };
const CARGO_AUDIT: AuditTool = AuditTool { program: "cargo-audit", version: "0.22.2" };

const INSTALL_LIMIT: Duration = Duration::from_secs(3600);
const CHECK_LIMIT: Duration = Duration::from_secs(600);

/// A program that audits packages.
#[derive(Clone, Copy, Debug)]
struct AuditTool {
    program: &'static str,
    version: &'static str,
}

/// Checks all packages. Installs missing programs, unless `--no-install` is given.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let may_install = !arguments.flag("--no-install");
    let mut offline = arguments.flag("--offline");
    let if_reachable = arguments.flag("--if-reachable");
    arguments.finish()?;
    let deny = CARGO_DENY.find_or_install(may_install)?;
    let mut commands = policy_checks(&deny);
    if if_reachable
        && !offline
        && let Err(reason) = fetch_database(&deny)
    {
        println!("SKIPPED: published weaknesses: {reason}");
        offline = true;
    }
    if !offline {
        let audit = CARGO_AUDIT.find_or_install(may_install)?;
        commands.extend(advisory_checks(&deny, &audit));
    }
    let mut has_passed = true;
    for mut command in commands {
        has_passed &= run::run_visibly(&mut command, CHECK_LIMIT)?.success();
    }
    Ok(has_passed)
}

/// The checks of `cargo xtask test` on this machine. An error is the reason why they cannot run.
pub(crate) fn installed_policy_checks() -> Result<Vec<Command>, String> {
    Ok(policy_checks(&CARGO_DENY.find()?))
}

/// As [`installed_policy_checks`], for published weaknesses.
pub(crate) fn installed_advisory_checks() -> Result<Vec<Command>, String> {
    let (deny, audit) = (CARGO_DENY.find()?, CARGO_AUDIT.find()?);
    fetch_database(&deny)?;
    Ok(advisory_checks(&deny, &audit))
}

/// Fetches the database of weaknesses. The error is the reason why that fails.
fn fetch_database(deny: &Path) -> Result<(), String> {
    let mut fetch = subcommand(deny, "deny");
    if run::run_quietly(fetch.args(["fetch", "db"]), CHECK_LIMIT)?.success() {
        return Ok(());
    }
    Err("the database at github.com/rustsec/advisory-db cannot be fetched".into())
}

fn policy_checks(deny: &Path) -> Vec<Command> {
    WORKSPACES.map(|folder| deny_check(deny, folder, &["licenses", "bans", "sources"])).into()
}

fn advisory_checks(deny: &Path, audit: &Path) -> Vec<Command> {
    let lock_file = |folder| workspace::repository_root().join(folder).join("Cargo.lock");
    let audit_check = |folder| {
        let mut command = subcommand(audit, "audit");
        command.arg("--file").arg(lock_file(folder));
        command
    };
    let deny_checks = WORKSPACES.map(|folder| deny_check(deny, folder, &["advisories"]));
    deny_checks.into_iter().chain(WORKSPACES.map(audit_check)).collect()
}

fn deny_check(deny: &Path, folder: &str, checks: &[&str]) -> Command {
    let root = workspace::repository_root();
    let mut command = subcommand(deny, "deny");
    command.arg("--manifest-path").arg(root.join(folder).join("Cargo.toml"));
    command.arg("--config").arg(root.join("deny.toml")).arg("check").args(checks);
    command
}

/// Returns a command that runs a subcommand of cargo by the path of its program.
fn subcommand(program: &Path, name: &str) -> Command {
    let mut command = run::command(program);
    command.current_dir(workspace::repository_root()).arg(name);
    command
}

impl AuditTool {
    /// Returns the path of the program, on the search path or from an earlier run of this command.
    fn find(self) -> Result<PathBuf, String> {
        let own = self.folder()?.join("bin").join(self.program);
        let found = tools::find_program(self.program).or_else(|| own.is_file().then_some(own));
        found.ok_or_else(|| format!("{} is not installed (`cargo xtask audit`)", self.program))
    }

    fn find_or_install(self, may_install: bool) -> Result<PathBuf, String> {
        let found = self.find();
        if found.is_ok() || !may_install {
            return found;
        }
        let (Self { program, version }, folder) = (self, self.folder()?);
        println!("{program} is not installed; building version {version} in {}", folder.display());
        let mut install = workspace::cargo();
        install.args(["install", program, "--locked", "--version", version, "--root"]);
        if !run::run_visibly(install.arg(&folder), INSTALL_LIMIT)?.success() {
            return Err(format!("{program} was not built (`cargo install --locked {program}`)"));
        }
        self.find()
    }

    fn folder(self) -> Result<PathBuf, String> {
        workspace::scratch_folder(self.program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lock_file_is_checked() {
        let mut folders = vec![workspace::repository_root()];
        let mut lock_files = Vec::new();
        while let Some(folder) = folders.pop() {
            for path in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                let is_source = !name.starts_with('.') && name != "target";
                if is_source && path.is_dir() && !path.is_symlink() {
                    folders.push(path);
                } else if name == "Cargo.lock" {
                    lock_files.push(path);
                }
            }
        }
        let is_checked = |path: &PathBuf| {
            WORKSPACES
                .iter()
                .any(|folder| workspace::repository_root().join(folder).join("Cargo.lock") == *path)
        };
        assert!(lock_files.iter().all(is_checked), "{lock_files:?}");
        assert_eq!(lock_files.len(), WORKSPACES.len(), "{lock_files:?}");
    }

    #[test]
    fn both_programs_check_each_workspace() {
        let checks = advisory_checks(Path::new("deny"), Path::new("audit"));
        let programs: Vec<_> = checks.iter().map(|it| it.get_program().to_str().unwrap()).collect();
        assert_eq!(programs, ["deny", "deny", "deny", "audit", "audit", "audit"]);
        assert_eq!(policy_checks(Path::new("deny")).len(), WORKSPACES.len());
    }
}
