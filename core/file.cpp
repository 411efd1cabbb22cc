// Replacing a file: temporary file, fsync, rename, fsync of the folder.
#include "halfstep/core/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "halfstep/core/error.h"

namespace halfstep {
namespace {

/// Removes a file at the end of its scope unless it was kept.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  ~TemporaryFile() {
    if (!kept_) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }
  void keep() { kept_ = true; }

 private:
  std::string path_;
  bool kept_ = false;
};

/// errno, or 0 when all was written.
int write_all(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count == 0 ? ENOSPC : errno;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return 0;
}

}  // namespace

std::string follow_links(std::string_view op, const std::string& path) {
  constexpr int kMostLinks = 40;  // as the system
  std::filesystem::path target = path;
  std::error_code ignored;
  for (int links = 0; std::filesystem::is_symlink(target, ignored); ++links) {
    HS_CHECK(links < kMostLinks, FileError, op, "cannot follow ", path, ": ",
             system_message(ELOOP));
    target = target.parent_path() / std::filesystem::read_symlink(target, ignored);
  }
  return target.string();
}

FileDescriptor::~FileDescriptor() { close(); }

bool FileDescriptor::close() {
  const int number = std::exchange(number_, -1);
  return number < 0 || ::close(number) == 0 || errno == EINTR;
}

std::string system_message(int error) { return std::generic_category().message(error); }

void write_file(std::string_view op, const std::string& path,
                std::span<const std::span<const std::byte>> pieces) {
  const auto refuse = [&](std::string_view what, int error) {
    fail<FileError>(op, what, " ", path, ": ", system_message(error));
  };
  const std::string target = follow_links(op, path);
  struct stat status {};
  const bool exists = ::stat(target.c_str(), &status) == 0;
  HS_CHECK(!exists || S_ISREG(status.st_mode), FileError, op, path,
           " is not a regular file; it must be one, or not be there yet");

  TemporaryFile temporary(cat(target, ".", ::getpid(), ".tmp"));
  ::unlink(temporary.path().c_str());  // of a process that had our number and was killed
  FileDescriptor file(
      ::open(temporary.path().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!file.is_open()) refuse("cannot make a temporary file beside", errno);
  if (exists) ::fchmod(file.get(), status.st_mode & 07777);  // as far as the system lets us
  for (const std::span<const std::byte> piece : pieces) {
    if (const int error = write_all(file.get(), piece); error != 0) refuse("cannot write", error);
  }
  if (::fsync(file.get()) != 0 || !file.close()) refuse("cannot write", errno);
  if (::rename(temporary.path().c_str(), target.c_str()) != 0) refuse("cannot replace", errno);
  temporary.keep();

  // The new name is on the disk when its folder is. Some file systems cannot be asked for that.
  const std::string parent = std::filesystem::path(target).parent_path().string();
  const FileDescriptor folder(
      ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open() || (::fsync(folder.get()) != 0 && errno != EINVAL)) {
    refuse("the new file is complete, but its folder could not be brought to the disk:", errno);
  }
}

void write_file(std::string_view op, const std::string& path, std::string_view text) {
  const std::span<const std::byte> piece = std::as_bytes(std::span(text));
  write_file(op, path, {&piece, 1});
}

}  // namespace halfstep
