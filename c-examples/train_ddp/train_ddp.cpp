// Data-parallel training of a convolutional network with dist::reducer: the gradients of a layer
// are averaged over all ranks while the backward pass computes the layer before it.
//
//     distrun --nproc-per-node 4 ./train_ddp
//     distrun --nproc-per-node 4 ./train_ddp --bf16 --clip 1 --accumulate 5
//     distrun --nproc-per-node 4 ./train_ddp --hook int8
//     distrun --nproc-per-node 4 ./train_ddp --checkpoint digits.ckpt --resume
//
// trainer.cpp has all calls of libdist; read it first. The other files are plain C++:
//
//   convnet.*      the network
//   checkpoint.*   the state of the training in a file
//   options.*      the command line
//   bf16.hpp       bfloat16
//
// All ranks together share the images of one batch. So every number of ranks computes the same
// losses, except for rounding.
#include "trainer.hpp"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>

namespace {

struct free_memory {
  void operator()(digit_t *digits) const noexcept { std::free(digits); }
};

int train(const options &o) {
  const std::unique_ptr<digit_t, free_memory> digits(digits_load_split(o.data.c_str()));
  if (!digits) return 2;
  const dist::runtime runtime;
  trainer job(runtime.world(), o, digits.get());
  job.run();
  return job.report() ? 0 : 1;
}

int fail(const char *message, int status) {
  std::fprintf(stderr, "train_ddp: %s\n", message);
  return status;
}

}  // namespace

int main(int argc, char **argv) {
  try {
    const options o = parse_options(argc, argv);
    if (o.help) return std::fputs(help_text, stdout) < 0 ? 1 : 0;
    return train(o);
  } catch (const usage_error &error) {
    return fail(error.what(), 2);
  } catch (const checkpoint_error &error) {
    return fail(error.what(), 2);
  } catch (const std::exception &error) {
    return fail(error.what(), 3);
  }
}
