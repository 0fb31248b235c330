//! The setting `DIST_SECURITY` and the secrets of the ranks of a job.

use super::{SECRET_FILE, SECURITY, assert_both_succeeded, secret_of, start_rank, start_rank_on};
use crate::harness::{FinishedJob, TestHost, TestJob};
use dist::ffi::types::{DIST_ERR_AUTH, DIST_ERR_INVALID_ARGUMENT, DIST_ERR_PEER_FAILED};
use std::fs;

const INIT: &str = "init connect_timeout_ms=20000";

const PROGRAM: &str = "init\nall_reduce f32 SUM 1000\nall_reduce f32 SUM 300000\n\
                       send 70000 PEER 1 async=yes\nrecv 70000 PEER 1\nsettle\nfinalize\nleaks\n";

fn program(rank: usize) -> String {
    PROGRAM.replace("PEER", &(1 - rank).to_string())
}

/// Runs a job whose ranks have these settings, and the secret if `has_secret`.
fn run(
    settings: [Option<&str>; 2],
    has_secret: bool,
    program: impl Fn(usize) -> String,
) -> FinishedJob {
    let mut job = TestJob::new();
    for (rank, setting) in settings.into_iter().enumerate() {
        let mut variables = Vec::new();
        variables.extend(has_secret.then(|| secret_of(&job)));
        variables.extend(setting.map(|setting| (SECURITY, setting.to_owned())));
        start_rank(&mut job, rank, &variables, &program(rank));
    }
    job.finish()
}

#[test]
fn jobs_run_with_each_setting() {
    for (setting, has_secret) in [
        (None, true),
        (Some("auth"), true),
        (Some("encrypt"), true),
        (Some("none"), true),
        (None, false),
        (Some("none"), false),
    ] {
        let ended = run([setting; 2], has_secret, program);
        assert_both_succeeded(&ended, PROGRAM);
    }
}

#[test]
fn survivors_of_a_job_with_a_secret_make_a_new_group() {
    for setting in ["auth", "encrypt"] {
        shrink_job(setting);
    }
}

/// Kills a rank of a job with this setting. The survivors make a new group.
fn shrink_job(setting: &str) {
    let program = "init\nloop all_reduce f32 SUM 1000\nshrink rest timeout_ms=30000\n\
                   all_reduce f32 SUM 1000 on=rest\nall_reduce f32 SUM 300000 on=rest\n\
                   release rest\nfinalize\nleaks\n";
    let mut job = TestJob::new();
    let variables = [secret_of(&job), (SECURITY, setting.to_owned())];
    for rank in 0..3 {
        let host = TestHost::on_this_network(&format!("host-{rank}"));
        start_rank_on(&mut job, &host, rank, 3, &variables, program);
    }
    job.await_reports(&["0", "1", "2"], "ready");
    job.kill("2");
    let ended = job.finish();
    for rank in ["0", "1"] {
        ended.report(rank, "loop all_reduce f32 SUM 1000").assert_failed(DIST_ERR_PEER_FAILED, &[]);
        for command in program.lines().skip(2) {
            ended.report(rank, command).assert_succeeded();
        }
    }
}

#[test]
fn description_names_the_setting() {
    for (setting, has_secret, expected) in [
        (None, true, "auth"),
        (Some("encrypt"), true, "encrypt"),
        (Some("none"), true, "none"),
        (None, false, "none"),
    ] {
        let ended = run([setting; 2], has_secret, |_| "init\ndescribe\nfinalize\n".to_owned());
        let description = ended.report("1", "describe").message;
        assert!(description.contains(&format!("\"security\":\"{expected}\"")), "{description}");
    }
}

#[test]
fn different_settings_are_refused_on_both_ranks() {
    for (settings, words) in [
        ([Some("none"), None], ["DIST_SECURITY=none", "DIST_SECURITY=auth"]),
        ([None, Some("none")], ["DIST_SECURITY=none", "DIST_SECURITY=auth"]),
        ([None, Some("encrypt")], ["DIST_SECURITY=encrypt", "DIST_SECURITY=auth"]),
        ([Some("encrypt"), None], ["DIST_SECURITY=encrypt", "DIST_SECURITY=auth"]),
        ([Some("none"), Some("encrypt")], ["DIST_SECURITY=encrypt", "DIST_SECURITY=none"]),
        ([Some("encrypt"), Some("none")], ["DIST_SECURITY=encrypt", "DIST_SECURITY=none"]),
    ] {
        let ended = run(settings, true, |_| format!("{INIT}\nleaks\n"));
        for rank in ["0", "1"] {
            ended.report(rank, INIT).assert_failed(DIST_ERR_AUTH, &words);
            ended.report(rank, "leaks").assert_succeeded();
        }
    }
}

#[test]
fn unusable_settings_are_refused_on_both_ranks() {
    for (setting, has_secret, status, words) in [
        ("auth", false, DIST_ERR_AUTH, ["DIST_SECURITY=auth", "DIST_SECURITY=none"]),
        ("encrypt", false, DIST_ERR_AUTH, ["DIST_SECURITY=encrypt", "DIST_SECURITY=none"]),
        ("strict", true, DIST_ERR_INVALID_ARGUMENT, ["DIST_SECURITY=\"strict\"", "encrypt"]),
    ] {
        let ended = run([Some(setting); 2], has_secret, |_| format!("{INIT}\nleaks\n"));
        for rank in ["0", "1"] {
            ended.report(rank, INIT).assert_failed(status, &words);
            ended.report(rank, "leaks").assert_succeeded();
        }
    }
}

/// The ranks meet in a file, which proves no secret.
#[test]
fn different_secrets_are_refused() {
    let mut job = TestJob::new();
    let path = job.file("store");
    let init =
        |rank: usize| format!("{INIT} url=file://{}?rank={rank}&world_size=2", path.display());
    for rank in 0..2 {
        let (_, mut file) = secret_of(&job);
        if rank == 1 {
            let other = format!("{file}-other");
            fs::copy(&file, &other).unwrap();
            fs::write(&other, "another secret").unwrap();
            file = other;
        }
        start_rank(&mut job, rank, &[(SECRET_FILE, file)], &format!("{}\nleaks\n", init(rank)));
    }
    let ended = job.finish();
    for rank in 0..2 {
        let name = rank.to_string();
        let words = ["different secrets"];
        ended.report(&name, &init(rank)).assert_failed(DIST_ERR_AUTH, &words);
        ended.report(&name, "leaks").assert_succeeded();
    }
}
