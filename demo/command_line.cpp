// CLI11 finds flags and values and writes --help; what values mean is decided by the table of
// settings. The only file that includes CLI11, which is slow to compile.
#include "halfstep/demo/command_line.h"

#include <CLI/CLI.hpp>

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
    "Faults (--inject), at a step or at all steps FIRST-LAST, counted from 0:\n"
    "  inf-grad@STEP[:PARAMETER]  nan-grad@STEP[:PARAMETER]  an Inf or NaN in a gradient\n"
    "  target-spike@STEP:FACTOR   the targets times FACTOR\n"
    "  nan-input@STEP             a NaN in the inputs\n"
    "  inf-loss@STEP              an infinite loss\n"
    "  none                       no fault\n"
    "  With =skip or =step behind it, the run ends with status 4 unless that happens.\n"
    "\n"
    "Data (--data): a CSV file with a header and numeric columns, one of them the target. A target "
    "of\n"
    "whole numbers from 0 to 999 holds classes, any other is a number to predict (scored by R2). "
    "Features,\n"
    "and a target that is a number, are standardised on the training split, a random 80 % of the "
    "rows.\n"
    "\n"
    "Examples:\n"
    "  amp_demo --precision fp16 --inject target-spike@7:1e8\n"
    "  amp_demo --precision fp16 --steps 200 --growth-interval 2 --inject none --csv run.csv\n"
    "  amp_demo --data demo/data/digits.csv --precision fp16 --plot run.svg\n"
    "  amp_demo --steps 100000 --csv run.csv --checkpoint run.ckpt --checkpoint-every 1000\n"
    "  amp_demo --resume run.ckpt\n"
    "  amp_demo --config demo/configs/spike.json --sweep max-norm=0.5,1,5,inf\n"
    "\n"
    "Exit status: 0 all went well, 1 the run failed, 2 the command line or the config was not\n"
    "understood, 3 too many steps were skipped, 4 a fault did not have the expected effect,\n"
    "130 interrupted by Ctrl-C (143 by SIGTERM, 129 by a terminal that was closed).";

/// What a run can do besides running, and where its settings come from.
constexpr const char* kActions = "Config";

/// Refuses --flag= (CLI11 would take the next argument for the value) and values for switches.
void check_equals_sign(std::string_view argument) {
  const size_t equals = argument.find('=');
  if (!argument.starts_with("--") || equals == std::string_view::npos) return;
  const std::string_view name = argument.substr(2, equals - 2);
  const Setting* setting = find_setting(name);
  const bool is_switch = name == "print-config" || name == "explain" ||
                         (setting && setting->form == Setting::Form::kSwitch);
  if (is_switch) {
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
  CommandLine command;
  app.add_option("--config", command.config_path,
                 "take settings from this JSON file; flags go before them")
      ->type_name("FILE")
      ->group(kActions);
  app.add_flag("--print-config", command.print_config,
               "print the settings in force, as --config takes them, and exit")
      ->group(kActions);
  app.add_option("--sweep", command.sweep,
                 "run once for each value, with the same seed, and print a\n"
                 "table: max-norm=0.5,1,5,inf")
      ->type_name("SETTING=V,...")
      ->group(kActions);
  app.add_flag("--explain", command.explain,
               "print what runs in which precision, and on what, and exit")
      ->group(kActions);
  GivenSettings values;
  for (const Setting& setting : settings()) {
    const std::string flag = "--" + std::string(setting.name);
    CLI::Option* option = nullptr;
    if (setting.form == Setting::Form::kSwitch) {
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
    command.text = app.help();
    return command;
  } catch (const CLI::CallForVersion&) {
    command.text = cat(kVersion, "\n");
    return command;
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

  for (const auto& [name, value] :
       {std::pair("--config", &command.config_path), std::pair("--sweep", &command.sweep)}) {
    if (app.count(name) > 0 && value->empty())
      throw UsageError(cat(name, " '' given; it is empty"));
  }
  GivenSettings given;
  for (const Setting& setting : settings()) {
    const std::string name(setting.name);
    const size_t count = app.count("--" + name);
    if (count == 0) continue;
    given[name] = setting.form == Setting::Form::kSwitch ? std::vector<std::string>{"true"}
                                                         : std::move(values[name]);
  }
  command.given = without_aliases(std::move(given));
  return command;
}

}  // namespace halfstep::demo
