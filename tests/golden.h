// Reads the golden values: numbers computed by PyTorch, in JSON. HALFSTEP_GOLDEN_DIR overrides the
// directory, so the same tests can be pointed at other values.
#pragma once

#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "halfstep/core/error.h"
#include "halfstep/core/tensor.h"

namespace halfstep::test {

using json = nlohmann::json;

inline std::string golden_path(const std::string& file) {
  const char* overridden = std::getenv("HALFSTEP_GOLDEN_DIR");
  return std::string(overridden != nullptr ? overridden : HALFSTEP_GOLDEN_DEFAULT_DIR) + "/" + file;
}

inline json load_golden(const std::string& file) {
  const std::string path = golden_path(file);
  std::ifstream stream(path);
  HS_CHECK(stream.good(), FileError, "load_golden", path, " cannot be read");
  return json::parse(stream);
}

/// A number, or one of the strings "inf", "-inf" and "nan"; null is a NaN too.
inline double number(const json& value) {
  if (value.is_number()) return value.get<double>();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (value == "inf") return infinity;
  if (value == "-inf") return -infinity;
  return std::numeric_limits<double>::quiet_NaN();
}

inline std::vector<double> numbers(const json& array) {
  std::vector<double> result;
  result.reserve(array.size());
  for (const json& value : array) result.push_back(number(value));
  return result;
}

/// A tensor from {"shape": [...], "data": [...]}.
inline Tensor golden_tensor(const json& value, DType dtype = DType::F32) {
  const auto shape = value.at("shape").get<std::vector<int64_t>>();
  return Tensor::from(numbers(value.at("data")), Shape(shape), dtype);
}

}  // namespace halfstep::test
