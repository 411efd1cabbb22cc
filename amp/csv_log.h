// CsvLog: the story of a run in one file, a row per step, each on its way to the disk before the
// next step begins. Columns:
// step,lr,grad_l2_pre_clip,grad_l2_post_clip,loss,skipped,skip_reason,scaler_scale
#pragma once

#include <string>

#include "halfstep/amp/train_state.h"
#include "halfstep/core/file.h"

namespace halfstep::amp {

/// The header line, without newline.
inline constexpr std::string_view kCsvHeader =
    "step,lr,grad_l2_pre_clip,grad_l2_post_clip,loss,skipped,skip_reason,scaler_scale";

/// A log as a CSV row without newline. Numbers are the shortest that read back (the loss as
/// float32), whatever the locale; non-finite ones are inf, -inf and nan.
std::string csv_row(const StepOrSkipLog& log);

class CsvLog {
 public:
  /// Starts the log of a run, or of one that is resumed at `next_step`. At 0 the file is replaced.
  /// Otherwise its header and its rows before next_step stay, and what follows is cut off; a file
  /// that is empty or not there begins with the row of next_step. FileError naming the path and the
  /// reason, with the file as it was: if it cannot be opened, if another process writes to it (it
  /// is locked by flock), or if it does not hold exactly the rows before next_step at its
  /// beginning.
  explicit CsvLog(const std::string& path, int64_t next_step = 0);
  CsvLog(const CsvLog&) = delete;
  CsvLog& operator=(const CsvLog&) = delete;

  /// Hands one complete row to the system, unbuffered. FileError if it cannot be written; rows
  /// before it stay.
  void append(const StepOrSkipLog& log);
  /// Brings all rows to the disk itself, so that they outlive a power cut. FileError if that fails.
  void sync();

 private:
  void take_over(int64_t next_step);
  void write_line();
  void take_back(size_t bytes);

  std::string path_;
  std::string line_;  // the row being written; keeps its capacity
  FileDescriptor file_;
  bool torn_ = false;  // the file ends in a part of a row
};

}  // namespace halfstep::amp
