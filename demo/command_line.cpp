// CLI11 finds flags and values and writes --help; what values mean is decided by the table of
// settings. The only file that includes CLI11, which is slow to compile.
#include "halfstep/demo/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "halfstep/core/error.h"
#include "halfstep/demo/parse.h"

namespace halfstep::demo {
namespace {

constexpr const char* kVersion = "amp_demo (halfstep) " AMP_DEMO_VERSION;
constexpr const char* kDescription =
    "Trains a small network with the safe mixed-precision step: autocast, loss scaling,\n"
    "gradient clipping, and no update from a gradient or loss that is not finite.\n"
    "Prints one row per step (with --data one per epoch), then a summary.";
constexpr const char* kFooter =
    "Examples:\n"
    "  amp_demo --precision fp16 --inject target-spike@7:1e8\n"
    "  amp_demo --precision fp16 --steps 200 --growth-interval 2 --inject none --csv run.csv\n"
    "  amp_demo --data demo/data/digits.csv --precision fp16\n"
    "\n"
    "Exit status: 0 all went well, 1 the run failed, 2 the command line was not understood.";

/// Refuses --flag= (CLI11 would take the next argument for the value) and values for switches.
void check_equals_sign(std::string_view argument) {
  const size_t equals = argument.find('=');
  if (!argument.starts_with("--") || equals == std::string_view::npos) return;
  const std::string_view name = argument.substr(2, equals - 2);
  const auto setting = std::ranges::find(settings(), name, &Setting::name);
  if (setting != settings().end() && setting->placeholder.empty()) {
    throw UsageError(cat(quote(argument), " given; --", name, " takes no value"));
  }
  if (equals + 1 == argument.size()) {
    throw UsageError(cat(quote(argument), " given; a value must follow the ="));
  }
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  std::vector<std::string> arguments;  // last first, as CLI11 wants them
  for (int i = argc - 1; i > 0; --i) {
    arguments.emplace_back(argv[i]);
    check_equals_sign(arguments.back());
  }

  CLI::App app(kDescription, "amp_demo");
  app.footer(kFooter);
  app.set_version_flag("--version", kVersion, "Print the version and exit");
  app.allow_extras();  // reported below
  GivenSettings values;
  for (const Setting& setting : settings()) {
    const std::string flag = "--" + std::string(setting.name);
    CLI::Option* option = nullptr;
    if (setting.placeholder.empty()) {
      option = app.add_flag(flag)->description(std::string(setting.help));
    } else {
      option = app.add_option(flag, values[std::string(setting.name)], std::string(setting.help))
                   ->type_name(std::string(setting.placeholder))
                   ->allow_extra_args(false)  // one value per flag; a flag may come again
                   ->expected(1, 1 << 20);
    }
    option->group(std::string(setting.group));
  }

  try {
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    return {{}, app.help()};
  } catch (const CLI::CallForVersion&) {
    return {{}, cat(kVersion, "\n")};
  } catch (const CLI::ArgumentMismatch& error) {
    // "--lr: 1 required X missing": the flag was the last argument.
    const std::string_view message = error.what();
    throw UsageError(cat(message.substr(0, message.find(':')), " given without a value"));
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  if (const std::vector<std::string> unknown = app.remaining(); !unknown.empty()) {
    throw UsageError(cat("unknown argument ", quote(unknown.front()),
                         " given; amp_demo --help lists what there is"));
  }

  GivenSettings given;
  for (const Setting& setting : settings()) {
    const std::string name(setting.name);
    const size_t count = app.count("--" + name);
    if (count == 0) continue;
    given[name] =
        setting.placeholder.empty() ? std::vector<std::string>(count) : std::move(values[name]);
  }
  return {make_options(given), {}};
}

}  // namespace halfstep::demo
