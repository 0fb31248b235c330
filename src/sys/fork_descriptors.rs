//! Descriptors that a forked child must not keep open: sockets by whose end other processes detect
//! the death of this process. A forked child has a copy of each descriptor of its parent, so such a
//! socket would stay open for as long as the child lives.
//!
//! A [`ForkClosed`] entry lists one descriptor. After a fork, a handler in the child replaces each
//! listed descriptor by an empty one (an eventfd), which keeps the number in use. The child's copy
//! of the object that owns the number may thus close it later, like any other descriptor. The
//! handler uses only calls that are async-signal-safe.
//!
//! The handler does not run for children that another function than `fork` creates: a `vfork` is
//! followed by an exec, which closes the descriptors, and a direct `clone` system call keeps them.
//! A child that is forked between the creation of a descriptor and its listing also keeps a copy.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

const ENTRIES_PER_BLOCK: usize = 64;

/// The number in an unused entry.
const UNUSED: RawFd = -1;

/// A block of the list of descriptors. Blocks are never freed, so that the handler can read the
/// list without a lock.
struct DescriptorBlock {
    entries: [AtomicI32; ENTRIES_PER_BLOCK],
    next: AtomicPtr<Self>,
}

static FIRST_BLOCK: DescriptorBlock = DescriptorBlock::new();

static INSTALL_HANDLER: Once = Once::new();

/// The entry of one descriptor. Dropping it removes the entry; drop it before the descriptor is
/// closed.
#[derive(Debug)]
pub struct ForkClosed {
    entry: &'static AtomicI32,
}

impl ForkClosed {
    /// Lists a descriptor, which stays open for as long as the entry exists.
    pub fn list(descriptor: BorrowedFd<'_>) -> Self {
        INSTALL_HANDLER.call_once(|| {
            // SAFETY: the handler is a function of this library, which is never unloaded. A failure
            // (no memory) leaves forked children with copies of the descriptors.
            unsafe { libc::pthread_atfork(None, None, Some(replace_descriptors)) };
        });
        let fd = descriptor.as_raw_fd();
        let mut block = &FIRST_BLOCK;
        loop {
            if let Some(entry) = block.claim(fd) {
                return Self { entry };
            }
            block = block.next_or_new();
        }
    }
}

impl Drop for ForkClosed {
    fn drop(&mut self) {
        self.entry.store(UNUSED, Ordering::Release);
    }
}

impl DescriptorBlock {
    const fn new() -> Self {
        Self {
            entries: [const { AtomicI32::new(UNUSED) }; ENTRIES_PER_BLOCK],
            next: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    fn claim(&'static self, fd: RawFd) -> Option<&'static AtomicI32> {
        let claim = |entry: &&AtomicI32| {
            entry.load(Ordering::Relaxed) == UNUSED
                && entry.compare_exchange(UNUSED, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        self.entries.iter().find(claim)
    }

    fn next(&self) -> Option<&'static Self> {
        let next = self.next.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or it comes from a box that is never freed.
        unsafe { next.as_ref() }
    }

    fn next_or_new(&self) -> &'static Self {
        if let Some(next) = self.next() {
            return next;
        }
        let new = Box::into_raw(Box::new(Self::new()));
        let null = std::ptr::null_mut();
        match self.next.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: the block is in the list now, and is never freed.
            Ok(_) => unsafe { &*new },
            Err(other) => {
                // SAFETY: no other thread has seen the pointer.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: another thread has put this block into the list; it is never freed.
                unsafe { &*other }
            }
        }
    }
}

/// Runs in a forked child before `fork` returns there. Its only thread is the one that forked.
extern "C" fn replace_descriptors() {
    let mut empty = UNUSED;
    let mut block = Some(&FIRST_BLOCK);
    while let Some(present) = block {
        for entry in &present.entries {
            let fd = entry.swap(UNUSED, Ordering::Relaxed);
            if fd != UNUSED {
                replace(fd, &mut empty);
            }
        }
        block = present.next();
    }
    if empty != UNUSED {
        // SAFETY: the number belongs to the eventfd that `replace` created.
        unsafe { libc::close(empty) };
    }
}

/// Replaces one descriptor by a copy of the empty descriptor, which the first call creates.
fn replace(fd: RawFd, empty: &mut RawFd) {
    if *empty == UNUSED {
        *empty = new_empty_descriptor();
    }
    if *empty == UNUSED {
        // No number is free. The number that this call frees is then the only free one, so the new
        // descriptor gets it.
        // SAFETY: the descriptor is listed, so it is open; its owner in this child never reads from
        // it, because the thread that did so does not exist here.
        unsafe { libc::close(fd) };
        new_empty_descriptor();
        return;
    }
    // SAFETY: as above; the call closes the old descriptor and puts the new one in its place.
    unsafe { libc::dup3(*empty, fd, libc::O_CLOEXEC) };
}

fn new_empty_descriptor() -> RawFd {
    // SAFETY: the call creates a new descriptor and touches no memory.
    unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use crate::sys::poll::{self, Interest};
    use crate::sys::unix;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    /// Returns true if the peer of a socket is closed everywhere before the deadline passes.
    fn ends_within(stream: &UnixStream, deadline: &Deadline) -> bool {
        poll::wait_ready(stream.as_fd(), Interest::READ, deadline).unwrap()
    }

    #[test]
    fn forked_child_keeps_only_unlisted_descriptors() {
        let pairs: Vec<_> = (0..2 * ENTRIES_PER_BLOCK).map(|_| unix::pair().unwrap()).collect();
        let (kept, own_end) = unix::pair().unwrap();
        let (local, remote): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let entries: Vec<_> = local.iter().map(|it| ForkClosed::list(it.as_fd())).collect();
        // SAFETY: the child makes only async-signal-safe calls.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            loop {
                // SAFETY: the call takes no arguments; a signal ends the child.
                unsafe { libc::pause() };
            }
        }
        drop((entries, local, own_end));
        // The child runs the handler at any time after `fork` has returned here.
        let limit = Deadline::after_ms(10_000);
        let ended = remote.iter().all(|it| ends_within(it, &limit));
        let is_kept = !ends_within(&kept, &Deadline::after_ms(0));
        // SAFETY: the child has not been reaped, so the number is its own.
        unsafe { libc::kill(child, libc::SIGKILL) };
        // SAFETY: a null status pointer is allowed.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        assert!(ended, "the child kept a listed descriptor");
        assert!(is_kept, "the child did not keep an unlisted descriptor");
    }

    #[test]
    fn removed_entry_is_used_again() {
        let (a, _b) = unix::pair().unwrap();
        for _ in 0..4 * ENTRIES_PER_BLOCK {
            drop(ForkClosed::list(a.as_fd()));
        }
        let blocks = std::iter::successors(Some(&FIRST_BLOCK), |block| block.next()).count();
        assert!(blocks <= 4, "{blocks}");
    }
}
