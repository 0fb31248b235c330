//! Joining and leaving a file store: which processes may join, how a stale file of an earlier run
//! is detected, and which process removes the file.

use super::lock;
use super::log::{FileLog, REMEDY};
use super::members::{self, FileMembers};
use super::record::{FileHeader, LogRecord, MAX_JOB_ID_BYTES, ProcessIdentity};
use crate::base::{Deadline, Error, ErrorKind, Result};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

/// The time limit for the file lock when a process leaves the store.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The options for opening a file store.
#[derive(Clone, Debug, Default)]
pub struct FileOptions {
    /// The number of processes that will open the file. All processes must give the same number.
    /// `None` (or 0) means unknown: the file is then removed as soon as no process uses it.
    pub world_size: Option<usize>,
    /// The job id. All processes must give the same id, which may be empty. A file with a different
    /// job id gives an error.
    pub job_id: String,
    /// True if the store serves the start of a job: every member must stay until all `world_size`
    /// members have joined. If a member has left earlier, a process that opens the file gets an
    /// error, because the start has failed. The last member that leaves removes the file, even if
    /// some members never joined.
    pub is_rendezvous: bool,
}

/// Opens the file, creates it if it is missing, and adds this process to the members. Returns the
/// log and the member number of this process.
pub(super) fn open(
    path: &Path,
    options: &FileOptions,
    deadline: &Deadline,
) -> Result<(Mutex<FileLog>, u32)> {
    let world_size = options.checked_world_size()?;
    loop {
        let log = Mutex::new(FileLog::open(path)?);
        let mut locked = lock::lock_without_reading(&log, deadline)?;
        // If the file is not linked, the last member removed it after this process opened it. The
        // loop then opens a new file.
        if locked.is_linked()? {
            let member = join(&mut locked, options, world_size)?;
            drop(locked);
            return Ok((log, member));
        }
        if deadline.has_passed() {
            let ms = deadline.elapsed().as_millis();
            let path = path.display();
            let message = format!(
                "timed out after {ms} ms joining the file store {path}: another process removed the file each time it was \
                 opened; check that no other job uses this path"
            );
            return Err(Error::new(ErrorKind::Timeout, message));
        }
    }
}

impl FileOptions {
    /// Checks the job id and the world size. Returns the world size as the file header stores it,
    /// or `None` if it is unknown (`None` or 0 in the options).
    fn checked_world_size(&self) -> Result<Option<u32>> {
        if self.job_id.len() > MAX_JOB_ID_BYTES {
            let length = self.job_id.len();
            let message =
                format!("a job id of {length} bytes is longer than {MAX_JOB_ID_BYTES} bytes");
            return Err(Error::invalid(message));
        }
        let convert = |size: usize| {
            u32::try_from(size)
                .map_err(|_| Error::invalid(format!("world_size {size} is more than {}", u32::MAX)))
        };
        self.world_size.filter(|&size| size > 0).map(convert).transpose()
    }
}

fn join(log: &mut FileLog, options: &FileOptions, world_size: Option<u32>) -> Result<u32> {
    log.catch_up_and_truncate()?;
    let me = members::this_process();
    let Some(header) = log.replay().header() else {
        let header = FileHeader {
            created_at: now(),
            world_size,
            job_id: options.job_id.clone(),
            created_by: me.clone(),
        };
        if let Err(error) = log.write_header(header, &LogRecord::Join(me)) {
            // The file is empty, so no process needs it.
            drop(log.remove());
            return Err(error);
        }
        return Ok(0);
    };
    check_header(log.path(), header, &options.job_id, world_size)?;
    let members = &log.replay().members;
    check_members(log.path(), members, options)?;
    let member = u32::try_from(members.joined_count())
        .map_err(|_| Error::internal("too many members have joined the file store"))?;
    log.append(&LogRecord::Join(me))?;
    Ok(member)
}

/// Checks that the file belongs to this job.
fn check_header(
    path: &Path,
    header: &FileHeader,
    job_id: &str,
    world_size: Option<u32>,
) -> Result<()> {
    let size = |size: Option<u32>| match size {
        Some(size) => format!("of {size} processes"),
        None => "of an unknown number of processes".to_owned(),
    };
    let (file_job, own_job) = if header.job_id != job_id {
        (format!("job \"{}\"", header.job_id.escape_debug()), format!("job \"{job_id}\""))
    } else if header.world_size != world_size {
        (format!("a job {}", size(header.world_size)), format!("a job {}", size(world_size)))
    } else {
        return Ok(());
    };
    let message = format!(
        "the file store {} belongs to {file_job}, but this process belongs to {own_job}; the file was created {} ago \
         by {}; it is from an earlier run, or another job uses it: {REMEDY}",
        path.display(),
        format_age(now().saturating_sub(header.created_at)),
        header.created_by.display_name()
    );
    Err(Error::new(ErrorKind::Mismatch, message))
}

/// Checks that the file belongs to this run of the job, and that a further member may join.
fn check_members(path: &Path, members: &FileMembers, options: &FileOptions) -> Result<()> {
    let liveness = members.liveness(None);
    let joined = members.joined_count();
    let reason = match options.world_size.filter(|&size| size > 0) {
        None if joined > 0 && liveness.alive.is_empty() => format!(
            "it is from an earlier run, since all of its members have left or exited ({})",
            members.describe()
        ),
        None => return Ok(()),
        Some(size) => {
            if let Some(dead) = liveness.dead.first() {
                format!(
                    "{} exited without leaving it; the file is from an earlier run, or a process of this run has died",
                    dead.display_name()
                )
            } else if joined >= size {
                format!(
                    "{joined} of {size} processes have joined already ({}); the file is from an earlier run, another job \
                     uses it, or more than {size} processes were started",
                    members.describe()
                )
            } else if let Some(left) = members.first_departed().filter(|_| options.is_rendezvous) {
                return Err(aborted_start_error(path, left, size));
            } else {
                return Ok(());
            }
        }
    };
    let path = path.display();
    let message = format!("cannot join the file store {path}: {reason}; {REMEDY}");
    Err(Error::new(ErrorKind::Mismatch, message))
}

/// Builds the error for a rendezvous file whose member `departed` left before all members had
/// joined.
fn aborted_start_error(path: &Path, departed: &ProcessIdentity, size: usize) -> Error {
    let message = format!(
        "cannot join the file store {}: {} left it before all {size} processes had joined, so this start of the job \
         has failed; when all processes of the job have exited, restart the job, or {REMEDY}",
        path.display(),
        departed.display_name()
    );
    Error::new(ErrorKind::Mismatch, message)
}

/// Ends the membership of this process. Removes the file if no process needs it any more.
pub(super) fn leave(log: &Mutex<FileLog>, member: u32, is_rendezvous: bool) -> Result<()> {
    let mut log = lock::lock_exclusive(log, &Deadline::after(LEAVE_TIMEOUT))?;
    let replay = log.replay();
    let world_size = replay.header().and_then(|header| header.world_size);
    let all_have_joined =
        world_size.is_none_or(|size| u64::from(size) <= replay.members.joined_count() as u64);
    let is_last = replay.members.liveness(Some(member)).alive.is_empty();
    let removed = if is_last && (all_have_joined || is_rendezvous) && log.is_linked()? {
        match log.remove() {
            Ok(()) => return Ok(()),
            failed => failed,
        }
    } else {
        Ok(())
    };
    // Record the departure, so that a process that opens the file knows that this member is gone.
    log.append(&LogRecord::Leave { member })?;
    removed
}

/// Returns the seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Formats an age in the largest unit that fits at least once.
fn format_age(seconds: u64) -> String {
    let units = [(86_400, "day"), (3600, "hour"), (60, "minute")];
    let unit = units.into_iter().find(|(length, _)| seconds >= *length);
    let (length, name) = unit.unwrap_or((1, "second"));
    let count = seconds / length;
    format!("{count} {name}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_uses_the_largest_nonzero_unit() {
        for (seconds, text) in [
            (0, "0 seconds"),
            (1, "1 second"),
            (59, "59 seconds"),
            (60, "1 minute"),
            (7200, "2 hours"),
            (200_000, "2 days"),
        ] {
            assert_eq!(format_age(seconds), text);
        }
    }
}
