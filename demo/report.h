// The text that amp_demo prints: what is run, a row per step or per epoch, a summary. At most 100
// columns wide. Numbers look the same in every locale.
#pragma once

#include <string>
#include <string_view>

#include "halfstep/core/error.h"
#include "halfstep/demo/session.h"

namespace halfstep::demo {

/// Standard output cannot be written to.
class OutputError : public FileError {
 public:
  using FileError::FileError;
};

/// Standard output, written without a buffer: what was printed stays. OutputError if it cannot be.
class Output {
 public:
  void line(std::string_view text) { this->text(std::string(text) + '\n'); }
  void text(std::string_view text);
};

/// Model, optimizer, settings, and the data if there is something to say of them.
std::string describe(const Session& session);

std::string step_header();
/// "STEP ..." or "SKIP ...", the latter with the reason and the first bad gradient element.
std::string step_row(const amp::StepOrSkipLog& log);

std::string epoch_header(Score score);
/// Of the epoch that has just ended. Means are over the steps that were taken in it.
std::string epoch_row(int64_t epoch, const Session& session);

/// Several lines.
std::string summary(const Session& session);

/// Of the last step, or the mean of the last epoch.
double final_loss(const Session& session);

/// Four decimals where that shows the number, else four digits: "0.1234", "2.500e+08", "inf",
/// "nan".
std::string number(double value);
/// Scales are powers of two by default: all digits while they fit.
std::string scale_text(double scale);
/// "98.9 %"
std::string percent(double share);
/// "98.9 %" or "0.9123"; what it is called: "test accuracy" or "test R2".
std::string score_text(Score score, double value);
std::string_view score_name(Score score);

}  // namespace halfstep::demo
