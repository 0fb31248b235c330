//! Tests `c-examples/libtorch` with the libtorch of torch's wheel. A test program checks `ddp.hpp`.
//! The example trains a `torch::nn::Module`: two ranks must get the same weights as one rank, and
//! must reduce gradients during the backward pass.

use super::{CaseProblem, CaseResult, InteropCase, InteropContext, PROCESS_TIMEOUT};
use crate::examples::{self, distrun};
use crate::workspace::repository_root;
use crate::{run, tools};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The time limit of a compiler. The headers of libtorch are large.
const COMPILE_LIMIT: Duration = Duration::from_secs(600);
/// The number of ranks that share the batches.
const RANKS: usize = 2;

/// The cases, in the order in which they run.
pub(super) fn cases() -> Vec<InteropCase> {
    vec![
        InteropCase::new("libtorch: ddp.hpp averages gradients in place", |context| {
            let source = repository_root().join("ffi-tests/interop/libtorch_ddp.cpp");
            let program = compile(context, "libtorch_ddp", &[source])?;
            let text =
                run::run_checked(&mut distrun(&context.stage, RANKS, &program), PROCESS_TIMEOUT)?
                    .text;
            let passed = text.lines().filter(|line| line.ends_with("all checks hold")).count();
            if passed != RANKS {
                return Err(CaseProblem::Failed(format!(
                    "{passed} of {RANKS} ranks passed:\n{text}"
                )));
            }
            Ok(format!("all checks hold on {RANKS} ranks"))
        }),
        InteropCase::new("libtorch: train_convnet on 1 and 2 ranks", train),
    ]
}

/// Compares the weights that two ranks train with the weights that one rank trains. Checks the
/// traces of the two ranks.
fn train(context: &InteropContext) -> CaseResult {
    let program = compile_example(context)?;
    let folder = examples::program_folder()?;
    let weights = folder.join("libtorch_weights.pt");
    let trace = folder.join("libtorch_trace_");

    let mut one = distrun(&context.stage, 1, &program);
    run::run_checked(one.args(["--double", "--save"]).arg(&weights), PROCESS_TIMEOUT)?;
    let mut two = distrun(&context.stage, RANKS, &program);
    two.args(["--double", "--compare"]).arg(&weights).arg("--trace").arg(&trace);
    // The program fails if the difference is above 1e-6.
    let text = run::run_checked(&mut two, PROCESS_TIMEOUT)?.text;
    let lines = text.lines().map(examples::without_rank);
    let difference = lines.filter_map(|line| line.strip_prefix("largest difference: ")).next_back();
    let difference = difference.ok_or_else(|| {
        CaseProblem::Failed(format!("the program printed no difference:\n{text}"))
    })?;

    let mut overlaps = Vec::new();
    for rank in 0..RANKS {
        let file = PathBuf::from(format!("{}{rank}.json", trace.display()));
        overlaps.push(check_overlap(&file)?);
    }
    Ok(format!("weights differ by {difference}; {}", overlaps.join(", ")))
}

/// Compiles the C++ program `train_convnet`, and the C file that reads its data set.
fn compile_example(context: &InteropContext) -> CaseResult<PathBuf> {
    // If torch is missing, the case is skipped before any compilation.
    context.torch()?;
    let digits = repository_root().join("c-examples/digits_training");
    let object = examples::program_folder()?.join("libtorch_digits_data.o");
    let c_compiler = tools::c_compiler()?;
    let mut cc = compiler_command(&c_compiler);
    cc.args(["-std=c99", "-O2", "-c"]).arg(digits.join("digits_data.c"));
    run::run_checked(cc.arg(data_path()).arg("-o").arg(&object), COMPILE_LIMIT)?;
    let source = repository_root().join("c-examples/libtorch/train_convnet.cpp");
    compile(context, "libtorch_train_convnet", &[source, object])
}

/// Compiles a C++ program with the headers and libraries of torch's wheel.
fn compile(context: &InteropContext, name: &str, sources: &[PathBuf]) -> CaseResult<PathBuf> {
    let torch = context.torch()?;
    let include = torch.package.join("include");
    let program = examples::program_folder()?.join(name);
    let cxx_compiler = tools::cxx_compiler()?;
    let mut cxx = compiler_command(&cxx_compiler);
    cxx.args(["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror"])
        .arg(data_path())
        .args(torch_abi(&torch.package))
        .arg("-I")
        .arg(&context.stage.include)
        // With `-isystem`, the compiler gives no warnings for the headers of torch.
        .arg("-isystem")
        .arg(&include)
        .arg("-isystem")
        .arg(include.join("torch/csrc/api/include"))
        .args(sources)
        .arg("-o")
        .arg(&program);
    // A torch wheel for CUDA contains libraries that depend on other wheels. The program does not
    // need these libraries.
    cxx.args(["-Wl,--as-needed", "-Wl,--allow-shlib-undefined"]);
    for lib in [&context.stage.lib, &torch.package.join("lib")] {
        cxx.arg("-L").arg(lib).arg(format!("-Wl,-rpath,{}", lib.display()));
    }
    run::run_checked(cxx.args(["-ldist", "-ltorch", "-ltorch_cpu", "-lc10"]), COMPILE_LIMIT)?;
    Ok(program)
}

/// Returns the command of a compiler. `compiler` may contain options after the name, as in make.
fn compiler_command(compiler: &str) -> Command {
    let mut words = compiler.split_whitespace();
    let mut command = run::command(words.next().unwrap_or("cc"));
    command.args(words);
    command
}

/// Returns the macro definition of the data set's path.
fn data_path() -> String {
    let data = repository_root().join("c-examples/digits_training/data/digits.csv");
    format!("-DDIGITS_CSV=\"{}\"", data.display())
}

/// Returns the compiler option for the C++ ABI with which torch was built. Reads it from torch's
/// CMake configuration. Recent versions use the default of the compiler, so they have no such
/// option.
fn torch_abi(package: &Path) -> Option<String> {
    const MACRO: &str = "_GLIBCXX_USE_CXX11_ABI=";
    let config = package.join("share/cmake/Torch/TorchConfig.cmake");
    let text = fs::read_to_string(config).ok()?;
    let value = text.split(MACRO).nth(1)?.chars().next()?;
    Some(format!("-D{MACRO}{value}"))
}

/// A span of a trace, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TraceSpan {
    begin: f64,
    end: f64,
}

/// Checks that an all-reduce of gradients began during each backward pass.
fn check_overlap(file: &Path) -> CaseResult {
    let text = fs::read_to_string(file)
        .map_err(|cause| format!("cannot read {}: {cause}", file.display()))?;
    let passes = spans(&text, "\"name\":\"backward\"");
    let reductions = spans(&text, "\"op\":\"AVG\"");
    let overlapped = passes.iter().filter(|pass| has_begin_inside(pass, &reductions)).count();
    let result = format!("{overlapped} of {} backward passes overlap", passes.len());
    if passes.is_empty() || overlapped != passes.len() {
        return Err(CaseProblem::Failed(format!("{result} in {}", file.display())));
    }
    Ok(result)
}

fn has_begin_inside(pass: &TraceSpan, operations: &[TraceSpan]) -> bool {
    operations.iter().any(|operation| pass.begin < operation.begin && operation.begin < pass.end)
}

/// Returns the spans of all events whose line contains this text. A trace has one event per line.
fn spans(trace: &str, text: &str) -> Vec<TraceSpan> {
    let events = trace.lines().filter(|line| line.contains(text));
    events
        .filter_map(|line| {
            let begin = number(line, "ts")?;
            Some(TraceSpan { begin, end: begin + number(line, "dur")? })
        })
        .collect()
}

/// Returns the first number with this key in a line of JSON.
fn number(line: &str, key: &str) -> Option<f64> {
    let rest = line.split(&format!("\"{key}\":")).nth(1)?;
    rest.split([',', '}']).next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_begin_and_end_of_matching_events() {
        let trace = "[\n{\"args\":{\"op\":\"AVG\"},\"dur\":2.5,\"name\":\"all_reduce\",\"ts\":10.25},\n\
            {\"args\":{\"op\":\"BOR\"},\"dur\":1,\"name\":\"all_reduce\",\"ts\":11}\n\
            ,{\"name\":\"backward\",\"ts\":9.5,\"dur\":4.000}\n]\n";
        let reductions = spans(trace, "\"op\":\"AVG\"");
        assert_eq!(reductions, [TraceSpan { begin: 10.25, end: 12.75 }]);
        let passes = spans(trace, "\"name\":\"backward\"");
        assert_eq!(passes, [TraceSpan { begin: 9.5, end: 13.5 }]);
        assert!(has_begin_inside(&passes[0], &reductions));
        assert!(!has_begin_inside(&reductions[0], &passes));
    }
}
