// The in-place functions: what they write, and what they refuse because a graph could silently be
// wrong: targets with a history, operands whose gradient would be lost. And the guard behind them:
// a tensor that backward needs and that was written to meanwhile is an error that names it.
#include <gtest/gtest.h>

#include <functional>

#include "halfstep/halfstep.h"
#include "halfstep/tests/amp_testing.h"

namespace halfstep::test {
namespace {

using Values = std::vector<float>;
constexpr DType kAllDTypes[] = {DType::F32, DType::F16, DType::BF16, DType::F64};

Tensor leaf(std::initializer_list<float> values) {
  return Tensor::from(values, {static_cast<int64_t>(values.size())}).set_requires_grad();
}

Values grad_of(const Tensor& x) { return x.grad().to_vector<float>(); }

TEST(InPlace, each_writes_its_result_and_keeps_dtype_memory_and_shape) {
  for (const DType dtype : kAllDTypes) {
    Tensor x = Tensor::from({1, 2, 3, 4}, {2, 2}, dtype);
    const void* memory = x.raw_data();
    uint64_t version = x.version();
    const auto expect = [&](const Tensor& result, const Values& values) {
      EXPECT_EQ(result.raw_data(), memory);
      EXPECT_EQ(x.str(), cat(name_of(dtype), "[2, 2] on cpu"));
      EXPECT_EQ(x.to_vector<float>(), values);
      EXPECT_GT(x.version(), version);
      version = x.version();
    };
    expect(x.add_(Tensor::full({2, 2}, 0.5, dtype)), {1.5f, 2.5f, 3.5f, 4.5f});
    expect(x.mul_(Tensor::full({2, 2}, 2.0, dtype)), {3, 5, 7, 9});
    expect(x.mul_(3.0), {9, 15, 21, 27});
    expect(x.copy_(Tensor::from({4, 3, 2, 1}, {2, 2}, dtype)), {4, 3, 2, 1});
    expect(x.fill_(-1.0), {-1, -1, -1, -1});
  }
}

TEST(InPlace, a_row_or_a_scalar_spreads_into_the_target) {
  Tensor x = Tensor::from({1, 2, 3, 4}, {2, 2});
  x.add_(Tensor::from({10, 20}, {2}));
  EXPECT_EQ(x.to_vector<float>(), (Values{11, 22, 13, 24}));
  x.mul_(Tensor::scalar(2.0));
  EXPECT_EQ(x.to_vector<float>(), (Values{22, 44, 26, 48}));
  x.mul_(Tensor::from({0.5f}, {1}));
  EXPECT_EQ(x.to_vector<float>(), (Values{11, 22, 13, 24}));
}

TEST(InPlace, the_target_never_spreads) {
  Tensor row = Tensor::ones({2}), scalar = Tensor::scalar(1.0);
  const Tensor matrix = Tensor::ones({3, 2});
  expect_says(message_of<ShapeError>([&] { row.add_(matrix); }), {"[add_]", "f32[2]", "f32[3, 2]"});
  EXPECT_THROW(scalar.mul_(matrix), ShapeError);
  EXPECT_THROW(Tensor(matrix).add_(Tensor::ones({3, 1})), ShapeError);
  EXPECT_THROW(Tensor(matrix).copy_(row), ShapeError) << "copy_ does not broadcast";
  EXPECT_EQ(row.to_vector<float>(), (Values{1, 1}));
}

TEST(InPlace, a_result_in_halves_is_rounded_once) {
  // Both sums are exact in float32 and ties in f16.
  Tensor x = Tensor::from({1.0f, 3.0f}, {2}, DType::F16);
  x.add_(Tensor::from({0x1p-11f, 0x1p-10f}, {2}, DType::F16));
  EXPECT_EQ(x.to_vector<float>(), (Values{1.0f, 3.0f}));
  // A factor rounded to bf16 first would be 1 and change nothing.
  Tensor y = Tensor::from({1.9921875f}, {1}, DType::BF16);
  y.mul_(1.0 + 0x1p-8);
  EXPECT_EQ(y.item(), 2.0);
}

TEST(InPlace, add_and_mul_want_operands_of_the_targets_dtype) {
  // Also under autocast: an in-place op is never cast, and never reallocates behind a handle.
  for (const bool autocast_on : {false, true}) {
    const amp::Autocast autocast(Device::cpu(), DType::F16, autocast_on);
    Tensor y = Tensor::ones({2}, DType::F16);
    const Tensor bias = Tensor::ones({2});
    expect_says(message_of<DTypeError>([&] { y.add_(bias); }),
                {"[add_]", "f16[2] on cpu", "f32[2] on cpu", "to()"});
    EXPECT_THROW(y.mul_(bias), DTypeError);
    const void* memory = y.raw_data();
    y.add_(to(bias, DType::F16));
    EXPECT_EQ(y.raw_data(), memory);
    EXPECT_EQ(y.dtype(), DType::F16);
  }
}

TEST(InPlace, copy_converts) {
  for (const DType to_dtype : kAllDTypes) {
    for (const DType from_dtype : kAllDTypes) {
      Tensor y = Tensor::zeros({3}, to_dtype);
      y.copy_(Tensor::from({1.5f, -2.0f, 1024.0f}, {3}, from_dtype));
      EXPECT_EQ(y.to_vector<float>(), (Values{1.5f, -2.0f, 1024.0f}));
      EXPECT_EQ(y.dtype(), to_dtype);
    }
  }
}

TEST(InPlace, a_target_with_a_history_is_refused) {
  const Tensor a = leaf({1, 2});
  Tensor y = a * 2.0;
  Tensor view = reshape(a, {2, 1});
  const uint64_t version = a.version(), y_version = y.version();
  const Tensor one = Tensor::ones({2});
  expect_says(message_of<GraphError>([&] { y.fill_(0.0); }), {"[fill_]", "f32[2]", "history"});
  expect_says(message_of<GraphError>([&] { y.copy_(one); }), {"[copy_]"});
  expect_says(message_of<GraphError>([&] { y.add_(one); }), {"[add_]"});
  expect_says(message_of<GraphError>([&] { y.mul_(one); }), {"[mul_]"});
  expect_says(message_of<GraphError>([&] { y.mul_(2.0); }), {"[mul_]"});
  EXPECT_THROW(view.fill_(0.0), GraphError);
  const NoGrad no_grad;
  EXPECT_THROW(y.fill_(0.0), GraphError) << "its own history would still be wrong";
  EXPECT_EQ(a.version(), version);
  EXPECT_EQ(y.version(), y_version);
  EXPECT_EQ(y.to_vector<float>(), (Values{2, 4}));
}

TEST(InPlace, an_operand_whose_gradient_would_be_lost_is_refused) {
  const Tensor a = leaf({1, 2});
  Tensor y = Tensor::ones({2});
  for (const Tensor& operand : {a, a * 2.0}) {
    expect_says(message_of<GraphError>([&] { y.add_(operand); }), {"[add_]", "detach()"});
    EXPECT_THROW(y.mul_(operand), GraphError);
    EXPECT_THROW(y.copy_(operand), GraphError);
  }
  EXPECT_EQ(y.to_vector<float>(), (Values{1, 1}));
  y.add_(a.detach());
  const NoGrad no_grad;  // no gradient is wanted here
  y.add_(a);
  EXPECT_EQ(y.to_vector<float>(), (Values{3, 5}));
}

TEST(InPlace, an_operand_that_is_a_view_of_the_target_is_read_before_it_is_written) {
  const auto fresh = [] { return Tensor::from({1, 2, 3, 4, 5, 6}, {3, 2}); };
  Tensor x = fresh();
  x.add_(x);
  EXPECT_EQ(x.to_vector<float>(), (Values{2, 4, 6, 8, 10, 12}));
  x = fresh();
  rows(x, 1, 3).add_(rows(x, 0, 2));  // one row further: each write would feed the next
  EXPECT_EQ(x.to_vector<float>(), (Values{1, 2, 4, 6, 8, 10}));
  x = fresh();
  rows(x, 0, 2).mul_(rows(x, 1, 3));
  EXPECT_EQ(x.to_vector<float>(), (Values{3, 8, 15, 24, 5, 6}));
  x = fresh();
  x.add_(reshape(rows(x, 0, 1), {2}));  // a row of itself
  EXPECT_EQ(x.to_vector<float>(), (Values{2, 4, 4, 6, 6, 8}));
  x = fresh();
  x.mul_(rows(reshape(x, {6}), 1, 2));  // an element of itself
  EXPECT_EQ(x.to_vector<float>(), (Values{2, 4, 6, 8, 10, 12}));
}

TEST(InPlace, copy_between_overlapping_views_moves) {
  constexpr int64_t kN = 3 << 20;  // large enough to be copied in pieces
  for (const bool forward : {true, false}) {
    Tensor x = Tensor::empty({kN});
    float* data = x.mutable_data<float>();
    for (int64_t i = 0; i < kN; ++i) data[i] = static_cast<float>(i);
    const Tensor head = rows(x, 0, kN - 9), tail = rows(x, 9, kN);
    Tensor(forward ? tail : head).copy_(forward ? head : tail);
    const float* moved = (forward ? tail : head).data<float>();
    int64_t wrong = 0;
    for (int64_t i = 0; i < kN - 9; ++i)
      wrong += moved[i] != static_cast<float>(forward ? i : i + 9);
    EXPECT_EQ(wrong, 0) << (forward ? "forward" : "backward");
  }
}

TEST(InPlace, a_write_to_a_parameter_makes_its_low_precision_copy_stale) {
  Tensor w = Tensor::ones({1, 1}).set_requires_grad();
  const Tensor x = Tensor::ones({1, 1});
  const amp::Autocast autocast(Device::cpu(), DType::F16);
  EXPECT_EQ(linear(x, w).item(), 1.0);
  w.fill_(0.5);
  EXPECT_EQ(linear(x, w).item(), 0.5);
  w.copy_(Tensor::full({1, 1}, 0.25));
  EXPECT_EQ(linear(x, w).item(), 0.25);
  w.mul_(0.5);
  EXPECT_EQ(linear(x, w).item(), 0.125);
  w.mutable_data<float>()[0] = 3.0f;
  EXPECT_EQ(linear(x, w).item(), 3.0);
}

TEST(SavedTensor, a_write_to_a_saved_tensor_is_an_error_that_names_it) {
  struct Case {
    const char* says;
    std::function<Tensor(const Tensor&, const Tensor&)> function;
  };
  const Case cases[] = {
      {"[mul backward]", [](const Tensor& a, const Tensor& b) { return a * b; }},
      {"[matmul backward]", [](const Tensor& a, const Tensor& b) { return matmul(a, b); }},
      {"[linear backward]", [](const Tensor& a, const Tensor& b) { return linear(a, b); }},
      {"[gelu backward]", [](const Tensor&, const Tensor& b) { return gelu(b); }},
      {"[norm backward]", [](const Tensor&, const Tensor& b) { return norm(b); }},
      {"[mse_loss backward]", [](const Tensor& a, const Tensor& b) { return mse_loss(a, b); }},
  };
  for (const Case& c : cases) {
    const Tensor a = Tensor::ones({2, 2}).set_requires_grad();
    const Tensor b = Tensor::ones({2, 2}).set_requires_grad();
    const Tensor loss = sum(c.function(a, b));
    const uint64_t version = b.version();
    rows(b.detach(), 1, 2).fill_(0.5);  // through a view of a view
    const std::string text = message_of<GraphError>([&] { loss.backward(); });
    expect_says(text, {c.says, "f32[2, 2]", cat("has version ", version + 1),
                       cat("expected version ", version)});
    EXPECT_FALSE(a.grad().defined() || b.grad().defined());
  }
}

TEST(SavedTensor, a_write_to_a_saved_activation_is_seen) {
  const Tensor a = leaf({1, 2});
  for (const auto& function : {exp, tanh, sigmoid, relu}) {  // these save their output
    const Tensor y = function(a);
    y.detach().mul_(2.0);
    EXPECT_THROW(y.backward(Tensor::ones({2})), GraphError);
  }
}

TEST(SavedTensor, a_write_to_what_no_gradient_needs_is_legal) {
  const Tensor a = leaf({1, 2}), b = leaf({3, 4});
  const Tensor loss = sum(a + b);
  Tensor(a).fill_(0.0);
  loss.backward();
  EXPECT_EQ(grad_of(a), (Values{1, 1}));
  const Tensor w = Tensor::ones({1, 2}).set_requires_grad(), x = Tensor::ones({1, 2});
  const Tensor y = sum(linear(x, w));
  Tensor(w).fill_(3.0);  // dw needs x only, and x wants no gradient
  y.backward();
  EXPECT_EQ(grad_of(w), (Values{1, 1}));
}

TEST(SavedTensor, a_step_between_two_losses_of_one_graph_is_an_error) {
  for (const bool low : {false, true}) {  // under autocast the saved tensor is the cast copy
    nn::Linear layer(4, 4);
    optim::SGD optimizer(layer.parameters(), {.lr = 0.5});
    const Tensor x = Tensor::ones({2, 4});
    Tensor first, second;
    {
      const amp::Autocast autocast(Device::cpu(), DType::F16, low);
      const Tensor h = gelu(layer(layer(x)));
      first = mean(h);
      second = sum(h);
    }
    first.backward({}, true);
    optimizer.step();
    const Values before = grad_of(layer.weight());
    const std::string text = message_of<GraphError>([&] { second.backward(); });
    expect_says(text, {"backward]", "f32[4", "has version 2, expected version 1", "optimizer"});
    EXPECT_EQ(grad_of(layer.weight()), before);
  }
}

}  // namespace
}  // namespace halfstep::test
