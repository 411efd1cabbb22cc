// What reading and writing safetensors share: limits, names of dtypes, sizes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "halfstep/core/tensor.h"

namespace halfstep::safetensors {

inline constexpr uint64_t kLengthBytes = 8;
inline constexpr uint64_t kMostHeaderBytes = 100'000'000;  // the format's limit
inline constexpr const char* kMetadata = "__metadata__";
inline constexpr DType kByWidth[] = {DType::F64, DType::F32, DType::BF16, DType::F16};
inline std::string format_name(DType dtype) {
  std::string name(name_of(dtype));  // "bf16" is BF16 in the format
  std::ranges::transform(name, name.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  return name;
}

inline size_t byte_count(const Tensor& x) {
  return static_cast<size_t>(x.numel()) * size_of(x.dtype());
}

}  // namespace halfstep::safetensors
