//! The trial of whether the ranks of a host can share memory, before they set up a segment. Two
//! processes with the same host identity may still be unable to share memory. For example,
//! containers may have separate network name spaces, in which Unix sockets have separate names. A
//! security profile may forbid a system call.

use super::ShmMember;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::neighbour::{NeighbourMember, ProcessAddress};
use std::sync::Arc;

/// Makes the links to the processes of other ranks to which this process makes the link. Returns
/// the ranks that it cannot reach, with the reasons. The setup of the segment uses the links.
///
/// # Errors
/// `Auth` if another user has the name of a process, `Timeout`.
pub fn try_links(
    member: &Arc<NeighbourMember>,
    others: &[(Rank, ShmMember)],
    deadline: &Deadline,
) -> Result<Vec<(Rank, Error)>> {
    let mut failures = Vec::new();
    for (rank, other) in others {
        let made = match ProcessAddress::registry(&other.socket) {
            None => Err(Error::new(ErrorKind::Connection, "its address is malformed")),
            Some(process) if member.is_own_process(process) => Ok(()),
            Some(process) if member.connects_to(process) => {
                member.connect(process, deadline).map(drop)
            }
            Some(_) => Ok(()),
        };
        match made {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::Connection | ErrorKind::System) => {
                failures.push((*rank, error));
            }
            Err(error) => return Err(error.with_culprit(*rank)),
        }
    }
    Ok(failures)
}

/// Returns a rank whose link existed and has ended, so its process has ended or left.
pub fn find_lost_link(member: &Arc<NeighbourMember>, others: &[(Rank, ShmMember)]) -> Option<Rank> {
    let has_ended = |other: &ShmMember| {
        ProcessAddress::registry(&other.socket).is_some_and(|process| {
            member.find_link(process).is_none() && member.ended_pid(process).is_some()
        })
    };
    others.iter().find(|(_, other)| has_ended(other)).map(|&(rank, _)| rank)
}
