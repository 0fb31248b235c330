// The namespace of the C++ interface, and its requirements on the compiler.
#ifndef DIST_CONFIG_HPP
#define DIST_CONFIG_HPP

#include <dist.h>

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "dist.hpp needs C++17: compile with -std=c++17 or newer"
#endif

#if defined(__cpp_exceptions) && __cpp_exceptions >= 199711L
#define DIST_HPP_HAS_EXCEPTIONS 1
#else
#define DIST_HPP_HAS_EXCEPTIONS 0
#endif

// Translation units with and without exceptions compile functions of the same name to different code.
// The name of the inline namespace keeps the linker from mixing them. The language standard changes no
// function and no class, so that translation units of different standards share one namespace.
#if DIST_HPP_HAS_EXCEPTIONS
#define DIST_HPP_BEGIN namespace dist { inline namespace v0 {
#else
#define DIST_HPP_BEGIN namespace dist { inline namespace v0_nothrow {
#endif
#define DIST_HPP_END } }

#endif  // DIST_CONFIG_HPP
