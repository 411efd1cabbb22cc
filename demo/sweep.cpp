// Sweeps over a setting.
#include "halfstep/demo/sweep.h"

#include <fmt/format.h>

#include <cmath>

#include "halfstep/core/error.h"
#include "halfstep/demo/interrupt.h"
#include "halfstep/demo/parse.h"
#include "halfstep/demo/session.h"

namespace halfstep::demo {
namespace {

struct Sweep {
  std::string name;
  std::vector<std::string> values;
};

Sweep parse_sweep(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    throw UsageError(cat("--sweep ", quote(text),
                         " given; it must be SETTING=VALUE,VALUE,..., as in max-norm=0.5,1,inf"));
  }
  Sweep sweep{.name = std::string(text.substr(0, equals)), .values = {}};
  const Setting* setting = find_setting(sweep.name);
  if (!setting) {
    throw UsageError(cat("--sweep ", quote(text), " given; there is no setting ", quote(sweep.name),
                         "; the nearest is ", quote(nearest_setting(sweep.name))));
  }
  if (setting->use != Setting::Use::kRun || !setting->set) {
    throw UsageError(cat("--sweep ", quote(text), " given; runs cannot be compared by ",
                         quote(sweep.name), "; it must be a setting that changes each step"));
  }
  for (std::string_view rest = text.substr(equals + 1);;) {
    const size_t comma = rest.find(',');
    sweep.values.emplace_back(rest.substr(0, comma));
    if (comma == std::string_view::npos) return sweep;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace

RunEnd sweep(std::string_view text, const GivenSettings& given, Output& output) {
  const Sweep sweep = parse_sweep(text);
  std::vector<DemoOptions> runs;  // all are checked before the first one starts
  for (const std::string& value : sweep.values) {
    runs.push_back(make_options(merged(given, {{sweep.name, {value}}})));
  }
  catch_interrupts();
  output.line(fmt::format("{:>16} {:>12} {:>10} {:>8} {:>11} {:>13}", sweep.name, "final loss",
                          "clipped", "skips", "final scale", "test score"));
  for (size_t i = 0; i < runs.size(); ++i) {
    Session session(runs[i]);
    while (!session.is_finished() && pending_interrupt() == 0) {
      session.step();
      if (session.steps_per_epoch() > 0 && session.next_step() % session.steps_per_epoch() == 0) {
        session.end_epoch();
      }
    }
    if (const int signal = pending_interrupt(); signal != 0) {
      return {kSignal + signal, cat("interrupted at ", sweep.name, " = ", sweep.values[i])};
    }
    const Counts& run = session.run();
    const double clipped = static_cast<double>(run.clipped) / static_cast<double>(run.taken());
    const Score score = session.task().score();
    output.line(fmt::format(
        "{:>16} {:>12} {:>10} {:>8} {:>11} {:>13}", sweep.values[i], number(final_loss(session)),
        std::isnan(clipped) ? "-" : percent(clipped), run.skips, scale_text(session.scale()),
        score == Score::kNone ? "-" : score_text(score, session.score())));
  }
  return {};
}

}  // namespace halfstep::demo
