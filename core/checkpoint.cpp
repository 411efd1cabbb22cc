// Between StateDict and Safetensors.
#include "halfstep/core/checkpoint.h"

#include <utility>

namespace halfstep {

Safetensors to_safetensors(const StateDict& state) {
  Safetensors out{.tensors = state.tensors, .metadata = {}};
  for (const auto& [key, value] : state.numbers) {
    out.tensors[key] = Tensor::scalar(value, DType::F64);
  }
  return out;
}

StateDict read_state_dict(const std::string& path) {
  Safetensors file = read_safetensors(path);
  return {.tensors = std::move(file.tensors), .numbers = {}, .source = path, .prefix = {}};
}

}  // namespace halfstep
