// Autocast and autograd: forward and backward are bit-identical to casting by hand, wherever
// backward runs, and the low-precision copy of a weight is made once and never poisons a later
// forward.
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "halfstep/autograd/node.h"
#include "halfstep/tests/amp_testing.h"

namespace halfstep {
namespace {

using amp::Autocast;
using test::bits;

constexpr Device kCpu = Device::cpu();

/// A linear layer's tensors with odd extents, and the gradient of its output.
struct AutocastGrad : ::testing::TestWithParam<DType> {
  DType low = GetParam();
  Generator generator{7};
  Tensor x = generator.normal({5, 7});
  Tensor w = generator.normal({3, 7});
  Tensor b = generator.normal({3});
  Tensor dy = generator.normal({5, 3}, 0.0, 1.0, low);

  void SetUp() override {
    for (Tensor* tensor : {&x, &w, &b}) tensor->set_requires_grad();
  }
  Tensor forward_in_scope() {
    const Autocast scope(kCpu, low);
    return linear(x, w, b);
  }
  /// The gradients of x, w and b, which are then cleared.
  std::vector<std::string> take_gradients() {
    std::vector<std::string> out;
    for (Tensor* tensor : {&x, &w, &b}) {
      EXPECT_EQ(tensor->grad().dtype(), DType::F32);
      out.push_back(bits(tensor->grad()));
      tensor->zero_grad();
    }
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Low, AutocastGrad, ::testing::Values(DType::F16, DType::BF16),
                         [](const auto& low) { return std::string(name_of(low.param)); });

TEST_P(AutocastGrad, linear_is_bit_identical_to_casting_by_hand) {
  const Tensor y = forward_in_scope();
  y.backward(dy);
  const auto gradients = take_gradients();
  const Tensor by_hand = linear(to(x, low), to(w, low), to(b, low));
  by_hand.backward(dy);
  EXPECT_EQ(y.dtype(), low);
  EXPECT_EQ(bits(y), bits(by_hand));
  EXPECT_EQ(gradients, take_gradients());
}

TEST_P(AutocastGrad, matmul_is_bit_identical_to_casting_by_hand) {
  Tensor y;
  {
    const Autocast scope(kCpu, low);
    y = matmul(x, w, {.transpose_b = true});
  }
  y.backward(dy);
  const std::string dx = bits(x.grad()), dw = bits(w.grad());
  x.zero_grad();
  w.zero_grad();
  const Tensor by_hand = matmul(to(x, low), to(w, low), {.transpose_b = true});
  by_hand.backward(dy);
  EXPECT_EQ(bits(y), bits(by_hand));
  EXPECT_EQ(dx, bits(x.grad()));
  EXPECT_EQ(dw, bits(w.grad()));
}

TEST_P(AutocastGrad, a_whole_model_is_bit_identical_to_casting_by_hand) {
  nn::Linear first(7, 16), second(16, 3);
  const Tensor target = generator.normal({5, 3});
  const std::vector<Tensor> parameters = {first.weight(), first.bias(), second.weight(),
                                          second.bias()};
  const auto gradients = [&] {
    std::vector<std::string> out;
    for (Tensor parameter : parameters) {
      out.push_back(bits(parameter.grad()));
      parameter.zero_grad();
    }
    return out;
  };
  Tensor loss;
  {
    const Autocast scope(kCpu, low);
    loss = mse_loss(second(gelu(first(x))), target);
  }
  loss.backward();
  const auto in_scope = gradients();
  const auto cast_linear = [&](const Tensor& input, const nn::Linear& layer) {
    return linear(to(input, low), to(layer.weight(), low), to(layer.bias(), low));
  };
  const Tensor by_hand =
      mse_loss(to(cast_linear(gelu(cast_linear(x, first)), second), DType::F32), target);
  by_hand.backward();
  EXPECT_EQ(bits(loss), bits(by_hand));
  EXPECT_EQ(in_scope, gradients());
}

TEST_P(AutocastGrad, every_gradient_is_rounded_to_the_low_precision) {
  forward_in_scope().backward(dy);
  for (const Tensor* tensor : {&x, &w, &b}) {
    const Tensor grad = tensor->grad();
    EXPECT_EQ(bits(to(to(grad, low), DType::F32)), bits(grad));
  }
}

TEST_P(AutocastGrad, backward_is_the_same_inside_outside_and_on_another_thread) {
  const std::vector<std::function<void(const Tensor&)>> ways = {
      [&](const Tensor& y) { y.backward(dy); },
      [&](const Tensor& y) {
        const Autocast scope(kCpu, low);
        y.backward(dy);
      },
      [&](const Tensor& y) {
        const Autocast other(kCpu, low == DType::F16 ? DType::BF16 : DType::F16);
        y.backward(dy);
      },
      [&](const Tensor& y) { std::thread([&] { y.backward(dy); }).join(); }};
  std::vector<std::string> first;
  for (const auto& backward : ways) {
    backward(forward_in_scope());
    const auto gradients = take_gradients();
    if (first.empty()) first = gradients;
    EXPECT_EQ(gradients, first);
  }
}

TEST_P(AutocastGrad, the_weights_copy_is_made_once) {
  forward_in_scope().backward(dy);
  const CastCopy& copy = w.leaf_state().copy(low);
  ASSERT_TRUE(copy.value);
  const void* memory = Tensor(copy.value).raw_data();
  const uint64_t version = Tensor(copy.value).version();
  // In steady state forward and backward ask for the same number of blocks each time; without the
  // copies of w and b, two more.
  const auto requests_of = [&] {
    const uint64_t before = allocator_stats(kCpu).requests;
    forward_in_scope().backward(dy);
    return allocator_stats(kCpu).requests - before;
  };
  requests_of();
  const uint64_t with_copies = requests_of();
  EXPECT_EQ(Tensor(copy.value).raw_data(), memory);
  EXPECT_EQ(Tensor(copy.value).version(), version) << "written to again";
  w.leaf_state().copy(low) = {};
  b.leaf_state().copy(low) = {};
  EXPECT_EQ(requests_of(), with_copies + 2);
}

TEST_P(AutocastGrad, a_forward_under_no_grad_does_not_cut_a_later_one_off) {
  {
    const NoGrad no_grad;
    EXPECT_FALSE(forward_in_scope().requires_grad());
  }
  forward_in_scope().backward(dy);
  EXPECT_EQ(take_gradients().size(), 3u) << "w is reached although its copy was made under no-grad";
}

TEST_P(AutocastGrad, a_copy_keeps_no_part_of_the_graph_alive) {
  const int64_t before = live_node_count();
  forward_in_scope();
  EXPECT_EQ(live_node_count(), before);
}

TEST_P(AutocastGrad, more_forwards_under_no_grad_keep_no_memory) {
  const Autocast scope(kCpu, low);
  const NoGrad no_grad;
  linear(x, w, b);
  const size_t before = allocator_stats(kCpu).live_bytes;
  for (int i = 0; i < 3; ++i) linear(x, w, b);
  EXPECT_EQ(allocator_stats(kCpu).live_bytes, before);
}

TEST_P(AutocastGrad, a_plain_input_that_requires_no_gradient_keeps_no_copy) {
  forward_in_scope();
  Tensor constant = generator.normal({5, 7});
  const size_t before = allocator_stats(kCpu).live_bytes;
  const Autocast scope(kCpu, low);
  linear(constant, w, b);
  EXPECT_EQ(allocator_stats(kCpu).live_bytes, before);
}

TEST_P(AutocastGrad, the_gradient_reaches_the_float32_weight_in_float32) {
  nn::Linear layer(8, 8);
  {
    const Autocast scope(kCpu, low);
    sum(layer(Tensor::ones({4, 8}))).backward();
  }
  EXPECT_EQ(layer.weight().dtype(), DType::F32);
  ASSERT_TRUE(layer.weight().grad().defined());
  EXPECT_EQ(layer.weight().grad().dtype(), DType::F32);
  EXPECT_EQ(layer.weight().grad().to_vector<float>(), std::vector(64, 4.0f));
}

TEST_P(AutocastGrad, backward_refuses_a_weight_that_was_changed_since_forward) {
  const Tensor y = forward_in_scope();
  w.mul_(2.0);
  test::expect_says(test::message_of<GraphError>([&] { y.backward(dy); }),
                    {"version", "f32[3, 7]"});
  EXPECT_FALSE(w.grad().defined());
}

TEST(AutocastGradF16, a_bias_gradient_of_300000_arrives_as_inf) {
  nn::Linear layer(1, 1);
  Tensor y;
  {
    const Autocast scope(kCpu, DType::F16);
    y = layer(Tensor::zeros({30, 1}));
  }
  y.backward(Tensor::full({30, 1}, 10000.0, DType::F16));
  EXPECT_EQ(layer.bias().grad().to_vector<float>()[0], test::kInfinity);
}

TEST(AutocastGradF16, the_bias_is_cast) {
  nn::Linear layer(1, 1);
  Tensor(layer.weight()).fill_(0.0);
  Tensor(layer.bias()).fill_(1e6);
  const Autocast scope(kCpu, DType::F16);
  EXPECT_EQ(layer(Tensor::ones({1, 1})).to_vector<float>()[0], test::kInfinity);
}

TEST(AutocastGradBF16, values_beyond_float16_stay_finite_wherever_backward_runs) {
  nn::Linear layer(1, 1);
  Tensor x = Tensor::full({1, 1}, 1e6);
  for (const bool on_another_thread : {false, true}) {
    Tensor y;
    {
      const Autocast scope(kCpu, DType::BF16);
      y = layer(x);
    }
    const auto backward = [&] { sum(y).backward(); };
    if (on_another_thread) {
      std::thread(backward).join();
    } else {
      backward();
    }
    EXPECT_EQ(layer.weight().grad().to_vector<float>()[0], 999424.0f) << "1e6 in bfloat16";
    layer.zero_grad();
  }
}

TEST(AutocastGradBF16, a_bias_gradient_is_not_summed_in_bfloat16) {
  nn::Linear layer(1, 1);
  Tensor y;
  {
    const Autocast scope(kCpu, DType::BF16);
    y = layer(Tensor::zeros({1600, 1}));
  }
  y.backward(Tensor::ones({1600, 1}, DType::BF16));
  EXPECT_EQ(layer.bias().grad().to_vector<float>()[0], 1600.0f);
}

TEST(AutocastGradBF16, gradients_accumulate_in_float32) {
  nn::Linear layer(1, 1);
  const auto backward = [&](double dy) {
    const Autocast scope(kCpu, DType::BF16);
    layer(Tensor::ones({1, 1})).backward(Tensor::full({1, 1}, dy, DType::BF16));
  };
  backward(256.0);
  for (int i = 0; i < 100; ++i) backward(1.0);
  EXPECT_EQ(layer.weight().grad().to_vector<float>()[0], 356.0f) << "256 + 1 is 256 in bfloat16";
  EXPECT_EQ(layer.bias().grad().to_vector<float>()[0], 356.0f);
}

}  // namespace
}  // namespace halfstep
