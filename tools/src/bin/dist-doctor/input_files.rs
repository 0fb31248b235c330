//! Finds the input files of a command, and reads them. The number and the size of the files are
//! limited.
//!
//! If a file cannot be used, for example because it is incomplete, it is reported and skipped, and
//! the other files are used.

use crate::recorder_dump::Dump;
use crate::report_error;
use dist_terminal::Progress;
use dist_tools::{Failure, count_text};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// The largest number of bytes in a file. A dump has about 1 MB.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// The largest number of files that are read.
const MAX_FILES: usize = 1 << 16;

/// The dumps (flight recorder contents of one process each) that were read.
#[derive(Debug, Default)]
pub(crate) struct LoadedDumps {
    pub(crate) dumps: Vec<Dump>,
    /// Notes for the user, for example about the files that could not be used.
    pub(crate) notes: Vec<String>,
}

/// Reads all dumps that the inputs name.
///
/// # Errors
/// The message if an input has no matching file, or if there is no dump at all.
pub(crate) fn read_dumps(inputs: &[OsString]) -> Result<LoadedDumps, Failure> {
    if inputs.is_empty() {
        let message = "no dumps named: name files, a folder, the common prefix of their names, or processes by \
             --pid (--help)";
        return Err(Failure::usage(message));
    }
    let mut files = BTreeSet::new();
    for input in inputs {
        let named = matching_files(input).map_err(Failure::usage)?;
        files.extend(named);
    }
    if files.len() > MAX_FILES {
        let message = format!("{} files exceed the limit of {MAX_FILES} files", files.len());
        return Err(Failure::usage(message));
    }
    let mut loaded = LoadedDumps::default();
    let progress = Progress::of_wait("");
    for (number, file) in files.iter().enumerate() {
        progress.set_text(format!("{number} of {} dumps read", files.len()));
        match read_dump(file) {
            Ok(dump) => loaded.dumps.push(dump),
            Err(problem) => {
                let problem = format!("{}: {problem}; the file is skipped", file.display());
                progress.suspend(|| report_error(&problem));
                loaded.notes.push(problem);
            }
        }
    }
    if loaded.dumps.is_empty() {
        let message = format!("no readable dump in {}", count_text(files.len(), "file"));
        return Err(Failure::usage(message));
    }
    Ok(loaded)
}

/// Returns the files that an input names. If the input is a folder, returns the files in it. If it
/// is a file, returns this file. Otherwise returns the files whose names are the input followed by
/// a rank number.
pub(crate) fn matching_files(input: &OsStr) -> Result<Vec<PathBuf>, String> {
    let path = Path::new(input);
    let shown = path.display();
    if path.is_dir() {
        return list_files(path, |name| name.ends_with(".json") || ends_with_rank_number(name));
    }
    if path.exists() {
        return Ok(vec![path.to_owned()]);
    }
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let prefix = path.file_name().and_then(OsStr::to_str);
    let prefix = prefix.ok_or_else(|| format!("{shown}: no such file"))?;
    let matches = list_files(folder, |name| {
        let rest = name.strip_prefix(prefix).map(|rest| rest.strip_suffix(".json").unwrap_or(rest));
        rest.is_some_and(is_rank_number)
    });
    match matches {
        Ok(files) if files.is_empty() => {
            Err(format!("{shown}: no such file, and no file with this prefix followed by a rank"))
        }
        found => found,
    }
}

fn is_rank_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn ends_with_rank_number(name: &str) -> bool {
    name.bytes().last().is_some_and(|byte| byte.is_ascii_digit())
}

fn list_files(
    folder: &Path,
    is_wanted_name: impl Fn(&str) -> bool,
) -> Result<Vec<PathBuf>, String> {
    let failed = |cause| format!("{}: {cause}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_wanted = entry.file_name().to_str().is_some_and(&is_wanted_name);
        if is_wanted && entry.path().is_file() {
            files.push(entry.path());
        }
        if files.len() > MAX_FILES {
            return Err(format!("{}: more than {MAX_FILES} files", folder.display()));
        }
    }
    Ok(files)
}

fn read_dump(path: &Path) -> Result<Dump, String> {
    // Read only regular files. A read from a pipe, for example, could block forever.
    let metadata = fs::metadata(path).map_err(|cause| cause.to_string())?;
    if !metadata.is_file() {
        return Err("not a regular file".to_owned());
    }
    let file = File::open(path).map_err(|cause| cause.to_string())?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|cause| cause.to_string())?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("more than {MAX_FILE_BYTES} bytes, the limit for a dump"));
    }
    if bytes.is_empty() {
        return Err("the file is empty".to_owned());
    }
    Dump::parse(&path.display().to_string(), &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_dumps;

    struct TestFolder(PathBuf);

    impl TestFolder {
        fn new(name: &str) -> Self {
            let name = format!("dist-doctor-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn read(&self, place: &str) -> Result<LoadedDumps, Failure> {
            read_dumps(&[self.0.join(place).into_os_string()])
        }
    }

    impl Drop for TestFolder {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    #[test]
    fn file_folder_and_prefix_select_the_same_dumps() {
        let folder = TestFolder::new("places");
        for (rank, name) in ["fr_0.json", "fr_1.json", "fr_2"].into_iter().enumerate() {
            let dump = sample_dumps::sample_dump(rank, 3, 0).to_value().to_string();
            fs::write(folder.0.join(name), dump).unwrap();
        }
        fs::write(folder.0.join("fr_x.json"), "{\"format\": \"lib").unwrap();
        fs::write(folder.0.join("notes.txt"), "no dump").unwrap();
        let ranks =
            |found: &LoadedDumps| found.dumps.iter().map(|dump| dump.rank).collect::<Vec<_>>();
        let all = folder.read("").unwrap();
        assert_eq!(ranks(&all), [Some(0), Some(1), Some(2)]);
        assert!(all.notes[0].contains("fr_x.json: truncated"), "{all:?}");
        let by_prefix = folder.read("fr_").unwrap();
        assert_eq!(ranks(&by_prefix), [Some(0), Some(1), Some(2)]);
        assert!(by_prefix.notes.is_empty());
        assert_eq!(ranks(&folder.read("fr_2").unwrap()), [Some(2)]);
    }

    #[test]
    fn unusable_files_are_refused_by_name() {
        let folder = TestFolder::new("unusable");
        assert!(folder.read("none_").unwrap_err().message.contains("none_: no such file"));
        fs::write(folder.0.join("a1"), "").unwrap();
        for place in ["a1", ""] {
            let failure = folder.read(place).unwrap_err();
            assert_eq!(failure.status, 2);
            assert!(failure.message.contains("no readable dump in "), "{failure:?}");
        }
        assert!(read_dumps(&[]).unwrap_err().message.contains("no dumps named"));
        assert!(read_dump(Path::new("/dev/null")).unwrap_err().contains("not a regular file"));
        let large = File::create(folder.0.join("a2")).unwrap();
        large.set_len(MAX_FILE_BYTES + 1).unwrap();
        assert!(read_dump(&folder.0.join("a2")).unwrap_err().contains("more than"));
    }
}
