// Formatting of rows and summary, and writing them.
#include "halfstep/demo/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>

#include "halfstep/core/error.h"
#include "halfstep/core/file.h"
#include "halfstep/demo/setting_values.h"

namespace halfstep::demo {
namespace {

constexpr size_t kWidth = 100;

std::string row(std::string_view tag, int64_t step, double loss, double lr, std::string_view pre,
                std::string_view post, double scale, std::string_view rest) {
  std::string text = fmt::format("{:<4} {:>5} {:>10} {:>9} {:>10} {:>10} {:>10}", tag, step,
                                 number(loss), number(lr), pre, post, scale_text(scale));
  if (!rest.empty()) text += fmt::format("  {}", rest);
  return text.substr(0, kWidth);
}

/// The kind of clipping with its threshold.
std::string clip_text(const DemoOptions& options) {
  switch (options.clip) {
    case amp::Clip::kNorm:
      return fmt::format("max norm {:g}", options.max_norm);
    case amp::Clip::kValue:
      return fmt::format("max value {:g}", options.clip_value);
    case amp::Clip::kNone:
      break;
  }
  return "no clipping";
}

}  // namespace

std::string number(double value) {
  if (std::isnan(value)) return "nan";  // whatever its sign
  const double size = std::fabs(value);
  if (value == 0.0 || std::isinf(value)) return fmt::format("{}", value);
  if (size >= 1e-3 && size < 99999.0) return fmt::format("{:.4f}", value);
  return fmt::format("{:.3e}", value);
}

std::string scale_text(double scale) {
  if (scale == std::floor(scale) && scale < 1e10) return fmt::format("{:.0f}", scale);
  return fmt::format("{:.5g}", scale);
}

void Output::text(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      throw OutputError(cat("cannot write to standard output: ", system_message(errno)));
    }
  }
}

std::string describe(const Session& session) {
  const DemoOptions& options = session.options();
  std::string text =
      fmt::format("Linear({0}, {1}) / GELU / Linear({1}, {2}), {3}, MSE; {4} on {5}, seed {6}\n",
                  session.task().features(), options.hidden, session.task().outputs(),
                  options.optimizer == OptimizerKind::kAdamW ? "AdamW" : "SGD",
                  name_of_precision(options.dtype), options.device.str(), options.seed);
  text += fmt::format("batch {}, lr {:g}, ", options.batch, options.lr);
  if (options.belts) {
    text += fmt::format("{}, loss scaling {}, injected:", clip_text(options),
                        options.scaler.enabled ? "on" : "off");
  } else {
    text += "no loss scaling, no checks, no clipping, injected:";
  }
  if (options.injections.empty()) text += " nothing";
  for (size_t i = 0; i < options.injections.size(); ++i) {
    const std::string next = (i > 0 ? ", " : " ") + options.injections[i].str();
    if (text.size() - text.rfind('\n') + next.size() > kWidth - 5) {
      text += ", ...";
      break;
    }
    text += next;
  }
  if (options.decay != optim::LrDecay::kConstant || options.warmup_steps > 0) {
    text += fmt::format(
        "\nlr: warm-up of {} steps, then {}{}", options.warmup_steps, optim::name_of(options.decay),
        options.decay == optim::LrDecay::kConstant ? ""
                                                   : fmt::format(" decay to {:g}", options.min_lr));
  }
  const std::string data = session.task().describe();
  return data.empty() ? text : text + "\n" + data;
}

std::string step_header() {
  return fmt::format("{:<4} {:>5} {:>10} {:>9} {:>10} {:>10} {:>10}", "tag", "step", "loss", "lr",
                     "pre-clip", "post-clip", "scale");
}

std::string step_row(const amp::StepOrSkipLog& log) {
  if (const auto* step = std::get_if<amp::StepLog>(&log)) {
    return row("STEP", step->step, static_cast<double>(step->loss), step->lr,
               number(step->grad_l2_pre_clip), number(step->grad_l2_post_clip), step->scaler_scale,
               {});
  }
  const auto& skip = std::get<amp::SkipLog>(log);
  std::string reason(amp::name_of(skip.reason));
  if (!skip.parameter.empty()) {
    reason += fmt::format(" {}[{}]={}", skip.parameter, skip.index,
                          number(static_cast<double>(skip.value)));
  }
  return row("SKIP", skip.step, static_cast<double>(skip.loss), skip.lr,
             skip.grad_l2_pre_clip ? number(*skip.grad_l2_pre_clip) : "-", "-", skip.scaler_scale,
             reason);
}

std::string epoch_header(Score score) {
  return fmt::format("{:<5} {:>6} {:>7} {:>10} {:>10} {:>10} {:>8} {:>6} {:>10} {:>9}", "tag",
                     "epoch", "steps", "loss", "lr", "pre-clip", "clipped", "skips", "scale",
                     score == Score::kAccuracy ? "test acc." : "test R2");
}

std::string epoch_row(int64_t epoch, const Session& session) {
  const Counts& counts = session.last_epoch();
  const auto taken = static_cast<double>(counts.taken());  // 0 / 0 shows as nan
  return fmt::format("{:<5} {:>6} {:>7} {:>10} {:>10} {:>10} {:>8} {:>6} {:>10} {:>9}", "EPOCH",
                     epoch, counts.steps, number(counts.loss_sum / taken), number(session.lr()),
                     number(counts.norm_sum / taken), counts.clipped, counts.skips,
                     scale_text(session.scale()),
                     score_text(session.task().score(), session.score()))
      .substr(0, kWidth);
}

double final_loss(const Session& session) {
  if (session.steps_per_epoch() == 0) return session.run().last_loss;
  const Counts& epoch = session.last_epoch();
  return epoch.loss_sum / static_cast<double>(epoch.taken());
}

std::string summary(const Session& session) {
  const Counts& run = session.run();
  std::string text = fmt::format(
      "steps        {}\n"
      "skips        {}, of which injected {}, other {}\n",
      run.steps, run.skips, run.injected_skips, run.skips - run.injected_skips);
  if (session.steps_per_epoch() > 0 && run.steps > 0) {
    const double epochs =
        static_cast<double>(run.steps) / static_cast<double>(session.steps_per_epoch());
    text += fmt::format("skips/epoch  {} on the mean, at most {} (epoch {})\n",
                        number(static_cast<double>(run.skips) / epochs),
                        session.worst_epoch().skips, session.worst_epoch_number());
  }
  if (session.monitor().calibration_skips() > 0) {
    text +=
        fmt::format("calibration  {} of the skips, by which the scale fell before the first step\n",
                    session.monitor().calibration_skips());
  }
  text += fmt::format(
      "clipped      {} of {} steps taken\n"
      "final loss   {}\n"
      "final scale  {}",
      run.clipped, run.taken(), number(final_loss(session)), scale_text(session.scale()));
  const Score score = session.task().score();
  if (score == Score::kNone) return text;
  return text + fmt::format("\n{}: {}", score_name(score), score_text(score, session.score()));
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100.0 * share); }

std::string_view score_name(Score score) {
  return score == Score::kAccuracy ? "test accuracy" : "test R2";
}

std::string score_text(Score score, double value) {
  return score == Score::kAccuracy && !std::isnan(value) ? percent(value) : number(value);
}

}  // namespace halfstep::demo
