// Forward and backward pass of the network. See convnet.hpp.
#include "convnet.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace {

constexpr std::size_t image_side = 8;
constexpr std::size_t conv1_channels = 16, conv2_channels = 32;
constexpr std::size_t features = conv2_channels * (image_side / 4) * (image_side / 4);
constexpr std::size_t no_source = static_cast<std::size_t>(-1);

// The indices of the parameters.
enum { conv1_weight, conv1_bias, conv2_weight, conv2_bias, fc_weight, fc_bias };

// A parameter with random values in [-limit, limit).
parameter make_parameter(const char *name, std::uint64_t layer, std::vector<std::int64_t> shape, float limit, rng_t &rng) {
  const auto count = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  parameter parameter{name, layer, std::move(shape), std::vector<float>(static_cast<std::size_t>(count))};
  for (float &value : parameter.values) value = limit > 0 ? rng_uniform(&rng, limit) : 0;
  return parameter;
}

// The limit that keeps the variance of activations from layer to layer (He), for so many inputs of
// a unit.
float he_limit(std::size_t inputs) { return std::sqrt(6.0F / static_cast<float>(inputs)); }

std::vector<parameter> make_parameters(std::uint64_t seed) {
  rng_t rng{seed};
  std::vector<parameter> all;
  all.push_back(make_parameter("conv1.weight", 0, {conv1_channels, 1, 3, 3}, he_limit(9), rng));
  all.push_back(make_parameter("conv1.bias", 0, {conv1_channels}, 0, rng));
  all.push_back(make_parameter("conv2.weight", 1, {conv2_channels, conv1_channels, 3, 3}, he_limit(9 * conv1_channels), rng));
  all.push_back(make_parameter("conv2.bias", 1, {conv2_channels}, 0, rng));
  all.push_back(make_parameter("fc.weight", 2, {DIGITS_CLASSES, features}, he_limit(features), rng));
  all.push_back(make_parameter("fc.bias", 2, {DIGITS_CLASSES}, 0, rng));
  return all;
}

void linear_forward(const parameter &weights, const parameter &biases, const activations &in, activations &out) {
  const std::size_t rows = in.size() / features;
  out.resize(rows * DIGITS_CLASSES);
  for (std::size_t row = 0; row < rows; ++row) {
    const float *x = &in[row * features];
    for (std::size_t c = 0; c < DIGITS_CLASSES; ++c) {
      out[row * DIGITS_CLASSES + c] = std::inner_product(x, x + features, &weights.values[c * features], biases.values[c]);
    }
  }
}

void linear_backward(parameter &weights, parameter &biases, const activations &in, const activations &out_gradient,
                     activations &in_gradient) {
  const std::size_t rows = in.size() / features;
  in_gradient.assign(in.size(), 0);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t c = 0; c < DIGITS_CLASSES; ++c) {
      const float g = out_gradient[row * DIGITS_CLASSES + c];
      biases.gradient[c] += g;
      for (std::size_t f = 0; f < features; ++f) {
        weights.gradient[c * features + f] += g * in[row * features + f];
        in_gradient[row * features + f] += g * weights.values[c * features + f];
      }
    }
  }
}

// Replaces the scores of one image by probabilities, and returns the loss.
double softmax(float *scores, std::size_t label) {
  const float largest = *std::max_element(scores, scores + DIGITS_CLASSES);
  float sum = 0;
  for (std::size_t c = 0; c < DIGITS_CLASSES; ++c) sum += scores[c] = std::exp(scores[c] - largest);
  for (std::size_t c = 0; c < DIGITS_CLASSES; ++c) scores[c] /= sum;
  return -std::log(std::max(static_cast<double>(scores[label]), 1e-30));
}

}  // namespace

// For each of the 9 taps of the kernel and each line of the image, calls visit(tap, first output,
// first input, count).
template <class F>
void convolution::for_each_tap(F visit) const {
  for (std::size_t tap = 0; tap < 9; ++tap) {
    const std::size_t ky = tap / 3, kx = tap % 3;
    const std::size_t y_begin = ky == 0 ? 1 : 0, y_end = ky == 2 ? side_ - 1 : side_;
    const std::size_t x_begin = kx == 0 ? 1 : 0, x_end = kx == 2 ? side_ - 1 : side_;
    for (std::size_t y = y_begin; y < y_end; ++y) {
      visit(tap, y * side_ + x_begin, (y + ky - 1) * side_ + x_begin + kx - 1, x_end - x_begin);
    }
  }
}

void convolution::forward(const parameter &weights, const parameter &biases, const activations &in, activations &out) const {
  const std::size_t plane = side_ * side_;
  const std::size_t rows = in.size() / (in_channels_ * plane);
  out.resize(rows * out_channels_ * plane);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t o = 0; o < out_channels_; ++o) {
      float *to = &out[(row * out_channels_ + o) * plane];
      std::fill(to, to + plane, biases.values[o]);
      for (std::size_t i = 0; i < in_channels_; ++i) {
        const float *from = &in[(row * in_channels_ + i) * plane];
        const float *kernel = &weights.values[(o * in_channels_ + i) * 9];
        for_each_tap([&](std::size_t tap, std::size_t at, std::size_t source, std::size_t count) {
          for (std::size_t x = 0; x < count; ++x) to[at + x] += kernel[tap] * from[source + x];
        });
      }
    }
  }
}

void convolution::backward(parameter &weights, parameter &biases, const activations &in, const activations &out_gradient,
                           activations *in_gradient) const {
  const std::size_t plane = side_ * side_;
  const std::size_t rows = in.size() / (in_channels_ * plane);
  if (in_gradient != nullptr) in_gradient->assign(in.size(), 0);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t o = 0; o < out_channels_; ++o) {
      const float *g = &out_gradient[(row * out_channels_ + o) * plane];
      biases.gradient[o] += std::accumulate(g, g + plane, 0.0F);
      for (std::size_t i = 0; i < in_channels_; ++i) {
        const std::size_t image = (row * in_channels_ + i) * plane;
        const float *kernel = &weights.values[(o * in_channels_ + i) * 9];
        float *kernel_gradient = &weights.gradient[(o * in_channels_ + i) * 9];
        for_each_tap([&](std::size_t tap, std::size_t at, std::size_t source, std::size_t count) {
          for (std::size_t x = 0; x < count; ++x) {
            kernel_gradient[tap] += g[at + x] * in[image + source + x];
            if (in_gradient != nullptr) (*in_gradient)[image + source + x] += g[at + x] * kernel[tap];
          }
        });
      }
    }
  }
}

void relu_pool::forward(const activations &in, activations &out) {
  in_size_ = in.size();
  out.clear();
  sources_.clear();
  for (std::size_t y = 0; y < in.size() / side_; y += 2) {
    for (std::size_t x = 0; x < side_; x += 2) {
      const std::size_t corner = y * side_ + x;
      std::size_t source = no_source;
      float largest = 0;
      for (const std::size_t index : {corner, corner + 1, corner + side_, corner + side_ + 1}) {
        if (in[index] > largest) {
          largest = in[index];
          source = index;
        }
      }
      out.push_back(largest);
      sources_.push_back(source);
    }
  }
}

void relu_pool::backward(const activations &out_gradient, activations &in_gradient) const {
  in_gradient.assign(in_size_, 0);
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i] != no_source) in_gradient[sources_[i]] = out_gradient[i];
  }
}

convnet::convnet(std::uint64_t seed)
    : parameters_(make_parameters(seed)),
      conv1_(1, conv1_channels, image_side),
      conv2_(conv1_channels, conv2_channels, image_side / 2),
      pool1_(image_side),
      pool2_(image_side / 2) {}

double convnet::forward(const std::vector<const digit_t *> &images) {
  pixels_.clear();
  labels_.clear();
  for (const digit_t *image : images) {
    pixels_.insert(pixels_.end(), image->pixels, image->pixels + DIGITS_PIXELS);
    labels_.push_back(static_cast<std::size_t>(image->label));
  }
  conv1_.forward(parameters_[conv1_weight], parameters_[conv1_bias], pixels_, conv1_out_);
  pool1_.forward(conv1_out_, pool1_out_);
  conv2_.forward(parameters_[conv2_weight], parameters_[conv2_bias], pool1_out_, conv2_out_);
  pool2_.forward(conv2_out_, pool2_out_);
  linear_forward(parameters_[fc_weight], parameters_[fc_bias], pool2_out_, scores_);
  probabilities_ = scores_;
  double loss = 0;
  for (std::size_t row = 0; row < labels_.size(); ++row) loss += softmax(&probabilities_[row * DIGITS_CLASSES], labels_[row]);
  return loss;
}

void convnet::backward(float factor, const std::function<void(std::size_t)> &on_gradient) {
  activations gradient = probabilities_;
  for (std::size_t row = 0; row < labels_.size(); ++row) gradient[row * DIGITS_CLASSES + labels_[row]] -= 1;
  for (float &parameter : gradient) parameter *= factor;

  activations before;
  linear_backward(parameters_[fc_weight], parameters_[fc_bias], pool2_out_, gradient, before);
  on_gradient(fc_bias);
  on_gradient(fc_weight);
  pool2_.backward(before, gradient);
  conv2_.backward(parameters_[conv2_weight], parameters_[conv2_bias], pool1_out_, gradient, &before);
  on_gradient(conv2_bias);
  on_gradient(conv2_weight);
  pool1_.backward(before, gradient);
  conv1_.backward(parameters_[conv1_weight], parameters_[conv1_bias], pixels_, gradient, nullptr);
  on_gradient(conv1_bias);
  on_gradient(conv1_weight);
}

std::size_t convnet::count_correct() const {
  std::size_t correct = 0;
  for (std::size_t row = 0; row < labels_.size(); ++row) {
    const float *scores = &scores_[row * DIGITS_CLASSES];
    const auto best = std::max_element(scores, scores + DIGITS_CLASSES) - scores;
    correct += static_cast<std::size_t>(best) == labels_[row] ? 1U : 0U;
  }
  return correct;
}
