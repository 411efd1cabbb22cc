// Autocast's scopes: what is on where, for whom and until when; the policy of every op and the
// dtypes that follow from it; and the errors that stand in for training in the wrong precision.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "halfstep/core/ops.h"
#include "halfstep/tests/amp_testing.h"

namespace halfstep {
namespace {

using amp::Autocast;
using amp::autocast_dtype;
using amp::is_autocast_enabled;
using test::expect_says;
using test::message_of;

constexpr Device kCpu = Device::cpu();
constexpr Device kCuda = Device::cuda();

// Scopes.

TEST(Autocast, is_off_on_and_off_again_as_scopes_nest) {
  EXPECT_FALSE(is_autocast_enabled(kCpu));
  {
    const Autocast outer(kCpu, DType::BF16);
    EXPECT_TRUE(is_autocast_enabled(kCpu));
    EXPECT_EQ(autocast_dtype(kCpu), DType::BF16);
    {
      const Autocast off(kCpu, DType::F32, false);
      EXPECT_FALSE(is_autocast_enabled(kCpu));
      {
        const Autocast inner(kCpu, DType::F16);
        EXPECT_TRUE(is_autocast_enabled(kCpu));
        EXPECT_EQ(autocast_dtype(kCpu), DType::F16);
      }
      EXPECT_FALSE(is_autocast_enabled(kCpu));
    }
    EXPECT_TRUE(is_autocast_enabled(kCpu));
    EXPECT_EQ(autocast_dtype(kCpu), DType::BF16);
  }
  EXPECT_FALSE(is_autocast_enabled(kCpu));
}

TEST(Autocast, an_exception_restores_what_was_before) {
  const Autocast outer(kCpu, DType::BF16);
  const auto throws_inside = [] {
    const Autocast inner(kCpu, DType::F16);
    const Autocast off(kCpu, DType::F16, false);
    fail<Error>("test", "thrown inside two scopes");
  };
  EXPECT_THROW(throws_inside(), Error);
  EXPECT_TRUE(is_autocast_enabled(kCpu));
  EXPECT_EQ(autocast_dtype(kCpu), DType::BF16);
}

TEST(Autocast, defaults_to_bf16_on_cpu_and_f16_on_cuda) {
  const Autocast cpu(kCpu), cuda(kCuda);
  EXPECT_EQ(autocast_dtype(kCpu), DType::BF16);
  EXPECT_EQ(autocast_dtype(kCuda), DType::F16);
}

TEST(Autocast, devices_have_states_of_their_own) {
  const Autocast cpu(kCpu, DType::F16);
  EXPECT_FALSE(is_autocast_enabled(kCuda));
  {
    const Autocast cuda(kCuda, DType::BF16);
    EXPECT_TRUE(is_autocast_enabled(kCuda));
    EXPECT_EQ(autocast_dtype(kCuda), DType::BF16);
    EXPECT_EQ(autocast_dtype(kCpu), DType::F16);
  }
  EXPECT_FALSE(is_autocast_enabled(kCuda));
  EXPECT_TRUE(is_autocast_enabled(kCpu));
}

TEST(Autocast, wide_dtypes_are_refused_unless_it_is_off) {
  for (const DType wide : {DType::F32, DType::F64}) {
    for (const Device device : {kCpu, kCuda}) {
      expect_says(message_of<ArgumentError>([&] { const Autocast scope(device, wide); }),
                  {"autocast", name_of(wide), "enabled = false"});
      EXPECT_FALSE(is_autocast_enabled(device));
      EXPECT_NO_THROW(const Autocast scope(device, wide, false));
    }
  }
}

TEST(Autocast, a_thread_started_inside_begins_without_it) {
  const Autocast scope(kCpu, DType::F16);
  const NoGrad no_grad;
  bool enabled = true, grad = false;
  DType dtype = DType::F16;
  std::thread([&] {
    enabled = is_autocast_enabled(kCpu);
    grad = grad_enabled();
    dtype = matmul(Tensor::ones({2, 2}), Tensor::ones({2, 2})).dtype();
  }).join();
  EXPECT_FALSE(enabled);
  EXPECT_TRUE(grad);
  EXPECT_EQ(dtype, DType::F32);
}

TEST(Autocast, an_op_that_is_spread_over_threads_has_the_callers_mode) {
  // Large enough for the pool, whose threads never look at a mode of their own.
  Tensor x = Tensor::ones({512, 512});
  x.set_requires_grad();
  const Autocast scope(kCpu, DType::F16);
  const NoGrad no_grad;
  const Tensor y = gelu(matmul(x, x));
  EXPECT_EQ(y.dtype(), DType::F16);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(512 * 512, 512.0f));
}

// The policies.

using Fn = std::function<Tensor(const Tensor& x)>;
struct Case {
  CastPolicy policy;
  Fn fn;
};

/// Every op, called with a [2, 2] tensor for all its inputs.
std::map<std::string, Case> all_ops(amp::GradScaler& scaler) {
  using enum CastPolicy;
  return {{"gelu", {kFollow, gelu}},
          {"gelu_tanh", {kFollow, gelu_tanh}},
          {"relu", {kFollow, relu}},
          {"tanh", {kFollow, [](const Tensor& x) { return halfstep::tanh(x); }}},
          {"sigmoid", {kFollow, sigmoid}},
          {"exp", {kFloat32, [](const Tensor& x) { return halfstep::exp(x); }}},
          {"log", {kFloat32, [](const Tensor& x) { return halfstep::log(x); }}},
          {"add", {kWidest, [](const Tensor& x) { return x + x; }}},
          {"sub", {kWidest, [](const Tensor& x) { return x - x; }}},
          {"mul", {kWidest, [](const Tensor& x) { return x * x; }}},
          {"matmul", {kLowPrecision, [](const Tensor& x) { return matmul(x, x); }}},
          {"linear", {kLowPrecision, [](const Tensor& x) { return linear(x, x); }}},
          {"sum", {kFloat32, [](const Tensor& x) { return sum(x, 0); }}},
          {"mean", {kFloat32, [](const Tensor& x) { return mean(x); }}},
          {"norm", {kFloat32, norm}},
          {"mse_loss", {kFloat32, [](const Tensor& x) { return mse_loss(x, x); }}},
          {"to", {kFollow, [](const Tensor& x) { return to(x, x.dtype()); }}},
          {"reshape", {kFollow, [](const Tensor& x) { return reshape(x, {4}); }}},
          {"rows", {kFollow, [](const Tensor& x) { return rows(x, 0, 1); }}},
          {"scale", {kFloat32, [&](const Tensor& x) { return scaler.scale(x); }}}};
}

TEST(AutocastPolicy, every_op_has_the_documented_one) {
  amp::GradScaler scaler;
  const auto ops = all_ops(scaler);
  for (const OpInfo& op : kOpInfo) {
    ASSERT_TRUE(ops.contains(std::string(op.name))) << op.name << " is missing in this test";
    EXPECT_EQ(op.policy, ops.at(std::string(op.name)).policy) << op.name;
  }
  EXPECT_EQ(ops.size(), std::size(kOpInfo));
}

TEST(AutocastPolicy, output_dtypes_follow_the_policy) {
  amp::GradScaler scaler;
  for (const DType low : {DType::F16, DType::BF16}) {
    const Autocast scope(kCpu, low);
    for (const auto& [name, op] : all_ops(scaler)) {
      for (const DType given : {DType::F32, DType::F16, DType::BF16}) {
        const DType expected = op.policy == CastPolicy::kLowPrecision ? low
                               : op.policy == CastPolicy::kFloat32    ? DType::F32
                                                                      : given;
        EXPECT_EQ(op.fn(Tensor::ones({2, 2}, given)).dtype(), expected)
            << name << " of " << name_of(given) << " in " << name_of(low);
      }
    }
  }
}

TEST(AutocastPolicy, float64_is_left_alone_by_every_op) {
  amp::GradScaler scaler;
  const Autocast scope(kCpu, DType::F16);
  for (const auto& [name, op] : all_ops(scaler)) {
    EXPECT_EQ(op.fn(Tensor::ones({2, 2}, DType::F64)).dtype(), DType::F64) << name;
  }
}

TEST(AutocastPolicy, the_table_has_a_line_for_every_op_with_its_policy) {
  const std::map<CastPolicy, std::string> words = {{CastPolicy::kLowPrecision, "low precision"},
                                                   {CastPolicy::kFloat32, "float32"},
                                                   {CastPolicy::kWidest, "widest input"},
                                                   {CastPolicy::kFollow, "follow the input"}};
  std::istringstream table(amp::autocast_table());
  std::string line;
  ASSERT_TRUE(std::getline(table, line));
  EXPECT_EQ(line.rfind("op ", 0), 0u) << "a heading";
  for (const OpInfo& op : kOpInfo) {
    ASSERT_TRUE(std::getline(table, line));
    EXPECT_EQ(line.rfind(std::string(op.name) + " ", 0), 0u) << line;
    expect_says(line, {words.at(op.policy)});
  }
  EXPECT_FALSE(std::getline(table, line)) << line;
}

TEST(AutocastPolicy, mixed_inputs_meet_in_the_widest) {
  const Tensor f32 = Tensor::ones({2, 2}), f16 = Tensor::ones({2, 2}, DType::F16),
               bf16 = Tensor::ones({2, 2}, DType::BF16), f64 = Tensor::ones({2, 2}, DType::F64);
  const Autocast scope(kCpu, DType::BF16);
  for (const auto& op : {add, sub, mul}) {
    Tensor (*const binary)(const Tensor&, const Tensor&) = op;
    EXPECT_EQ(binary(f16, f32).dtype(), DType::F32);
    EXPECT_EQ(binary(f32, bf16).dtype(), DType::F32);
    EXPECT_EQ(binary(f16, bf16).dtype(), DType::F32) << "neither holds the other's values";
    EXPECT_EQ(binary(f64, f16).dtype(), DType::F64);
  }
  EXPECT_EQ(matmul(f16, bf16).dtype(), DType::BF16);
  EXPECT_EQ(linear(f32, f16, rows(reshape(bf16, {4}), 0, 2)).dtype(), DType::BF16);
  EXPECT_EQ(mse_loss(f16, f32).dtype(), DType::F32);
}

TEST(AutocastPolicy, gradients_of_mixed_inputs_have_their_inputs_dtypes) {
  Tensor f32 = Tensor::ones({2, 2}), f16 = Tensor::ones({2, 2}, DType::F16);
  f32.set_requires_grad();
  f16.set_requires_grad();
  const Autocast scope(kCpu, DType::BF16);
  sum(f32 * f16).backward();
  EXPECT_EQ(f32.grad().dtype(), DType::F32);
  EXPECT_EQ(f16.grad().dtype(), DType::F16);
}

// Errors.

TEST(Autocast, mixed_dtypes_outside_are_an_error_that_asks_for_autocast) {
  Tensor half;
  const nn::Linear layer(4, 4);
  nn::Linear next(4, 4);
  {
    const Autocast scope(kCpu, DType::F16);
    half = linear(Tensor::ones({2, 4}), layer.weight(), layer.bias());
    EXPECT_NO_THROW(next(half)) << "inside there is never a dtype error";
    const Autocast off(kCpu, DType::F16, false);
    expect_says(message_of<DTypeError>([&] { next(half); }),
                {"linear", "f16[2, 4]", "f32[4, 4]", "cpu", "outside autocast"});
  }
  expect_says(message_of<DTypeError>([&] { next(half); }), {"linear", "f16", "f32"});
  const Autocast bf16(kCpu, DType::BF16);
  EXPECT_EQ(next(half).dtype(), DType::BF16) << "f16 made outside, bf16 inside";
}

TEST(Autocast, float64_with_a_half_is_an_error_and_not_a_silent_cast) {
  const Autocast scope(kCpu, DType::BF16);
  const Tensor f64 = Tensor::ones({2, 2}, DType::F64);
  expect_says(message_of<DTypeError>([&] { matmul(f64, Tensor::ones({2, 2})); }), {"f64", "bf16"});
}

TEST(Autocast, for_another_device_than_the_tensors_is_an_error_of_the_low_precision_ops) {
  const Tensor x = Tensor::ones({2, 2});
  const Autocast scope(kCuda, DType::F16);
  expect_says(message_of<DeviceError>([&] { matmul(x, x); }),
              {"matmul", "cuda", "cpu", "autocast"});
  expect_says(message_of<DeviceError>([&] { linear(x, x); }), {"linear", "cuda", "cpu"});
  EXPECT_EQ(gelu(x).dtype(), DType::F32);
  EXPECT_EQ(mse_loss(x + x, x).dtype(), DType::F32);
  const Autocast right(kCpu, DType::F16);
  EXPECT_EQ(matmul(x, x).dtype(), DType::F16);
}

TEST(Autocast, in_place_ops_are_not_autocast) {
  Tensor half, bias = Tensor::ones({2});
  {
    const Autocast scope(kCpu, DType::F16);
    half = matmul(Tensor::ones({2, 2}), Tensor::ones({2, 2}));
    const void* memory = half.raw_data();
    message_of<DTypeError>([&] { half.add_(bias); });
    half.add_(to(bias, DType::F16));
    EXPECT_EQ(half.raw_data(), memory);
  }
  EXPECT_EQ(half.dtype(), DType::F16);
  EXPECT_EQ(half.to_vector<float>(), std::vector(4, 3.0f));
}

}  // namespace
}  // namespace halfstep
