//! Tests of shrink with ranks that are threads of this process: the members of the new group, and
//! the errors of the other ranks.

use super::ShrinkOptions;
use super::attempt::{CommittedProposal, ShrinkAttempt};
use super::build::epoch_name;
use super::exchange::{LinkExchange, READY_PHASE, ready_notice};
use super::messages::ShrinkMessage;
use crate::api::group::create::{GroupOptions, MAX_NAME_BYTES};
use crate::api::group::process_group::Group;
use crate::api::membership::bootstrap::collect_phase;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::store::HashStore;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Creates a group whose ranks are threads, with the given transport.
fn thread_groups(size: usize, transport: &str) -> Vec<Arc<Group>> {
    let store = Arc::new(HashStore::new());
    std::thread::scope(|scope| {
        let make = |rank: Rank| {
            let options = GroupOptions {
                store: Arc::<HashStore>::clone(&store),
                rank,
                size,
                backend: None,
                backend_options: format!("transport={transport}"),
                device: None,
                name: "job".to_owned(),
                timeout_ms: 30_000,
                connect_timeout_ms: 30_000,
                global_ranks: None,
                job_secret: None,
            };
            scope.spawn(|| Arc::new(Group::create(options).unwrap()))
        };
        let threads: Vec<_> = (0..size).map(make).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Calls shrink on all these groups concurrently and returns their results.
fn shrink_together(groups: &[&Arc<Group>], timeout_ms: u64) -> Vec<Result<Group>> {
    let options = ShrinkOptions { timeout_ms, connect_timeout_ms: 30_000 };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            groups.iter().map(|group| scope.spawn(|| group.shrink(&options))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn ranks_and_members(groups: &[Result<Group>]) -> Vec<(Rank, Vec<Rank>)> {
    let rank_and_members = |group: &Result<Group>| {
        let group = group.as_ref().unwrap();
        (group.rank(), group.global_ranks().to_vec())
    };
    groups.iter().map(rank_and_members).collect()
}

#[test]
fn all_ranks_shrink_twice_after_an_abort() {
    for transport in ["auto", "shm", "tcp"] {
        let first = thread_groups(4, transport);
        first[2].abort("enough");
        let second = shrink_together(&first.iter().collect::<Vec<_>>(), 10_000);
        let everyone = vec![0, 1, 2, 3];
        assert_eq!(
            ranks_and_members(&second),
            (0..4).map(|rank| (rank, everyone.clone())).collect::<Vec<_>>()
        );
        let second: Vec<_> = second.into_iter().map(|group| Arc::new(group.unwrap())).collect();
        assert!(second.iter().all(|group| group.name() == "job#1" && group.failure().is_none()));
        // Shrinking a group that has not failed makes it fail.
        let third = shrink_together(&second.iter().collect::<Vec<_>>(), 10_000);
        assert!(third.iter().all(|group| group.as_ref().unwrap().name() == "job#2"));
        let failure = second[3].failure().unwrap();
        assert_eq!(failure.kind(), ErrorKind::Aborted);
        assert!(failure.message().contains("shrinks group job#1"), "{failure}");
    }
}

#[test]
fn absent_rank_is_excluded_and_gets_the_reason() {
    for transport in ["auto", "tcp"] {
        for late in 0..3 {
            let all = thread_groups(3, transport);
            all[1].abort("enough");
            let others: Vec<_> = (0..3).filter(|&rank| rank != late).collect();
            let called: Vec<_> = others.iter().map(|&rank| &all[rank]).collect();
            let groups = shrink_together(&called, 300);
            assert_eq!(ranks_and_members(&groups), [(0, others.clone()), (1, others.clone())]);
            let error = shrink_together(&[&all[late]], 10_000).remove(0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
            let expected =
                format!("rank {late} is excluded from epoch 1, which has ranks {others:?}");
            assert!(error.message().contains(&expected), "{error}");
            assert!(error.message().contains("after the group failed ("), "{error}");
        }
    }
}

#[test]
fn descendant_groups_answer_late_ranks() {
    let all = thread_groups(3, "auto");
    all[0].abort("enough");
    let groups = shrink_together(&[&all[0], &all[2]], 200);
    let groups: Vec<_> = groups.into_iter().map(|group| Arc::new(group.unwrap())).collect();
    let again = shrink_together(&groups.iter().collect::<Vec<_>>(), 10_000);
    assert_eq!(ranks_and_members(&again), [(0, vec![0, 2]), (1, vec![0, 2])]);
    drop(groups);
    let mut all = all.into_iter();
    let (_, late) = (all.next(), all.next().unwrap());
    drop(all);
    let error = late.shrink(&ShrinkOptions::default()).unwrap_err();
    assert!(error.message().contains("excluded from epoch 1"), "{error}");
    drop(again);
    // Members that have left every group in order may have continued elsewhere. A single late rank
    // does not become the job.
    let error = late.shrink(&ShrinkOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PeerFailed, "{error}");
    assert!(error.message().contains("has left the group"), "{error}");
}

#[test]
fn minority_does_not_form_a_group() {
    let all = thread_groups(5, "auto");
    all[0].abort("enough");
    for outcome in shrink_together(&[&all[1], &all[3]], 200) {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerFailed);
        for part in
            ["only ranks [1, 3] joined after the group failed (", "rank 4 (pid ", "did not call"]
        {
            assert!(error.message().contains(part), "{error}");
        }
    }
    // No rank has formed a group. So these ranks can try again together with the other ranks, which
    // call shrink first.
    let groups = std::thread::scope(|scope| {
        let rest = scope.spawn(|| shrink_together(&[&all[0], &all[2], &all[4]], 10_000));
        std::thread::sleep(Duration::from_millis(200));
        let mut groups = shrink_together(&[&all[1], &all[3]], 10_000);
        groups.extend(rest.join().unwrap());
        groups
    });
    assert_eq!(ranks_and_members(&groups).len(), 5);
}

/// Runs the coordinator up to the ready notice, and sends the notice only to the first of the other
/// members.
fn coordinate_until_ready_notice(group: &Arc<Group>) {
    let deadline = Deadline::after_ms(20_000);
    let endpoint = group.backend.peer_monitor().unwrap().survivor_endpoint();
    let session = &endpoint.open_session().unwrap();
    // This rank may not have received the abort yet.
    let failure = Error::new(ErrorKind::Aborted, "enough");
    let window = Duration::from_secs(10);
    let mut attempt = ShrinkAttempt::new(group, session, endpoint, window, deadline, &failure);
    let CommittedProposal { proposal, links } = attempt.coordinate().unwrap();
    let members = proposal.members.clone();
    let exchange = LinkExchange::new(session, &members, 0, links, &deadline);
    attempt.prepare(proposal, 0, &exchange, &deadline).unwrap();
    let list = collect_phase(&exchange, READY_PHASE, b"", &|| None).unwrap();
    let message = ready_notice(list).encode();
    exchange.links.borrow()[0].1.send(&message, &deadline).unwrap();
}

#[test]
fn member_without_ready_notice_gets_it_from_a_peer() {
    for transport in ["auto", "tcp"] {
        let mut all = thread_groups(3, transport);
        all[1].abort("enough");
        let leader = all.remove(0);
        let groups = std::thread::scope(|scope| {
            let others = scope.spawn(|| shrink_together(&[&all[0], &all[1]], 10_000));
            coordinate_until_ready_notice(&leader);
            drop(leader);
            others.join().unwrap()
        });
        assert_eq!(ranks_and_members(&groups), [(1, vec![0, 1, 2]), (2, vec![0, 1, 2])]);
    }
}

/// Acts as a rank 0 that admits the ranks in `welcomed` and then stops responding. Returns when the
/// other ranks have ended.
fn stop_after_welcome(group: &Arc<Group>, welcomed: &[Rank], ended: &Receiver<()>) {
    let session = group.backend.peer_monitor().unwrap().survivor_endpoint().open_session().unwrap();
    let deadline = Deadline::after_ms(20_000);
    let mut links = Vec::new();
    while links.len() < 3 && !deadline.has_passed() {
        session.wait([], &deadline).unwrap();
        for (rank, link) in session.take_arrivals() {
            if welcomed.contains(&rank) {
                link.send(&ShrinkMessage::Welcome.encode(), &deadline).unwrap();
            }
            links.push(link);
        }
    }
    ended.recv().unwrap_err();
}

#[test]
fn rank_ignored_by_a_dead_coordinator_is_included() {
    let welcomed: [&[Rank]; 5] = [&[1, 2], &[2], &[3], &[2, 3], &[1, 2, 3]];
    for (transport, welcomed) in
        welcomed.iter().flat_map(|&welcomed| [("auto", welcomed), ("tcp", welcomed)])
    {
        let all = thread_groups(4, transport);
        all[3].abort("enough");
        let (over, ended) = channel();
        let groups = std::thread::scope(|scope| {
            scope.spawn(|| stop_after_welcome(&all[0], welcomed, &{ ended }));
            let groups = shrink_together(&[&all[1], &all[2], &all[3]], 500);
            drop(over);
            groups
        });
        let members = vec![1, 2, 3];
        assert_eq!(
            ranks_and_members(&groups),
            (0..3).map(|rank| (rank, members.clone())).collect::<Vec<_>>()
        );
    }
}

#[test]
fn blamed_rank_is_refused_and_not_awaited() {
    let all = thread_groups(3, "auto");
    let blame = Error::new(ErrorKind::PeerFailed, "rank 0 does not respond").with_culprit(0);
    all[1].fail(&blame);
    let error = shrink_together(&[&all[0]], 10_000).remove(0).unwrap_err();
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::PeerFailed, Some(0)), "{error}");
    assert!(error.message().contains("this rank caused the failure of the group"), "{error}");
    let began = std::time::Instant::now();
    let groups = shrink_together(&[&all[1], &all[2]], 25_000);
    assert_eq!(ranks_and_members(&groups), [(0, vec![1, 2]), (1, vec![1, 2])]);
    assert!(began.elapsed().as_secs() < 20, "the shrink waited for no rank");
}

#[test]
fn blamed_rank_may_exit_late() {
    let mut all = thread_groups(2, "auto");
    let blame = Error::new(ErrorKind::PeerFailed, "rank 0 died").with_culprit(0);
    all[1].fail(&blame);
    let blamed = all.remove(0);
    let groups = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            drop(blamed);
        });
        shrink_together(&[&all[0]], 20_000)
    });
    assert_eq!(ranks_and_members(&groups), [(0, vec![1])]);
}

#[test]
fn single_rank_group_shrinks_alone() {
    let alone = thread_groups(1, "auto").remove(0);
    let next = Arc::new(alone.shrink(&ShrinkOptions::default()).unwrap());
    assert_eq!((next.name(), next.size()), ("job#1", 1));
    assert!(alone.failure().is_some() && next.failure().is_none());
    assert_eq!(next.shrink(&ShrinkOptions::default()).unwrap().name(), "job#2");
}

#[test]
fn second_concurrent_shrink_is_refused() {
    let all = thread_groups(2, "auto");
    let (ended, outcomes) = channel();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let ended = ended.clone();
            scope.spawn(|| {
                let outcome = shrink_together(&[&all[0]], 10_000).remove(0);
                drop({ ended }.send(outcome));
            });
        }
        // The other call waits for rank 1.
        let refused = outcomes.recv().unwrap().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        assert!(shrink_together(&[&all[1]], 10_000).remove(0).is_ok());
        assert!(outcomes.recv().unwrap().is_ok());
    });
}

#[test]
fn epoch_names_count_up_and_stay_within_limit() {
    assert_eq!(epoch_name("world", 0, 1), "world#1");
    assert_eq!(epoch_name("world#1", 1, 2), "world#2");
    assert_eq!(epoch_name("a#1", 0, 1), "a#1#1");
    let long = "é".repeat(MAX_NAME_BYTES / 2);
    let name = epoch_name(&long, 0, 1);
    assert!(name.len() <= MAX_NAME_BYTES && name.ends_with("é#1"), "{name}");
}
