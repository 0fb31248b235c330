//! The text of `distrun --help` after the options: the environment of ranks, output, and failures.

/// The usage line.
pub(crate) const USAGE: &str = "distrun [OPTIONS] PROGRAM [ARGS]...";

/// The help text after the options.
pub(crate) const HELP: &str = "\
Rank numbers:
  Node R starts ranks R*N to R*N+N-1, where N is --nproc-per-node, the same on every node.

Environment of each rank (all other variables are inherited):
  RANK, WORLD_SIZE              number of this rank, and of all ranks
  LOCAL_RANK, LOCAL_WORLD_SIZE  the same within this node
  GROUP_RANK, GROUP_WORLD_SIZE  number of this node, and of all nodes
  ROLE_NAME, ROLE_RANK, ROLE_WORLD_SIZE
                                --role or \"default\", RANK, WORLD_SIZE
  MASTER_ADDR, MASTER_PORT      address and port of the job's store
  TORCHELASTIC_USE_AGENT_STORE  True: the launcher of node 0 hosts the store. Rank 0 joins it like
                                any other rank, and the store survives the death of any rank
  TORCHELASTIC_RUN_ID           the job's id: --rdzv-id, else random (\"none\" for several nodes)
  TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_MAX_RESTARTS
                                the number of restarts so far, and --max-restarts
  TORCHELASTIC_ERROR_FILE       the file for the error of a rank; libdist writes it automatically
  DIST_STORE_SECRET_FD, DIST_STORE_SECRET_FILE
                                location of the job's secret, if the job has one: an inherited
                                descriptor, or --secret-file
  DIST_STORE_HAS_SECRET         1 with --secret-file: the job's store has the secret
  DIST_LOG_LEVEL                WARN, unless a variable sets the log level or the debug level: a
                                rank that waits for 30 s prints for which rank
  DIST_FLIGHT_RECORDER_FILE     the ranks' dumps, which they write when a group fails, unless the
                                user has set a variable for them
  OMP_NUM_THREADS               1, if this node has several ranks and the variable is not set

Secret:
  The job's store rejects each client that does not prove that it has the job's secret. libdist's
  programs find the secret automatically. distrun generates the secret of a job of one node. For a
  job of several nodes, each node must name a file with the same content: --secret-file PATH, or
  DIST_STORE_SECRET_FILE=PATH. PyTorch's own client does not support secrets: ranks that use it need
  --no-secret. Every process that reaches the ports of a job without a secret can join it.

Output:
  distrun forwards each line of a rank with the rank as prefix: \"[3] loss 0.25\". Each line is
  forwarded whole, but a line of more than 64 KiB is forwarded in pieces. The ranks' standard output
  is forwarded to distrun's standard output, and their standard error to its standard error. If one
  of the two is closed, distrun drops the output for it, and the job continues. The ranks' standard
  input is /dev/null.
  Ranks write to a pipe, not to a terminal. Many programs then buffer their output, and lose the
  buffered output when they are killed. For Python, PYTHONUNBUFFERED=1 prevents this.
  --log-dir DIR writes DIR/RANK/stdout.log and DIR/RANK/stderr.log, without the prefix. SPEC selects
  the streams: 0 none, 1 standard output, 2 standard error, 3 both; or one such number per local
  rank, \"0:1,1:3\" (none for the ranks that are not listed). --tee both logs and forwards the
  streams; --redirects only logs them. With neither option, all streams are logged and forwarded.
  With --max-restarts each attempt has its own folder: DIR/attempt_K/RANK/stdout.log, K from 0.
  --local-ranks-filter selects the ranks whose output is forwarded, and does not affect the logs.

Failure:
  If a rank exits with a status other than 0, or by a signal, the job ends: distrun sends SIGTERM to
  the other ranks, and SIGKILL 1 second later. A report on standard error names the rank that failed
  first, when and how it exited, its error and its last lines, and has a line for each other rank.
  distrun's exit status is that of the named rank, or 128 plus the signal's number. If a rank fails
  because of another rank, its error file names the other rank, and the report names the other rank
  as the first. Error files are RANK/error.json in the log folder. Without a log folder, distrun
  creates a folder in TMPDIR for them, and removes it at the end. If the job fails and ranks have
  written dumps, the dumps stay, and the report ends with the command of dist-doctor for them. The
  last operations of the ranks of a job that hangs: dist-doctor --pid PID, with the PID of distrun.
  With --on-failure=continue, the job continues while at least --min-ranks ranks of this node have
  not failed (1 by default): for programs that shrink their group and continue. distrun reports each
  failed rank immediately. If the remaining ranks succeed, a report names the failed ranks, and the
  exit status is 0. If too many ranks fail, the job ends as without the option.
  With --max-restarts N, distrun restarts all ranks after all have exited, N times at most, with the
  next TORCHELASTIC_RESTART_COUNT. Each attempt has a new, empty store, at the same port if one was
  given. The exit status is that of the last attempt. Jobs of several nodes are not restarted.
  distrun forwards SIGINT, SIGTERM, SIGHUP and SIGQUIT to all ranks. It kills the remaining ranks
  after 10 seconds, or at a second signal. The exit status is then 128 plus the signal's number.
  If distrun itself is killed, all ranks and the processes that they started are killed too, except
  those that have left the process group of their rank (setsid, setpgid; daemons do this).
  Other exit statuses: 2 wrong usage, 126 program cannot be executed, 127 program not found, 1 any
  other failure of distrun itself, for example if the store's port is in use.

Examples:
  Four ranks on this host:
    distrun --nproc-per-node 4 ./train --epochs 10
  One rank for each core, with a log for each:
    distrun --nproc-per-node cpu --log-dir logs --redirects 3 ./train
  A secret for a job of two hosts (create it on one host, and copy it to the other securely):
    (umask 077; head -c 32 /dev/urandom | base64 >job.secret)
  Two hosts with eight ranks each (on the second: --node-rank 1):
    distrun --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --secret-file job.secret \\
            --nproc-per-node 8 ./train
  Eight ranks, of which up to six may die:
    distrun --nproc-per-node 8 --on-failure continue --min-ranks 2 ./survive
  A Python program, restarted up to twice if a rank fails:
    distrun --nproc-per-node 2 --max-restarts 2 python3 train.py
  The same for a program that requires --local-rank, as from torch.distributed.launch:
    distrun --nproc-per-node 2 --use-env=false python3 train.py";
