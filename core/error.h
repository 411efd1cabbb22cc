// Errors: every failure that halfstep reports is an Error whose text reads
// `[op] what was given; what must hold; the likely cause`. Defines Error and its kinds, cat(),
// fail() and HS_CHECK. Assumes nothing; everything else includes it.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace halfstep {

/// Base of everything halfstep throws, except std::bad_alloc when memory runs out.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
/// A value or an option is outside its range.
class ArgumentError : public Error {
 public:
  using Error::Error;
};
/// Shapes do not fit each other.
class ShapeError : public Error {
 public:
  using Error::Error;
};
/// dtypes do not fit each other or the op.
class DTypeError : public Error {
 public:
  using Error::Error;
};
/// Devices differ, or a device is not available in this build.
class DeviceError : public Error {
 public:
  using Error::Error;
};
/// Calls of the training step came in a wrong order.
class OrderError : public Error {
 public:
  using Error::Error;
};
/// The autograd graph cannot be run: no history, consumed, or a saved tensor was changed.
class GraphError : public Error {
 public:
  using Error::Error;
};
/// A value that must be finite is Inf or NaN.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};
/// A file cannot be read or written, or its contents are malformed.
class FileError : public Error {
 public:
  using Error::Error;
};

namespace detail {

inline void append(std::string& out, std::string_view text) { out += text; }

template <std::same_as<bool> T>
void append(std::string& out, T value) {
  out += value ? "true" : "false";
}

template <class T>
requires((std::integral<T> && !std::same_as<T, bool>) ||
         std::floating_point<T>) void append(std::string& out, T value) {
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  out.append(buffer, result.ptr);
}

template <class T>
requires requires(const T& value) { value.str(); }
void append(std::string& out, const T& value) { out += value.str(); }

}  // namespace detail

/// Concatenates text, numbers (shortest form that reads back) and anything with `str()`.
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::string out;
  (detail::append(out, parts), ...);
  return out;
}

/// Throws E with the text `[op] parts...`.
template <std::derived_from<Error> E, class... Parts>
[[noreturn]] void fail(std::string_view op, const Parts&... parts) {
  throw E(cat("[", op, "] ", parts...));
}

}  // namespace halfstep

/// Throws ErrorType unless `condition` holds; the message is built only then.
#define HS_CHECK(condition, ErrorType, op, ...)                 \
  do {                                                          \
    if (!(condition)) [[unlikely]]                              \
      ::halfstep::fail<::halfstep::ErrorType>(op, __VA_ARGS__); \
  } while (false)
