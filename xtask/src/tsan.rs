//! `cargo xtask tsan`: runs the random programs under ThreadSanitizer, which detects data races.
//!
//! The sanitizer must see every lock, including the locks of the standard library. So the command
//! also builds the standard library with the sanitizer. A stable compiler can do this if the
//! sources of the standard library are installed, and if `RUSTC_BOOTSTRAP` enables nightly options.

use crate::workspace::{cargo, repository_root, target_folder};
use crate::{Arguments, CommandResult, run, tools};
use std::path::Path;
use std::time::Duration;

const DEFAULT_SEEDS: u64 = 100;
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
const QUERY_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let seeds = match arguments.value("--seeds")? {
        Some(text) => text.parse().map_err(|_| format!("--seeds {text} is not a number"))?,
        None => DEFAULT_SEEDS,
    };
    arguments.finish()?;
    check_sources()?;
    let host = tools::host_target()?;
    let mut test = cargo();
    test.args(["test", "-Zbuild-std", "--target", &host, "--test", "random"]);
    test.arg("--target-dir").arg(target_folder()?.join("tsan")).args(["--", "--nocapture"]);
    test.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=thread");
    test.env_remove("CARGO_ENCODED_RUSTFLAGS").env("TSAN_OPTIONS", "exitcode=66");
    test.env("RANDOM_SEEDS", format!("1..{}", seeds + 1));
    let finished = run::run_visibly(&mut test, BUILD_LIMIT)?;
    let reports = finished.text.matches("WARNING: ThreadSanitizer").count();
    println!("{reports} reports from ThreadSanitizer");
    Ok(finished.success() && reports == 0)
}

fn check_sources() -> Result<(), String> {
    let mut rustc = run::command("rustc");
    rustc.args(["--print", "sysroot"]).current_dir(repository_root());
    let sysroot = run::run_checked(&mut rustc, QUERY_TIMEOUT)?.text;
    let sources = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/Cargo.lock");
    if sources.is_file() {
        return Ok(());
    }
    Err("the sources of the standard library are not installed, and ThreadSanitizer needs them to see its \
         locks: `rustup component add rust-src`"
        .into())
}
