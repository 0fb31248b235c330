//! `groups.c` on processes of a launcher: groups made from groups, and their descriptors.

use super::LONG_LIMIT;
use super::program_paths::DISTRUN;
use super::toolchain::{Compiler, run};

/// Runs `groups.c` on processes with this descriptor limit for each (an option of `ulimit`).
fn groups_between_processes(what: &str, ranks: u32, descriptors: &str) {
    let Some(compiler) = Compiler::find() else { return };
    let mode = what.split(' ').next().unwrap_or(what);
    let program = compiler.program(&format!("groups_{mode}_{ranks}"), &["groups.c"]);
    let line = format!(
        "ulimit {descriptors}; exec {DISTRUN} --nproc_per_node {ranks} {} {what}",
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
#[ignore = "minutes on busy cores: the number that is promised"]
fn thousand_groups_of_eight_need_no_descriptors() {
    groups_between_processes("many 1000", 8, "-n 1024");
}

#[test]
#[ignore = "starts 512 processes: the number that is promised"]
fn world_of_512_ranks_fits_into_1024_descriptors() {
    groups_between_processes("world", 512, "-Sn 1024");
}
