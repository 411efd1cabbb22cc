// Modules: registration and names, moves that keep every handle, nesting, the initial values of
// Linear, and the layers' forward functions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <type_traits>

#include "halfstep/halfstep.h"
#include "halfstep/tests/amp_testing.h"

namespace halfstep::test {
namespace {

using nn::Linear;
using nn::Sequential;

static_assert(std::is_nothrow_move_constructible_v<Linear>);
static_assert(std::is_move_assignable_v<Sequential> && !std::is_copy_constructible_v<Sequential>);
static_assert(!std::is_copy_constructible_v<Linear> && !std::is_copy_assignable_v<Linear>);
static_assert(!std::is_constructible_v<Sequential, int>);
static_assert(!std::is_constructible_v<Sequential, Sequential&>, "a copy, not a child");

std::vector<std::string> names_of(const nn::Module& module) {
  std::vector<std::string> names;
  for (const Parameter& parameter : module.parameters()) names.push_back(parameter.name);
  return names;
}

using Values = std::vector<float>;
Values values_of(const Tensor& x) { return x.to_vector<float>(); }

TEST(Module, parameters_are_named_by_their_path_in_order) {
  Sequential model{Linear(16, 32), nn::GELU(), Linear(32, 4)};
  EXPECT_EQ(names_of(model),
            (std::vector<std::string>{"0.weight", "0.bias", "2.weight", "2.bias"}));
  EXPECT_EQ(model.parameters()[0].value.str(), "f32[32, 16] on cpu");
  EXPECT_EQ(model.parameters()[3].value.str(), "f32[4] on cpu");
  for (const Parameter& parameter : model.parameters()) {
    EXPECT_TRUE(parameter.value.requires_grad() && parameter.value.is_leaf()) << parameter.name;
  }
  EXPECT_EQ(names_of(Linear(2, 3, {.bias = false})), std::vector<std::string>{"weight"});
}

TEST(Module, parameters_are_one_list_made_once) {
  Sequential model{Linear(2, 3), Linear(3, 1)};
  const std::vector<Parameter>& first = model.parameters();
  const Parameter* data = first.data();
  model(Tensor::ones({1, 2}));
  EXPECT_EQ(&model.parameters(), &first);
  EXPECT_EQ(model.parameters().data(), data);
}

TEST(Module, moving_keeps_every_handle) {
  Sequential model{Linear(2, 3), nn::GELU(), Linear(3, 1)};
  const TensorImpl* weight = model.parameters()[0].value.impl();
  optim::SGD optimizer(model.parameters(), {.lr = 1.0});
  Sequential moved = std::move(model);
  Sequential assigned{Linear(1, 1)};
  assigned = std::move(moved);
  EXPECT_EQ(assigned.size(), 3u);
  EXPECT_EQ(assigned.parameters()[0].value.impl(), weight);
  EXPECT_EQ(names_of(assigned)[2], "2.weight");

  const Tensor x = Tensor::ones({1, 2});
  const double before = assigned(x).item();
  sum(assigned(x)).backward();
  optimizer.step();  // it was made from the list of the model before the moves
  EXPECT_LT(assigned(x).item(), before);
}

TEST(Module, a_sequential_of_one_sequential_is_a_move_and_of_two_a_nesting) {
  Sequential inner{Linear(2, 3), nn::GELU()};
  const TensorImpl* weight = inner.parameters()[0].value.impl();
  Sequential same(std::move(inner));
  EXPECT_EQ(same.size(), 2u);
  EXPECT_EQ(names_of(same), (std::vector<std::string>{"0.weight", "0.bias"}));
  Sequential outer(std::move(same), Sequential(Linear(3, 1)));
  EXPECT_EQ(outer.size(), 2u);
  EXPECT_EQ(names_of(outer),
            (std::vector<std::string>{"0.0.weight", "0.0.bias", "1.0.weight", "1.0.bias"}));
  EXPECT_EQ(outer.parameters()[0].value.impl(), weight);
  EXPECT_EQ(outer(Tensor::ones({5, 2})).shape(), (Shape{5, 1}));
}

TEST(Module, append_adds_a_child_with_the_next_number) {
  Sequential model{Linear(2, 2)};
  for (int i = 1; i < 12; ++i) model.append(std::make_unique<Linear>(2, 2));
  EXPECT_EQ(model.size(), 12u);
  EXPECT_EQ(names_of(model)[23], "11.bias");
  expect_says(message_of<ArgumentError>([&] { model.append(nullptr); }), {"[Sequential]", "null"});
  EXPECT_EQ(model.size(), 12u);
  EXPECT_EQ(model[11].parameters()[1].value.impl(), model.parameters()[23].value.impl());
}

TEST(Module, a_child_that_is_not_there_is_an_error_of_ours) {
  Sequential model{Linear(2, 2)};
  EXPECT_THROW(model[1], Error);
}

/// A model as a user writes it: a layer and a parameter of its own.
class Residual final : public nn::Module {
 public:
  explicit Residual(int64_t n) : inner_(n, n) {
    register_module("inner", inner_);
    gain_ = register_parameter("gain", Tensor::scalar(0.5));
  }
  Tensor forward(const Tensor& x) override { return x + inner_(x) * gain_; }
  using Module::register_parameter;

 private:
  Linear inner_;
  Tensor gain_;
};

TEST(Module, a_module_of_the_users_own_trains_after_a_move) {
  Residual first(3);
  Residual model(std::move(first));
  EXPECT_EQ(names_of(model), (std::vector<std::string>{"inner.weight", "inner.bias", "gain"}));
  sum(model(Tensor::ones({2, 3}))).backward();
  for (const Parameter& parameter : model.parameters()) {
    EXPECT_TRUE(parameter.value.grad().defined()) << parameter.name;
  }
  model.zero_grad(false);
  EXPECT_EQ(model.parameters()[2].value.grad().item(), 0.0);
  model.zero_grad();
  for (const Parameter& parameter : model.parameters()) {
    EXPECT_FALSE(parameter.value.grad().defined()) << parameter.name;
  }
  Sequential wrapped(std::move(model), nn::GELU());
  EXPECT_EQ(names_of(wrapped)[0], "0.inner.weight");
}

TEST(Module, a_bad_registration_is_an_error_and_registers_nothing) {
  Residual model(2);
  expect_says(
      message_of<ArgumentError>([&] { model.register_parameter("gain", Tensor::ones({1})); }),
      {"[register_parameter]", "gain", "taken"});
  EXPECT_THROW(model.register_parameter("", Tensor::ones({1})), ArgumentError);
  expect_says(message_of<ArgumentError>([&] { model.register_parameter("empty", {}); }),
              {"[register_parameter]", "empty", "undefined"});
  const Tensor w = Tensor::ones({1}).set_requires_grad();
  EXPECT_THROW(model.register_parameter("product", w * 2.0), GraphError);
  EXPECT_EQ(model.parameters().size(), 3u);
}

TEST(Linear, initial_values_are_uniform_within_one_over_the_root_of_in) {
  Generator generator(3);
  for (const int64_t in : {1, 16, 100, 256}) {
    const Linear layer(in, 200, {.generator = &generator});
    const double bound = 1.0 / std::sqrt(static_cast<double>(in));
    for (const Tensor& parameter : {layer.weight(), layer.bias()}) {
      const auto values = parameter.to_vector<double>();
      const double n = static_cast<double>(values.size());
      double mean = 0.0, square = 0.0, largest = 0.0;
      for (const double value : values) {
        mean += value / n;
        square += value * value / n;
        largest = std::max(largest, std::fabs(value));
      }
      // Five standard errors; x^2 has mean b^2/3 and variance b^4 (1/5 - 1/9). The bound itself is
      // a float32.
      EXPECT_LE(largest, static_cast<double>(static_cast<float>(bound)));
      EXPECT_GT(largest, 0.9 * bound) << "one of 1.4e-9 of all draws stays below";
      EXPECT_NEAR(mean, 0.0, 5.0 * bound / std::sqrt(3.0 * n));
      EXPECT_NEAR(square, bound * bound / 3.0,
                  5.0 * bound * bound * std::sqrt((1.0 / 5.0 - 1.0 / 9.0) / n));
    }
  }
}

TEST(Linear, draws_come_from_the_given_or_the_default_generator) {
  Generator generator(4);
  const Linear given(3, 2, {.generator = &generator});
  manual_seed(4);
  const Linear seeded(3, 2), next(3, 2);
  manual_seed(0);
  const auto values = [](const Linear& layer) { return layer.weight().to_vector<float>(); };
  EXPECT_EQ(values(given), values(seeded));
  EXPECT_NE(values(seeded), values(next));
  Generator expected(4);  // the weight first, then the bias
  const float bound = 1.0f / std::sqrt(3.0f);
  const auto weight = expected.uniform({2, 3}, -bound, bound).to_vector<float>();
  const auto bias = expected.uniform({2}, -bound, bound).to_vector<float>();
  for (size_t i = 0; i < weight.size(); ++i) EXPECT_FLOAT_EQ(values(given)[i], weight[i]);
  for (size_t i = 0; i < bias.size(); ++i) EXPECT_FLOAT_EQ(given.bias().data<float>()[i], bias[i]);
}

TEST(Linear, options_and_sizes) {
  const Linear half(4, 2, {.bias = false, .dtype = DType::BF16});
  EXPECT_EQ(half.weight().str(), "bf16[2, 4] on cpu");
  EXPECT_FALSE(half.bias().defined());
  expect_says(message_of<ArgumentError>([] { Linear(0, 4); }), {"[Linear]", "in = 0"});
  EXPECT_THROW(Linear(4, -1), ArgumentError);
}

TEST(Linear, the_function_takes_any_number_of_leading_dimensions) {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16, DType::F64}) {
    for (const Shape& lead : {Shape{}, Shape{4}, Shape{2, 3}, Shape{0}, Shape{1, 2, 1}}) {
      std::vector<int64_t> x_dims(lead.dims().begin(), lead.dims().end()), y_dims = x_dims;
      x_dims.push_back(2);
      y_dims.push_back(3);
      Tensor x = Tensor::ones(Shape(x_dims), dtype).set_requires_grad();
      Tensor w = Tensor::from({1, 2, 3, 4, 5, 6}, {3, 2}, dtype).set_requires_grad();
      Tensor b = Tensor::from({10, 20, 30}, {3}, dtype).set_requires_grad();
      const Tensor y = linear(x, w, b);
      EXPECT_EQ(y.shape(), Shape(y_dims));
      const float n = static_cast<float>(lead.numel());
      const Values first_row =
          n > 0 ? values_of(rows(reshape(y, {-1, 3}), 0, 1)) : Values{13, 27, 41};
      EXPECT_EQ(first_row, (Values{13, 27, 41}));
      sum(y).backward();
      EXPECT_EQ(x.grad().shape(), x.shape());
      EXPECT_EQ(values_of(sum(reshape(x.grad(), Shape{lead.numel(), 2}), 0)),
                (Values{9 * n, 12 * n}));
      EXPECT_EQ(values_of(w.grad()), Values(6, n));
      EXPECT_EQ(values_of(b.grad()), Values(3, n));
    }
  }
  EXPECT_EQ(values_of(linear(Tensor::ones({1, 0}), Tensor::ones({2, 0}), Tensor::ones({2}))),
            (Values{1, 1}));
}

TEST(Layers, compute_what_the_functions_compute) {
  Linear layer(3, 2), no_bias(3, 2, {.bias = false});
  const Tensor x = Generator(1).normal({4, 3}), y = Generator(2).normal({4, 3});
  const auto same = [](const Tensor& a, const Tensor& b) { return bits(a) == bits(b); };
  EXPECT_TRUE(same(layer(x), linear(x, layer.weight(), layer.bias())));
  EXPECT_TRUE(same(no_bias(x), linear(x, no_bias.weight())));
  nn::GELU erf_form, tanh_form(nn::GeluForm::kTanh);
  EXPECT_TRUE(same(erf_form(x), gelu(x)) && same(tanh_form(x), gelu_tanh(x)));
  EXPECT_TRUE(same(nn::MSELoss()(x, y), nn::mse_loss(x, y)));
  EXPECT_TRUE(same(nn::MSELoss(nn::Reduction::kSum)(x, y), mse_loss(x, y, Reduction::kSum)));
  Sequential model{nn::GELU(), std::move(layer)};
  const Tensor by_hand = linear(gelu(x), model.parameters()[0].value, model.parameters()[1].value);
  EXPECT_TRUE(same(model(x), by_hand));
}

}  // namespace
}  // namespace halfstep::test
