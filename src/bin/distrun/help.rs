//! The text of `distrun --help` after the options: the environment of ranks, output, and failures.

/// The usage line.
pub(crate) const USAGE: &str = "distrun [OPTIONS] PROGRAM [ARGS]...";

/// The help text after the options.
pub(crate) const HELP: &str = "\
Rank numbers:
  Node R starts ranks R*N to R*N+N-1, where N is --nproc-per-node, the same on every node.

Environment of each rank (all else is inherited):
  RANK, WORLD_SIZE              number of this rank, and of all ranks
  LOCAL_RANK, LOCAL_WORLD_SIZE  the same within this node
  GROUP_RANK, GROUP_WORLD_SIZE  number of this node, and of all nodes
  ROLE_NAME, ROLE_RANK, ROLE_WORLD_SIZE
                                --role or \"default\", RANK, WORLD_SIZE
  MASTER_ADDR, MASTER_PORT      where the job's store listens
  TORCHELASTIC_USE_AGENT_STORE  True: the launcher of node 0 hosts the store, rank 0 joins it
                                like any other rank, and any rank may die without taking it along
  TORCHELASTIC_RUN_ID           the job's id: --rdzv-id, else a new one (\"none\" for several nodes)
  TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_MAX_RESTARTS
                                how often the ranks have been started again, and --max-restarts
  TORCHELASTIC_ERROR_FILE       where a rank writes why it fails; libdist does by itself
  DIST_STORE_SECRET_FD, DIST_STORE_SECRET_FILE
                                where the job's secret is, if there is one: an inherited descriptor,
                                or --secret-file
  OMP_NUM_THREADS               1, if there are several ranks on this node and it was not set

Secret:
  Who cannot prove to know the job's secret is turned away by its store; libdist's programs find the
  secret by themselves. A job of one node gets a new one. A job of several has none, unless each
  node names a file with the same content: --secret-file PATH, or DIST_STORE_SECRET_FILE=PATH.
  PyTorch's own client knows nothing of secrets: ranks that use it need --no-secret.

Output:
  Each line of a rank is passed on with its rank before it: \"[3] loss 0.25\". Lines are never torn;
  one of more than 64 KiB is passed on in pieces. What ranks write to standard output and standard
  error goes to the same of distrun. If either is closed, what is written to it is dropped and the
  job goes on. The ranks' standard input is /dev/null.
  Ranks write to a pipe, not to a terminal; many programs then keep their output back for a while,
  and lose it when killed. For Python, PYTHONUNBUFFERED=1 prevents that.
  --log-dir DIR writes DIR/RANK/stdout.log and DIR/RANK/stderr.log, without the prefix. What
  goes there is told by SPEC: 0 none, 1 standard output, 2 standard error, 3 both; or one such
  number per local rank, \"0:1,1:3\" (none for those not named). --tee writes both to the file and
  on; --redirects to the file only. With neither, everything is both written and passed on.
  With --max-restarts each attempt has a folder of its own: DIR/attempt_K/RANK/stdout.log, K from 0.
  --local-ranks-filter only says whose output is passed on.

Failure:
  The first rank to end with a status other than 0, or by a signal, ends the job: the others get
  SIGTERM, and SIGKILL a second later. A report on standard error names that rank, when and how it
  ended, its error and what it wrote last, and the others in a line each; distrun's exit status is
  that of the rank, or 128 and the signal's number. A rank that fails because another one has failed
  says so in its error file, and the other one is named first. Error files are RANK/error.json in
  the log folder, or else in a folder of distrun's own in TMPDIR, which it removes.
  With --on-failure=continue, the job goes on while at least --min-ranks ranks of this node have not
  failed (1 by default): for programs that shrink their group and continue. Each loss is reported at
  once. If the rest succeeds, a report names the lost ranks, and the exit status is 0. If too many
  fail, the job ends as without the option.
  With --max-restarts N, all ranks are started again once all have ended, N times at most, with the
  next TORCHELASTIC_RESTART_COUNT. Each attempt has a new store, at the same port if one was given:
  nothing that an earlier one has left is in it. The exit status is that of the last attempt. Jobs
  of several nodes are not restarted.
  SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to all ranks; what is left after 10 seconds, or
  when a second one comes, is killed. The exit status then is 128 and the signal's number.
  If distrun itself is killed, all ranks and what they have started are killed too.
  Other exit statuses: 2 wrong usage, 126 program cannot be executed, 127 program not found, 1 any
  other failure of distrun itself, for instance that the store's port is in use.

Examples:
  Four ranks on this host:
    distrun --nproc-per-node 4 ./train --epochs 10
  One rank for each core, with a log for each:
    distrun --nproc-per-node cpu --log-dir logs --redirects 3 ./train
  Two hosts with eight ranks each (on the second: --node-rank 1):
    distrun --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --nproc-per-node 8 ./train
  The same with a secret (on one host, then copied to the other by a safe way):
    (umask 077; head -c 32 /dev/urandom | base64 >job.secret)
    distrun --secret-file job.secret --nnodes 2 --node-rank 0 ...
  Eight ranks, of which up to six may die:
    distrun --nproc-per-node 8 --on-failure continue --min-ranks 2 ./survive
  A Python program, started again twice if a rank fails:
    distrun --nproc-per-node 2 --max-restarts 2 python3 train.py
  The same for a program that wants --local-rank, as from torch.distributed.launch:
    distrun --nproc-per-node 2 --use-env=false python3 train.py";
