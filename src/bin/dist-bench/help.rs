//! The text of `dist-bench --help` after the options: the measured times, and the methods.

/// The help text after the options.
pub(crate) const HELP: &str = "\
What the columns mean (as in nccl-tests):
  size     bytes: the whole result of all_gather and gather, the whole input of reduce_scatter and
           scatter, one rank's buffer of the other operations
  count    elements; of one rank's block where there are blocks
  p50, p99 median and 99th percentile of a call, in microseconds, on the rank where the median is
           largest; of several runs the median. broadcast and scatter: from the root's call until the
           last rank has its data; \"root\" is the median of the root's own calls. sendrecv: half a
           round trip between ranks 0 and 1
  mean     of the same calls: what one takes of calls in a row. Where ranks share cores a call either
           goes through at once or waits for others to have the core, and the median is one of the two
  algbw    size by p50, in GB/s (10^9 bytes)
  busbw    algbw by what the busiest link has to carry: times 2(n-1)/n for all_reduce, (n-1)/n for
           operations with blocks, 1 for the others
  #wrong   elements of a call on known values that are not what they should be

How it is measured:
  Ranks are processes of this host. They stay alive, and each is kept on one core: rank R on core R,
  counted from the first again after the last. Before each call a rank rewrites its buffer, as a
  caller does that has new values (--mode untouched: it does not, which flatters whoever keeps data
  in caches). Up to 8 KiB a thousand such calls follow each other; above, a barrier comes before
  each, and there are fewer. Where an engine is so slow that they would take longer than a second,
  it makes fewer. Operations in which a rank may run ahead of the others (broadcast, scatter, reduce,
  gather) have a barrier before each call at every size. Results are in place where an operation
  knows that, unless --out-of-place. A first call on known values is checked.

On GPUs:
  --device nccl and --device native put the buffers into the memory of GPUs, which the CUDA driver gives. Known
  values are copied there and the result of the checked call is copied back; the timed calls find what the
  last one has left. A call has ended when the device is done with it. NCCL wants a GPU for each rank, or
  NCCL_MULTI_RANK_GPU_ENABLE=1 from 2.30 on; native takes any number of ranks on each.

Tuning:
  --tune lets every algorithm that can do a call take turns with the library's own choice, for all operations, and
  writes a row of a tuning file where one takes at most 95 % of its time: from and up to the geometric middle between
  the sizes that were measured, for this number of ranks on one host. DIST_TUNING_FILE=FILE has it used, for which
  rank 0 alone needs the file. The table has for each size who took how long; * has its row.

Peers:
  --peer builds and starts programs that do the same through another library, and lets them take
  turns with ours, in pairs: a run of calls of ours, one of each peer's. Their ranks wait in the kernel
  when it is not their turn. Open MPI runs with ob1 and vader, single copy (CMA); also with a
  segmented ring of 128 KiB and 1 MiB for all_reduce; and yielding where ranks are more than cores.
  openmpi-staged is the same without single copy: what DIST_CMA=0 makes of ours is compared with that.
  MPICH runs as it is installed. gloo is Gloo through the torch of python3, or of the Python that
  DIST_BENCH_PYTHON names; gloo-cpp is Gloo from C++. Both use one thread and the loopback interface.
  torch reduces in place only, and has other results in buffers of their own only. What a library has
  nothing for is a cell without it. A peer that is four times slower than the best one in a trial has
  one turn only, and one that is a quarter slower has no part in pairs that are added. The best peer
  of a cell is the one with the smallest median.
  ratio    the median over the pairs of our time by the best peer's; below 1 we are faster
  95 %     the interval of that median, by order statistics (of ten pairs: from the second smallest
           ratio to the second largest; fewer than six tell nothing). Where it is wider than +-10 %
           and not above 1 as a whole, as many pairs are added, twice at most
  lost     the ratio is above 1 (\"slower\"), or the interval is still too wide, or there is none
           (\"uncertain\")
  Peers always block, in ordinary memory, also where --async and --buffers say something else of ours.

Against another tree:
  --against TREE starts the ranks of TREE/target/release/dist-bench (build it there: cargo build --release
  --bin dist-bench) and lets them take turns with ours, in pairs. The ranks of both are started six
  times for the pairs of a cell, since where a process has its memory changes its times. Variables of
  the environment reach both, so that a name or value that one tree refuses ends the comparison.
  ratio    the median over the pairs of this tree's p50 by the other tree's; below 1 this one is faster
  95 %     its interval, as for peers
  No slower means: no interval is entirely above 1.03, and the geometric mean of the ratios of each
  operation is at most 1.005. A cell or an operation above is measured again with as many pairs, twice
  at most; all pairs count. The table has 73 cells by default and takes about ten minutes on two cores.
  --ops, --sizes and --pairs make it shorter; --ranks 2,4 and --sizes with 256M make it longer.

Limits:
  --limits measures copies, sums, cache lines and wake-ups, and lets a program by hand take turns with
  all_reduce (f32, sum, in place) of two ranks from 4 KiB on: in ordinary memory each rank reads the
  other's half out of its process, adds, and reads the sums of the other half (cma_read, in the
  pieces that are best in a trial); in memory that both map each adds one half for both (direct).
  Its time by ours is our share of what is possible. For 4 bytes that is 2.5 times the way of a cache
  line and 60 ns. It makes no promise that a library makes.

Reports:
  --report puts all tables, the lost cells, the machine and its limits and the command into a file
  such as BENCHMARKS.md, between two marks, and a plot for each operation into docs/plots beside it.
  A long measurement can be cut into pieces: --json of each, then --report with --report-from, which
  makes the same out of these files. They have to be of one machine, transport, type and operator.

Training:
  --training measures the exposed communication of a training step. A rank computes the gradients of a model
  one by one, in reverse order of their use, and each candidate averages them over the ranks. The exposed
  communication is the median step minus the median step of the same loop without communication, in the same
  processes; steps of both kinds alternate, after two of each. The rank with the largest median counts. A pair
  is one process group of each candidate, in shuffled order. Ranks check averages after every step.
  arena, ordinary, retryable and bf16 are libdist's reducer. torch-gloo is DistributedDataParallel through the
  torch of python3, or of the Python that DIST_BENCH_PYTHON names. openmpi makes one all-reduce after the
  backward pass. horovod is Horovod's scheme in C: a thread with cycles of 1 ms, agreement by a bit vector,
  a fusion buffer of 128 MiB. Open MPI runs with ob1 and vader, single copy (CMA), a segmented ring of 1 MiB, and
  yields. A candidate that is not installed is left out, with a message.
  exposed  the median over the pairs; 95 % is its interval, by order statistics
  by ...   the median over the pairs of exposed by that candidate's; \"-\" if that candidate exposes nothing
  copied   bytes that a step copies between gradients and buckets; \"-\" if the candidate does not count them
  peak     the largest resident memory of a rank, with the values of the parameters (VmHWM)
  --report puts the tables between the lines <!-- dist-bench-training:begin --> and
  <!-- dist-bench-training:end -->, and the plot into docs/plots/training.svg.

Exit statuses:
  0    measured, whatever was lost; with --against: no slower
  1    a result was wrong, or dist-bench itself failed
  2    wrong usage
  3    with --against: slower, or nothing could be judged
  A signal that ends it gives 128 and its number.

Examples:
  What the operations cost between two processes:
    dist-bench
  Where are we slower than MPI, with 2, 4 and 8 ranks:
    dist-bench --ranks 2,4,8 --peer openmpi,mpich --json result.json
  Long vectors, in the library's memory and in any:
    dist-bench --ops all_reduce --sizes 512K,4M,32M --buffers ordinary,arena
  The same as tables and plots, of several runs:
    dist-bench --report BENCHMARKS.md --report-from two.json,four.json,eight.json
  What this machine allows, and what comes of it:
    dist-bench --limits --ops all_reduce
  Whether a change has made something slower; the second line only for short messages:
    dist-bench --against ../libdist-before --json compared.json
    dist-bench --against ../libdist-before --ops all_reduce,sendrecv --sizes 4,64,1K
  Between two GPUs, over NCCL and without it:
    dist-bench --device nccl
    dist-bench --device native
  How much a training step waits for gradients, and the same with ResNet-50 and a trainer on the CPU:
    dist-bench --training
    dist-bench --training --model b --compute spin --json resnet.json
  Only whether it runs:
    dist-bench --quick --peer openmpi
    dist-bench --quick --training --model tiny --candidates arena,ordinary";
