// Operators: the constants of dist.h, and operators that a program makes from a function.
#ifndef DIST_OP_HPP
#define DIST_OP_HPP

#include "buffer.hpp"
#include "error.hpp"

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

DIST_HPP_BEGIN

namespace detail {

/// Marks operators, which are no buffers.
struct op_base {};

template <class O>
inline constexpr bool is_op = std::is_base_of_v<op_base, O>;

}  // namespace detail

/// A built-in operator.
struct op : detail::op_base {
  constexpr explicit op(dist_op_t built_in, double scale = 0) noexcept : code(built_in), factor(scale) {}

  dist_op_t code;
  /// The factor of this rank, of premul_sum alone.
  double factor;
};

inline constexpr op sum{DIST_SUM};
inline constexpr op product{DIST_PRODUCT};
inline constexpr op min{DIST_MIN};
inline constexpr op max{DIST_MAX};
inline constexpr op avg{DIST_AVG};
inline constexpr op bit_and{DIST_BAND};
inline constexpr op bit_or{DIST_BOR};
inline constexpr op bit_xor{DIST_BXOR};

/// The name of a built-in operator, such as "sum"; "unknown op" for any other number.
inline const char *name_of_op(dist_op_t code) noexcept { return dist_op_name(code); }

/// Multiplies this rank's vector by a factor before the sum.
constexpr op premul_sum(double factor) noexcept { return op(DIST_PREMUL_SUM, factor); }

/// An operator on elements of type T, made by make_op. It owns its name: two live operators have different names.
template <class T>
class custom_op : public detail::op_base {
 public:
  using value_type = T;

  explicit custom_op(dist_op_t handle) noexcept : code_(handle) {}
  custom_op(custom_op &&other) noexcept : code_(std::exchange(other.code_, 0)) {}
  custom_op &operator=(custom_op &&other) noexcept {
    std::swap(code_, other.code_);
    return *this;
  }
  ~custom_op() {
    // Works that use the operator keep it until they have completed.
    if (code_ != 0) dist_op_release(code_);
  }

  dist_op_t code() const noexcept { return code_; }

 private:
  dist_op_t code_;
};

namespace detail {

/// The function of an operator. A function without captures has one value, so that one copy serves all operators.
template <class F>
struct op_function {
  /// The copy. Only the first call uses its argument.
  static const F &instance(const F *first) {
    static const F copy(*first);
    return copy;
  }

  template <class T>
  static void fold(const void *lower, void *inout, std::size_t count, std::size_t, void *) noexcept {
    const F &function = instance(nullptr);
    const T *left = static_cast<const T *>(lower);
    T *right = static_cast<T *>(inout);
    for (std::size_t i = 0; i < count; ++i) right[i] = function(left[i], right[i]);
  }
};

/// The type and the operator of a reduction, as dist.h takes them.
struct reduction_codes {
  dist_dtype_t dtype;
  dist_op_t op;
};

template <class T>
constexpr reduction_codes reduction(const op &built_in) {
  static_assert(is_reducible_v<T>,
                "no element type of the library: specialise dist::dtype_of for it, or reduce with dist::make_op");
  return {dtype_v<T>, built_in.code};
}

template <class T, class U>
reduction_codes reduction(const custom_op<U> &custom) {
  static_assert(std::is_same_v<T, U>, "the operator is for elements of another type");
  return {DIST_OPAQUE, custom.code()};
}

}  // namespace detail

/// What make_op promises of its function.
enum class op_kind { ordered, commutative };

/// Makes an operator from a function: `T f(const T &lower, const T &upper)`.
///
/// `lower` is the result for the ranks below the rank of `upper`. All ranks make the operator with the same name and
/// the same function. The function is associative, depends on its operands only, and must not throw.
template <class T, class F, class E = detail::default_errors>
detail::outcome<E, custom_op<T>> make_op(const char *name, F function, op_kind kind = op_kind::ordered, E = E{}) {
  detail::require_element<T>();
  static_assert(std::is_empty_v<F> && std::is_invocable_r_v<T, const F &, const T &, const T &>,
                "an operator is a function object without captures that takes two elements and returns one");
  using function_of = detail::op_function<F>;
  function_of::instance(&function);
  const std::uint64_t flags = kind == op_kind::commutative ? DIST_OP_COMMUTATIVE : 0;
  dist_op_t code = 0;
  const dist_status_t status = dist_op_create(name, function_of::template fold<T>, sizeof(T), flags, nullptr, &code);
  return detail::finish<E>(status, custom_op<T>(code));
}

DIST_HPP_END

#endif  // DIST_OP_HPP
