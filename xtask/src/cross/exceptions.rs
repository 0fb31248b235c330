//! The tests that the emulator cannot run. Each of them fails because of a limit of the emulator.
//! A check in `ffi-tests/cross/emulator_limits.c` proves each limit.

use super::part::CrossPart;

/// A feature of Linux that the emulator does not have or has differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EmulatorLimit {
    WipeOnFork,
    ExtraThread,
    StartTime,
    ProcessMemory,
}

impl EmulatorLimit {
    pub(super) const ALL: [Self; 4] =
        [Self::WipeOnFork, Self::ExtraThread, Self::StartTime, Self::ProcessMemory];

    /// Returns the name of the check in `ffi-tests/cross/emulator_limits.c`.
    pub(super) fn check(self) -> &'static str {
        match self {
            Self::WipeOnFork => "wipe_on_fork",
            Self::ExtraThread => "single_thread",
            Self::StartTime => "same_start_time",
            Self::ProcessMemory => "process_memory",
        }
    }

    /// Describes the limit, and its effect on the library.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::WipeOnFork => {
                "The emulator ignores `MADV_WIPEONFORK`, by which the library recognises a forked \
                 child."
            }
            Self::ExtraThread => {
                "The emulator has a thread of its own in each process, and `dist_spawn` refuses to \
                 fork a process with several threads."
            }
            Self::StartTime => {
                "The emulator shows a process another start time in its `/proc/PID/stat` than other \
                 processes see. The file store thus believes that its members have died."
            }
            Self::ProcessMemory => {
                "The emulator has no `process_vm_readv`. The library copies through shared memory \
                 instead, so `access_lost` and `attach_denied` test only that path."
            }
        }
    }
}

/// A test that the emulator cannot run.
#[derive(Clone, Copy, Debug)]
pub(super) struct CrossException {
    pub(super) part: CrossPart,
    /// The name of the test or program.
    pub(super) test: &'static str,
    pub(super) limit: EmulatorLimit,
}

const fn exception(part: CrossPart, test: &'static str, limit: EmulatorLimit) -> CrossException {
    CrossException { part, test, limit }
}

/// All tests that the emulator cannot run. The command fails if one of them passes or does not
/// exist.
pub(super) const EXCEPTIONS: &[CrossException] = &[
    exception(CrossPart::Programs, "api_fork", EmulatorLimit::WipeOnFork),
    exception(CrossPart::Programs, "api_null", EmulatorLimit::ExtraThread),
    exception(CrossPart::Programs, "call_mismatch", EmulatorLimit::StartTime),
    exception(CrossPart::Programs, "closed_streams", EmulatorLimit::ExtraThread),
    exception(CrossPart::Programs, "deadlock", EmulatorLimit::StartTime),
    exception(CrossPart::Programs, "deadlock_calls", EmulatorLimit::StartTime),
    exception(CrossPart::Programs, "labels", EmulatorLimit::StartTime),
    exception(CrossPart::Programs, "memory", EmulatorLimit::ExtraThread),
    exception(CrossPart::Programs, "spawn", EmulatorLimit::ExtraThread),
    exception(CrossPart::Programs, "timeouts", EmulatorLimit::ExtraThread),
];

/// Returns the exceptions of a part.
pub(super) fn exceptions_of(part: CrossPart) -> impl Iterator<Item = &'static CrossException> {
    EXCEPTIONS.iter().filter(move |exception| exception.part == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_are_unique() {
        for (index, exception) in EXCEPTIONS.iter().enumerate() {
            let is_same = |other: &CrossException| {
                other.part == exception.part && other.test == exception.test
            };
            assert!(!EXCEPTIONS[..index].iter().any(is_same), "{exception:?}");
        }
    }
}
