//! Connections to a rank from processes outside of the group have no effect on the job, at any
//! time.

use super::{assert_all_succeeded, block_placement, names, start_ranks};
use crate::harness::TestJob;
use crate::hosts::{Hosts, ONE_NETWORK};

#[test]
fn garbage_connections_do_not_disturb_a_job() {
    let Some(hosts) = Hosts::try_new_or_skip(2, ONE_NETWORK) else { return };
    let rank_hosts = block_placement(&hosts, &[1, 1]);
    let names = names(rank_hosts.len());
    let port = 23000;
    let knock =
        |host, bytes, times| format!("knock {}:{port} {bytes} {times}\n", hosts.ipv4(host, 0));
    // The first connections arrive as soon as a rank listens, during the rendezvous of the ranks.
    let stranger = [
        knock(0, 1000, 20),
        knock(0, 0, 20),
        knock(1, 1, 5),
        knock(0, 1_000_000, 5),
        "gate end\n".to_owned(),
    ];
    let mut job = TestJob::new();
    let rank_host = [hosts.host(1)];
    job.start_on_host(&rank_host[0], "stranger", &[], &stranger.concat());
    job.await_report("stranger", "start");
    let program = "init\nall_reduce f32 SUM 1000\ngate knocked\nall_reduce f32 SUM 300000\n\
                   send 70000 PEER 1 async=yes\nrecv 70000 PEER 1\nsettle\nfinalize\nleaks\n";
    let program = |rank: usize| program.replace("PEER", &(1 - rank).to_string());
    let variables = |_| vec![("DIST_PORT_RANGE", port.to_string())];
    start_ranks(&mut job, &rank_hosts, &hosts.ipv4(0, 0), variables, program);
    job.await_report("stranger", "at end");
    job.await_reports(&names, "at knocked");
    job.open_gate("knocked");
    job.await_reports(&names, "leaks");
    job.open_gate("end");
    let ended = job.finish();
    assert_all_succeeded(&ended, rank_hosts.len(), &program(0));
    ended.assert_all_succeeded("stranger", stranger.len() + 2);
}
