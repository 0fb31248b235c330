// A small convolutional network for images of 8 x 8 pixels, in plain C++. It does not use libdist.
//
//   conv1 3x3, 16 channels -> ReLU, 2x2 maximum -> conv2 3x3, 32 channels -> ReLU, 2x2 maximum
//   -> fc -> softmax
#ifndef TRAIN_DDP_CONVNET_HPP
#define TRAIN_DDP_CONVNET_HPP

#include "digits.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

// A parameter of the network. The caller sets where its gradient is.
struct parameter {
  std::string name;
  // The layer, counted from the input.
  std::uint64_t layer;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
  float *gradient = nullptr;
};

// The values of one layer for all images of a batch, image by image.
using activations = std::vector<float>;

// A 3 x 3 convolution of square images. The border is padded with zeros.
class convolution {
 public:
  convolution(std::size_t in_channels, std::size_t out_channels, std::size_t side)
      : in_channels_(in_channels), out_channels_(out_channels), side_(side) {}

  void forward(const parameter &weights, const parameter &biases, const activations &in, activations &out) const;
  // Adds to the gradients of both parameters, and gives the gradient of the input unless
  // `in_gradient` is null.
  void backward(parameter &weights, parameter &biases, const activations &in, const activations &out_gradient,
                activations *in_gradient) const;

 private:
  template <class F>
  void for_each_tap(F visit) const;

  std::size_t in_channels_, out_channels_, side_;
};

// ReLU, then the maximum of each 2 x 2 square. It remembers where each maximum came from.
class relu_pool {
 public:
  explicit relu_pool(std::size_t side) : side_(side) {}

  void forward(const activations &in, activations &out);
  void backward(const activations &out_gradient, activations &in_gradient) const;

 private:
  std::size_t side_;
  std::size_t in_size_ = 0;
  // For each output the index of its input, or `no_source` where all inputs are negative.
  std::vector<std::size_t> sources_;
};

class convnet {
 public:
  // The same seed gives the same weights.
  explicit convnet(std::uint64_t seed);

  std::vector<parameter> &parameters() { return parameters_; }
  const std::vector<parameter> &parameters() const { return parameters_; }

  // Computes a batch, and returns the sum of its losses.
  double forward(const std::vector<const digit_t *> &images);

  // Adds the gradient of `factor` times the sum of the losses of the last batch to the gradients of
  // the parameters. It goes from the last layer to the first one, and calls `done(i)` once the
  // gradient of parameter i is complete.
  void backward(float factor, const std::function<void(std::size_t)> &done);

  // Returns the number of images of the last batch whose label has the highest score.
  std::size_t count_correct() const;

 private:
  std::vector<parameter> parameters_;
  convolution conv1_, conv2_;
  relu_pool pool1_, pool2_;
  activations pixels_, conv1_out_, pool1_out_, conv2_out_, pool2_out_;
  // The scores of each class, and the probabilities that softmax makes of them.
  activations scores_, probabilities_;
  std::vector<std::size_t> labels_;
};

#endif  // TRAIN_DDP_CONVNET_HPP
