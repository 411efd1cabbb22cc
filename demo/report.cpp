// Formatting of rows and summary, and writing them.
#include "halfstep/demo/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <system_error>

#include "halfstep/core/error.h"

namespace halfstep::demo {
namespace {

constexpr size_t kWidth = 100;

/// Four decimals where that shows the number, else four digits: "0.1234", "2.500e+08", "inf",
/// "nan".
std::string number(double value) {
  if (std::isnan(value)) return "nan";  // whatever its sign
  const double size = std::fabs(value);
  if (value == 0.0 || std::isinf(value)) return fmt::format("{}", value);
  if (size >= 1e-3 && size < 99999.0) return fmt::format("{:.4f}", value);
  return fmt::format("{:.3e}", value);
}

/// Scales are powers of two by default: all digits while they fit.
std::string scale_text(double scale) {
  if (scale == std::floor(scale) && scale < 1e10) return fmt::format("{:.0f}", scale);
  return fmt::format("{:.5g}", scale);
}

std::string row(std::string_view tag, int64_t step, double loss, double lr, std::string_view pre,
                std::string_view post, double scale, std::string_view rest) {
  std::string text = fmt::format("{:<4} {:>5} {:>10} {:>9} {:>10} {:>10} {:>10}", tag, step,
                                 number(loss), number(lr), pre, post, scale_text(scale));
  if (!rest.empty()) text += fmt::format("  {}", rest);
  return text.substr(0, kWidth);
}

std::string_view precision_name(DType dtype) {
  switch (dtype) {
    case DType::F16:
      return "fp16";
    case DType::BF16:
      return "bf16";
    default:
      return "fp32";
  }
}

}  // namespace

void Output::text(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      throw FileError(
          cat("cannot write to standard output: ", std::generic_category().message(errno)));
    }
  }
}

std::string describe(const DemoOptions& options, int64_t features, int64_t outputs) {
  std::string text = fmt::format(
      "Linear({0}, {1}) / GELU / Linear({1}, {2}), AdamW, MSE; {3} on {4}, seed {5}\n", features,
      options.hidden, outputs, precision_name(options.dtype), options.device.str(), options.seed);
  text += fmt::format("batch {}, lr {:g}, max norm {:g}, loss scaling {}, injected:", options.batch,
                      options.lr, options.max_norm, options.scaler.enabled ? "on" : "off");
  if (options.injections.empty()) return text + " nothing";
  for (size_t i = 0; i < options.injections.size(); ++i) {
    const std::string next = (i > 0 ? ", " : " ") + options.injections[i].str();
    if (text.size() - text.rfind('\n') + next.size() > kWidth - 5) return text + ", ...";
    text += next;
  }
  return text;
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

std::string epoch_header() {
  return fmt::format("{:<5} {:>6} {:>7} {:>10} {:>10} {:>10} {:>8} {:>6} {:>10} {:>9}", "tag",
                     "epoch", "steps", "loss", "lr", "pre-clip", "clipped", "skips", "scale",
                     "test acc.");
}

std::string epoch_row(int64_t epoch, const Counts& counts, double lr, double scale,
                      double test_accuracy) {
  const auto taken = static_cast<double>(counts.taken());  // 0 / 0 shows as nan
  return fmt::format("{:<5} {:>6} {:>7} {:>10} {:>10} {:>10} {:>8} {:>6} {:>10} {:>9}", "EPOCH",
                     epoch, counts.steps, number(counts.loss_sum / taken), number(lr),
                     number(counts.norm_sum / taken), counts.clipped, counts.skips,
                     scale_text(scale), percent(test_accuracy))
      .substr(0, kWidth);
}

std::string summary(const Counts& counts, double final_loss, double final_scale) {
  return fmt::format(
      "steps        {}\n"
      "skips        {}, of which injected {}, other {}\n"
      "clipped      {} of {} steps taken\n"
      "final loss   {}\n"
      "final scale  {}",
      counts.steps, counts.skips, counts.injected_skips, counts.skips - counts.injected_skips,
      counts.clipped, counts.taken(), number(final_loss), scale_text(final_scale));
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100.0 * share); }

}  // namespace halfstep::demo
