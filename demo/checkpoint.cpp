// Checkpoints: a safetensors file whose metadata hold the config.
#include "halfstep/demo/checkpoint.h"

#include <utility>

#include "halfstep/core/checkpoint.h"
#include "halfstep/core/error.h"
#include "halfstep/demo/checksum.h"
#include "halfstep/demo/config.h"
#include "halfstep/demo/parse.h"

namespace halfstep::demo {
namespace {

constexpr const char* kConfigKey = "amp_demo config";
constexpr const char* kChecksumKey = "amp_demo checksum";

/// Of the settings and of all tensors: a damaged element would read as another number, and the run
/// would go on from there.
std::string checksum_of(const Safetensors& file) {
  Checksum checksum;
  checksum.add(file.metadata.at(kConfigKey));
  for (const auto& [name, tensor] : file.tensors) {
    checksum.add(name);
    checksum.add(tensor.to_vector<double>());
  }
  return cat(checksum.value());
}

}  // namespace

void write_checkpoint(const std::string& path, const Session& session) {
  GivenSettings settings = given_settings(session.options());
  settings.erase("resume");
  Safetensors file = to_safetensors(session.state_dict());
  file.metadata[kConfigKey] = config_text(settings);
  file.metadata[kChecksumKey] = checksum_of(file);
  write_safetensors(path, file);
}

Checkpoint read_checkpoint(const std::string& path) {
  Safetensors file = read_safetensors(path);
  const auto config = file.metadata.find(kConfigKey);
  if (config == file.metadata.end()) {
    throw FileError(cat(path, " holds tensors, but no settings of a run; was it written by",
                        " amp_demo --checkpoint?"));
  }
  const auto checksum = file.metadata.find(kChecksumKey);
  if (checksum == file.metadata.end() || checksum->second != checksum_of(file)) {
    throw FileError(cat(path, " is damaged: its checksum is that of other contents"));
  }
  try {
    return {parse_config(config->second, path),
            {.tensors = std::move(file.tensors), .numbers = {}, .source = path}};
  } catch (const UsageError& error) {
    throw FileError(error.what());
  }
}

}  // namespace halfstep::demo
