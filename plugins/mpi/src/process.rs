//! The MPI of this process: its initialisation and finalisation, and the threads that may call it.
//!
//! If the program has not initialised MPI, the first group does, with MPI_THREAD_MULTIPLE. MPI can
//! be initialised only once in a process. So it is finalised when the process exits (`atexit`), and
//! only after a regular end: MPI_Finalize waits for the other ranks. It must not run if a group of
//! this process still exists or has failed. Then the launcher ends the job, because a rank exited
//! without MPI_Finalize. A program that initialises MPI itself also finalises it.
//!
//! Below MPI_THREAD_MULTIPLE one lock is held during each call of MPI, and never during a wait.
//! Below SERIALIZED only the thread that initialised MPI may call it.

use crate::failure::{Failure, Result};
use crate::family;
use crate::interface::{DIST_ERR_BACKEND, DIST_ERR_UNSUPPORTED};
use crate::mpi::{self, constant, mpi, sys};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The properties of MPI, known after its initialisation.
#[derive(Debug)]
pub(crate) struct Process {
    level: c_int,
    pub(crate) version: String,
    /// The maximum tag.
    pub(crate) tag_limit: c_int,
    /// True if the plug-in initialised MPI.
    pub(crate) is_own: bool,
    pub(crate) world_rank: c_int,
    pub(crate) world_size: c_int,
}

/// The number of live groups, and whether one of them failed.
static GROUPS: AtomicUsize = AtomicUsize::new(0);
static FAILED: AtomicBool = AtomicBool::new(false);

static LOCK: Mutex<()> = Mutex::new(());
static PROCESS: OnceLock<std::result::Result<Process, Failure>> = OnceLock::new();

/// The right to call MPI; released when dropped.
#[derive(Debug)]
pub(crate) struct MpiAccess {
    _lock: Option<MutexGuard<'static, ()>>,
}

/// Counts a live group, for the decision whether to finalise MPI.
#[derive(Debug)]
pub(crate) struct LiveGroupGuard(());

impl LiveGroupGuard {
    pub(crate) fn new() -> Self {
        GROUPS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for LiveGroupGuard {
    fn drop(&mut self) {
        GROUPS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Records that a group has failed: the other ranks may be unable to finalise MPI.
pub(crate) fn record_failure() {
    FAILED.store(true, Ordering::Relaxed);
}

/// Checks that the MPI in this process is of the family for which the plug-in was built.
pub(crate) fn check_family() -> Result<()> {
    match family::library_mismatch(mpi::own_family(), &mpi::library_version()?) {
        None => Ok(()),
        Some(text) => Err(Failure::new(DIST_ERR_UNSUPPORTED, text)),
    }
}

/// Returns the MPI of this process; the first call initialises MPI if necessary.
pub(crate) fn get_or_initialise() -> Result<&'static Process> {
    PROCESS.get_or_init(initialise_process).as_ref().map_err(Failure::clone)
}

/// Returns the MPI of this process if [`get_or_initialise`] has succeeded before.
#[inline]
pub(crate) fn get() -> Option<&'static Process> {
    PROCESS.get()?.as_ref().ok()
}

fn initialise_process() -> Result<Process> {
    check_family()?;
    let is_own = !is_initialised()?;
    if is_finalised()? {
        return Err(finalised_error());
    }
    if is_own {
        initialise()?;
    }
    let mut level = 0;
    mpi!(MPI_Query_thread(&raw mut level))?;
    let (mut world_rank, mut world_size) = (0, 0);
    mpi!(MPI_Comm_rank(constant!(RSMPI_COMM_WORLD), &raw mut world_rank))?;
    mpi!(MPI_Comm_size(constant!(RSMPI_COMM_WORLD), &raw mut world_size))?;
    Ok(Process {
        level,
        version: mpi::library_version()?,
        tag_limit: tag_limit()?,
        is_own,
        world_rank,
        world_size,
    })
}

fn initialise() -> Result<()> {
    let variable = |name: &str| std::env::var(name).ok();
    if let Some(reason) = family::launcher_mismatch(mpi::own_family(), &variable) {
        return Err(Failure::new(DIST_ERR_UNSUPPORTED, reason));
    }
    let mut provided = 0;
    let none = std::ptr::null_mut();
    mpi!(MPI_Init_thread(
        none,
        std::ptr::null_mut(),
        constant!(RSMPI_THREAD_MULTIPLE),
        &raw mut provided
    ))?;
    // No other code uses MPI here, and errors must be returned instead of ending the job.
    for comm in [constant!(RSMPI_COMM_WORLD), constant!(RSMPI_COMM_SELF)] {
        mpi!(MPI_Comm_set_errhandler(comm, constant!(RSMPI_ERRORS_RETURN)))?;
    }
    unsafe extern "C" {
        fn atexit(function: extern "C" fn()) -> c_int;
    }
    // SAFETY: a function of this object, which is never unloaded.
    match unsafe { atexit(finalise) } {
        0 => Ok(()),
        _ => Err(Failure::internal("atexit cannot register the function that finalises MPI")),
    }
}

/// Finalises MPI when the process exits.
extern "C" fn finalise() {
    let is_clean = GROUPS.load(Ordering::Relaxed) == 0 && !FAILED.load(Ordering::Relaxed);
    if is_clean && is_finalised().is_ok_and(|is_finalised| !is_finalised) && acquire().is_ok() {
        mpi!(MPI_Finalize()).ok();
    }
}

fn is_initialised() -> Result<bool> {
    let mut flag = 0;
    mpi!(MPI_Initialized(&raw mut flag))?;
    Ok(flag != 0)
}

pub(crate) fn is_finalised() -> Result<bool> {
    let mut flag = 0;
    mpi!(MPI_Finalized(&raw mut flag))?;
    Ok(flag != 0)
}

fn finalised_error() -> Failure {
    Failure::new(
        DIST_ERR_BACKEND,
        "MPI has been finalised in this process, and cannot be used again",
    )
}

fn tag_limit() -> Result<c_int> {
    let mut value: *mut c_int = std::ptr::null_mut();
    let mut found = 0;
    let key = sys::MPI_TAG_UB.cast_signed();
    let world = constant!(RSMPI_COMM_WORLD);
    mpi!(MPI_Comm_get_attr(world, key, (&raw mut value).cast(), &raw mut found))?;
    if found == 0 || value.is_null() {
        return Err(Failure::new(DIST_ERR_BACKEND, "MPI does not report its maximum tag"));
    }
    // SAFETY: the value of the attribute, which stays at its address.
    Ok(unsafe { *value })
}

impl Process {
    /// Returns MPI's name of the thread level.
    pub(crate) fn level_name(&self) -> &'static str {
        if self.level >= constant!(RSMPI_THREAD_MULTIPLE) {
            "MPI_THREAD_MULTIPLE"
        } else if self.level >= constant!(RSMPI_THREAD_SERIALIZED) {
            "MPI_THREAD_SERIALIZED"
        } else if self.level >= constant!(RSMPI_THREAD_FUNNELED) {
            "MPI_THREAD_FUNNELED"
        } else {
            "MPI_THREAD_SINGLE"
        }
    }

    /// Returns true if this thread may call MPI.
    pub(crate) fn allows_thread(&self) -> bool {
        if self.level >= constant!(RSMPI_THREAD_SERIALIZED) {
            return true;
        }
        let mut is_main = 0;
        mpi!(MPI_Is_thread_main(&raw mut is_main)).is_ok() && is_main != 0
    }

    /// Returns the error for a thread that may not call MPI.
    fn thread_error(&self) -> Failure {
        Failure::new(
            DIST_ERR_UNSUPPORTED,
            format!(
                "MPI was initialised with {}, which allows calls only on the thread that \
                 initialised it: make the call there, without a work, or initialise MPI with \
                 MPI_THREAD_SERIALIZED or more",
                self.level_name()
            ),
        )
    }
}

/// Returns true if any thread may call MPI at any time, so that no lock is necessary.
#[inline]
pub(crate) fn allows_any_thread() -> bool {
    get().is_some_and(|process| process.level >= constant!(RSMPI_THREAD_MULTIPLE))
}

/// Acquires the right to call MPI; takes the lock if the thread level requires it.
#[inline]
pub(crate) fn acquire() -> Result<MpiAccess> {
    if allows_any_thread() { Ok(MpiAccess { _lock: None }) } else { acquire_locked() }
}

#[cold]
fn acquire_locked() -> Result<MpiAccess> {
    let Some(process) = get() else { return Err(finalised_error()) };
    if !process.allows_thread() {
        return Err(process.thread_error());
    }
    Ok(MpiAccess { _lock: Some(LOCK.lock().unwrap_or_else(PoisonError::into_inner)) })
}
