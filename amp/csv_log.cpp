// CsvLog: rows as text, and one write to the system per row.
#include "halfstep/amp/csv_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>

#include "halfstep/core/warning.h"

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

/// What the beginning of a log holds.
struct LogPrefix {
  bool has_header = false;
  int64_t rows = 0;  // 0, 1, ... without a gap, at most as many as were asked for
  off_t bytes = 0;   // of header and rows
};

LogPrefix find_prefix(int file, const std::string& path, int64_t rows) {
  LogPrefix prefix;
  std::string line;
  std::array<char, 65536> buffer;
  off_t offset = 0;
  while (prefix.rows < rows) {
    const ssize_t count = ::pread(file, buffer.data(), buffer.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    HS_CHECK(count >= 0, FileError, "CsvLog", "cannot read ", path, ": ", system_message(errno));
    if (count == 0) break;
    offset += count;
    for (ssize_t i = 0; i < count && prefix.rows < rows; ++i) {
      line += buffer[static_cast<size_t>(i)];
      if (line.back() != '\n') continue;
      if (!prefix.has_header) {
        prefix.has_header = std::string_view(line) == cat(kCsvHeader, "\n");
        if (!prefix.has_header) return prefix;
      } else if (line.starts_with(cat(prefix.rows, ",")) && std::ranges::count(line, ',') == 7) {
        ++prefix.rows;
      } else {
        return prefix;
      }
      prefix.bytes += static_cast<off_t>(line.size());
      line.clear();
    }
  }
  return prefix;
}

}  // namespace

std::string csv_row(const StepOrSkipLog& log) {
  std::string row;
  append_row(row, log);
  return row;
}

CsvLog::CsvLog(const std::string& path, int64_t next_step)
    : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666)) {
  HS_CHECK(file_.is_open(), FileError, "CsvLog", "cannot open ", path,
           " for writing: ", system_message(errno));
  struct stat status {};
  const bool is_regular = ::fstat(file_.get(), &status) == 0 && S_ISREG(status.st_mode);
  if (is_regular) {
    HS_CHECK(::flock(file_.get(), LOCK_EX | LOCK_NB) == 0, FileError, "CsvLog", path,
             " is locked; is another run writing to it?");
    if (next_step > 0 && status.st_size > 0) {
      take_over(next_step);
      return;
    }
    HS_CHECK(::ftruncate(file_.get(), 0) == 0, FileError, "CsvLog", "cannot replace ", path, ": ",
             system_message(errno));
  }
  if (next_step > 0) {
    warn_once(cat("CsvLog ", path), cat("[CsvLog] ", path, " has no rows of the steps before ",
                                        next_step, ", where the run goes on; it begins there"));
  }
  line_ = kCsvHeader;
  write_line();
}

void CsvLog::take_over(int64_t next_step) {
  // Not the writer's descriptor: who reads from a pipe never hears that its readers have gone.
  const FileDescriptor reader(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  HS_CHECK(reader.is_open(), FileError, "CsvLog", "cannot read ", path_, ": ",
           system_message(errno));
  const LogPrefix prefix = find_prefix(reader.get(), path_, next_step);
  HS_CHECK(prefix.has_header, FileError, "CsvLog", path_, " does not begin with the line ",
           kCsvHeader, "; is it the log of a run?");
  HS_CHECK(prefix.rows == next_step, FileError, "CsvLog", path_, " has no row of step ",
           prefix.rows, " where one must be, but the run is resumed at step ", next_step,
           "; is it the log of this run from its beginning?");
  HS_CHECK(::ftruncate(file_.get(), prefix.bytes) == 0 &&
               ::lseek(file_.get(), prefix.bytes, SEEK_SET) == prefix.bytes,
           FileError, "CsvLog", "cannot cut the rows after step ", next_step - 1, " off ", path_,
           ": ", system_message(errno));
}

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
    const ssize_t count = ::write(file_.get(), line_.data() + done, line_.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int reason = count == 0 ? ENOSPC : errno;
      if (done > 0) take_back(done);
      fail<FileError>("CsvLog", "cannot write to ", path_, ": ", system_message(reason),
                      "; the rows before are complete");
    }
    done += static_cast<size_t>(count);
  }
}

// The next row, if there is room for one again, must not continue the part that was written.
void CsvLog::take_back(size_t bytes) {
  const off_t end = ::lseek(file_.get(), -static_cast<off_t>(bytes), SEEK_CUR);
  torn_ = end < 0 || ::ftruncate(file_.get(), end) != 0;
}

void CsvLog::sync() {
  HS_CHECK(::fsync(file_.get()) == 0 || errno == EINVAL || errno == EROFS, FileError, "CsvLog",
           "cannot bring ", path_, " to the disk: ", system_message(errno));
}

}  // namespace halfstep::amp
