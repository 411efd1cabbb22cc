// StateDict and StateReader: nesting by dots, messages that name the file and the whole key, and
// what counts as a number, a flag or a tensor; the generator's state.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "halfstep/tests/amp_testing.h"
#include "halfstep/tests/file_testing.h"

namespace halfstep {
namespace {

using test::bits;
using test::expect_says;
using test::message_of;

StateDict state_of(std::map<std::string, double> numbers) {
  return {.tensors = {}, .numbers = std::move(numbers)};
}

TEST(StateDict, add_and_part_are_each_others_inverse) {
  const Tensor w = Tensor::ones({2});
  StateDict inner{.tensors = {{"0.weight", w}}, .numbers = {{"lr", 0.5}, {"group.0.lr", 0.25}}};
  StateDict outer = state_of({{"next_step", 3.0}});
  outer.add("optimizer", inner);
  outer.add("model", {.tensors = {{"0.weight", w}}, .numbers = {}});
  EXPECT_EQ(outer.numbers,
            (std::map<std::string, double>{
                {"next_step", 3.0}, {"optimizer.lr", 0.5}, {"optimizer.group.0.lr", 0.25}}));
  EXPECT_EQ(outer.tensors.size(), 2u);
  EXPECT_TRUE(outer.tensors.at("model.0.weight").shares_storage(w)) << "handles, not copies";
  const StateDict back = outer.part("optimizer");
  EXPECT_EQ(back.numbers, inner.numbers);
  ASSERT_EQ(back.tensors.size(), 1u);
  EXPECT_TRUE(back.tensors.at("0.weight").shares_storage(w));
  EXPECT_TRUE(outer.part("scaler").numbers.empty());
}

TEST(StateDict, a_part_is_what_lies_below_its_name_and_a_dot) {
  const StateDict state = state_of(
      {{"a", 1.0}, {"a.x", 2.0}, {"a.b.y", 3.0}, {"ab.x", 4.0}, {"a-x", 5.0}, {"a/x", 6.0}});
  EXPECT_EQ(state.part("a").numbers, (std::map<std::string, double>{{"x", 2.0}, {"b.y", 3.0}}));
  EXPECT_EQ(state.part("a").part("b").numbers, (std::map<std::string, double>{{"y", 3.0}}));
  EXPECT_EQ(state.part("a.b").numbers, state.part("a").part("b").numbers);
}

TEST(StateDict, parts_of_parts_know_their_file_and_their_whole_prefix) {
  StateDict state = state_of({{"a.b.y", 3.0}});
  state.source = "run.safetensors";
  const StateDict part = state.part("a").part("b");
  EXPECT_EQ(part.source, "run.safetensors");
  EXPECT_EQ(part.prefix, "a.b.");
  StateReader reader("Thing.load", part);
  EXPECT_EQ(reader.op(), "Thing.load run.safetensors");
  const std::string missing = message_of<ArgumentError>([&] { reader.number("x"); });
  EXPECT_TRUE(missing.starts_with("[Thing.load run.safetensors] ")) << missing;
  expect_says(missing, {"a.b.x is missing"});
  expect_says(message_of<ArgumentError>([&] { reader.flag("y"); }), {"a.b.y = 3", "0 or 1"});
  expect_says(message_of<ArgumentError>([&] { reader.whole_number("y", 4.0); }), {"a.b.y", ">= 4"});
  expect_says(message_of<ArgumentError>([&] { reader.tensor("w", Tensor::ones({1})); }), {"a.b.w"});
  StateReader second("Thing.load", part);
  expect_says(message_of<ArgumentError>([&] { second.finish(); }), {"a.b.y", "unknown"});
}

TEST(StateReader, without_a_file_only_the_op_begins_the_message) {
  const StateDict state = state_of({});
  StateReader reader("Thing.load", state);
  EXPECT_TRUE(message_of<ArgumentError>([&] { reader.number("x"); }).starts_with("[Thing.load] "));
}

TEST(StateReader, a_number_is_a_number_or_an_f64_scalar) {
  StateDict state = state_of({{"n", 0.1}});
  state.tensors = {{"f64", Tensor::scalar(0.1, DType::F64)},
                   {"f32", Tensor::scalar(0.5)},
                   {"row", Tensor::ones({1}, DType::F64)},
                   {"two", Tensor::ones({2}, DType::F64)},
                   {"none", Tensor()}};
  StateReader reader("load", state);
  EXPECT_EQ(reader.number("n"), 0.1);
  EXPECT_EQ(reader.number("f64"), 0.1);
  for (const char* key : {"f32", "row", "two", "none"}) {
    expect_says(message_of<ArgumentError>([&] { reader.number(key); }), {key, "f64 tensor"});
  }
}

TEST(StateReader, a_whole_number_is_whole_and_in_its_range) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const double good : {0.0, -0.0, 1.0, 4294967296.0, 0x1p53}) {
    const StateDict state = state_of({{"n", good}});
    EXPECT_EQ(StateReader("load", state).whole_number("n", 0.0), static_cast<int64_t>(good));
  }
  for (const double bad : {-1.0, 0.5, 0x1p53 + 2.0, HUGE_VAL, -HUGE_VAL, kNan, 1e300}) {
    const StateDict state = state_of({{"n", bad}});
    StateReader reader("load", state);
    expect_says(message_of<ArgumentError>([&] { reader.whole_number("n", 0.0); }),
                {"n = ", "whole"});
  }
  const StateDict state = state_of({{"n", 2.0}});
  StateReader reader("load", state);
  EXPECT_EQ(reader.whole_number("n", 2.0), 2);
  message_of<ArgumentError>([&] { reader.whole_number("n", 3.0); });
}

TEST(StateReader, a_flag_is_0_or_1) {
  const StateDict good = state_of({{"no", 0.0}, {"yes", 1.0}});
  EXPECT_FALSE(StateReader("load", good).flag("no"));
  EXPECT_TRUE(StateReader("load", good).flag("yes"));
  for (const double bad : {2.0, -1.0, 0.5, std::nan("")}) {
    const StateDict state = state_of({{"f", bad}});
    StateReader reader("load", state);
    message_of<ArgumentError>([&] { reader.flag("f"); });
  }
}

TEST(StateReader, a_tensor_is_a_copy_of_the_same_shape_and_dtype) {
  StateDict state;
  state.tensors = {{"w", Tensor::from({1, 2}, {2})}, {"none", Tensor()}};
  StateReader reader("load", state);
  Tensor got = reader.tensor("w", Tensor::zeros({2}));
  got.fill_(5.0);
  EXPECT_EQ(state.tensors.at("w").to_vector<float>(), (std::vector{1.0f, 2.0f}));
  expect_says(message_of<ShapeError>([&] {
                reader.tensor("w", Tensor::zeros({1, 2}));
              }),
              {"w is f32[2] on cpu", "must be [1, 2]"});
  expect_says(message_of<DTypeError>([&] { reader.tensor("w", Tensor::zeros({2}, DType::F16)); }),
              {"w is f32[2] on cpu", "must be f16"});
  message_of<ShapeError>([&] { reader.tensor("none", Tensor::zeros({2})); });
  expect_says(message_of<ArgumentError>([&] { reader.tensor("v", Tensor::zeros({2})); }),
              {"v is missing"});
  EXPECT_TRUE(reader.has_tensor("w"));
  EXPECT_FALSE(reader.has_tensor("v"));
}

TEST(StateReader, finish_refuses_what_nobody_has_read) {
  StateDict state = state_of({{"a", 1.0}, {"part.b", 2.0}});
  state.tensors = {{"part.w", Tensor::ones({1})}, {"v", Tensor::ones({1})}};
  StateReader reader("load", state);
  const auto unread = [&](std::string_view key) {
    expect_says(message_of<ArgumentError>([&] { reader.finish(); }), {key, "unknown"});
  };
  unread("a ");
  reader.number("a");
  unread("part.b");
  EXPECT_EQ(reader.part("part").numbers.size(), 1u);
  unread("v ");
  reader.tensor("v", Tensor::ones({1}));
  EXPECT_NO_THROW(reader.finish());
}

TEST(GeneratorState, all_64_bits_of_seed_and_block_come_back_also_through_a_file) {
  const test::TemporaryFolder folder;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{0xFEDCBA9876543210},
                              uint64_t{1} << 53 | 1, ~uint64_t{0}}) {
    for (const uint64_t block : {uint64_t{0}, uint64_t{0x123456789ABCDEF1}, ~uint64_t{0} - 5}) {
      Generator saved(seed), loaded(77), read(78);
      saved.set_state({seed, block});
      loaded.prepare_load(saved.state_dict())();
      EXPECT_EQ(loaded.state(), saved.state());
      save(saved, folder / "g");
      load(read, folder / "g");
      EXPECT_EQ(read.state(), saved.state());
      EXPECT_EQ(bits(read.normal({5})), bits(saved.normal({5})));
      EXPECT_EQ(read.state(), saved.state());
    }
  }
}

TEST(GeneratorState, a_bad_state_is_refused_whole_and_named_in_full) {
  Generator generator(5);
  generator.uniform({9}, 0.0, 1.0);
  const Generator::State before = generator.state();
  for (const char* key : {"seed.low", "seed.high", "block.low", "block.high"}) {
    for (const double bad : {0x1p32, -1.0, 0.5, std::nan(""), HUGE_VAL}) {
      StateDict run;
      run.add("data", Generator(6).state_dict());
      run.source = "run.safetensors";
      run.numbers.at(cat("data.", key)) = bad;
      expect_says(message_of<ArgumentError>([&] { generator.prepare_load(run.part("data")); }),
                  {"[Generator.load run.safetensors] ", cat("data.", key, " = ")});
    }
    StateDict state = Generator(6).state_dict();
    state.numbers.erase(key);
    expect_says(message_of<ArgumentError>([&] { generator.prepare_load(state); }),
                {key, "missing"});
  }
  StateDict more = Generator(6).state_dict();
  more.numbers["algorithm"] = 1.0;
  expect_says(message_of<ArgumentError>([&] { generator.prepare_load(more); }), {"algorithm"});
  EXPECT_EQ(generator.state(), before);
  StateDict largest = Generator(6).state_dict();
  largest.numbers.at("seed.low") = 0x1p32 - 1.0;
  EXPECT_NO_THROW(generator.prepare_load(largest)());
  EXPECT_EQ(generator.state().seed, 0xFFFFFFFFu);
}

}  // namespace
}  // namespace halfstep
