//! Every collective between hosts, blocking and issued ahead: over IPv4 and IPv6, with one or
//! several ranks per host, over a link with delay and losses, and with many ranks.

use super::{assert_all_succeeded, block_placement};
use crate::harness::{TestHost, TestJob};
use crate::hosts::{Hosts, LinkSettings, ONE_NETWORK};
use crate::interface::ROOT;
use crate::toolchain::Compiler;

/// Returns a program that begins with the command `init` and has every collective for these counts,
/// with the first and the last rank as roots.
pub(super) fn all_collectives_program(init: &str, ranks: usize, counts: &[usize]) -> String {
    let mut program = format!("{init}\n");
    for count in counts {
        let mut add = |line: &str| program.push_str(&format!("{line}\n"));
        add(&format!("all_reduce f32 SUM {count}"));
        add(&format!("all_reduce f32 MAX {count}"));
        add(&format!("all_gather f32 {count}"));
        add(&format!("reduce_scatter f32 SUM {count}"));
        for root in [0, ranks - 1] {
            add(&format!("broadcast f32 {count} {root}"));
            add(&format!("reduce f32 SUM {count} {root}"));
        }
        add("barrier");
    }
    program + "finalize\nleaks\n"
}

/// Runs every collective on hosts with these numbers of ranks, once over IPv4 and once over IPv6.
fn check_collectives(counts: &[usize]) {
    let Some(hosts) = Hosts::try_new_or_skip(counts.len(), ONE_NETWORK) else { return };
    let rank_hosts = block_placement(&hosts, counts);
    let program = all_collectives_program("init", rank_hosts.len(), &[0, 1, 17, 3000, 200_003]);
    for master in [hosts.ipv4(0, 0), hosts.ipv6(0, 0)] {
        let job = TestJob::on_hosts(&rank_hosts, &master, |_| program.clone());
        assert_all_succeeded(&job.finish(), rank_hosts.len(), &program);
    }
}

#[test]
fn collectives_on_two_hosts_with_one_rank_each() {
    check_collectives(&[1, 1]);
}

#[test]
fn collectives_on_two_hosts_with_two_ranks_each() {
    check_collectives(&[2, 2]);
}

#[test]
fn collectives_on_four_hosts_of_different_sizes() {
    check_collectives(&[1, 2, 1, 3]);
}

#[test]
fn collectives_with_round_robin_placement() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let rank_hosts: Vec<TestHost> = [0, 1, 0, 1, 1].map(|host| hosts.host(host)).to_vec();
    let program = all_collectives_program("init", rank_hosts.len(), &[1, 17, 3000, 200_003]);
    let job = TestJob::on_hosts(&rank_hosts, &hosts.ipv4(0, 0), |_| program.clone());
    assert_all_succeeded(&job.finish(), rank_hosts.len(), &program);
}

/// Returns the program with all collectives issued before the first wait.
pub(super) fn issued_ahead_program(program: &str) -> String {
    let ahead = |line: &str| match line {
        "finalize" => "settle\nfinalize\n".to_owned(),
        "leaks" => format!("{line}\n"),
        init if init.starts_with("init") => format!("{line}\n"),
        collective => format!("{collective} async=yes\n"),
    };
    program.lines().map(ahead).collect()
}

fn check_collectives_issued_ahead(counts: &[usize]) {
    let Some(hosts) = Hosts::try_new_or_skip(counts.len(), ONE_NETWORK) else { return };
    let rank_hosts = block_placement(&hosts, counts);
    let program = issued_ahead_program(&all_collectives_program(
        "init",
        rank_hosts.len(),
        &[0, 1, 17, 3000, 200_003],
    ));
    let job = TestJob::on_hosts(&rank_hosts, &hosts.ipv4(0, 0), |_| program.clone());
    assert_all_succeeded(&job.finish(), rank_hosts.len(), &program);
}

#[test]
fn collectives_issued_ahead_on_two_hosts() {
    check_collectives_issued_ahead(&[2, 2]);
}

#[test]
fn collectives_issued_ahead_on_four_hosts() {
    check_collectives_issued_ahead(&[1, 2, 1, 3]);
}

/// Runs the program on two hosts of two ranks each. The link between them delays each packet by 20
/// ms and loses 1 % of the packets.
fn check_over_lossy_link(program: &str) {
    let Some(mut hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let Some(relay) = hosts.add_link([0, 1], &LinkSettings::new(20, 10_000)) else { return };
    let rank_hosts = block_placement(&hosts, &[2, 2]);
    let job = TestJob::on_hosts(&rank_hosts, &hosts.ipv4(0, 0), |_| program.to_owned());
    assert_all_succeeded(&job.finish(), rank_hosts.len(), program);
    let counts = relay.stop();
    assert!(counts.lost.iter().all(|&packets| packets > 0), "{counts:?}");
    println!("over a line with 20 ms and 1 % losses: {counts:?}");
}

#[test]
fn collectives_over_a_slow_lossy_link() {
    check_over_lossy_link(&all_collectives_program("init", 4, &[1, 50_000]));
}

#[test]
fn collectives_issued_ahead_over_a_slow_lossy_link() {
    check_over_lossy_link(&issued_ahead_program(&all_collectives_program("init", 4, &[1, 50_000])));
}

/// The number of ranks in the tests with many ranks.
const MANY_RANKS: usize = 64;

/// Runs every collective once on many ranks; `host` gives the host of each rank.
fn check_many_ranks(host: impl Fn(usize) -> usize) {
    let rank_host = |rank| TestHost::on_this_network(&format!("host-{}", host(rank)));
    let rank_hosts: Vec<TestHost> = (0..MANY_RANKS).map(rank_host).collect();
    let program = all_collectives_program("init", MANY_RANKS, &[100]);
    let job = TestJob::on_hosts(&rank_hosts, "127.0.0.1", |_| program.clone());
    assert_all_succeeded(&job.finish(), MANY_RANKS, &program);
}

#[test]
fn many_ranks_share_one_host() {
    check_many_ranks(|_| 0);
}

#[test]
fn many_ranks_share_four_hosts() {
    check_many_ranks(|rank| rank / (MANY_RANKS / 4));
}

/// Trains with one rank at each place and returns the loss of each epoch.
fn train(rank_hosts: &[TestHost], master: &str, program: &str) -> Vec<f64> {
    let mut job = TestJob::new();
    let data = format!("{ROOT}/c-examples/digits_training/data/digits.csv");
    for (rank, host) in rank_hosts.iter().enumerate() {
        let environment = job.environment_with_master(master, rank, rank_hosts.len());
        let words = [program, "--epochs", "5", "--data", &data];
        job.start_program_on_host(host, &rank.to_string(), &environment, &words);
    }
    let ended = job.finish();
    for rank in 0..rank_hosts.len() {
        let name = rank.to_string();
        assert_eq!(ended.exit_status(&name), 0, "rank {rank}: {}", ended.stderr_text(&name));
    }
    let output = ended.stdout_text("0");
    assert!(output.contains("weights identical on 4 ranks"), "{output}");
    let losses = output.lines().filter_map(|line| line.split_once("  loss ")?.1.parse().ok());
    losses.collect()
}

#[test]
fn training_on_two_hosts_matches_one_host() {
    /// The difference that another order of additions may cause, as in `cargo xtask test`.
    const TOLERANCE: f64 = 1e-4;
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let Some(compiler) = Compiler::find() else { return };
    let files = [
        "train_digits.c",
        "digits_training/train_options.c",
        "digits_training/digits_data.c",
        "digits_training/mlp.c",
    ];
    let files = files.map(|file| format!("../../c-examples/{file}"));
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let program = compiler.program_with("train_digits_on_hosts", &files, &["-lm"]);
    let program = program.to_str().unwrap();

    let on_one = train(&vec![TestHost::on_this_network("here"); 4], "127.0.0.1", program);
    let on_two = train(&block_placement(&hosts, &[2, 2]), &hosts.ipv4(0, 0), program);
    assert_eq!((on_one.len(), on_two.len()), (5, 5));
    for (one, two) in on_one.iter().zip(&on_two) {
        assert!((one - two).abs() <= TOLERANCE, "{on_one:?} on one host, {on_two:?} on two");
    }
}
