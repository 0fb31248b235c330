//! `c-examples/survive`: a training that loses ranks reaches the accuracy of a training without
//! losses.

use super::harness::{TestHost, TestJob};
use super::toolchain::Compiler;

/// The largest difference of the accuracies in percent. One of the 297 held-out digits is a third
/// of a percent, and rounding may change a few.
const MAX_ACCURACY_LOSS: f64 = 1.0;

/// The output and the final accuracy of a run.
struct TrainingOutput {
    output: String,
    accuracy: f64,
}

fn train(program: &str, kills: &[&str]) -> TrainingOutput {
    let mut job = TestJob::new();
    let data = format!("{}/c-examples/digits_training/data/digits.csv", super::interface::ROOT);
    let mut words = vec![program, "--ranks", "8", "--epochs", "10", "--data", &data];
    words.extend(kills.iter().flat_map(|kill| ["--kill", kill]));
    job.start_program_on_host(&TestHost::on_this_network("here"), "survive", &[], &words);
    let ended = job.finish();
    let output = ended.stdout_text("survive");
    assert_eq!(ended.exit_status("survive"), 0, "{output}\n{}", ended.stderr_text("survive"));
    let result = output.lines().find_map(|line| line.strip_prefix("held-out accuracy: "));
    let accuracy = result.and_then(|text| text.split(' ').next()?.parse().ok());
    TrainingOutput { accuracy: accuracy.expect(&output), output }
}

#[test]
fn training_after_losing_5_of_8_ranks_is_as_accurate() {
    let Some(compiler) = Compiler::find() else { return };
    let files = [
        "survive/survive.c",
        "survive/survive_job.c",
        "digits_training/train_options.c",
        "digits_training/digits_data.c",
        "digits_training/mlp.c",
    ];
    let files = files.map(|file| format!("../../c-examples/{file}"));
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let program = compiler.program_with("survive", &files, &["-lm"]);
    let program = program.to_str().unwrap();

    let undisturbed = train(program, &[]);
    let kills = ["0@60", "3@60", "6@60", "1@150", "7@150"];
    let disturbed = train(program, &kills);
    for (trained, ranks) in [(&undisturbed, 8), (&disturbed, 3)] {
        let identical = format!("weights identical on {ranks} ranks");
        assert!(trained.output.contains(&identical), "{}", trained.output);
    }
    for line in ["after step 59: 5 of 8 ranks go on", "after step 149: 3 of 5 ranks go on"] {
        assert!(disturbed.output.contains(line), "{}", disturbed.output);
    }
    let difference = (undisturbed.accuracy - disturbed.accuracy).abs();
    println!("{} % undisturbed, {} % disturbed", undisturbed.accuracy, disturbed.accuracy);
    assert!(difference <= MAX_ACCURACY_LOSS, "{difference}");
}
