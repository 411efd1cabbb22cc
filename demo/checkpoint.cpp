// Checkpoints: a safetensors file whose metadata hold the config.
#include "halfstep/demo/checkpoint.h"

#include <utility>

#include "halfstep/core/checkpoint.h"
#include "halfstep/core/error.h"
#include "halfstep/demo/config.h"
#include "halfstep/demo/parse.h"

namespace halfstep::demo {
namespace {

constexpr const char* kConfigKey = "amp_demo config";

}  // namespace

void write_checkpoint(const std::string& path, const Session& session) {
  GivenSettings settings = given_settings(session.options());
  settings.erase("resume");
  Safetensors file = to_safetensors(session.state_dict());
  file.metadata[kConfigKey] = config_text(settings);
  write_safetensors(path, file);
}

Checkpoint read_checkpoint(const std::string& path) {
  Safetensors file = read_safetensors(path);
  const auto config = file.metadata.find(kConfigKey);
  if (config == file.metadata.end()) {
    throw FileError(cat(path, " holds tensors, but no settings of a run; was it written by",
                        " amp_demo --checkpoint?"));
  }
  try {
    return {parse_config(config->second, path),
            {.tensors = std::move(file.tensors), .numbers = {}, .source = path}};
  } catch (const UsageError& error) {
    throw FileError(error.what());
  }
}

}  // namespace halfstep::demo
