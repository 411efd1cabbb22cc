// The settings of a run: names, texts for --help, limits. They arrive as text, by name, from the
// command line, a config file or a checkpoint, and leave as DemoOptions; and back.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halfstep/demo/options.h"

namespace halfstep::demo {

struct Setting {
  enum class Form : uint8_t { kNumber, kText, kSwitch, kList };
  enum class Task : uint8_t { kAny, kSynthetic, kData };
  enum class Use : uint8_t {
    kRun,    ///< the results depend on it: a resumed run keeps it
    kFree,   ///< may be another one when a run is resumed
    kAlias,  ///< --fp16 for --precision fp16; on the command line only
  };

  std::string_view name;         ///< "max-norm"
  std::string_view placeholder;  ///< of the value in --help: "X"; empty for a switch
  std::string_view group;        ///< heading in --help
  std::string_view help;
  Form form;
  Task task;  ///< what it makes sense for
  Use use;
  /// UsageError for a value that cannot be. Null for aliases, and for a list, which takes all its
  /// values together.
  void (*set)(DemoOptions& options, std::string_view name, std::string_view value);
  /// Its value as text; nullopt if it is not set. Null for lists and aliases.
  std::optional<std::string> (*show)(const DemoOptions& options);
};

/// All settings, in the order of --help. The list is `inject`.
std::span<const Setting> settings();
/// The setting of that name; null if there is none.
const Setting* find_setting(std::string_view name);

/// The name of a setting that is nearest to `name`, for messages.
std::string_view nearest_setting(std::string_view name);

/// Values by name of setting, as text. A switch has "true" or "false".
using GivenSettings = std::map<std::string, std::vector<std::string>, std::less<>>;

/// With --fp16 and its like written as --precision. UsageError if there are two of them.
GivenSettings without_aliases(GivenSettings given);
/// Those of `below`, replaced by those of `above`.
GivenSettings merged(GivenSettings below, const GivenSettings& above);

/// Defaults, changed by what is given. UsageError for a value that cannot be, or for settings that
/// contradict each other. There must be no aliases.
DemoOptions make_options(const GivenSettings& given);
/// All settings that such a run has: make_options(given_settings(o)) is o again.
GivenSettings given_settings(const DemoOptions& options);

}  // namespace halfstep::demo
