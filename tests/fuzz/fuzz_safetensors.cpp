// Any bytes as a safetensors file: they are refused by a FileError, or read; and what was read is
// the same after it was written and read again.
#include <filesystem>

#include "halfstep/core/checkpoint.h"
#include "halfstep/tests/fuzz/fuzz.h"

namespace halfstep::fuzz {
namespace {

std::string contents(const Safetensors& file) {
  std::string out;
  for (const auto& [key, value] : file.metadata) out += cat(key.size(), key, value.size(), value);
  for (const auto& [name, x] : file.tensors) out += cat(name.size(), name) + bits(x);
  return out;
}

/// In memory, if there is a file system for that: every file that is written is brought to its
/// disk.
std::string scratch_path() {
  const bool has_memory = ::access("/dev/shm", W_OK) == 0;
  const std::string folder =
      has_memory ? "/dev/shm" : std::filesystem::temp_directory_path().string();
  return cat(folder, "/fuzz_safetensors.", ::getpid());
}

void check(std::span<const std::byte> bytes) {
  Safetensors first;
  try {
    first = parse_safetensors(bytes, "input");
  } catch (const FileError& error) {
    FUZZ_CHECK(std::string_view(error.what()).starts_with("[read_safetensors] input: "),
               error.what());
    return;
  }
  static const std::string path = scratch_path();
  write_safetensors(path, first);
  const Safetensors second = read_safetensors(path);
  ::unlink(path.c_str());
  FUZZ_CHECK(contents(first) == contents(second), "not the same after writing and reading");

  // As a state: every number in it is found.
  const StateDict state{.tensors = first.tensors};
  for (const auto& [name, x] : first.tensors) {
    if (x.rank() != 0 || x.dtype() != DType::F64) continue;
    StateReader reader("state", state);
    FUZZ_CHECK(same_bits(reader.number(name), *x.data<double>()), name);
  }
}

}  // namespace
}  // namespace halfstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  halfstep::fuzz::check(std::as_bytes(std::span(data, size)));
  return 0;
}
