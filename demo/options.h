// The settings of a run: names, texts for --help, defaults and limits. They arrive as text, by
// name, wherever that came from, and leave as checked DemoOptions. Knows nothing of command lines.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halfstep/amp/grad_scaler.h"
#include "halfstep/demo/injection.h"

namespace halfstep::demo {

struct DemoOptions {
  // What to train on: synthetic data for so many steps, or a CSV file for so many epochs.
  int64_t steps = 20;
  std::string data_path;  ///< empty: synthetic data
  int64_t epochs = 40;
  int64_t hidden = 32;

  int64_t batch = 8;
  double lr = 1e-2;
  double max_norm = 1.0;  ///< inf never clips
  uint64_t seed = 0;
  Device device = Device::cpu();
  DType dtype = DType::BF16;  ///< F32 runs without autocast
  std::vector<Injection> injections;
  amp::GradScalerOptions scaler;
  std::string csv_path;  ///< empty: no CSV

  bool has_data() const { return !data_path.empty(); }
};

/// The defaults of a run on synthetic data, or of one on a CSV file.
DemoOptions default_options(bool has_data);

struct Setting {
  enum class Task : uint8_t { kAny, kSynthetic, kData };
  std::string_view name;  ///< "max-norm"
  std::string_view
      placeholder;         ///< of the value in --help: "X"; empty for a switch without a value
  std::string_view group;  ///< heading in --help
  std::string_view help;
  Task task;  ///< what it makes sense for
  /// Null for `inject`, which takes all its values together.
  void (*apply)(DemoOptions& options, std::string_view name, std::string_view value);
};

/// All settings, in the order of --help. `inject` may be given more than once.
std::span<const Setting> settings();

/// Values by name of setting, as text; a switch has an empty value.
using GivenSettings = std::map<std::string, std::vector<std::string>, std::less<>>;

/// Defaults, changed by what is given. UsageError for a value that cannot be, or for settings that
/// contradict each other.
DemoOptions make_options(const GivenSettings& given);

}  // namespace halfstep::demo
