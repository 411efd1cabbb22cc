// Safetensors files: one that Python's library wrote is read exactly and written the same, every
// dtype, shape and name comes back bit for bit, and the layout is the one that is promised.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "halfstep/core/safetensors.h"
#include "halfstep/tests/amp_testing.h"
#include "halfstep/tests/file_testing.h"
#include "halfstep/tests/golden.h"

namespace halfstep {
namespace {

using test::bits;
using test::expect_says;
using test::json;
using test::message_of;
using test::read_text;
using test::TemporaryFolder;

constexpr DType kAll[] = {DType::F64, DType::F32, DType::BF16, DType::F16};

/// The two parts of a safetensors file, without the 8 bytes of the length.
struct Parts {
  std::string header;
  std::string data;
};

Parts parts_of(const std::string& file) {
  uint64_t length = 0;
  EXPECT_GE(file.size(), sizeof length);
  std::memcpy(&length, file.data(), sizeof length);
  EXPECT_LE(length, file.size() - sizeof length);
  return {file.substr(sizeof length, length), file.substr(sizeof length + length)};
}

Tensor from_bits(const std::string& raw, const Shape& shape, DType dtype) {
  Tensor x = Tensor::empty(shape, dtype);
  EXPECT_EQ(raw.size(), static_cast<size_t>(x.numel()) * size_of(dtype));
  std::memcpy(x.mutable_raw_data(), raw.data(), raw.size());
  return x;
}

template <class T>
Tensor from_patterns(const std::vector<T>& patterns, DType dtype) {
  const auto* raw = reinterpret_cast<const char*>(patterns.data());
  return from_bits(std::string(raw, patterns.size() * sizeof(T)),
                   {static_cast<int64_t>(patterns.size())}, dtype);
}

void expect_same(const Safetensors& got, const Safetensors& want) {
  EXPECT_EQ(got.metadata, want.metadata);
  ASSERT_EQ(got.tensors.size(), want.tensors.size());
  for (const auto& [name, x] : want.tensors) {
    ASSERT_TRUE(got.tensors.contains(name)) << name;
    const Tensor& y = got.tensors.at(name);
    EXPECT_EQ(y.dtype(), x.dtype()) << name;
    EXPECT_EQ(y.shape(), x.shape()) << name;
    EXPECT_EQ(bits(y), bits(x)) << name;
    EXPECT_FALSE(y.requires_grad()) << name;
  }
}

/// Writes, reads and compares.
void expect_round_trip(const Safetensors& contents) {
  const TemporaryFolder folder;
  const std::string path = folder / "x.safetensors";
  write_safetensors(path, contents);
  expect_same(read_safetensors(path), contents);
  const std::string text = read_text(path);
  expect_same(parse_safetensors(std::as_bytes(std::span(text)), "memory"), contents);
}

TEST(golden_safetensors, a_file_of_pythons_library_is_read_exactly) {
  const json golden = test::load_golden("python_safetensors.json");
  const Safetensors file =
      read_safetensors(test::golden_path(golden.at("file").get<std::string>()));
  EXPECT_EQ(json(file.metadata), golden.at("metadata"));
  const json& tensors = golden.at("tensors");
  ASSERT_GE(tensors.size(), 6u);
  ASSERT_EQ(file.tensors.size(), tensors.size());
  const std::map<std::string, DType> dtypes = {{"float64", DType::F64},
                                               {"float32", DType::F32},
                                               {"float16", DType::F16},
                                               {"bfloat16", DType::BF16}};
  for (const auto& [name, want] : tensors.items()) {
    const Tensor& x = file.tensors.at(name);
    EXPECT_EQ(x.dtype(), dtypes.at(want.at("dtype").get<std::string>())) << name;
    const Tensor expected = test::golden_tensor(want, x.dtype());
    EXPECT_EQ(x.shape(), expected.shape()) << name;
    EXPECT_EQ(bits(x), bits(expected)) << name;
  }
}

TEST(golden_safetensors, the_same_contents_are_written_as_pythons_library_writes_them) {
  const json golden = test::load_golden("python_safetensors.json");
  const std::string path = test::golden_path(golden.at("file").get<std::string>());
  const TemporaryFolder folder;
  write_safetensors(folder / "ours.safetensors", read_safetensors(path));
  const std::string ours = read_text(folder / "ours.safetensors"), theirs = read_text(path);
  EXPECT_EQ(ours.size(), theirs.size());
  EXPECT_EQ(json::parse(parts_of(ours).header), json::parse(parts_of(theirs).header));
  EXPECT_EQ(parts_of(ours).data, parts_of(theirs).data);
}

TEST(Safetensors, all_bit_patterns_of_the_halves_come_back) {
  std::vector<uint16_t> patterns(65536);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  expect_round_trip({.tensors = {{"f16", from_patterns(patterns, DType::F16)},
                                 {"bf16", from_patterns(patterns, DType::BF16)}},
                     .metadata = {}});
}

TEST(Safetensors, nan_payloads_signs_and_subnormals_come_back) {
  expect_round_trip(
      {.tensors = {{"f32", from_patterns<uint32_t>({0x7FC00000, 0xFFC00001, 0x7F800001, 0xFFBFFFFF,
                                                    0x7F800000, 0xFF800000, 0x80000000, 1},
                                                   DType::F32)},
                   {"f64", from_patterns<uint64_t>(
                               {0x7FF8000000000000, 0xFFF0000000000001, 0x7FF4DEADBEEF1234,
                                0x7FF0000000000000, 0x8000000000000000, 1},
                               DType::F64)}},
       .metadata = {}});
}

TEST(Safetensors, every_rank_and_empty_tensors_come_back_in_every_dtype) {
  const std::vector<Shape> shapes = {{},
                                     {1},
                                     {3},
                                     {0},
                                     {2, 3},
                                     {0, 4},
                                     {4, 0, 2},
                                     {1, 2, 1, 3},
                                     {2, 1, 2, 1, 2},
                                     {1, 2, 1, 3, 1, 2}};
  Generator generator(3);
  Safetensors contents;
  for (const DType dtype : kAll) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      contents.tensors[cat(name_of(dtype), ".", i)] = generator.normal(shapes[i], 0.0, 1.0, dtype);
    }
  }
  expect_round_trip(contents);
}

TEST(Safetensors, any_utf8_is_a_name_or_a_text) {
  Safetensors contents;
  for (const char* text :
       {"a.b.c", "", " ", "quote\"d", "back\\slash", "line\nbreak", "tab\t", "{\"a\":1}",
        "gewicht.ß", "重み.0", "\xF0\x9F\x8C\xB1", "\x7F\x01", "dtype", "__metadata"}) {
    contents.tensors[text] = Tensor::full({2}, static_cast<double>(contents.tensors.size()));
    contents.metadata[text] = cat("value of ", text);
  }
  contents.metadata["__metadata__"] = "";
  expect_round_trip(contents);
}

TEST(Safetensors, nothing_at_all_is_a_file_too) {
  expect_round_trip({});
  expect_round_trip({.tensors = {}, .metadata = {{"format", "pt"}}});
}

TEST(Safetensors, the_widest_dtype_comes_first_then_the_names_in_order) {
  const TemporaryFolder folder;
  const std::string path = folder / "x.safetensors";
  write_safetensors(path, {.tensors = {{"a", Tensor::ones({3}, DType::F16)},
                                       {"b", Tensor::ones({3}, DType::BF16)},
                                       {"c", Tensor::ones({1})},
                                       {"d", Tensor::ones({2})},
                                       {"e", Tensor::ones({}, DType::F64)}},
                           .metadata = {}});
  const std::string file = read_text(path);
  const json header = json::parse(parts_of(file).header);
  const std::map<std::string, std::vector<size_t>> want = {
      {"e", {0, 8}}, {"c", {8, 12}}, {"d", {12, 20}}, {"b", {20, 26}}, {"a", {26, 32}}};
  for (const auto& [name, offsets] : want) {
    EXPECT_EQ(header.at(name).at("data_offsets").get<std::vector<size_t>>(), offsets) << name;
  }
  EXPECT_EQ(header.size(), want.size()) << "no metadata, no __metadata__";
  EXPECT_EQ(parts_of(file).header.size() % 8, 0u) << "the data are not aligned";
  EXPECT_EQ(file.size(), 8 + parts_of(file).header.size() + 32);
}

TEST(Safetensors, the_data_are_aligned_whatever_the_names_length) {
  const TemporaryFolder folder;
  for (std::string name = "w"; name.size() < 10; name += 'w') {
    write_safetensors(folder / "x", {.tensors = {{name, Tensor::ones({1})}}, .metadata = {}});
    const std::string file = read_text(folder / "x");
    EXPECT_EQ(parts_of(file).header.size() % 8, 0u) << name;
    EXPECT_EQ(parts_of(file).header.front(), '{');
    EXPECT_EQ(read_safetensors(folder / "x").tensors.count(name), 1u);
  }
}

TEST(Safetensors, a_view_is_written_alone_and_a_parameter_as_its_values) {
  const TemporaryFolder folder;
  const Tensor x = Tensor::from({1, 2, 3, 4, 5, 6}, {3, 2});
  const Parameter w = test::make_parameter("w", {7.0f});
  write_safetensors(folder / "x",
                    {.tensors = {{"row", rows(x, 1, 2)}, {"w", w.value}}, .metadata = {}});
  const Safetensors got = read_safetensors(folder / "x");
  EXPECT_EQ(got.tensors.at("row").to_vector<float>(), (std::vector{3.0f, 4.0f}));
  EXPECT_EQ(got.tensors.at("w").item(), 7.0);
  EXPECT_FALSE(got.tensors.at("w").requires_grad());
}

TEST(Safetensors, what_cannot_be_written_leaves_the_old_file) {
  const TemporaryFolder folder;
  const std::string path = folder / "x";
  write_safetensors(path, {.tensors = {{"w", Tensor::ones({1})}}, .metadata = {}});
  const std::string before = read_text(path);
  const Tensor one = Tensor::ones({1});
  const auto refused = [&](const Safetensors& contents, std::string_view what) {
    expect_says(message_of<ArgumentError>([&] { write_safetensors(path, contents); }),
                {"[write_safetensors] ", what});
    EXPECT_EQ(read_text(path), before);
    EXPECT_EQ(folder.names(), std::set<std::string>{"x"});
  };
  refused({.tensors = {{"a.weight", Tensor()}}, .metadata = {}}, "a.weight");
  refused({.tensors = {{"__metadata__", one}}, .metadata = {}}, "__metadata__");
  refused({.tensors = {{"bad\xFF", one}}, .metadata = {}}, "UTF-8");
  refused({.tensors = {{"w", one}}, .metadata = {{"k", "cut \xE9\x87"}}}, "UTF-8");
  refused({.tensors = {{"w", one}}, .metadata = {{"\xC0\x80", "v"}}}, "UTF-8");
  expect_says(message_of<FileError>([&] { write_safetensors(folder / "no/x", {}); }),
              {"[write_safetensors] ", folder / "no/x", "No such file"});
}

}  // namespace
}  // namespace halfstep
