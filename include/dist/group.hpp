// Groups: group_ref names a group, group owns one.
#ifndef DIST_GROUP_HPP
#define DIST_GROUP_HPP

#include "messages.hpp"
#include "store.hpp"

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

DIST_HPP_BEGIN

class group;

/// Options of a group that is made from another one. An empty text means the default.
struct group_options {
  /// The same on all ranks; by default made from the parent's name.
  std::string name{};
  /// By default the parent's.
  std::string backend{};
  std::optional<std::string> backend_options{};
  /// The time-out of the group's operations; by default the parent's.
  time_limit timeout{};
  /// The time-out of making the group.
  time_limit connect_timeout{};
  /// Only the members make the group. Not for split.
  bool local_synchronization = false;
};

/// Options of a group whose ranks meet in a store, without dist_init.
struct join_options {
  int rank;
  int size;
  std::string name;
  std::string backend{};
  std::string backend_options{};
  time_limit timeout{};
  time_limit connect_timeout{};
  std::optional<int> device{};
};

/// Options of shrink.
struct shrink_options {
  /// How long the others wait for a rank before they leave it out.
  time_limit timeout{};
  time_limit connect_timeout{};
};

/// A kind of call, for group_ref::supports.
enum class kind : std::int32_t {
  all_reduce = DIST_KIND_ALL_REDUCE,
  reduce = DIST_KIND_REDUCE,
  broadcast = DIST_KIND_BROADCAST,
  all_gather = DIST_KIND_ALL_GATHER,
  reduce_scatter = DIST_KIND_REDUCE_SCATTER,
  barrier = DIST_KIND_BARRIER,
  gather = DIST_KIND_GATHER,
  scatter = DIST_KIND_SCATTER,
  all_to_all = DIST_KIND_ALL_TO_ALL,
  all_gather_v = DIST_KIND_ALL_GATHER_V,
  gather_v = DIST_KIND_GATHER_V,
  scatter_v = DIST_KIND_SCATTER_V,
  reduce_scatter_v = DIST_KIND_REDUCE_SCATTER_V,
  all_to_all_v = DIST_KIND_ALL_TO_ALL_V,
  scan = DIST_KIND_SCAN,
  exscan = DIST_KIND_EXSCAN,
  send = DIST_KIND_SEND,
  recv = DIST_KIND_RECV
};

/// A group of ranks, by name. Copy it freely: it owns nothing, and the group must outlive its use.
class group_ref : public detail::messages {
 public:
  explicit constexpr group_ref(dist_group_t *handle) noexcept : messages(handle) {}

  std::string name() const { return text(dist_group_name); }
  std::string backend() const { return text(dist_group_backend); }
  /// The message of the error that has failed the group; "" while it has not.
  std::string error_message() const { return text(dist_group_error); }
  /// The rank that has failed the group.
  std::optional<dist::culprit> culprit() const {
    return detail::read_culprit([this](dist_culprit_t *out) { return dist_group_culprit(group_, out); });
  }

  /// This rank among those of its host, and their number.
  int local_rank() const noexcept { return dist_group_local_rank(group_); }
  int local_size() const noexcept { return dist_group_local_size(group_); }
  /// This host among those of the group, and their number.
  int host_index() const noexcept { return dist_group_host_index(group_); }
  int host_count() const noexcept { return dist_group_host_count(group_); }

  /// The ranks of the outermost group that this group has, in the order of its own ranks.
  std::vector<int> global_ranks() const {
    std::vector<std::int32_t> all(ranks());
    all.resize(dist_group_ranks(group_, all.data(), all.size()));
    return {all.begin(), all.end()};
  }
  int rank_from_global(int global_rank) const noexcept { return dist_group_rank_from_global(group_, global_rank); }
  int rank_to_global(int rank) const noexcept { return dist_group_rank_to_global(group_, rank); }

  /// The sequence number of the last operation.
  std::uint64_t sequence() const noexcept { return dist_group_sequence(group_); }

  /// The default time-out of the group's operations; nothing for no limit.
  std::optional<std::chrono::milliseconds> timeout() const noexcept {
    const std::int64_t ms = dist_group_get_timeout(group_);
    return ms < 0 ? std::nullopt : std::optional<std::chrono::milliseconds>(ms);
  }
  template <class E = detail::default_errors>
  detail::outcome<E, void> set_timeout(time_limit limit, E = E{}) const {
    return detail::finish<E>(dist_group_set_timeout(group_, limit.ms()));
  }

  /// What the group is and how it works, as JSON.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, std::string> describe(E = E{}) const {
    blob json;
    const dist_status_t status = dist_group_describe(group_, json.out());
    return detail::finish_text<E>(status, json);
  }

  /// Whether the group supports a kind of call on elements of type T.
  template <class T>
  bool supports(kind call, const op &operation = sum, int device = DIST_DEVICE_HOST) const noexcept {
    return dist_backend_supports(group_, static_cast<std::int32_t>(call), dtype_v<T>, operation.code, device) == DIST_OK;
  }

  /// Fails the group on all ranks; the reason is in their errors.
  template <class E = detail::default_errors>
  detail::outcome<E, void> abort(const char *reason, E = E{}) const {
    return detail::finish<E>(dist_group_abort(group_, reason));
  }

  /// A descriptor for event loops (poll, epoll): readable while works are done and not taken; -1 on failure.
  int completion_fd() const noexcept { return dist_group_fd(group_); }
  /// The handles of works that are done and not yet taken: compare them with work::get().
  std::vector<dist_work_t *> take_done() const {
    std::vector<dist_work_t *> all;
    dist_work_t *some[64];
    for (std::size_t n = 64; n == 64;) {
      n = dist_group_take_done(group_, some, 64);
      all.insert(all.end(), some, some + n);
    }
    return all;
  }

  /// Makes a group of some ranks, in this order. All ranks of this group call it; the others get nothing.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, std::optional<group>> subgroup(const std::vector<int> &ranks,
                                                                 const group_options &o = {}, E = E{}) const;
  /// Makes a group for each color. A rank without a color gets none. Ranks are ordered by key.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, std::optional<group>> split(std::optional<int> color, int key = 0,
                                                              const group_options &o = {}, E = E{}) const;
  /// Makes a group of the ranks that are left, after a failure.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, group> shrink(const shrink_options &o = {}, E = E{}) const;

 private:
  template <class F>
  std::string text(F function) const {
    return detail::copied_text([&](char *buffer, std::size_t size) { return function(group_, buffer, size); });
  }
};

/// A group that is released at the end of the scope.
class group : public group_ref {
 public:
  explicit group(dist_group_t *handle) noexcept : group_ref(handle) {}
  group(group &&other) noexcept : group_ref(std::exchange(other.group_, nullptr)) {}
  group &operator=(group &&other) noexcept {
    std::swap(group_, other.group_);
    return *this;
  }
  ~group() { dist_group_release(group_); }

  /// Makes a group whose ranks meet in a store. Ranks may be threads of one process.
  template <class E = detail::default_errors>
  [[nodiscard]] static detail::outcome<E, group> join(const store &meeting_place, const join_options &o, E = E{}) {
    dist_group_options_t c = DIST_GROUP_OPTIONS_INIT;
    c.fields = DIST_FIELD_RANK;
    c.store = meeting_place.get();
    c.rank = o.rank;
    c.world_size = o.size;
    c.name = o.name.c_str();
    c.backend = detail::text_or_null(o.backend);
    c.backend_options = detail::text_or_null(o.backend_options);
    c.timeout_ms = o.timeout.ms();
    c.connect_timeout_ms = o.connect_timeout.ms();
    if (o.device) {
      c.fields |= DIST_FIELD_DEVICE;
      c.device = *o.device;
    }
    dist_group_t *made = nullptr;
    const dist_status_t status = dist_group_create(&c, &made);
    return detail::finish<E>(status, group(made));
  }
};

namespace detail {

inline dist_group_new_options_t c_options(const group_options &o) noexcept {
  dist_group_new_options_t c = DIST_GROUP_NEW_OPTIONS_INIT;
  c.name = text_or_null(o.name);
  c.backend = text_or_null(o.backend);
  c.backend_options = o.backend_options ? o.backend_options->c_str() : nullptr;
  c.timeout_ms = o.timeout.ms();
  c.connect_timeout_ms = o.connect_timeout.ms();
  c.use_local_synchronization = o.local_synchronization ? 1 : 0;
  return c;
}

inline std::optional<group> optional_group(dist_group_t *made) {
  return made == nullptr ? std::nullopt : std::optional<group>(group(made));
}

}  // namespace detail

template <class E>
detail::outcome<E, std::optional<group>> group_ref::subgroup(const std::vector<int> &ranks, const group_options &o,
                                                             E) const {
  static_assert(sizeof(int) == sizeof(std::int32_t), "ranks of dist.h");
  const dist_group_new_options_t c = detail::c_options(o);
  dist_group_t *made = nullptr;
  const dist_status_t status = dist_group_new(group_, ranks.data(), ranks.size(), &c, &made);
  return detail::finish<E>(status, detail::optional_group(made));
}

template <class E>
detail::outcome<E, std::optional<group>> group_ref::split(std::optional<int> color, int key, const group_options &o,
                                                          E) const {
  const dist_group_new_options_t c = detail::c_options(o);
  dist_group_t *made = nullptr;
  const dist_status_t status = dist_group_split(group_, color.value_or(DIST_NO_COLOR), key, &c, &made);
  return detail::finish<E>(status, detail::optional_group(made));
}

template <class E>
detail::outcome<E, group> group_ref::shrink(const shrink_options &o, E) const {
  dist_shrink_options_t c = DIST_SHRINK_OPTIONS_INIT;
  c.timeout_ms = o.timeout.ms();
  c.connect_timeout_ms = o.connect_timeout.ms();
  dist_group_t *made = nullptr;
  const dist_status_t status = dist_group_shrink(group_, &c, &made);
  return detail::finish<E>(status, group(made));
}

/// The world of the process; between dist_init and dist_finalize.
inline group_ref world() noexcept { return group_ref(dist_world()); }

DIST_HPP_END

#endif  // DIST_GROUP_HPP
