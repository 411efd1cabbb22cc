// StateDict: what an object needs to go on exactly where it was, as named tensors and numbers; and
// loading one so that either all of it is taken over or nothing.
// Names are PyTorch's, nested ones joined by dots: "state.0.exp_avg", "param_groups.0.lr".
#pragma once

#include <concepts>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "halfstep/core/tensor.h"
#include "halfstep/core/text.h"

namespace halfstep {

struct StateDict {
  std::map<std::string, Tensor> tensors = {};
  std::map<std::string, double> numbers = {};  ///< read from a file they are f64 scalars instead
  std::string source = {};                     ///< the file it came from, for messages
  std::string prefix = {};                     ///< of its keys in that file, for messages

  /// Adds the state of a part of this object, its keys as "name.key".
  void add(const std::string& name, const StateDict& part);
  /// The state of a part: what lies below "name.", without that.
  StateDict part(const std::string& name) const;
};

/// The second half of a load: takes over what was read and checked. Does not throw.
using TakeOver = std::function<void()>;

/// An object whose state can be saved and loaded. prepare_load reads and checks everything and
/// changes nothing; it throws an Error that names the key which is missing, unknown or unfit. An
/// object of several parts prepares all of them before it takes over the first.
template <class T>
concept Stateful = requires(const T& saved, T& loaded, const StateDict& state) {
  { saved.state_dict() } -> std::same_as<StateDict>;
  { loaded.prepare_load(state) } -> std::same_as<TakeOver>;
};

/// Reads a StateDict and checks what it reads. Errors begin with `op` and the file's name, and name
/// the key.
class StateReader {
 public:
  /// `state` must outlive the reader.
  StateReader(const std::string& op, const StateDict& state)
      : op_(state.source.empty() ? op : cat(op, " ", state.source)), state_(state) {}

  /// How errors about the state begin.
  const std::string& op() const { return op_; }
  /// The whole name of a key, for messages.
  std::string full(const std::string& key) const { return one_line(state_.prefix + key); }
  /// A number, or the element of an f64 scalar.
  double number(const std::string& key);
  /// A whole number in [least, 2^53].
  int64_t whole_number(const std::string& key, double least);
  /// 0 or 1.
  bool flag(const std::string& key);
  bool has_tensor(const std::string& key) const { return state_.tensors.contains(key); }
  /// A copy on the device of `like`; shape and dtype must be those of `like`.
  Tensor tensor(const std::string& key, const Tensor& like);
  /// The state of a part, which that part has to check.
  StateDict part(const std::string& name);
  /// ArgumentError if there is a key that nobody has read.
  void finish() const;

 private:
  std::string op_;
  const StateDict& state_;
  std::set<std::string> read_;
};

}  // namespace halfstep
