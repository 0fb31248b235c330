//! `cargo xtask conformance`: the whole matrix of the conformance suite.
//!
//! `cargo xtask test` runs a covering part of it; here it is built with optimisation and run from end to end, or the
//! part of it that is asked for.

use crate::workspace::cargo;
use crate::{Arguments, Outcome, run};
use std::time::Duration;

/// What the whole may take.
const MINUTES: u64 = 60;
const BUILD_LIMIT: Duration = Duration::from_secs(1800);
/// The suite stops by itself when its time is up, and then has to say what it found.
const GRACE: Duration = Duration::from_secs(180);

/// What is passed on, by the name of the option.
const WISHES: [&str; 4] = ["part", "transport", "kind", "only"];

/// The same for another back end than the native one.
const WISHES_OF_BACKENDS: [&str; 5] = ["plugin", "options", "ranks", "calls", "kind"];

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> Outcome {
    let mut arguments = Arguments::new(rest);
    let minutes = match arguments.value("--minutes")? {
        None => MINUTES,
        Some(text) => text.parse().map_err(|_| format!("\"{text}\" is not a number"))?,
    };
    let backend = arguments.value("--backend")?;
    let (name, wishes) = match backend {
        None => ("whole::whole_matrix", &WISHES[..]),
        Some(_) => ("backends::a_back_end_by_name", &WISHES_OF_BACKENDS[..]),
    };
    let mut test = cargo();
    test.args(["test", "--release", "--test", "conformance", "--"]);
    test.args([name, "--exact", "--ignored", "--nocapture"]);
    test.env("CONFORMANCE_MINUTES", minutes.to_string());
    test.envs(backend.map(|name| ("CONFORMANCE_BACKEND", name)));
    for wish in wishes {
        if let Some(value) = arguments.value(&format!("--{wish}"))? {
            if *wish == "part" {
                check_part(&value)?;
            }
            test.env(format!("CONFORMANCE_{}", wish.to_uppercase()), value);
        }
    }
    arguments.finish()?;
    let limit = BUILD_LIMIT + GRACE + Duration::from_secs(minutes.saturating_mul(60));
    Ok(run::shown(&mut test, limit)?.success())
}

/// One of so many parts: "2/6".
fn check_part(text: &str) -> Result<(), String> {
    let numbers = text
        .split_once('/')
        .and_then(|(part, of)| Some((part.parse::<usize>().ok()?, of.parse::<usize>().ok()?)));
    match numbers {
        Some((part, of)) if (1..=of).contains(&part) => Ok(()),
        _ => Err(format!("\"{text}\" is no part: 2/6 is the second of six")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_one_of_several() {
        assert!(check_part("1/1").is_ok() && check_part("2/6").is_ok());
        for wrong in ["0/3", "4/3", "3", "a/b", "1/"] {
            assert!(check_part(wrong).unwrap_err().contains(wrong));
        }
    }
}
