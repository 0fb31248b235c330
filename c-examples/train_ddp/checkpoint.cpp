// Encodes and decodes a checkpoint, and replaces its file atomically. Numbers have the byte
// order of the host.
#include "checkpoint.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace {

constexpr std::string_view magic = "libdist train_ddp 1\n";

void put(std::string &to, const void *data, std::size_t bytes) { to.append(static_cast<const char *>(data), bytes); }

void put_number(std::string &to, std::uint64_t number) { put(to, &number, sizeof number); }

void put_floats(std::string &to, const std::vector<std::vector<float>> &lists) {
  put_number(to, lists.size());
  for (const std::vector<float> &list : lists) {
    put_number(to, list.size());
    put(to, list.data(), list.size() * sizeof(float));
  }
}

// Reads values from the front of a byte string.
class reader {
 public:
  explicit reader(std::string_view bytes) : remaining_(bytes) {}

  std::string_view read_bytes(std::uint64_t bytes) {
    if (bytes > remaining_.size()) throw checkpoint_error("the checkpoint is too short");
    const std::string_view front = remaining_.substr(0, bytes);
    remaining_.remove_prefix(bytes);
    return front;
  }

  std::uint64_t number() {
    std::uint64_t value;
    std::memcpy(&value, read_bytes(sizeof value).data(), sizeof value);
    return value;
  }

  std::vector<std::vector<float>> read_floats() {
    std::vector<std::vector<float>> lists;
    for (std::uint64_t n = number(); n > 0; --n) {
      const std::uint64_t count = number();
      const std::string_view values = read_bytes(count > remaining_.size() ? count : count * sizeof(float));
      lists.emplace_back(count);
      if (count > 0) std::memcpy(lists.back().data(), values.data(), values.size());
    }
    return lists;
  }

  bool is_empty() const { return remaining_.empty(); }

 private:
  std::string_view remaining_;
};

[[noreturn]] void fail(const std::string &path, const char *action) {
  throw checkpoint_error(path + ": " + action + ": " + std::strerror(errno));
}

// A file descriptor that is closed at the end of the scope.
struct descriptor {
  int number;
  ~descriptor() {
    if (number >= 0) close(number);
  }
};

void write_all(int fd, const std::string &bytes, const std::string &path) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t n = write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno != EINTR) fail(path, "cannot write");
    if (n > 0) done += static_cast<std::size_t>(n);
  }
}

}  // namespace

std::string encode(const checkpoint &state) {
  std::string bytes(magic);
  for (const std::uint64_t number : {state.epoch, state.position, state.updates, state.updates_at_scale, state.batch, state.seed}) {
    put_number(bytes, number);
  }
  put(bytes, &state.loss_scale, sizeof state.loss_scale);
  put_number(bytes, state.layout.size());
  bytes += state.layout;
  put_floats(bytes, state.weights);
  put_floats(bytes, state.momentum);
  return bytes;
}

checkpoint decode(std::string_view bytes) {
  reader from(bytes);
  if (bytes.size() < magic.size() || from.read_bytes(magic.size()) != magic) {
    throw checkpoint_error("the file is no checkpoint of this version of train_ddp");
  }
  checkpoint state;
  for (std::uint64_t *number : {&state.epoch, &state.position, &state.updates, &state.updates_at_scale, &state.batch, &state.seed}) {
    *number = from.number();
  }
  std::memcpy(&state.loss_scale, from.read_bytes(sizeof state.loss_scale).data(), sizeof state.loss_scale);
  state.layout = from.read_bytes(from.number());
  state.weights = from.read_floats();
  state.momentum = from.read_floats();
  if (!from.is_empty()) throw checkpoint_error("the checkpoint is too long");
  return state;
}

void replace_file(const std::string &path, const std::string &bytes) {
  const std::string unfinished = path + ".tmp";
  {
    const descriptor file{open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
    if (file.number < 0) fail(unfinished, "cannot create the file");
    write_all(file.number, bytes, unfinished);
    if (fsync(file.number) != 0) fail(unfinished, "cannot write");
  }
  if (std::rename(unfinished.c_str(), path.c_str()) != 0) fail(path, "cannot replace the file");
  // The new name is safe once the folder is written.
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const descriptor opened{open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (opened.number >= 0) static_cast<void>(fsync(opened.number));
}

std::optional<std::string> read_file(const std::string &path) {
  const descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.number < 0) {
    if (errno == ENOENT) return std::nullopt;
    fail(path, "cannot open the file");
  }
  std::string bytes;
  char chunk[65536];
  for (;;) {
    const ssize_t n = read(file.number, chunk, sizeof chunk);
    if (n == 0) return bytes;
    if (n < 0 && errno != EINTR) fail(path, "cannot read");
    if (n > 0) bytes.append(chunk, static_cast<std::size_t>(n));
  }
}
