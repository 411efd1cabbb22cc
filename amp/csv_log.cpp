// CsvLog: rows as text, and one write to the system per row.
#include "halfstep/amp/csv_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>

namespace halfstep::amp {
namespace {

/// Appends `,` and the number.
template <class T>
void append_field(std::string& row, T value) {
  row += ',';
  if (std::isnan(value)) {
    row += "nan";  // to_chars would tell the sign of a NaN
  } else {
    detail::append(row, value);
  }
}

void append_row(std::string& row, const StepOrSkipLog& log) {
  if (const auto* step = std::get_if<StepLog>(&log)) {
    detail::append(row, step->step);
    append_field(row, step->lr);
    append_field(row, step->grad_l2_pre_clip);
    append_field(row, step->grad_l2_post_clip);
    append_field(row, step->loss);
    row += ",0,";
    append_field(row, step->scaler_scale);
    return;
  }
  const SkipLog& skip = std::get<SkipLog>(log);
  detail::append(row, skip.step);
  append_field(row, skip.lr);
  if (skip.grad_l2_pre_clip) {
    append_field(row, *skip.grad_l2_pre_clip);
  } else {
    row += ',';
  }
  row += ',';  // no norm after clipping
  append_field(row, skip.loss);
  row += ",1,";
  row += name_of(skip.reason);
  append_field(row, skip.scaler_scale);
}

}  // namespace

std::string csv_row(const StepOrSkipLog& log) {
  std::string row;
  append_row(row, log);
  return row;
}

CsvLog::CsvLog(const std::string& path) : path_(path) {
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  HS_CHECK(file_ >= 0, FileError, "CsvLog", "cannot open ", path,
           " for writing: ", std::strerror(errno));
  line_ = kCsvHeader;
  try {
    write_line();
  } catch (...) {
    ::close(file_);
    throw;
  }
}

CsvLog::~CsvLog() { ::close(file_); }

void CsvLog::append(const StepOrSkipLog& log) {
  line_.clear();
  append_row(line_, log);
  write_line();
}

void CsvLog::write_line() {
  HS_CHECK(!torn_, FileError, "CsvLog", "cannot write to ", path_,
           ": it ends in a part of an earlier row, which could not be taken back");
  line_ += '\n';
  size_t done = 0;
  while (done < line_.size()) {
    const ssize_t count = ::write(file_, line_.data() + done, line_.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int reason = count == 0 ? ENOSPC : errno;
      if (done > 0) take_back(done);
      fail<FileError>("CsvLog", "cannot write to ", path_, ": ", std::strerror(reason),
                      "; the rows before are complete");
    }
    done += static_cast<size_t>(count);
  }
}

// The next row, if there is room for one again, must not continue the part that was written.
void CsvLog::take_back(size_t bytes) {
  const off_t end = ::lseek(file_, -static_cast<off_t>(bytes), SEEK_CUR);
  torn_ = end < 0 || ::ftruncate(file_, end) != 0;
}

}  // namespace halfstep::amp
