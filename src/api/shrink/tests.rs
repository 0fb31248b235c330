//! Ranks that are threads of this process: who comes to the new group, and what the others are
//! told.

use super::exchange::{LinkExchange, SEAL};
use super::quiet::Quiet;
use super::survey::Survey;
use super::words::Word;
use super::{Agreed, Effort, ShrinkOptions, name_of};
use crate::api::group::{Group, GroupOptions, LONGEST_NAME};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::store::HashStore;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A group of threads; each rank is one of `transport`'s.
fn groups(size: usize, transport: &str) -> Vec<Arc<Group>> {
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
            };
            scope.spawn(|| Arc::new(Group::create(options).unwrap()))
        };
        let threads: Vec<_> = (0..size).map(make).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What each of these gets that call it together.
fn shrink(groups: &[&Arc<Group>], timeout_ms: u64) -> Vec<Result<Group>> {
    let options = ShrinkOptions { timeout_ms, connect_timeout_ms: 30_000 };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            groups.iter().map(|group| scope.spawn(|| group.shrink(&options))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn ranks(groups: &[Result<Group>]) -> Vec<(Rank, Vec<Rank>)> {
    let of = |group: &Result<Group>| {
        let group = group.as_ref().unwrap();
        (group.rank(), group.global_ranks().to_vec())
    };
    groups.iter().map(of).collect()
}

#[test]
fn all_come_again_after_an_abort_and_again_after_that() {
    for transport in ["auto", "shm", "tcp"] {
        let first = groups(4, transport);
        first[2].abort("enough");
        let second = shrink(&first.iter().collect::<Vec<_>>(), 10_000);
        let everyone = vec![0, 1, 2, 3];
        assert_eq!(ranks(&second), (0..4).map(|rank| (rank, everyone.clone())).collect::<Vec<_>>());
        let second: Vec<_> = second.into_iter().map(|group| Arc::new(group.unwrap())).collect();
        assert!(second.iter().all(|group| group.name() == "job#1" && group.failure().is_none()));
        // One that has not failed is failed by it.
        let third = shrink(&second.iter().collect::<Vec<_>>(), 10_000);
        assert!(third.iter().all(|group| group.as_ref().unwrap().name() == "job#2"));
        let failure = second[3].failure().unwrap();
        assert_eq!(failure.kind(), ErrorKind::Aborted);
        assert!(failure.message().contains("shrinks group job#1"), "{failure}");
    }
}

#[test]
fn who_does_not_call_is_excluded_and_told_so_when_it_does() {
    for transport in ["auto", "tcp"] {
        for late in 0..3 {
            let all = groups(3, transport);
            all[1].abort("enough");
            let others: Vec<_> = (0..3).filter(|&rank| rank != late).collect();
            let called: Vec<_> = others.iter().map(|&rank| &all[rank]).collect();
            let made = shrink(&called, 300);
            assert_eq!(ranks(&made), [(0, others.clone()), (1, others.clone())]);
            let error = shrink(&[&all[late]], 10_000).remove(0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
            let said = format!("rank {late} is excluded from epoch 1, which is ranks {others:?}");
            assert!(error.message().contains(&said), "{error}");
            assert!(error.message().contains("after the group had failed ("), "{error}");
        }
    }
}

#[test]
fn late_ranks_are_told_by_descendants_too() {
    let all = groups(3, "auto");
    all[0].abort("enough");
    let made = shrink(&[&all[0], &all[2]], 200);
    let made: Vec<_> = made.into_iter().map(|group| Arc::new(group.unwrap())).collect();
    let again = shrink(&made.iter().collect::<Vec<_>>(), 10_000);
    assert_eq!(ranks(&again), [(0, vec![0, 2]), (1, vec![0, 2])]);
    drop(made);
    let mut all = all.into_iter();
    let (_, late) = (all.next(), all.next().unwrap());
    drop(all);
    let error = late.shrink(&ShrinkOptions::default()).unwrap_err();
    assert!(error.message().contains("excluded from epoch 1"), "{error}");
    drop(again);
    // Those that have left all of it in order may have gone on; it does not become the job by
    // itself.
    let error = late.shrink(&ShrinkOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PeerFailed, "{error}");
    assert!(error.message().contains("has left the group"), "{error}");
}

#[test]
fn a_minority_does_not_go_on() {
    let all = groups(5, "auto");
    all[0].abort("enough");
    for outcome in shrink(&[&all[1], &all[3]], 200) {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerFailed);
        for part in [
            "only ranks [1, 3] have come after the group had failed (",
            "rank 4 (pid ",
            "did not call",
        ] {
            assert!(error.message().contains(part), "{error}");
        }
    }
    // They can try again with the rest, who are there before them; nobody has gone on.
    let made = std::thread::scope(|scope| {
        let rest = scope.spawn(|| shrink(&[&all[0], &all[2], &all[4]], 10_000));
        std::thread::sleep(Duration::from_millis(200));
        let mut made = shrink(&[&all[1], &all[3]], 10_000);
        made.extend(rest.join().unwrap());
        made
    });
    assert_eq!(ranks(&made).len(), 5);
}

/// What the leader does up to its last word, which only the first of the others hears.
fn lead_until_the_last_word(group: &Arc<Group>) {
    let deadline = Deadline::after_ms(20_000);
    let port = group.backend.port().unwrap();
    let session = &port.open().unwrap();
    // It may not have heard of the abort yet.
    let survey = Survey::new(3, &Error::new(ErrorKind::Aborted, "enough"));
    let window = Duration::from_secs(10);
    let (quiet, ready) = (Quiet::default(), None);
    let mut effort = Effort { group, session, port, window, deadline, survey, quiet, ready };
    let Agreed { proposal, links } = effort.lead().unwrap();
    let members = proposal.members.clone();
    let exchange = LinkExchange::new(session, &members, 0, links, &deadline);
    effort.prepare(proposal, 0, &exchange, &deadline).unwrap();
    let list = exchange.collect(SEAL, b"", &|| None).unwrap();
    let word = Word::All { phase: SEAL.to_owned(), list }.encode();
    exchange.links.borrow()[0].1.send(&word, &deadline).unwrap();
}

#[test]
fn a_member_that_misses_the_last_word_hears_of_it_from_another() {
    for transport in ["auto", "tcp"] {
        let mut all = groups(3, transport);
        all[1].abort("enough");
        let leader = all.remove(0);
        let made = std::thread::scope(|scope| {
            let others = scope.spawn(|| shrink(&[&all[0], &all[1]], 10_000));
            lead_until_the_last_word(&leader);
            drop(leader);
            others.join().unwrap()
        });
        assert_eq!(ranks(&made), [(1, vec![0, 1, 2]), (2, vec![0, 1, 2])]);
    }
}

/// Rank 0 as one that is stopped once it has welcomed these, until the others have ended.
fn fall_silent_after_welcoming(group: &Arc<Group>, welcomed: &[Rank], ended: &Receiver<()>) {
    let session = group.backend.port().unwrap().open().unwrap();
    let deadline = Deadline::after_ms(20_000);
    let mut links = Vec::new();
    while links.len() < 3 && !deadline.has_passed() {
        session.wait([], &deadline).unwrap();
        for (rank, link) in session.arrivals() {
            if welcomed.contains(&rank) {
                link.send(&Word::Welcome.encode(), &deadline).unwrap();
            }
            links.push(link);
        }
    }
    ended.recv().unwrap_err();
}

#[test]
fn one_that_a_leader_did_not_answer_is_not_forgotten_by_those_whom_it_did() {
    for transport in ["auto", "tcp"] {
        let all = groups(4, transport);
        all[3].abort("enough");
        let (over, ended) = channel();
        let made = std::thread::scope(|scope| {
            scope.spawn(|| fall_silent_after_welcoming(&all[0], &[1, 2], &{ ended }));
            let made = shrink(&[&all[1], &all[2], &all[3]], 500);
            drop(over);
            made
        });
        let members = vec![1, 2, 3];
        assert_eq!(ranks(&made), (0..3).map(|rank| (rank, members.clone())).collect::<Vec<_>>());
    }
}

#[test]
fn a_rank_that_is_blamed_learns_it_at_once_and_is_not_waited_for() {
    let all = groups(3, "auto");
    let blame = Error::new(ErrorKind::PeerFailed, "rank 0 does not respond").with_culprit(0);
    all[1].fail(&blame);
    let error = shrink(&[&all[0]], 10_000).remove(0).unwrap_err();
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::PeerFailed, Some(0)), "{error}");
    assert!(error.message().contains("because of this very rank"), "{error}");
    let began = std::time::Instant::now();
    let made = shrink(&[&all[1], &all[2]], 25_000);
    assert_eq!(ranks(&made), [(0, vec![1, 2]), (1, vec![1, 2])]);
    assert!(began.elapsed().as_secs() < 20, "nobody had to be waited for");
}

#[test]
fn one_that_is_blamed_may_take_a_moment_to_be_gone() {
    let mut all = groups(2, "auto");
    let blame = Error::new(ErrorKind::PeerFailed, "rank 0 died").with_culprit(0);
    all[1].fail(&blame);
    let blamed = all.remove(0);
    let made = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            drop(blamed);
        });
        shrink(&[&all[0]], 20_000)
    });
    assert_eq!(ranks(&made), [(0, vec![1])]);
}

#[test]
fn one_rank_alone_goes_on_alone() {
    let alone = groups(1, "auto").remove(0);
    let next = Arc::new(alone.shrink(&ShrinkOptions::default()).unwrap());
    assert_eq!((next.name(), next.size()), ("job#1", 1));
    assert!(alone.failure().is_some() && next.failure().is_none());
    assert_eq!(next.shrink(&ShrinkOptions::default()).unwrap().name(), "job#2");
}

#[test]
fn only_one_thread_shrinks_a_group() {
    let all = groups(2, "auto");
    let (ended, outcomes) = channel();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let ended = ended.clone();
            scope.spawn(|| {
                let outcome = shrink(&[&all[0]], 10_000).remove(0);
                drop({ ended }.send(outcome));
            });
        }
        // The other one waits for rank 1.
        let refused = outcomes.recv().unwrap().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        assert!(shrink(&[&all[1]], 10_000).remove(0).is_ok());
        assert!(outcomes.recv().unwrap().is_ok());
    });
}

#[test]
fn names_count_epochs_and_stay_within_bounds() {
    assert_eq!(name_of("world", 0, 1), "world#1");
    assert_eq!(name_of("world#1", 1, 2), "world#2");
    assert_eq!(name_of("a#1", 0, 1), "a#1#1");
    let long = "é".repeat(LONGEST_NAME / 2);
    let name = name_of(&long, 0, 1);
    assert!(name.len() <= LONGEST_NAME && name.ends_with("é#1"), "{name}");
}
