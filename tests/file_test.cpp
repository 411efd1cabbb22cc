// write_file: a path names the old contents or the new ones, whole, whatever goes wrong and whoever
// else writes; and what is not a regular file is left alone.
#include "halfstep/core/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <functional>

#include "halfstep/tests/amp_testing.h"
#include "halfstep/tests/file_testing.h"

namespace halfstep {
namespace {

namespace fs = std::filesystem;
using test::expect_says;
using test::message_of;
using test::read_text;
using test::TemporaryFolder;
using test::write_text;
using Names = std::set<std::string>;

/// Starts a process that runs `fn` and exits with what it returns, 99 if it throws.
pid_t start_child(const std::function<int()>& fn) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  int code = 99;
  try {
    code = fn();
  } catch (...) {
  }
  ::_exit(code);
}

int exit_code_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void expect_refused(const std::string& path, std::string_view why, std::string_view text = "new") {
  const std::string message = message_of<FileError>([&] { write_file("save", path, text); });
  EXPECT_TRUE(message.starts_with("[save] ")) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  expect_says(message, {path, why});
}

mode_t type_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
  return status.st_mode & S_IFMT;
}

TEST(WriteFile, makes_a_file_replaces_it_and_leaves_nothing_else) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  for (const std::string& text : std::vector<std::string>{"one", "", std::string(3 << 20, 'x'),
                                                          std::string("z\0\n\r\xFF", 5)}) {
    write_file("save", path, text);
    EXPECT_EQ(read_text(path), text);
    EXPECT_EQ(folder.names(), Names{"a"});
  }
}

TEST(WriteFile, writes_the_pieces_one_after_the_other) {
  const TemporaryFolder folder;
  const std::string a = "ab", none, b = "cde";
  const std::array<std::span<const std::byte>, 3> pieces = {
      std::as_bytes(std::span(a)), std::as_bytes(std::span(none)), std::as_bytes(std::span(b))};
  write_file("save", folder / "a", pieces);
  EXPECT_EQ(read_text(folder / "a"), "abcde");
}

TEST(WriteFile, replaces_the_name_so_that_open_files_keep_the_old_contents) {
  const TemporaryFolder folder;
  write_text(folder / "a", "old");
  std::ifstream open(folder / "a");
  fs::create_hard_link(folder / "a", folder / "kept");
  write_file("save", folder / "a", "new text");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(open), {}), "old");
  EXPECT_EQ(read_text(folder / "kept"), "old");
  EXPECT_EQ(read_text(folder / "a"), "new text");
}

TEST(WriteFile, a_path_without_a_folder_is_in_the_current_one) {
  const TemporaryFolder folder;
  const pid_t child = start_child([&] {
    fs::current_path(folder.path());
    write_file("save", "a", "text");
    return 0;
  });
  EXPECT_EQ(exit_code_of(child), 0);
  EXPECT_EQ(read_text(folder / "a"), "text");
}

TEST(WriteFile, what_a_killed_process_left_is_no_obstacle) {
  const TemporaryFolder folder;
  write_text(folder / cat("a.", ::getpid(), ".tmp"),
             "a part of something longer than the new text");
  write_file("save", folder / "a", "text");
  EXPECT_EQ(read_text(folder / "a"), "text");
  EXPECT_EQ(folder.names(), Names{"a"});
}

TEST(WriteFile, a_missing_folder_is_named) {
  const TemporaryFolder folder;
  expect_refused(folder / "no/a", "No such file or directory");
  write_text(folder / "file", "x");
  expect_refused(folder / "file/a", "Not a directory");
  EXPECT_EQ(folder.names(), Names{"file"});
}

TEST(WriteFile, what_is_not_a_regular_file_is_refused_and_left_alone) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "folder");
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  fs::create_symlink("fifo", folder / "link");
  for (const char* name : {"folder", "fifo", "link"}) {
    expect_refused(folder / name, "not a regular file");
  }
  EXPECT_EQ(type_of(folder / "folder"), mode_t{S_IFDIR});
  EXPECT_EQ(type_of(folder / "fifo"), mode_t{S_IFIFO});
  EXPECT_EQ(type_of(folder / "link"), mode_t{S_IFLNK});
  EXPECT_EQ(folder.names(), (Names{"folder", "fifo", "link"}));
}

// A null device of this test's own: a mistake here, run as root, would replace the real one.
TEST(WriteFile, a_device_is_refused_and_left_alone) {
  const TemporaryFolder folder;
  const std::string path = ::geteuid() == 0 ? folder / "null" : "/dev/null";
  if (::geteuid() == 0 && ::mknod(path.c_str(), S_IFCHR | 0600, ::makedev(1, 3)) != 0) {
    GTEST_SKIP() << "no device can be made here";
  }
  expect_refused(path, "not a regular file");
  EXPECT_EQ(type_of(path), mode_t{S_IFCHR});
}

TEST(WriteFile, a_folder_that_may_not_be_written_keeps_the_old_contents) {
  const TemporaryFolder folder;
  write_text(folder / "a", "old");
  ASSERT_EQ(::chmod(folder.path().c_str(), 0555), 0);
  const pid_t child = start_child([&] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) return 2;  // root may write everywhere
    try {
      write_file("save", folder / "a", "new");
      return 1;
    } catch (const FileError& error) {
      return std::string_view(error.what()).find("Permission denied") != std::string_view::npos ? 0
                                                                                                : 3;
    }
  });
  EXPECT_EQ(exit_code_of(child), 0);
  EXPECT_EQ(read_text(folder / "a"), "old");
  EXPECT_EQ(folder.names(), Names{"a"});
  ::chmod(folder.path().c_str(), 0755);
}

TEST(WriteFile, a_full_disk_keeps_the_old_contents_and_leaves_no_temporary_file) {
  const TemporaryFolder folder;
  write_text(folder / "a", "old");
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  for (const size_t size : {1001u, 5000u, 100'000u}) {
    expect_refused(folder / "a", "File too large", std::string(size, 'x'));
    EXPECT_EQ(folder.names(), Names{"a"});
  }
  expect_refused(folder / "b", "File too large", std::string(5000, 'x'));
  EXPECT_NO_THROW(write_file("save", folder / "c", std::string(1000, 'x')));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, previous);
  EXPECT_EQ(read_text(folder / "a"), "old");
  EXPECT_EQ(folder.names(), (Names{"a", "c"}));
}

TEST(WriteFile, follows_a_symbolic_link) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "runs");
  write_text(folder / "runs/a", "old");
  fs::create_symlink("runs/a", folder / "relative");
  fs::create_symlink(folder / "runs/a", folder / "absolute");
  fs::create_symlink("relative", folder / "chain");
  fs::create_symlink("../relative", folder / "runs/back");
  for (const std::string link : {"relative", "absolute", "chain", "runs/back"}) {
    write_file("save", folder / link, "through " + link);
    EXPECT_EQ(read_text(folder / "runs/a"), "through " + link);
    EXPECT_EQ(type_of(folder / link), mode_t{S_IFLNK});
    EXPECT_EQ(type_of(folder / "runs/a"), mode_t{S_IFREG});
  }
}

TEST(WriteFile, follows_a_symbolic_link_to_a_file_that_is_not_there_yet) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "runs");
  fs::create_symlink("runs/new", folder / "link");
  fs::create_symlink("link", folder / "chain");
  write_file("save", folder / "chain", "text");
  EXPECT_EQ(type_of(folder / "chain"), mode_t{S_IFLNK});
  EXPECT_EQ(type_of(folder / "link"), mode_t{S_IFLNK});
  EXPECT_EQ(read_text(folder / "runs/new"), "text");
}

TEST(WriteFile, a_circle_of_symbolic_links_is_refused_and_left_alone) {
  const TemporaryFolder folder;
  fs::create_symlink("b", folder / "a");
  fs::create_symlink("a", folder / "b");
  expect_refused(folder / "a", "symbolic links");
  EXPECT_EQ(type_of(folder / "a"), mode_t{S_IFLNK});
  EXPECT_EQ(folder.names(), (Names{"a", "b"}));
}

mode_t bits_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_mode & 0777;
}

TEST(WriteFile, permission_bits_of_a_new_file_follow_the_umask) {
  const TemporaryFolder folder;
  const mode_t before = ::umask(0);
  for (const mode_t mask : {mode_t{022}, mode_t{027}, mode_t{077}, mode_t{0}}) {
    ::umask(mask);
    const std::string path = folder / std::to_string(mask);
    write_file("save", path, "text");
    EXPECT_EQ(bits_of(path), 0666u & ~mask);
  }
  ::umask(before);
}

TEST(WriteFile, a_file_that_is_replaced_keeps_its_permission_bits) {
  const TemporaryFolder folder;
  for (const mode_t bits : {mode_t{0600}, mode_t{0640}, mode_t{0666}}) {
    write_file("save", folder / "a", "old");
    EXPECT_EQ(::chmod((folder / "a").c_str(), bits), 0);
    write_file("save", folder / "a", "new");
    EXPECT_EQ(bits_of(folder / "a"), bits);
  }
}

TEST(WriteFile, a_link_in_the_place_of_the_temporary_file_is_not_followed) {
  const TemporaryFolder folder;
  write_text(folder / "victim", "kept");
  const std::string temporary = folder / ("a." + std::to_string(::getpid()) + ".tmp");
  std::filesystem::create_symlink(folder / "victim", temporary);
  write_file("save", folder / "a", "text");
  EXPECT_EQ(read_text(folder / "victim"), "kept");
  EXPECT_EQ(read_text(folder / "a"), "text");
  EXPECT_FALSE(std::filesystem::is_symlink(folder / "a"));
}

TEST(WriteFile, of_two_processes_at_once_one_wins_and_a_reader_sees_whole_contents) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  const std::string a(200'000, 'a'), b(150'000, 'b');
  write_text(path, a);
  const auto writer = [&](const std::string& text) {
    return start_child([&] {
      for (int i = 0; i < 30; ++i) write_file("save", path, text);
      return 0;
    });
  };
  const pid_t first = writer(a), second = writer(b);
  int status = 0, seen = 0;
  while (::waitpid(first, &status, WNOHANG) == 0) {
    const std::string text = read_text(path);
    EXPECT_TRUE(text == a || text == b) << "a part only: " << text.size() << " bytes";
    ++seen;
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(exit_code_of(second), 0);
  EXPECT_GT(seen, 0);
  const std::string text = read_text(path);
  EXPECT_TRUE(text == a || text == b);
  EXPECT_EQ(folder.names(), Names{"a"});
}

TEST(FileDescriptor, closes_once_and_tells) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const FileDescriptor other(ends[1]);
  {
    FileDescriptor file(ends[0]);
    EXPECT_TRUE(file.is_open());
    EXPECT_EQ(file.get(), ends[0]);
    EXPECT_TRUE(file.close());
    EXPECT_FALSE(file.is_open());
    EXPECT_TRUE(file.close()) << "a second time is no error";
  }
  EXPECT_FALSE(FileDescriptor(-1).is_open());
  EXPECT_FALSE(FileDescriptor(ends[0]).close()) << "it is closed already";
}

}  // namespace
}  // namespace halfstep
