// Safetensors: named tensors and a little text in one file, in the public format of that name
// (github.com/huggingface/safetensors): 8 bytes with the length of a header, little-endian; the
// header, JSON, with each tensor's dtype, shape and place; then the elements, without gaps.
// Read as strictly as written: whatever is wrong is a FileError that names file and tensor.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "halfstep/core/tensor.h"

namespace halfstep {

struct Safetensors {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;  ///< UTF-8
};

/// Reads a file. The tensors are on the CPU; dtypes are F64, F32, F16 and BF16, and a file with
/// others is refused. Elements are kept bit for bit, NaN included.
Safetensors read_safetensors(const std::string& path);
/// The same from memory; `name` stands for the file in messages.
Safetensors parse_safetensors(std::span<const std::byte> bytes, const std::string& name);

/// Replaces the file in one step (see write_file). Tensors lie in it as Python's library lays them:
/// by dtype, the widest first, then by name. ArgumentError if a name or a text is not
/// UTF-8, or a tensor is undefined.
void write_safetensors(const std::string& path, const Safetensors& contents);

}  // namespace halfstep
