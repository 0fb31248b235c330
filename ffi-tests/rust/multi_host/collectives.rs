//! Every collective between hosts, blocking and issued ahead: over IPv4 and IPv6, with one or
//! several ranks per host, over a link with delay and losses, and with many ranks.

use super::{all_is_right, block};
use crate::harness::{TestHost, TestJob};
use crate::hosts::{Hosts, LinkSettings, ONE_NETWORK};
use crate::interface::ROOT;
use crate::toolchain::Compiler;

/// Returns a program with every collective for these counts, with the first and the last rank as
/// roots.
fn every_collective(ranks: usize, counts: &[usize]) -> String {
    let mut program = "init\n".to_owned();
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
fn collectives_are_right(counts: &[usize]) {
    let Some(hosts) = Hosts::try_new_or_skip(counts.len(), ONE_NETWORK) else { return };
    let places = block(&hosts, counts);
    let program = every_collective(places.len(), &[0, 1, 17, 3000, 200_003]);
    for master in [hosts.ipv4(0, 0), hosts.ipv6(0, 0)] {
        let job = TestJob::on_hosts(&places, &master, |_| program.clone());
        all_is_right(&job.finish(), places.len(), &program);
    }
}

#[test]
fn collectives_on_two_hosts_with_one_rank_each() {
    collectives_are_right(&[1, 1]);
}

#[test]
fn collectives_on_two_hosts_with_two_ranks_each() {
    collectives_are_right(&[2, 2]);
}

#[test]
fn collectives_on_four_hosts_of_different_sizes() {
    collectives_are_right(&[1, 2, 1, 3]);
}

#[test]
fn collectives_with_round_robin_placement() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let places: Vec<TestHost> = [0, 1, 0, 1, 1].map(|host| hosts.host(host)).to_vec();
    let program = every_collective(places.len(), &[1, 17, 3000, 200_003]);
    let job = TestJob::on_hosts(&places, &hosts.ipv4(0, 0), |_| program.clone());
    all_is_right(&job.finish(), places.len(), &program);
}

/// Returns the program with all collectives issued before the first wait.
fn issued_ahead(program: &str) -> String {
    let ahead = |line: &str| match line {
        "finalize" => "settle\nfinalize\n".to_owned(),
        "init" | "leaks" => format!("{line}\n"),
        collective => format!("{collective} async=yes\n"),
    };
    program.lines().map(ahead).collect()
}

fn collectives_issued_ahead_are_right(counts: &[usize]) {
    let Some(hosts) = Hosts::try_new_or_skip(counts.len(), ONE_NETWORK) else { return };
    let places = block(&hosts, counts);
    let program = issued_ahead(&every_collective(places.len(), &[0, 1, 17, 3000, 200_003]));
    let job = TestJob::on_hosts(&places, &hosts.ipv4(0, 0), |_| program.clone());
    all_is_right(&job.finish(), places.len(), &program);
}

#[test]
fn collectives_issued_ahead_on_two_hosts() {
    collectives_issued_ahead_are_right(&[2, 2]);
}

#[test]
fn collectives_issued_ahead_on_four_hosts() {
    collectives_issued_ahead_are_right(&[1, 2, 1, 3]);
}

/// Runs the program on two hosts of two ranks each. The link between them delays each packet by 20
/// ms and loses 1 % of the packets.
fn all_is_right_over_a_line(program: &str) {
    let Some(mut hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let Some(relay) = hosts.add_link([0, 1], &LinkSettings::new(20, 10_000)) else { return };
    let places = block(&hosts, &[2, 2]);
    let job = TestJob::on_hosts(&places, &hosts.ipv4(0, 0), |_| program.to_owned());
    all_is_right(&job.finish(), places.len(), program);
    let counts = relay.stop();
    assert!(counts.lost.iter().all(|&packets| packets > 0), "{counts:?}");
    println!("over a line with 20 ms and 1 % losses: {counts:?}");
}

#[test]
fn collectives_over_a_slow_lossy_link() {
    all_is_right_over_a_line(&every_collective(4, &[1, 50_000]));
}

#[test]
fn collectives_issued_ahead_over_a_slow_lossy_link() {
    all_is_right_over_a_line(&issued_ahead(&every_collective(4, &[1, 50_000])));
}

/// The number of ranks in the tests with many ranks.
const MANY: usize = 64;

/// Runs every collective once on many ranks; `host` gives the host of each rank.
fn many_ranks(host: impl Fn(usize) -> usize) {
    let place = |rank| TestHost::on_this_network(&format!("host-{}", host(rank)));
    let places: Vec<TestHost> = (0..MANY).map(place).collect();
    let program = every_collective(MANY, &[100]);
    let job = TestJob::on_hosts(&places, "127.0.0.1", |_| program.clone());
    all_is_right(&job.finish(), MANY, &program);
}

#[test]
fn many_ranks_share_one_host() {
    many_ranks(|_| 0);
}

#[test]
fn many_ranks_share_four_hosts() {
    many_ranks(|rank| rank / (MANY / 4));
}

/// Trains with one rank at each place and returns the loss of each epoch.
fn train(places: &[TestHost], master: &str, program: &str) -> Vec<f64> {
    let mut job = TestJob::new();
    let data = format!("{ROOT}/c-examples/digits_training/data/digits.csv");
    for (rank, place) in places.iter().enumerate() {
        let environment = job.environment_with_master(master, rank, places.len());
        let words = [program, "--epochs", "5", "--data", &data];
        job.start_program_on_host(place, &rank.to_string(), &environment, &words);
    }
    let ended = job.finish();
    for rank in 0..places.len() {
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
    let on_two = train(&block(&hosts, &[2, 2]), &hosts.ipv4(0, 0), program);
    assert_eq!((on_one.len(), on_two.len()), (5, 5));
    for (one, two) in on_one.iter().zip(&on_two) {
        assert!((one - two).abs() <= TOLERANCE, "{on_one:?} on one host, {on_two:?} on two");
    }
}
