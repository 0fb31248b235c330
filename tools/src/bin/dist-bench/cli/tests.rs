//! Tests of the command line.

use super::*;
use clap::CommandFactory as _;

fn parse(line: &str) -> Result<Options, clap::Error> {
    Options::try_parse_from(line.split(' '))
}

#[test]
fn the_command_line_is_consistent() {
    Options::command().debug_assert();
}

#[test]
fn default_options_measure_default_cells() {
    let options = parse("dist-bench").unwrap();
    assert_eq!((options.ranks(), options.pairs(), options.calls()), (vec![2], 10, None));
    assert_eq!(options.ops().last(), Some(&BenchOp::SendRecv));
    assert_eq!((options.sizes(4).len(), options.sizes(8).len()), (9, 8));
    assert_eq!(options.variants().len(), 1);
    options.check_combination().unwrap();
}

#[test]
fn comma_separated_lists_are_split() {
    let line = "dist-bench --ranks 2,4,8 --ops barrier,gather --sizes 4,64K --mode \
                rewritten,untouched --buffers ordinary,arena --peer openmpi,mpich --async";
    let options = parse(line).unwrap();
    assert_eq!(options.ranks(), [2, 4, 8]);
    assert_eq!(options.ops(), [BenchOp::Barrier, BenchOp::Gather]);
    assert_eq!(options.sizes(2), [4, 65_536]);
    assert_eq!((options.variants().len(), options.peer.len()), (4, 2));
    assert_eq!(parse("dist-bench --ops gather,all").unwrap().ops().len(), BenchOp::ALL.len());
    assert!(options.variants()[3].asynchronous && options.variants()[3].in_place);
}

#[test]
fn device_option_implies_one_buffer_kind() {
    let options = parse("dist-bench --device nccl").unwrap();
    assert_eq!(options.variants().len(), 1);
    assert_eq!(options.variants()[0].describe()[..2], ["untouched", "device"]);
    for wrong in ["--device", "--device cuda", "--device nccl --peer mpich", "--buffers device"] {
        assert!(parse(&format!("dist-bench {wrong}")).is_err(), "{wrong}");
    }
}

#[test]
fn shareable_command_line_omits_files() {
    let line = "--ranks 2,4 --json a.json --limits --csv=b.csv --plot d.svg --report C.md --peer \
                mpich";
    let command_line = without_files(line.split(' ').map(str::to_owned));
    assert_eq!(command_line, "dist-bench --ranks 2,4 --limits --peer mpich");
}

#[test]
fn shareable_command_line_omits_tree_path() {
    for line in ["--against /some/tree --quick", "--against=/some/tree --quick"] {
        let command_line = without_files(line.split(' ').map(str::to_owned));
        assert_eq!(command_line, "dist-bench --against TREE --quick");
    }
}

#[test]
fn against_measures_all_operations_with_60_pairs() {
    let options = parse("dist-bench --against tree").unwrap();
    assert_eq!((options.ops().len(), options.pairs()), (BenchOp::ALL.len(), AGAINST_PAIRS));
    assert_eq!(options.sizes(2), DEFAULT_SIZES);
    options.check_combination().unwrap();
    let quick = parse("dist-bench --against tree --quick").unwrap();
    assert_eq!(quick.pairs(), MIN_AGAINST_PAIRS);
    quick.check_combination().unwrap();
    let few = parse("dist-bench --against tree --pairs 5").unwrap();
    assert!(few.check_combination().unwrap_err().contains("--pairs 6 or more"));
    for other in ["--peer mpich", "--limits", "--tune a.json"] {
        assert!(parse(&format!("dist-bench --against tree {other}")).is_err(), "{other}");
    }
}

#[test]
fn report_from_conflicts_with_measuring() {
    let options = parse("dist-bench --report a.md --report-from b.json,c.json").unwrap();
    assert_eq!(options.report_from.len(), 2);
    assert!(parse("dist-bench --report-from b.json").is_err());
    assert!(parse("dist-bench --report a.md --report-from b.json --limits").is_err());
}

#[test]
fn tune_has_its_own_default_operations_and_sizes() {
    let options = parse("dist-bench --tune a.json").unwrap();
    assert_eq!((options.ops().len(), options.pairs()), (BenchOp::ALL.len(), TUNED_PAIRS));
    assert_eq!(options.sizes(2), TUNED_SIZES);
    assert!(parse("dist-bench --tune a.json --peer mpich").is_err());
}

#[test]
fn invalid_options_are_refused() {
    for line in [
        "dist-bench --ranks 1",
        "dist-bench --ops allreduce",
        "dist-bench --sizes 4k",
        "dist-bench --dtype float",
        "dist-bench --redop avg",
        "dist-bench --peer nccl",
        "dist-bench --pairs 0",
        "dist-bench something",
    ] {
        assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
    }
    for line in [
        "dist-bench --dtype c64 --redop max",
        "dist-bench --dtype bf16 --peer mpich",
        "dist-bench --dtype f8e4m3 --ranks 9",
    ] {
        assert!(parse(line).unwrap().check_combination().is_err(), "{line}");
    }
    parse("dist-bench --dtype c64 --redop max --ops barrier").unwrap().check_combination().unwrap();
}
