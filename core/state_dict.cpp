// StateReader: checked access to a StateDict.
#include "halfstep/core/state_dict.h"

#include <cmath>

namespace halfstep {

double StateReader::number(const std::string& key) {
  const auto found = state_.numbers.find(key);
  HS_CHECK(found != state_.numbers.end(), ArgumentError, op_, "the number ", key,
           " is missing; was the state saved from another kind of object?");
  read_.insert(key);
  return found->second;
}

int64_t StateReader::whole_number(const std::string& key, double least) {
  const double value = number(key);
  HS_CHECK(value >= least && value <= 0x1p53 && value == std::floor(value), ArgumentError, op_, key,
           " = ", value, " given; it must be a whole number >= ", least);
  return static_cast<int64_t>(value);
}

bool StateReader::flag(const std::string& key) {
  const double value = number(key);
  HS_CHECK(value == 0.0 || value == 1.0, ArgumentError, op_, key, " = ", value,
           " given; it must be 0 or 1");
  return value == 1.0;
}

Tensor StateReader::tensor(const std::string& key, const Tensor& like) {
  const auto found = state_.tensors.find(key);
  HS_CHECK(found != state_.tensors.end(), ArgumentError, op_, "the tensor ", key,
           " is missing; was the state saved from another kind of object?");
  const Tensor& value = found->second;
  HS_CHECK(value.defined() && value.shape() == like.shape(), ShapeError, op_, key, " is ", value,
           "; its shape must be ", like.shape());
  HS_CHECK(value.dtype() == like.dtype(), DTypeError, op_, key, " is ", value,
           "; its dtype must be ", name_of(like.dtype()));
  HS_CHECK(value.device() == like.device(), DeviceError, op_, key, " is ", value,
           "; it must be on ", like.device());
  read_.insert(key);
  return value.clone();
}

void StateReader::finish() const {
  const auto check = [this](const auto& entries) {
    for (const auto& [key, value] : entries) {
      HS_CHECK(read_.contains(key), ArgumentError, op_, "the key ", key,
               " is unknown here; was the state saved from another model or kind of object?");
    }
  };
  check(state_.numbers);
  check(state_.tensors);
}

}  // namespace halfstep
