// The text that amp_demo prints: what is run, a row per step or per epoch, a summary. At most 100
// columns wide. Numbers look the same in every locale.
#pragma once

#include <string>
#include <string_view>

#include "halfstep/demo/trainer.h"

namespace halfstep::demo {

/// Standard output, written without a buffer: what was printed stays. FileError if it cannot be.
class Output {
 public:
  void line(std::string_view text) { this->text(std::string(text) + '\n'); }
  void text(std::string_view text);
};

/// Model, optimizer and settings, two lines.
std::string describe(const DemoOptions& options, int64_t features, int64_t outputs);

std::string step_header();
/// "STEP ..." or "SKIP ...", the latter with the reason and the first bad gradient element.
std::string step_row(const amp::StepOrSkipLog& log);

std::string epoch_header();
/// Means are over the steps that were taken in the epoch.
std::string epoch_row(int64_t epoch, const Counts& counts, double lr, double scale,
                      double test_accuracy);

/// Several lines. `final_loss` is the last step's or the last epoch's.
std::string summary(const Counts& counts, double final_loss, double final_scale);

/// "98.9 %"
std::string percent(double share);

}  // namespace halfstep::demo
