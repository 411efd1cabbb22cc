// CsvLog: the story of a run in one file, a row per step, each on its way to the disk before the
// next step begins. Columns:
// step,lr,grad_l2_pre_clip,grad_l2_post_clip,loss,skipped,skip_reason,scaler_scale
#pragma once

#include <string>

#include "halfstep/amp/train_state.h"

namespace halfstep::amp {

/// The header line, without newline.
inline constexpr std::string_view kCsvHeader =
    "step,lr,grad_l2_pre_clip,grad_l2_post_clip,loss,skipped,skip_reason,scaler_scale";

/// A log as a CSV row without newline. Numbers are the shortest that read back (the loss as
/// float32), whatever the locale; non-finite ones are inf, -inf and nan.
std::string csv_row(const StepOrSkipLog& log);

class CsvLog {
 public:
  /// Replaces the file and writes the header. FileError naming the path and the system's reason.
  explicit CsvLog(const std::string& path);
  ~CsvLog();
  CsvLog(const CsvLog&) = delete;
  CsvLog& operator=(const CsvLog&) = delete;

  /// Hands one complete row to the system, unbuffered. FileError if it cannot be written; rows
  /// before it stay.
  void append(const StepOrSkipLog& log);

 private:
  void write_line();
  void take_back(size_t bytes);

  std::string path_;
  std::string line_;  // the row being written; keeps its capacity
  int file_ = -1;
  bool torn_ = false;  // the file ends in a part of a row
};

}  // namespace halfstep::amp
