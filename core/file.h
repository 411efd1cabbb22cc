// Files that are replaced as a whole: whatever happens, a path names either the old contents or the
// new ones.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace halfstep {

/// Writes `pieces`, one after the other, to a temporary file beside `path`, brings it to the disk
/// and gives it the name `path`. FileError in `op`'s name, naming the path and the system's reason,
/// with the old file untouched and the temporary one removed; also if `path` is a thing that is not
/// a regular file. A symbolic link is followed. A killed process may leave `path.PID.tmp` behind.
void write_file(std::string_view op, const std::string& path,
                std::span<const std::span<const std::byte>> pieces);
void write_file(std::string_view op, const std::string& path, std::string_view text);

/// Where the symbolic links that `path` names lead, whether that is there or not. FileError in
/// `op`'s name if they lead in a circle.
std::string follow_links(std::string_view op, const std::string& path);

/// A file descriptor that closes itself.
class FileDescriptor {
 public:
  explicit FileDescriptor(int number) : number_(number) {}
  ~FileDescriptor();
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  /// Closes it; false, with errno set, if the system reports that data were lost.
  bool close();

 private:
  int number_;
};

/// The system's words for an errno value, whatever the locale.
std::string system_message(int error);

}  // namespace halfstep
