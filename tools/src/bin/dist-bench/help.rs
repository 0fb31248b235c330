//! The text of `dist-bench --help` after the options: the measured times, and the methods.

/// The help text after the options.
pub(crate) const HELP: &str = "\
Columns (as in nccl-tests; with --peer fewer, and the type is above the table):
  size     bytes: the whole result of all_gather and gather, the whole input of reduce_scatter and
           scatter, and one rank's buffer of the other operations
  count    elements; in operations with blocks, the elements of one rank's block
  p50, p99 median and 99th percentile of a call, in microseconds, on the rank with the largest
           median. If there are several runs, the median of the runs. For broadcast and scatter the
           time is from the root's call until the last rank has its data; \"root\" is the median of
           the root's own calls. For sendrecv it is half a round trip between ranks 0 and 1
  mean     mean of the same calls: the time per call in a sequence of calls. If ranks share cores, a
           call either completes immediately or waits until other ranks yield the core, and the
           median is one of these two times
  algbw    size divided by p50, in GB/s (10^9 bytes)
  busbw    algbw scaled to the traffic of the busiest link: times 2(n-1)/n for all_reduce, (n-1)/n
           for operations with blocks, 1 for the other operations
  #wrong   wrong elements in the result of one call on known values

Method:
  Ranks are processes of this host. They run during the whole measurement. Rank R is pinned to core
  R modulo the number of cores. Before each call a rank rewrites its buffer, like a caller with new
  values. With --mode untouched it does not, which favours engines that keep data in caches. Up to
  8 KiB, a run has 1000 calls without a barrier between them. Above, a run has fewer calls, with a
  barrier before each. If an engine needs more than one second for a run, the run has fewer calls.
  In broadcast, scatter, reduce and gather a rank can run ahead of the other ranks, so these have a
  barrier before each call at every size. Results are in place if the operation supports it, except
  with --out-of-place. The first call runs on known values, and dist-bench checks its result.

Offsets:
  On some processors a copy is several times slower if source and destination have certain offsets
  in their pages (docs/copies.md). By default all buffers begin at a page boundary, where no copy is
  slow. --offsets measures buffers at the offsets 0, 16, 32 and 64, also for the peers. In the row
  `offsets A and B` of sendrecv, messages are sent from offset A and received at offset B. In the
  row of a collective, the buffers of rank 0 have offset A, and those of all other ranks offset B.

GPUs:
  --device nccl and --device native put the buffers into GPU memory from the CUDA driver. dist-bench
  copies known values to the GPU, and copies the result of the checked call back. The timed calls
  use the values that the previous call left. A call ends when the GPU has completed it. NCCL needs
  one GPU per rank, or NCCL 2.30 or newer with NCCL_MULTI_RANK_GPU_ENABLE=1. The native back end
  supports any number of ranks per GPU.

Tuning:
  --tune measures every algorithm that supports a call, in alternating runs with the library's own
  choice, for all operations. If an algorithm takes at most 95 % of the time of the own choice,
  dist-bench writes a row into a tuning file. The row applies to this number of ranks on one host.
  Its size range ends at the geometric means with the neighbouring measured sizes. To use the file,
  set DIST_TUNING_FILE=FILE; only rank 0 needs it. The table has the times of all algorithms for each
  size; * marks the algorithm of the row.

Peers:
  --peer compiles and starts programs that make the same calls through another library. Runs
  alternate in pairs: one run of libdist, one run of each peer. Idle ranks sleep in the kernel.
  Open MPI runs with ob1 and vader, single copy (CMA). For all_reduce it also runs with a segmented
  ring of 128 KiB and of 1 MiB. If there are more ranks than cores, it yields. openmpi-staged is
  Open MPI without single copy: compare it with libdist under DIST_CMA=0. MPICH runs with its
  defaults. gloo is Gloo through the torch of python3, or of the Python that DIST_BENCH_PYTHON
  names. gloo-cpp is Gloo from C++. Both use one thread and the loopback interface. torch reduces
  only in place, and has results of the other operations only in separate buffers. ucc is UCC with
  its defaults; DIST_BENCH_UCC names the folder in which it is installed. If a library does
  not support a call, the cell does not have this peer. If a peer is four times slower than the best
  peer in a trial, it gets only one run. If it is 25 % slower, added pairs do not include it. The
  best peer of a cell is the peer with the smallest median.
  ratio    median over the pairs of libdist's time divided by the best peer's; below 1 libdist is
           faster
  95 %     interval of this median by order statistics (of ten pairs: from the second smallest to
           the second largest ratio; fewer than six pairs have no interval). If it is wider than
           +-10 % and not entirely above 1, dist-bench adds the same number of pairs, at most twice
  libdist is
           \"faster\" if the whole interval is below 1, \"slower\" if it is above 1, otherwise
           \"uncertain\". The summary lists the lost cells: the ratio is above 1, or the interval is
           too wide or does not exist
  --async and --buffers affect libdist only. Peers use blocking calls and ordinary memory.

Comparison with another tree:
  --against TREE starts the ranks of TREE/target/release/dist-bench (first run cargo build --release
  --bin dist-bench in TREE). Runs of both trees alternate in pairs. dist-bench restarts the ranks of
  both trees six times for the pairs of a cell, since the memory placement of a process affects its
  times. Environment variables apply to both trees: if one tree refuses a name or a value, the
  comparison ends.
  ratio    median over the pairs of this tree's p50 divided by the other tree's; below 1 this tree
           is faster
  95 %     interval of the median, as for peers
  it is    \"faster\" if the whole interval is below 1, \"slower\" if it is above 1.03, otherwise
           \"uncertain\"
  The verdict is \"no slower\" if no interval is entirely above 1.03 and the geometric mean of the
  ratios of each operation is at most 1.005. If a cell or an operation is above its limit, dist-bench
  measures it again with the same number of pairs, at most twice; all pairs count. By default the
  table has 73 cells and takes about ten minutes on two cores. --ops, --sizes and --pairs shorten
  it; --ranks 2,4 and --sizes with 256M extend it.

Limits:
  --limits measures copies, sums, cache lines and wake-ups. It also measures a lower bound from a
  handwritten program in alternating runs, for all_reduce (f32, sum, in place) of two ranks from
  4 KiB on. In ordinary memory, each rank reads one half from the other process, adds it, and reads
  the sums of the other half (cma_read, with the piece size that is fastest in a trial). In memory
  that both ranks map, each rank adds one half for both (direct). The share is the time of this
  program divided by libdist's time. For 4 bytes the bound is 2.5 times the latency of a cache line
  plus 60 ns. The handwritten program has no error handling and no other guarantees of a library.

Plots:
  --plot FILE.svg draws the times over the sizes, with logarithmic axes. All lines of a library with
  several settings are one line: the fastest setting counts.

Reports:
  --report writes all tables, the lost cells, the machine, its limits and the command into a file
  such as BENCHMARKS.md, between two marker lines. It writes a plot for each operation into
  docs/plots in the folder of this file. To split a long measurement, write each part with --json,
  then use --report with --report-from to build the same report from these files. All files must be
  of one machine, transport, element type and operator.

Training:
  --training measures the exposed communication of a training step. A rank computes the gradients of
  a model one by one, in reverse order of their use, and each candidate averages them over the
  ranks. The exposed communication is the median step minus the median step of the same loop without
  communication, in the same processes. Steps of both kinds alternate, after two warm-up steps of
  each. The rank with the largest median counts. A pair is one process group of each candidate, in
  shuffled order. Ranks check averages after every step.
  arena, ordinary, retryable and bf16 are libdist's reducer. torch-gloo is DistributedDataParallel
  through the torch of python3, or of the Python that DIST_BENCH_PYTHON names. openmpi makes one
  all-reduce after the backward pass. horovod is Horovod's scheme in C: a thread with cycles of
  1 ms, agreement by a bit vector, a fusion buffer of 128 MiB. Open MPI runs with ob1 and vader,
  single copy (CMA) and a segmented ring of 1 MiB, and it yields. dist-bench skips a candidate that
  is not installed, with a message.
  exposed  the median over the pairs; 95 % is its interval, by order statistics
  by ...   the median over the pairs of exposed divided by the exposed time of that candidate; \"-\"
           if that candidate exposes nothing
  copied   bytes that a step copies between gradients and buckets; \"-\" if the candidate does not
           count them
  peak     the largest resident memory of a rank (VmHWM), including the values of the parameters
  --report writes the tables between the lines <!-- dist-bench-training:begin --> and
  <!-- dist-bench-training:end -->, and the plot into docs/plots/training.svg.

Exit statuses:
  0    measured, even if cells are lost; with --against: no slower
  1    a result was wrong, or dist-bench failed
  2    wrong usage
  3    with --against: slower, or inconclusive
  If a signal ends dist-bench, the status is 128 plus the signal number.

Examples:
  Measure the operations between two processes:
    dist-bench
  Find the cells where libdist is slower than MPI, with 2, 4 and 8 ranks:
    dist-bench --ranks 2,4,8 --peer openmpi,mpich --json result.json
  Measure long vectors, in ordinary memory and in the arena:
    dist-bench --ops all_reduce --sizes 512K,4M,32M --buffers ordinary,arena
  Write the tables and plots of several runs into a file:
    dist-bench --report BENCHMARKS.md --report-from two.json,four.json,eight.json
  Measure the limits of this machine, and libdist's share of them:
    dist-bench --limits --ops all_reduce
  Check that a change makes nothing slower; the second command is for short messages only:
    dist-bench --against ../libdist-before --json compared.json
    dist-bench --against ../libdist-before --ops all_reduce,sendrecv --sizes 4,64,1K
  Measure between two GPUs, over NCCL and without it:
    dist-bench --device nccl
    dist-bench --device native
  Measure the exposed communication, also with ResNet-50 and computation on the CPU:
    dist-bench --training
    dist-bench --training --model b --compute spin --json resnet.json
  Run a functional check:
    dist-bench --quick --peer openmpi
    dist-bench --quick --training --model tiny --candidates arena,ordinary";
