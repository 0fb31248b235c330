// The training loop. All communication of the example is in trainer.cpp.
#ifndef TRAIN_DDP_TRAINER_HPP
#define TRAIN_DDP_TRAINER_HPP

#include "checkpoint.hpp"
#include "convnet.hpp"
#include "options.hpp"

#include <dist.hpp>

#include <optional>
#include <vector>

class trainer {
 public:
  // `digits` has the DIGITS_ROWS images of digits_load_split. The trainer borrows them.
  trainer(dist::group_ref world, const options &o, const digit_t *digits);

  void run();

  // Compares the weights of all ranks. Rank 0 prints the result, and with a hook the bytes that
  // were sent. False if weights differ that should be the same.
  bool report();

 private:
  // The sums of an epoch on this rank.
  struct progress {
    double loss = 0;
    double images = 0;
  };
  // The size of all gradients so far, and the number of bytes that this rank sent for them.
  struct traffic {
    double gradients = 0;
    double sent = 0;
  };
  struct evaluation {
    double images = 0;
    double correct = 0;
  };

  void train_epoch();
  double train_batch(const std::vector<std::uint64_t> &images);
  double forward(const std::vector<std::uint64_t> &images, std::size_t micro_batch);
  bool store_gradient(std::size_t param);
  void apply_update(dist::vote votes);
  void update_weights();
  void adapt_loss_scale(bool has_overflow);
  bool trains_without_exchange() const;
  evaluation evaluate();
  void print_epoch(const progress &done, double seconds);

  std::optional<checkpoint> load_checkpoint();
  void restore(const checkpoint &saved);
  void save_checkpoint();
  dist::reducer make_reducer();

  dist::group_ref world_;
  options options_;
  const digit_t *digits_;
  convnet network_;
  std::vector<std::vector<float>> momentum_;
  // The gradients in f32. Without --bf16 they are in memory of the reducer.
  std::vector<std::vector<float>> wide_gradients_;
  checkpoint state_;
  traffic traffic_;
  dist::sampler sampler_;
  dist::reducer reducer_;
};

#endif  // TRAIN_DDP_TRAINER_HPP
