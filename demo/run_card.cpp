// The text of the run card.
#include "halfstep/demo/run_card.h"

#include <fmt/format.h>

#include <filesystem>

#include "halfstep/core/file.h"
#include "halfstep/demo/config.h"
#include "halfstep/demo/setting_values.h"

namespace halfstep::demo {
namespace {

std::string clip_sentence(const DemoOptions& o, const Counts& run) {
  if (!o.belts || o.clip == amp::Clip::kNone) return "Gradients are not clipped.";
  const std::string what =
      o.clip == amp::Clip::kNorm
          ? fmt::format("to a global L2 norm of {:g} (`max-norm`)", o.max_norm)
          : fmt::format("element by element to ±{:g} (`clip-value`)", o.clip_value);
  return fmt::format(
      "Gradients are clipped {}, after they are unscaled. It happened in {} of {} steps.", what,
      run.clipped, run.taken());
}

std::string autocast_sentence(const DemoOptions& o) {
  if (o.dtype == DType::F32) {
    return fmt::format("There is no autocast: all arithmetic is float32, on {}.", o.device.str());
  }
  return fmt::format("Autocast runs on {} in {}; parameters and optimizer state are float32.",
                     o.device.str(), o.dtype == DType::F16 ? "float16" : "bfloat16");
}

std::string scaler_sentence(const Session& session) {
  const amp::GradScalerOptions& s = session.options().scaler;
  if (!s.enabled) return "The gradient scaler is off: the scale is 1 throughout.";
  return fmt::format(
      "The gradient scaler starts at {}, grows by {:g} after {} good steps in a row, backs off by "
      "{:g}, and stays between {} and {}. It ended at {}.",
      scale_text(s.init_scale), s.growth_factor, s.growth_interval, s.backoff_factor,
      scale_text(s.min_scale), scale_text(s.max_scale), scale_text(session.scale()));
}

std::string alert_sentence(const Session& session) {
  const amp::SkipMonitorOptions& health = session.options().health;
  if (health.max_skip_rate >= 1.0) return "No alert on the skip rate was set.";
  return fmt::format(
      "The run stops when the skip rate of the last {} steps exceeds {:g} for {} steps in a row. "
      "The "
      "last rate was {:.4g}.",
      amp::SkipMonitor::kWindow, health.max_skip_rate, health.alert_after,
      session.monitor().rate());
}

}  // namespace

std::string run_card(const Session& session, const RunEnd& end) {
  const DemoOptions& o = session.options();
  const Counts& run = session.run();
  std::string text = "# Run card: clipping and mixed precision\n\n";
  text += "```\n" + describe(session) + "\n```\n\n";
  text += "## Safety belts\n\n";
  text += "- Clip threshold: " + clip_sentence(o, run) + "\n";
  text += "- Autocast: " + autocast_sentence(o) + "\n";
  text += "- Loss scaling: " + scaler_sentence(session) + "\n";
  text += "- Skip alert: " + alert_sentence(session) + "\n\n";
  text += "## Files\n\n";
  text += o.csv_path.empty() ? std::string("- No CSV was written.\n")
                             : fmt::format("- One row per step: `{}`\n", o.csv_path);
  if (!o.checkpoint_path.empty()) text += fmt::format("- Checkpoint: `{}`\n", o.checkpoint_path);
  if (!o.plot_path.empty()) text += fmt::format("- Picture: `{}`\n", o.plot_path);
  text += "\n## Outcome\n\n";
  text += end.status == kOk ? fmt::format("All {} steps were run.\n", session.total_steps())
                            : fmt::format("The run ended early or failed (status {}): {}.\n",
                                          end.status, end.message);
  text += "\n```\n" + summary(session) + "\n```\n";
  GivenSettings settings = given_settings(o);
  settings.erase("resume");  // as for a run from the start
  text += "\n## Config\n\n```json\n" + config_text(settings) + "```\n";
  return text;
}

void write_run_card(const std::string& path, const Session& session, const RunEnd& end) {
  std::error_code ignored;  // if the folder cannot be made, writing says why
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  write_file("run card", path, run_card(session, end));
}

}  // namespace halfstep::demo
