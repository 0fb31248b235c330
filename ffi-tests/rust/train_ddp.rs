//! The example `train_ddp` with communication hooks, in real processes under distrun. A hook sends
//! fewer bytes, keeps the accuracy, and leaves the same weights on all ranks. If the compiler is
//! missing, the test prints this and passes.
#![allow(clippy::expect_used, clippy::panic, reason = "in a test a broken assumption is a failure")]

mod interface;
mod program_paths;
#[path = "ctests/toolchain.rs"]
mod toolchain;

use interface::{ROOT, find_program, library, variable};
use program_paths::DISTRUN;
use std::path::PathBuf;
use std::time::Duration;
use toolchain::{library_folder, run, skip};

/// The time limit for the compilation of the example, and for one training.
const LIMIT: Duration = Duration::from_secs(180);

/// After this number of epochs, the steps before the start of PowerSGD are a small part.
const EPOCHS: &str = "12";

/// The figures that a training prints.
#[derive(Debug)]
struct DdpTraining {
    /// The accuracy on the held-out images in percent, the mean of the last 3 epochs.
    accuracy: f64,
    /// The ratio of the sent bytes to the bytes of the gradients; 1 without a hook.
    sent: f64,
    are_weights_identical: bool,
}

impl DdpTraining {
    fn run(program: &str, options: &[&str]) -> Self {
        let mut words = vec![DISTRUN, "--nproc-per-node", "2", program, "--epochs", EPOCHS];
        words.extend(options);
        Self::read(&run(&words, LIMIT).expect_success().output)
    }

    fn read(output: &str) -> Self {
        let accuracies: Vec<f64> =
            output.lines().filter_map(|line| number(line, "accuracy ", " %")).collect();
        let [x, y, z] = accuracies.last_chunk().expect("an accuracy for each epoch");
        let sent = output.lines().find_map(|line| number(line, "bytes of gradients (", ")"));
        Self {
            accuracy: (x + y + z) / 3.0,
            sent: sent.unwrap_or(1.0),
            are_weights_identical: output.contains("weights identical on 2 ranks"),
        }
    }
}

/// Returns the number between two texts in a line.
fn number(line: &str, before: &str, after: &str) -> Option<f64> {
    line.split_once(before)?.1.split_once(after)?.0.parse().ok()
}

/// Compiles the example; returns `None` if a compiler is missing.
fn example() -> Option<String> {
    let compiler = |name: &str, usual: &str| variable(name).unwrap_or_else(|| usual.to_owned());
    let [cc, cxx] = [compiler("CC", "cc"), compiler("CXX", "c++")];
    for program in [&cc, &cxx] {
        if find_program(program).is_none() {
            skip(&format!("{program} is not installed"));
            return None;
        }
    }
    let folder = library_folder();
    let path = |name: &str| folder.join(name).display().to_string();
    let examples = PathBuf::from(ROOT).join("c-examples");
    let source = |name: &str| examples.join(name).display().to_string();
    let data = format!("-DDIGITS_CSV=\"{}\"", source("digits_training/data/digits.csv"));

    let (object, program) = (path("train_ddp_digits.o"), path("train_ddp"));
    let digits = source("digits_training/digits_data.c");
    run(&[&cc, "-std=c99", "-O2", "-c", &digits, "-o", &object], LIMIT).expect_success();
    let parts = ["train_ddp", "trainer", "convnet", "checkpoint", "options"];
    let include = format!("-I{ROOT}/include");
    let library_path = format!("-Wl,-rpath,{}", folder.display());
    let library = library().display().to_string();
    let mut words = vec![cxx, "-std=c++17".into(), "-O2".into(), "-Wall".into(), "-Wextra".into()];
    words.extend(["-Werror".into(), "-pthread".into(), include, data]);
    words.extend(parts.map(|part| source(&format!("train_ddp/{part}.cpp"))));
    words.extend([object, library, library_path, "-o".into(), program.clone()]);
    run(&words, LIMIT).expect_success();
    Some(program)
}

#[test]
fn hooks_send_less_and_train_as_well() {
    let Some(program) = example() else { return };
    let plain = DdpTraining::run(&program, &[]);
    assert!(plain.are_weights_identical && plain.accuracy > 90.0, "{plain:?}");
    for (hook, most) in [("int8", 0.27), ("powersgd", 0.1)] {
        let hooked = DdpTraining::run(&program, &["--hook", hook]);
        assert!(hooked.are_weights_identical, "{hook}: {hooked:?}");
        assert!(hooked.sent > 0.0 && hooked.sent <= most, "{hook}: {hooked:?}");
        assert!(hooked.accuracy >= plain.accuracy - 1.0, "{hook}: {hooked:?}, {plain:?}");
    }
}
