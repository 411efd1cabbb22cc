// Malformed safetensors files: each is a FileError of one line that names the file and, where one
// is to blame, the tensor. Nothing that a file holds may crash, hang or be taken for something
// else.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <string>
#include <vector>

#include "halfstep/core/safetensors.h"
#include "halfstep/tests/amp_testing.h"
#include "halfstep/tests/file_testing.h"

namespace halfstep {
namespace {

using test::expect_says;
using test::message_of;
using test::TemporaryFolder;
using Words = std::vector<std::string_view>;

const std::string kName = "some.safetensors";

/// A file with this header, its length before it, and so many bytes of data.
std::string file_of(const std::string& header, size_t data_bytes = 0) {
  const uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + header + std::string(data_bytes, 'd');
}

/// A header's entry.
std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}";
}

/// A file with one f32 tensor, "a.weight", and 8 bytes of data.
std::string one_tensor(const std::string& dtype, const std::string& shape,
                       const std::string& offsets) {
  return file_of("{" + entry("a.weight", dtype, shape, offsets) + "}", 8);
}

Safetensors parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), kName);
}

void expect_refused(const std::string& file, const Words& words) {
  SCOPED_TRACE(file.substr(0, 200));
  const std::string message = message_of<FileError>([&] { parse(file); });
  EXPECT_TRUE(message.starts_with("[read_safetensors] " + kName + ": ")) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  for (const std::string_view word : words) expect_says(message, {word});
}

TEST(SafetensorsRefusal, the_files_made_here_are_good_but_for_what_a_test_breaks) {
  const Safetensors got = parse(one_tensor(R"("F32")", "[2]", "[0,8]"));
  EXPECT_EQ(got.tensors.at("a.weight").str(), "f32[2] on cpu");
  EXPECT_TRUE(parse(file_of("{}")).tensors.empty());
  EXPECT_EQ(parse(file_of("{\"__metadata__\":{\"a\":\"b\"}}  ")).metadata.at("a"), "b");
}

TEST(SafetensorsRefusal, a_length_that_is_cut_short_or_too_large) {
  expect_refused("", {"0 bytes"});
  expect_refused(std::string(7, '\0'), {"7 bytes"});
  std::string file = file_of("{}");
  const auto with_length = [&](uint64_t length) {
    std::memcpy(file.data(), &length, sizeof length);
    return file;
  };
  expect_refused(with_length(3), {"3 bytes", "2 follow"});
  expect_refused(with_length(100'000'000), {"100000000 bytes", "2 follow"});
  expect_refused(with_length(100'000'001), {"100000001 bytes", "at most 100000000"});
  expect_refused(with_length(~uint64_t{0}), {"18446744073709551615 bytes", "at most 100000000"});
  expect_refused(with_length(~uint64_t{0} - 7), {"at most 100000000"});
}

TEST(SafetensorsRefusal, a_header_that_is_no_json_object) {
  expect_refused(file_of(""), {"does not begin with {"});
  for (const char* text : {" {}", "[]", "\"a\"", "1", "\xEF\xBB\xBF{}", "\n{}"}) {
    expect_refused(file_of(text), {"does not begin with {"});
  }
  const std::string good = entry("a", R"("F32")", "[0]", "[0,0]");
  for (const std::string& text : std::vector<std::string>{
           "{", "{\n", "{}}", "{} {}", "{\"a\"}", "{" + good, "{" + good + ",}", "{'a':1}", "{a:1}",
           "{\"a\":NaN}", "{/**/}", "{\"a\":1e999}", "{\"a\":01}", "{\"a\":\"\n\"}",
           "{\"a\":\"\\x\"}", "{\"a\":\"\\ud800\"}"}) {
    expect_refused(file_of(text), {"not JSON"});
  }
}

TEST(SafetensorsRefusal, a_header_that_goes_on_behind_a_zero) {
  using namespace std::string_literals;
  expect_refused(file_of("{}\0"s), {"not JSON"});
  expect_refused(file_of("{}\0{\"a\":1}"s), {"not JSON"});
  expect_refused(file_of("{\0}"s), {"not JSON"});
}

TEST(SafetensorsRefusal, invalid_utf8) {
  for (const char* bytes : {"\xFF", "\x80", "\xC0\x80", "\xE9\x87", "\xED\xA0\x80", "\xF5\x80"}) {
    expect_refused(file_of("{" + entry(bytes, R"("F32")", "[0]", "[0,0]") + "}"), {"not JSON"});
    expect_refused(file_of(cat("{\"__metadata__\":{\"a\":\"", bytes, "\"}}")), {"not JSON"});
  }
}

TEST(SafetensorsRefusal, a_key_that_is_there_twice) {
  const std::string a = entry("a.weight", R"("F32")", "[0]", "[0,0]");
  expect_refused(file_of("{" + a + "," + a + "}"), {"a.weight", "twice"});
  expect_refused(file_of(R"({"a":{"dtype":"F32","dtype":"F32","shape":[0],"data_offsets":[0,0]}})"),
                 {"dtype", "twice"});
  expect_refused(file_of(R"({"__metadata__":{"k":"1","k":"2"}})"), {"k", "twice"});
  expect_refused(file_of(R"({"__metadata__":{},"__metadata__":{}})"), {"__metadata__", "twice"});
  expect_refused(file_of(R"({"__metadata__":{"\u006b":"1","k":"2"}})"), {"k", "twice"});
  EXPECT_NO_THROW(parse(file_of("{" + a + R"(,"__metadata__":{"a.weight":"","dtype":""}})")));
}

TEST(SafetensorsRefusal, deep_nesting) {
  expect_refused(one_tensor(R"("F32")", "[[2]]", "[0,8]"), {"nested too deep"});
  for (const size_t depth : {5u, 1000u, 1'000'000u}) {
    expect_refused(file_of("{\"a\":" + std::string(depth, '[')), {"nested too deep"});
    std::string objects;
    for (size_t i = 0; i < depth; ++i) objects += "{\"a\":";
    expect_refused(file_of(objects), {"nested too deep"});
  }
}

TEST(SafetensorsRefusal, a_dtype_that_halfstep_lacks) {
  for (const char* dtype :
       {"\"I64\"", "\"F8_E4M3\"", "\"f32\"", "\"\"", "null", "3", "[\"F32\"]"}) {
    expect_refused(one_tensor(dtype, "[2]", "[0,8]"), {"a.weight", "dtype", dtype, "F64, F32"});
  }
}

TEST(SafetensorsRefusal, an_entry_with_a_field_missing_or_too_many) {
  const Words words = {"a.weight", "dtype, shape and data_offsets", "nothing else"};
  for (const char* fields :
       {R"({})", R"([])", R"("F32")", R"(null)", R"(0)", R"({"dtype":"F32","shape":[0]})",
        R"({"dtype":"F32","data_offsets":[0,0]})", R"({"shape":[0],"data_offsets":[0,0]})",
        R"({"dtype":"F32","shape":[0],"offsets":[0,0]})",
        R"({"dtype":"F32","shape":[0],"data_offsets":[0,0],"x":1})"}) {
    expect_refused(file_of(cat("{\"a.weight\":", fields, "}")), words);
  }
}

TEST(SafetensorsRefusal, a_shape_that_is_none) {
  for (const char* shape : {"[-2]", "[2.0]", "[2.5]", "[1e0]", "[-0]", "[\"2\"]", "[null]",
                            "[true]", "2", "null", "{}", "[18446744073709551616]"}) {
    expect_refused(one_tensor(R"("F32")", shape, "[0,8]"), {"a.weight", "shape", "whole numbers"});
  }
  expect_refused(one_tensor(R"("F32")", "[1,1,1,1,1,1,2]", "[0,8]"), {"a.weight", "rank 7"});
  for (const char* shape : {"[9223372036854775808]", "[18446744073709551615]",
                            "[4294967296,4294967296]", "[9223372036854775807,2]"}) {
    expect_refused(one_tensor(R"("F32")", shape, "[0,8]"), {"a.weight", "2^62"});
  }
}

TEST(SafetensorsRefusal, offsets_that_are_none_or_do_not_match_the_shape) {
  for (const char* offsets : {"[0]", "[]", "[0,8,8]", "8", "null", "{}", "[0,-8]", "[0,8.0]",
                              "[\"0\",8]", "[null,8]", "[0,18446744073709551616]"}) {
    expect_refused(one_tensor(R"("F32")", "[2]", offsets), {"a.weight", "data_offsets", "whole"});
  }
  for (const char* offsets : {"[8,0]", "[0,7]", "[0,9]", "[0,4]", "[0,12]", "[1,8]",
                              "[0,18446744073709551615]", "[18446744073709551615,7]"}) {
    expect_refused(one_tensor(R"("F32")", "[2]", offsets), {"a.weight", offsets, "[2] of F32"});
  }
  // 2^61 elements of 8 bytes are 2^64 bytes, which is 0 in 64 bits.
  expect_refused(one_tensor(R"("F64")", "[2305843009213693952]", "[0,0]"), {"a.weight"});
  expect_refused(one_tensor(R"("F64")", "[2305843009213693953]", "[0,8]"), {"a.weight"});
}

/// A file with the tensors a and b, f32, of these offsets and the length that belongs to them.
std::string two_tensors(size_t a0, size_t a1, size_t b0, size_t b1, size_t data_bytes) {
  return file_of(
      "{" + entry("a", R"("F32")", cat("[", (a1 - a0) / 4, "]"), cat("[", a0, ",", a1, "]")) + "," +
          entry("b", R"("F32")", cat("[", (b1 - b0) / 4, "]"), cat("[", b0, ",", b1, "]")) + "}",
      data_bytes);
}

TEST(SafetensorsRefusal, tensors_that_overlap_leave_a_hole_or_end_behind_the_file) {
  EXPECT_NO_THROW(parse(two_tensors(0, 8, 8, 12, 12)));
  EXPECT_NO_THROW(parse(two_tensors(8, 12, 0, 8, 12))) << "any order";
  EXPECT_NO_THROW(parse(two_tensors(0, 8, 8, 8, 8))) << "an empty one at the end";
  EXPECT_NO_THROW(parse(two_tensors(0, 0, 0, 8, 8))) << "an empty one at the start";
  expect_refused(two_tensors(0, 8, 4, 12, 12), {"tensor b begins at byte 4", "overlaps"});
  expect_refused(two_tensors(0, 8, 0, 8, 8), {"tensor b begins at byte 0", "overlaps"});
  expect_refused(two_tensors(0, 8, 4, 4, 8), {"tensor b begins at byte 4", "overlaps"});
  expect_refused(two_tensors(0, 8, 12, 16, 16), {"tensor b begins at byte 12", "a hole"});
  expect_refused(two_tensors(4, 8, 8, 12, 12), {"tensor a begins at byte 4", "a hole"});
  expect_refused(two_tensors(0, 8, 8, 12, 11), {"tensor b ends at byte 12", "has 11"});
  expect_refused(two_tensors(0, 8, 8, 12, 8), {"tensor b ends at byte 12", "has 8"});
  expect_refused(two_tensors(0, 8, 8, 12, 13), {"1 bytes after the last tensor"});
  expect_refused(file_of("{}", 5), {"5 bytes after the last tensor"});
}

TEST(SafetensorsRefusal, metadata_that_are_no_texts) {
  for (const char* metadata : {"1", "[]", "null", "\"a\""}) {
    expect_refused(file_of(cat("{\"__metadata__\":", metadata, "}")), {"__metadata__", "object"});
  }
  for (const char* value : {"1", "[]", "null", "{}", "true"}) {
    expect_refused(file_of(cat("{\"__metadata__\":{\"epoch\":", value, "}}")),
                   {"__metadata__", "epoch", "text"});
  }
}

TEST(SafetensorsRefusal, a_line_break_in_a_name_does_not_break_the_message) {
  expect_refused(file_of("{" + entry("a\\nb", R"("F8")", "[0]", "[0,0]") + "}"), {"dtype"});
  expect_refused(file_of(R"({"__metadata__":{"a\r\nb":1}})"), {"text"});
  expect_refused(file_of(R"({"__metadata__":{"a\nb":"","a\nb":""}})"), {"twice"});
}

/// A small file with all that a file may have.
std::string small_file(const TemporaryFolder& folder) {
  const std::string path = folder / "small";
  write_safetensors(path, {.tensors = {{"a.weight", Tensor::from({1, 2, 3}, {3, 1})},
                                       {"b", Tensor::full({2}, -2.0, DType::BF16)},
                                       {"n", Tensor::scalar(0.5, DType::F64)},
                                       {"none", Tensor::zeros({0, 2}, DType::F16)}},
                           .metadata = {{"format", "pt"}}});
  return test::read_text(path);
}

TEST(SafetensorsRefusal, every_shorter_file) {
  const TemporaryFolder folder;
  const std::string file = small_file(folder);
  const std::string path = folder / "cut";
  EXPECT_EQ(parse(file).tensors.size(), 4u);
  for (size_t length = 0; length < file.size(); ++length) {
    expect_refused(file.substr(0, length), {});
    test::write_text(path, file.substr(0, length));
    const std::string message = message_of<FileError>([&] { read_safetensors(path); });
    EXPECT_TRUE(message.starts_with("[read_safetensors] " + path + ": ")) << message;
  }
  expect_refused(file + "x", {"1 bytes after"});
}

TEST(SafetensorsRefusal, no_flipped_bit_of_the_header_crashes) {
  const TemporaryFolder folder;
  const std::string file = small_file(folder);
  const size_t data_bytes = 8 + 12 + 4;
  size_t refused = 0;
  for (size_t bit = 0; bit < 8 * (file.size() - data_bytes); ++bit) {
    std::string flipped = file;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    try {
      EXPECT_LE(parse(flipped).tensors.size(), 4u);
    } catch (const FileError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 8 * (file.size() - data_bytes) / 2);
}

TEST(SafetensorsRefusal, a_path_that_is_no_file) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& path, std::string_view what) {
    const std::string message = message_of<FileError>([&] { read_safetensors(path); });
    EXPECT_EQ(message.find('\n'), std::string::npos);
    expect_says(message, {"[read_safetensors] ", path, what});
  };
  refused(folder / "missing", "No such file or directory");
  refused(folder / "missing/x", "No such file or directory");
  refused(folder.path(), "not a regular file");
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  refused(folder / "fifo", "not a regular file");
  refused("/dev/null", "not a regular file");
  std::filesystem::create_symlink("gone", folder / "link");
  refused(folder / "link", "No such file or directory");
}

}  // namespace
}  // namespace halfstep
