//! Reading memory that another rank of the domain has told about, in its process.
//!
//! What is read counts only if the caller's protocol says that the rank had not taken it back.

use super::SharedDomain;
use crate::base::buffer::Dst;
use crate::base::error::{Error, Result};
use crate::base::ids::{Nonce, Rank};
use crate::sys;

/// How much is read at once: between two reads a failure is noticed.
const READ_BYTES: usize = 1 << 20;

/// Fills `into` with what lies at `address` in the process of a rank.
///
/// # Errors
/// Why the domain has failed; `System` where the memory cannot be read.
pub fn read(domain: &dyn SharedDomain, rank: Rank, address: u64, into: Dst<'_>) -> Result<()> {
    let peer = domain.peer(rank);
    let mut done = 0;
    while done < into.len() {
        if let Some(error) = domain.failure() {
            return Err(error);
        }
        let part = into.slice(done, (into.len() - done).min(READ_BYTES));
        let refused = |cause: &std::io::Error| {
            let what = "reading its memory (process_vm_readv; DIST_ATTACH=0 does without)";
            Error::system(format_args!("{peer}: {what}"), cause)
        };
        match sys::attach::read(peer.pid, address + done as u64, part).map_err(|e| refused(&e))? {
            0 => return Err(refused(&std::io::ErrorKind::UnexpectedEof.into())),
            more => done += more,
        }
    }
    Ok(())
}

/// Whether the process with this id, as this one sees ids, has `mark` at `address`, and may be read.
pub fn recognises(pid: u32, address: u64, mark: &Nonce) -> bool {
    let mut found = Nonce::default();
    let into = Dst::from(&mut found.0[..]);
    let len = into.len();
    sys::attach::read(pid, address, into).is_ok_and(|got| got == len) && found == *mark
}
