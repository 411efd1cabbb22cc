// StateDict and StateReader: nesting, and checked access.
#include "halfstep/core/state_dict.h"

#include <cmath>

#include "halfstep/core/kernels.h"

namespace halfstep {

void StateDict::add(const std::string& name, const StateDict& part) {
  for (const auto& [key, value] : part.tensors) tensors[cat(name, ".", key)] = value;
  for (const auto& [key, value] : part.numbers) numbers[cat(name, ".", key)] = value;
}

StateDict StateDict::part(const std::string& name) const {
  const std::string begin = name + ".";
  StateDict out{.tensors = {}, .numbers = {}, .source = source, .prefix = prefix + begin};
  const auto take = [&](const auto& from, auto& to) {
    for (auto entry = from.lower_bound(begin);
         entry != from.end() && entry->first.starts_with(begin); ++entry) {
      to.emplace(entry->first.substr(begin.size()), entry->second);
    }
  };
  take(tensors, out.tensors);
  take(numbers, out.numbers);
  return out;
}

double StateReader::number(const std::string& key) {
  read_.insert(key);
  if (const auto found = state_.numbers.find(key); found != state_.numbers.end()) {
    return found->second;
  }
  const auto found = state_.tensors.find(key);
  HS_CHECK(found != state_.tensors.end(), ArgumentError, op_, "the number ", full(key),
           " is missing; was the state saved from another kind of object?");
  const Tensor& value = found->second;
  HS_CHECK(value.defined() && value.rank() == 0 && value.dtype() == DType::F64, ArgumentError, op_,
           full(key), " is ", value, "; it must be a number, which is an f64 tensor of shape []");
  return value.item();
}

int64_t StateReader::whole_number(const std::string& key, double least) {
  const double value = number(key);
  HS_CHECK(value >= least && value <= 0x1p53 && value == std::floor(value), ArgumentError, op_,
           full(key), " = ", value, " given; it must be a whole number >= ", least);
  return static_cast<int64_t>(value);
}

bool StateReader::flag(const std::string& key) {
  const double value = number(key);
  HS_CHECK(value == 0.0 || value == 1.0, ArgumentError, op_, full(key), " = ", value,
           " given; it must be 0 or 1");
  return value == 1.0;
}

Tensor StateReader::tensor(const std::string& key, const Tensor& like) {
  const auto found = state_.tensors.find(key);
  HS_CHECK(found != state_.tensors.end(), ArgumentError, op_, "the tensor ", full(key),
           " is missing; was the state saved from another kind of object?");
  const Tensor& value = found->second;
  HS_CHECK(value.defined() && value.shape() == like.shape(), ShapeError, op_, full(key), " is ",
           value, "; its shape must be ", like.shape());
  HS_CHECK(value.dtype() == like.dtype(), DTypeError, op_, full(key), " is ", value,
           "; its dtype must be ", name_of(like.dtype()));
  read_.insert(key);
  if (value.device() == like.device()) return value.clone();
  HS_CHECK(value.device().is_cpu(), DeviceError, op_, full(key), " is ", value,
           "; it must be on the cpu or on ", like.device());
  Tensor moved = empty_like(like);
  kernels(like.device())
      .copy_from_host(value.raw_data(), moved.mutable_raw_data(),
                      static_cast<size_t>(value.numel()) * size_of(value.dtype()));
  return moved;
}

StateDict StateReader::part(const std::string& name) {
  StateDict part = state_.part(name);
  for (const auto& [key, value] : part.tensors) read_.insert(cat(name, ".", key));
  for (const auto& [key, value] : part.numbers) read_.insert(cat(name, ".", key));
  return part;
}

void StateReader::finish() const {
  const auto check = [this](const auto& entries) {
    for (const auto& [key, value] : entries) {
      HS_CHECK(read_.contains(key), ArgumentError, op_, "the key ", full(key),
               " is unknown here; was the state saved from another model or kind of object?");
    }
  };
  check(state_.numbers);
  check(state_.tensors);
}

}  // namespace halfstep
