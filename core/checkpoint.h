// save and load: the state of a module, an optimizer, a whole training run, as one safetensors file
// that Python reads too.
#pragma once

#include <string>

#include "halfstep/core/safetensors.h"
#include "halfstep/core/state_dict.h"

namespace halfstep {

/// A state as the contents of a file: numbers become f64 tensors of shape [].
Safetensors to_safetensors(const StateDict& state);
/// The state in a file; nothing is known of what it should hold.
StateDict read_state_dict(const std::string& path);

/// Writes the state of `object` to `path`, in one step: whatever happens, the file is the old one
/// or the new one (see write_file). FileError if it cannot be written.
template <Stateful T>
void save(const T& object, const std::string& path) {
  write_safetensors(path, to_safetensors(object.state_dict()));
}

/// Takes over the state in `path`, bit for bit, or throws an Error that names the file, and the
/// tensor that is missing, unknown or unfit, with `object` unchanged.
template <Stateful T>
void load(T& object, const std::string& path) {
  object.prepare_load(read_state_dict(path))();
}

}  // namespace halfstep
