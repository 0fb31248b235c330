//! Groups whose ranks are on several hosts: every collective with right results, over IPv4 and IPv6,
//! with one rank to a host and with several, over a line that delays and loses; a death on one host that
//! is told on the others; many ranks. Every rank is a process, and every host a network name space,
//! but for those tests whose hosts differ in name alone.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a test says what it has measured, or why it is skipped")]

mod harness;
mod hosts;
mod interface;
#[path = "ctests/toolchain.rs"]
mod toolchain;
mod worker;

use dist::ffi::types::DIST_ERR_PEER_FAILED;
use harness::{Ended, Job, Place};
use hosts::{ETHERNET, Hosts, Line};
use interface::ROOT;
use toolchain::Compiler;

/// How soon a death must be told on a busy machine, and how long leaving may take after it, in
/// milliseconds.
const TOLD_WITHIN_MS: u64 = 2000;
const LEFT_WITHIN_MS: u64 = 6000;

/// The place of each rank, where host `h` has `counts[h]` of them, one host after the other.
fn block(hosts: &Hosts, counts: &[usize]) -> Vec<Place> {
    let of = |(host, &count): (usize, &usize)| vec![hosts.place(host); count];
    counts.iter().enumerate().flat_map(of).collect()
}

/// Every collective, on messages of these sizes, with the first and the last rank as roots.
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

/// Asserts that every rank has done all of its program, with the right results.
fn all_is_right(ended: &Ended, ranks: usize, program: &str) {
    for rank in 0..ranks {
        // The worker reports its start as well.
        ended.all_succeeded(&rank.to_string(), program.lines().count() + 1);
        assert_eq!(ended.status(&rank.to_string()), 0);
    }
}

/// Runs every collective on hosts with so many ranks, and that twice: with each family of addresses.
fn collectives_are_right(counts: &[usize]) {
    let Some(hosts) = Hosts::find(counts.len(), ETHERNET) else { return };
    let places = block(&hosts, counts);
    let program = every_collective(places.len(), &[0, 1, 17, 3000, 200_003]);
    for master in [hosts.ipv4(0, 0), hosts.ipv6(0, 0)] {
        let job = Job::spread(&places, &master, |_| program.clone());
        all_is_right(&job.finish(), places.len(), &program);
    }
}

#[test]
fn collectives_are_right_on_two_hosts_of_one_rank() {
    collectives_are_right(&[1, 1]);
}

#[test]
fn collectives_are_right_on_two_hosts_of_two_ranks() {
    collectives_are_right(&[2, 2]);
}

#[test]
fn collectives_are_right_on_four_hosts_of_different_sizes() {
    collectives_are_right(&[1, 2, 1, 3]);
}

#[test]
fn collectives_are_right_where_neighbours_are_on_different_hosts() {
    let Some(hosts) = Hosts::find(2, ETHERNET) else { return };
    let places: Vec<Place> = [0, 1, 0, 1, 1].map(|host| hosts.place(host)).to_vec();
    let program = every_collective(places.len(), &[1, 17, 3000, 200_003]);
    let job = Job::spread(&places, &hosts.ipv4(0, 0), |_| program.clone());
    all_is_right(&job.finish(), places.len(), &program);
}

#[test]
fn collectives_are_right_over_a_line_that_delays_and_loses() {
    let Some(mut hosts) = Hosts::find(2, ETHERNET) else { return };
    let Some(relay) = hosts.line([0, 1], &Line::new(20, 10_000)) else { return };
    let places = block(&hosts, &[2, 2]);
    let program = every_collective(places.len(), &[1, 50_000]);
    let job = Job::spread(&places, &hosts.ipv4(0, 0), |_| program.clone());
    all_is_right(&job.finish(), places.len(), &program);
    let counts = relay.end();
    assert!(counts.lost.iter().all(|&packets| packets > 0), "{counts:?}");
    println!("over a line with 20 ms and 1 % losses: {counts:?}");
}

/// Kills one rank in the middle of a loop; returns after how many microseconds those on other hosts and
/// those on its own were told.
fn kill_one(hosts: &Hosts, places: &[Place], operation: &str, victim: usize) -> [Vec<u64>; 2] {
    let program = format!("init\nloop {operation}\nbarrier\ngate end\nfinalize\nleaks\n");
    let mut job = Job::spread(places, &hosts.ipv4(0, 0), |_| program.clone());
    let names: Vec<String> = (0..places.len()).map(|rank| rank.to_string()).collect();
    job.all_report(&names, "ready");
    let pid = job.pid(&names[victim]);
    let killed_at = job.kill(&names[victim]);
    let survivors = || (0..names.len()).filter(|&rank| rank != victim);
    for rank in survivors() {
        job.report(&names[rank], "at end");
    }
    job.open("end");
    let ended = job.finish();
    assert_eq!(ended.status(&names[victim]), 128 + 9);

    let died = format!("rank {victim} (pid {pid}, host {})", places[victim].identity());
    let verb = operation.split(' ').next().unwrap();
    let mut latencies = [Vec::new(), Vec::new()];
    for rank in survivors() {
        let name = &names[rank];
        let first = ended.report(name, operation);
        first.failed(DIST_ERR_PEER_FAILED, &[&died, &format!("{verb} #")]);
        let is_near = places[rank].identity() == places[victim].identity();
        latencies[usize::from(is_near)].push(first.at_us.saturating_sub(killed_at));
        ended.report(name, "barrier").failed(DIST_ERR_PEER_FAILED, &[&died]).within_ms(100);
        ended.report(name, "finalize").succeeded().within_ms(LEFT_WITHIN_MS);
        ended.report(name, "leaks").succeeded();
        assert_eq!(ended.status(name), 0);
    }
    latencies
}

/// Kills each rank of two hosts in turn.
fn kill_each(operation: &str) {
    let Some(hosts) = Hosts::find(2, ETHERNET) else { return };
    let places = block(&hosts, &[2, 2]);
    let mut latencies = [Vec::new(), Vec::new()];
    for victim in 0..places.len() {
        let told = kill_one(&hosts, &places, operation, victim);
        latencies.iter_mut().zip(told).for_each(|(all, some)| all.extend(some));
    }
    for (mut latencies, place) in latencies.into_iter().zip(["other hosts", "its own host"]) {
        latencies.sort_unstable();
        let (middle, last) = (latencies[latencies.len() / 2], latencies[latencies.len() - 1]);
        println!(
            "{operation}: a death was told on {place} after {middle} us (median), {last} us (longest)"
        );
        assert!(last < TOLD_WITHIN_MS * 1000, "{latencies:?}");
    }
}

#[test]
fn a_death_on_one_host_is_told_on_the_other_in_small_all_reduces() {
    kill_each("all_reduce f32 SUM 1");
}

#[test]
fn a_death_on_one_host_is_told_on_the_other_in_large_all_reduces() {
    kill_each("all_reduce f32 SUM 262144");
}

#[test]
fn a_death_on_one_host_is_told_on_the_other_in_barriers() {
    kill_each("barrier");
}

#[test]
fn a_death_on_one_host_is_told_on_the_other_in_broadcasts() {
    kill_each("broadcast f32 5000 0");
}

/// How many ranks the tests of many have.
const MANY: usize = 64;

/// Every collective once on many ranks, each of which is on the host that `host` says.
fn many_ranks(host: impl Fn(usize) -> usize) {
    let place = |rank| Place::named(&format!("host-{}", host(rank)));
    let places: Vec<Place> = (0..MANY).map(place).collect();
    let program = every_collective(MANY, &[100]);
    let job = Job::spread(&places, "127.0.0.1", |_| program.clone());
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

/// Trains with one rank at each of these places; returns the loss of each epoch.
fn train(places: &[Place], master: &str, program: &str) -> Vec<f64> {
    let mut job = Job::new();
    let data = format!("{ROOT}/c-examples/data/digits.csv");
    for (rank, place) in places.iter().enumerate() {
        let environment = job.environment_towards(master, rank, places.len());
        let words = [program, "--epochs", "5", "--data", &data];
        job.start_program_at(place, &rank.to_string(), &environment, &words);
    }
    let ended = job.finish();
    for rank in 0..places.len() {
        let name = rank.to_string();
        assert_eq!(ended.status(&name), 0, "rank {rank}: {}", ended.errors(&name));
    }
    let output = ended.output("0");
    assert!(output.contains("weights identical on 4 ranks"), "{output}");
    let losses = output.lines().filter_map(|line| line.split_once("  loss ")?.1.parse().ok());
    losses.collect()
}

#[test]
fn training_on_two_hosts_goes_as_on_one() {
    /// What another order of additions may change, as in `cargo xtask test`.
    const TOLERANCE: f64 = 1e-4;
    let Some(hosts) = Hosts::find(2, ETHERNET) else { return };
    let Some(compiler) = Compiler::find() else { return };
    let files = ["train_digits.c", "train_options.c", "digits_data.c", "mlp.c"];
    let files = files.map(|file| format!("../../c-examples/{file}"));
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let program = compiler.program_with("train_digits_on_hosts", &files, &["-lm"]);
    let program = program.to_str().unwrap();

    let on_one = train(&vec![Place::named("here"); 4], "127.0.0.1", program);
    let on_two = train(&block(&hosts, &[2, 2]), &hosts.ipv4(0, 0), program);
    assert_eq!((on_one.len(), on_two.len()), (5, 5));
    for (one, two) in on_one.iter().zip(&on_two) {
        assert!((one - two).abs() <= TOLERANCE, "{on_one:?} on one host, {on_two:?} on two");
    }
}
