//! Finds the C compiler of this system, and runs programs with a deadline.
#![allow(dead_code, reason = "each test program uses its own part")]

use crate::interface::{ROOT, find_program, library, variable};
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The time limit for the compilation of one program.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(120);

/// The flags that every program must compile with.
const STRICT_FLAGS: [&str; 5] = ["-std=c99", "-pedantic-errors", "-Wall", "-Wextra", "-Werror"];

/// Prefixes of environment variables that a launcher or a user may have set; the programs run
/// without these variables.
const TEST_PREFIXES: &[&str] =
    &["DIST_", "MASTER_", "OMPI_", "PMI_", "PMIX_", "MPI_", "SLURM_", "TORCH", "NCCL_", "VLLM_"];
const NAMES: &[&str] =
    &["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GLOO_SOCKET_IFNAME"];

/// The source files of the example back-end plug-in.
pub(crate) const EXAMPLE_BACKEND_FILES: &[&str] = &[
    "../../c-examples/backend_store/backend_store.c",
    "../../c-examples/backend_store/backend_store_calls.c",
    "../../c-examples/backend_store/backend_store_fold.c",
    "../../c-examples/backend_store/backend_store_keys.c",
    "../../c-examples/backend_store/backend_store_messages.c",
];

/// Prints why a test is skipped.
#[allow(clippy::print_stdout, reason = "the test's own output")]
pub(crate) fn skip(why: &str) {
    println!("skipped: {}", why.trim());
}

/// A compiler: the program and its fixed arguments.
#[derive(Debug)]
pub(crate) struct Compiler(Vec<String>);

impl Compiler {
    /// Returns the compiler in `CC`, or else `cc`.
    pub(crate) fn find() -> Option<Self> {
        let words = variable("CC").unwrap_or_else(|| "cc".to_owned());
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        if words.first().and_then(|program| find_program(program)).is_none() {
            skip("there is no C compiler (install one, or set CC)");
            return None;
        }
        Some(Self(words))
    }

    /// Returns the compiler with this name if it is installed.
    pub(crate) fn named(name: &str) -> Option<Self> {
        find_program(name).map(|program| Self(vec![program.display().to_string()]))
    }

    /// Compiles a program that consists of one file and does not use the library. `file` is a path
    /// in the source tree.
    pub(crate) fn tool(&self, program: &Path, file: &str) {
        let mut words = self.0.clone();
        words.extend(STRICT_FLAGS.map(str::to_owned));
        words.extend(["-O1".to_owned(), format!("{ROOT}/{file}"), "-o".to_owned()]);
        words.push(program.display().to_string());
        run(&words, COMPILE_TIMEOUT).expect_success();
    }

    /// Compiles and links a program against the library of this build and returns its path.
    pub(crate) fn program(&self, name: &str, files: &[&str]) -> PathBuf {
        self.program_with(name, files, &[])
    }

    /// As [`Self::program`], with further arguments at the end of the command.
    pub(crate) fn program_with(&self, name: &str, files: &[&str], more: &[&str]) -> PathBuf {
        let folder = library_folder();
        let program = folder.join(name);
        let mut words = self.words(files);
        words.extend(STRICT_FLAGS.map(str::to_owned));
        words.extend(["-g".to_owned(), "-pthread".to_owned(), "-o".to_owned()]);
        words.push(program.display().to_string());
        words.push(library().display().to_string());
        words.extend([format!("-Wl,-rpath,{}", folder.display()), "-lm".to_owned()]);
        words.extend(more.iter().map(|&word| word.to_owned()));
        run(&words, COMPILE_TIMEOUT).expect_success();
        program
    }

    /// Builds the stubs of CUDA and NCCL and their self-test. Returns their folder, which only the
    /// test with this name uses.
    pub(crate) fn stubs(&self, test: &str) -> PathBuf {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stubs_{test}"));
        let script = format!("{ROOT}/ffi-tests/stubs/build.sh");
        let compiler = format!("CC={}", self.0.join(" "));
        let words = ["env", &compiler, "sh", &script, &folder.display().to_string()];
        run(&words, COMPILE_TIMEOUT).expect_success();
        folder
    }

    /// Compiles a back-end plug-in with further arguments and returns its path.
    pub(crate) fn plugin(&self, name: &str, files: &[&str], more: &[&str]) -> PathBuf {
        let object = library_folder().join(format!("lib{name}.so"));
        let mut words = self.words(files);
        words.extend(STRICT_FLAGS.map(str::to_owned));
        words.extend(["-g", "-fPIC", "-shared", "-pthread", "-o"].map(str::to_owned));
        words.push(object.display().to_string());
        words.extend(more.iter().map(|&word| word.to_owned()));
        run(&words, COMPILE_TIMEOUT).expect_success();
        object
    }

    /// Checks the syntax of one file.
    pub(crate) fn check(&self, file: &str, flags: &[&str]) {
        run(&self.check_command(file, flags), COMPILE_TIMEOUT).expect_success();
    }

    /// Returns true if the compiler accepts a flag.
    pub(crate) fn supports_flag(&self, flag: &str, file: &str) -> bool {
        let ending = Path::new(file).extension().is_some_and(|ending| ending == "cpp");
        let language = if ending { "-xc++" } else { "-xc" };
        let mut words = self.0.clone();
        words.extend(["-fsyntax-only", language, flag, "/dev/null"].map(str::to_owned));
        run(&words, COMPILE_TIMEOUT).status == Some(0)
    }

    fn check_command(&self, file: &str, flags: &[&str]) -> Vec<String> {
        let mut words = self.words(&[file]);
        words.push("-fsyntax-only".to_owned());
        words.extend(flags.iter().map(|&flag| flag.to_owned()));
        words
    }

    fn words(&self, files: &[&str]) -> Vec<String> {
        let mut words = self.0.clone();
        words.push(format!("-I{ROOT}/include"));
        // An absolute path replaces the folder.
        let folder = Path::new(ROOT).join("ffi-tests/c");
        words.extend(files.iter().map(|file| folder.join(file).display().to_string()));
        words
    }
}

/// Returns a folder in which the loader finds the library under its soname.
pub(crate) fn library_folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c");
    std::fs::create_dir_all(&folder).expect("a folder for the C programs");
    let link = folder.join("libdist.so.0");
    if std::fs::read_link(&link).ok() != Some(library()) {
        // Tests run in parallel, so the rename replaces the link atomically.
        let new = folder.join(format!("libdist.so.0.{}", unique()));
        symlink(library(), &new).expect("a link");
        std::fs::rename(&new, &link).expect("the link in its place");
    }
    folder
}

fn unique() -> String {
    format!("{}-{:?}", std::process::id(), std::thread::current().id())
}

/// The result of a program.
#[derive(Debug)]
pub(crate) struct ProgramOutcome {
    /// The exit status; `None` if a signal ended the program.
    pub(crate) status: Option<i32>,
    /// The text that the program wrote to standard output and standard error.
    pub(crate) output: String,
    command: String,
}

impl ProgramOutcome {
    pub(crate) fn expect_success(self) -> Self {
        let Self { status, output, command } = &self;
        let how = status.map_or("a signal".to_owned(), |status| format!("status {status}"));
        assert!(*status == Some(0), "{command}\nended with {how}\n{output}");
        self
    }
}

/// Runs a program to its end. At the deadline the program is killed and the test fails.
pub(crate) fn run(words: &[impl AsRef<str>], limit: Duration) -> ProgramOutcome {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    let (program, arguments) = words.split_first().expect("a program");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if NAMES.contains(&&*text) || TEST_PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    let mut child = command.spawn().unwrap_or_else(|cause| panic!("{program}: {cause}"));
    let (out, err) = (read(child.stdout.take()), read(child.stderr.take()));
    let mut output = String::new();
    for stream in [out, err] {
        match stream.recv_timeout(limit) {
            Ok(text) => output.push_str(&text),
            Err(_) => kill(&mut child, &words.join(" "), limit),
        }
    }
    let status = child.wait().expect("the program ends").code();
    ProgramOutcome { status, output, command: words.join(" ") }
}

fn kill(child: &mut Child, command: &str, limit: Duration) -> ! {
    child.kill().expect("the program can be killed");
    child.wait().expect("the program ends");
    panic!("{command}\nhad not ended after {limit:?}");
}

/// Reads a stream to its end on a separate thread.
fn read(stream: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    let body = move || {
        let mut bytes = Vec::new();
        stream.map(|mut stream| stream.read_to_end(&mut bytes));
        // The test may have stopped waiting.
        drop(sender.send(String::from_utf8_lossy(&bytes).into_owned()));
    };
    std::thread::Builder::new().spawn(body).expect("a thread");
    receiver
}
