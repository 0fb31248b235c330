//! `groups.c` on processes of a launcher: groups made from groups, and their descriptors.

use super::LONG_LIMIT;
use super::program_paths::DISTRUN;
use super::toolchain::{Compiler, run};

/// Runs `groups.c` on processes with this descriptor limit for each (an option of `ulimit`).
fn groups_between_processes(what: &str, ranks: u32, descriptors: &str) {
    run_groups(what, "auto", &format!("--nproc_per_node {ranks}"), descriptors);
}

/// Runs `groups.c` over a transport, under distrun with these options.
fn run_groups(what: &str, transport: &str, options: &str, descriptors: &str) {
    let Some(compiler) = Compiler::find() else { return };
    let name = what.replace(' ', "_");
    let program = compiler.program(&format!("groups_of_{name}_{transport}"), &["groups.c"]);
    let line = format!(
        "ulimit {descriptors}; DIST_TRANSPORT={transport} exec {DISTRUN} {options} {} {what}",
        program.display()
    );
    run(&["sh", "-c", &line], LONG_LIMIT).expect_success();
}

#[test]
fn groups_of_processes() {
    groups_between_processes("processes", 4, "-n 1024");
}

#[test]
fn group_without_descriptors_is_an_error() {
    groups_between_processes("exhaust", 4, "-n 200");
}

#[test]
fn groups_of_eight_need_no_descriptors() {
    groups_between_processes("many 100", 8, "-n 1024");
}

#[test]
fn groups_of_eight_over_tcp_need_no_descriptors() {
    run_groups("many 100", "tcp", "--nproc_per_node 8", "-n 256");
}

#[test]
#[ignore = "minutes on busy cores: the number that is promised"]
fn thousand_groups_of_eight_need_no_descriptors() {
    for transport in ["auto", "tcp"] {
        run_groups("many 1000", transport, "--nproc_per_node 8", "-n 1024");
    }
}

#[test]
#[ignore = "starts 512 processes: the number that is promised"]
fn world_of_512_ranks_fits_into_1024_descriptors() {
    // The proof of a secret has a time limit of its own, which so many processes without
    // optimisation exceed on a few cores.
    run_groups("world", "auto", "--nproc_per_node 512 --no-secret", "-Sn 1024");
}
