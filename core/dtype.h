// dtypes: the element types of tensors, and the scalar conversions between them.
// All conversions round to nearest even, keep subnormals and keep NaN a NaN (quiet, sign kept);
// the SIMD and CUDA backends produce the same bits. Serves steps 3 and 4 of a training step.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace halfstep {

enum class DType : uint8_t { F32, F16, BF16, F64 };
inline constexpr int kDTypeCount = 4;

/// IEEE binary16 as storage: no arithmetic, only conversions.
struct Half {
  uint16_t bits;
};
/// bfloat16 (the upper half of a float32) as storage.
struct BFloat16 {
  uint16_t bits;
};

constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::F16:
    case DType::BF16:
      return 2;
    case DType::F32:
      return 4;
    case DType::F64:
      return 8;
  }
  return 0;
}

/// "f32", "f16", "bf16" or "f64".
constexpr std::string_view name_of(DType dtype) {
  constexpr std::string_view kNames[kDTypeCount] = {"f32", "f16", "bf16", "f64"};
  return kNames[static_cast<int>(dtype)];
}

constexpr bool is_half(DType dtype) { return dtype == DType::F16 || dtype == DType::BF16; }

template <class T>
inline constexpr DType kDTypeOf = DType::F32;
template <>
inline constexpr DType kDTypeOf<Half> = DType::F16;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::BF16;
template <>
inline constexpr DType kDTypeOf<double> = DType::F64;

/// The narrowest dtype that holds every value of both: halves of different kinds meet in F32.
constexpr DType promote(DType a, DType b) {
  if (a == b) return a;
  if (a == DType::F64 || b == DType::F64) return DType::F64;
  return DType::F32;
}

constexpr uint16_t f32_to_bf16_bits(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((u >> 16) | 0x0040u);
  return static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

constexpr float bf16_bits_to_f32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

constexpr uint16_t f32_to_f16_bits(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {  // NaN: quiet, upper payload bits kept
    return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  }
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // >= 65520
  if (magnitude >= 0x38800000u) {  // normal in f16: rebias the exponent by 127 - 15
    const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
  }
  // Subnormal: adding 0.5 (one ulp = 2^-24) lets the float adder round to a multiple of 2^-24.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
}

constexpr float f16_bits_to_f32(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7FFFu;
  if (magnitude > 0x7C00u) {  // NaN: quiet, as F16C makes it
    return std::bit_cast<float>(sign | 0x7FC00000u | (magnitude << 13));
  }
  if (magnitude == 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u);
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  const float value = static_cast<float>(magnitude) * 0x1p-24f;  // exact
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

/// Narrows to float with "round to odd": an inexact result has its last bit set, so that a second
/// rounding to a half gives what one rounding from double would have given.
inline float f64_to_f32_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return nearest;
  // The float next to `value` on the side of zero, then its last bit set.
  uint32_t u = std::bit_cast<uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --u;
  return std::bit_cast<float>(u | 1u);
}

/// Converts one element between any two storage types, rounding once.
template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, Half>) {
    return convert<To>(f16_bits_to_f32(value.bits));
  } else if constexpr (std::is_same_v<From, BFloat16>) {
    return convert<To>(bf16_bits_to_f32(value.bits));
  } else if constexpr (std::is_same_v<To, Half>) {
    if constexpr (std::is_same_v<From, double>) {
      return Half{f32_to_f16_bits(f64_to_f32_odd(value))};
    } else {
      return Half{f32_to_f16_bits(static_cast<float>(value))};
    }
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    if constexpr (std::is_same_v<From, double>) {
      return BFloat16{f32_to_bf16_bits(f64_to_f32_odd(value))};
    } else {
      return BFloat16{f32_to_bf16_bits(static_cast<float>(value))};
    }
  } else {
    return static_cast<To>(value);
  }
}

/// Calls fn with a value-initialised element of `dtype`'s storage type: the one place where a
/// run-time dtype becomes a static type.
template <class Fn>
decltype(auto) visit_dtype(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::F16:
      return fn(Half{});
    case DType::BF16:
      return fn(BFloat16{});
    case DType::F64:
      return fn(double{});
    case DType::F32:
      break;
  }
  return fn(float{});
}

}  // namespace halfstep
