// StateDict: what an object needs to go on exactly where it was, as named tensors and numbers.
// Names are PyTorch's, nested ones joined by dots: "state.0.exp_avg", "param_groups.0.lr".
#pragma once

#include <map>
#include <set>
#include <string>

#include "halfstep/core/tensor.h"

namespace halfstep {

struct StateDict {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, double> numbers;
};

/// Reads a StateDict and checks what it reads, so that a load can be all or nothing: read
/// everything, call finish(), and only then take it over. Errors begin with `op` and name the key.
class StateReader {
 public:
  StateReader(std::string op, const StateDict& state) : op_(std::move(op)), state_(state) {}

  const std::string& op() const { return op_; }
  double number(const std::string& key);
  /// A whole number in [least, 2^53].
  int64_t whole_number(const std::string& key, double least);
  /// 0 or 1.
  bool flag(const std::string& key);
  bool has_tensor(const std::string& key) const { return state_.tensors.contains(key); }
  /// A copy; shape, dtype and device must be those of `like`.
  Tensor tensor(const std::string& key, const Tensor& like);
  /// ArgumentError if there is a key that nobody has read.
  void finish() const;

 private:
  std::string op_;
  const StateDict& state_;
  std::set<std::string> read_;
};

}  // namespace halfstep
