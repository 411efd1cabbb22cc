// What the tests of optim/ and amp/ share: parameters whose gradient is chosen freely, bit-for-bit
// snapshots of everything that a step may change, and a check of what was thrown.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "halfstep/halfstep.h"

namespace halfstep::test {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline std::string bits(const Tensor& x) {
  if (!x.defined()) return "undefined";
  const auto* data = static_cast<const char*>(x.raw_data());
  return std::string(data, static_cast<size_t>(x.numel()) * size_of(x.dtype()));
}

inline Parameter make_parameter(std::string name, Tensor value) {
  value.set_requires_grad();
  return {std::move(name), std::move(value)};
}

inline Parameter make_parameter(std::string name, std::initializer_list<float> values,
                                DType dtype = DType::F32) {
  return make_parameter(std::move(name),
                        Tensor::from(values, {static_cast<int64_t>(values.size())}, dtype));
}

/// A loss whose gradient with respect to `parameter` is `gradient` (of the parameter's dtype).
inline Tensor loss_with_gradient(const Parameter& parameter,
                                 std::initializer_list<float> gradient) {
  return sum(parameter.value *
             Tensor::from(gradient, parameter.value.shape(), parameter.value.dtype()));
}

/// Puts a gradient there that no scaler has touched.
inline void give_gradient(const Parameter& parameter, std::initializer_list<float> gradient) {
  Tensor value = parameter.value;
  value.set_grad(Tensor::from(gradient, value.shape(), value.dtype()));
}

inline std::vector<float> gradient_of(const Parameter& parameter) {
  return parameter.value.grad().to_vector<float>();
}

inline const GradTag& tag_of(const Parameter& parameter) {
  return parameter.value.leaf_state().tag;
}

/// All that a call which throws must leave alone: values, gradients and tags of parameters, the
/// optimizer's whole state, the scaler's state.
class Snapshot {
 public:
  Snapshot& add(const std::vector<Parameter>& parameters) {
    for (const Parameter& parameter : parameters) {
      text_ += parameter.name + "\n" + bits(parameter.value) + bits(parameter.value.grad());
      const GradTag& tag = tag_of(parameter);
      text_ +=
          cat("tag ", static_cast<int>(tag.kind), " ", tag.scale, " ", tag.scaler, " ", tag.epoch);
    }
    return *this;
  }
  Snapshot& add(const optim::Optimizer& optimizer) {
    add(optimizer.parameters());
    const StateDict state = optimizer.state_dict();
    for (const auto& [key, value] : state.tensors) text_ += key + bits(value);
    for (const auto& [key, value] : state.numbers) text_ += cat(key, value);
    return *this;
  }
  Snapshot& add(const amp::GradScaler& scaler) {
    text_ +=
        cat("scaler ", scaler.get_scale(), " ", scaler.growth_tracker(), " ",
            scaler.consecutive_skips(), " ", scaler.growth_factor(), " ", scaler.backoff_factor(),
            " ", scaler.growth_interval(), " ", scaler.min_scale(), " ", scaler.max_scale());
    return *this;
  }
  friend bool operator==(const Snapshot&, const Snapshot&) = default;

 private:
  std::string text_;
};

/// Snapshot of all arguments.
template <class... Things>
Snapshot snapshot(const Things&... things) {
  Snapshot out;
  (out.add(things), ...);
  return out;
}

/// Runs `fn`, which must throw an E, and returns the message; an empty string (and a failed test)
/// if it does not.
template <class E, class Fn>
std::string message_of(Fn&& fn) {
  try {
    std::forward<Fn>(fn)();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "an error of another kind: " << error.what();
    return {};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

/// That `message` holds every one of `parts`.
inline void expect_says(const std::string& message, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
  }
}

/// Collects warnings instead of printing them, until the end of its life.
class WarningCollector {
 public:
  WarningCollector()
      : previous_(set_warning_handler(
            [this](std::string_view message) { messages.emplace_back(message); })) {}
  ~WarningCollector() { set_warning_handler(std::move(previous_)); }
  WarningCollector(const WarningCollector&) = delete;
  WarningCollector& operator=(const WarningCollector&) = delete;

  std::vector<std::string> messages;

 private:
  WarningHandler previous_;
};

/// A scaler and one parameter to drive it with.
struct ScalerDriver {
  Parameter w = make_parameter("w", {1.0f});
  optim::SGD optimizer{{w}};
  amp::GradScaler scaler;

  explicit ScalerDriver(const amp::GradScalerOptions& options) : scaler(Device::cpu(), options) {}
  void step(float gradient) {
    optimizer.zero_grad();
    scaler.scale(loss_with_gradient(w, {gradient})).backward();
    scaler.step(optimizer);
    scaler.update();
  }
  void good(int count = 1) {
    for (int i = 0; i < count; ++i) step(0x1p-30f);
  }
  void bad(int count = 1) {
    for (int i = 0; i < count; ++i) step(kInfinity);
  }
  std::pair<double, int64_t> state() const { return {scaler.get_scale(), scaler.growth_tracker()}; }
};

/// A parameter, its optimizer and a scaler that multiplies by 1024.
struct GradTagFixture : ::testing::Test {
  Parameter w = make_parameter("layer.weight", {1.0f, 2.0f});
  optim::AdamW optimizer{{w}};
  amp::GradScaler scaler{Device::cpu(), {.init_scale = 1024.0}};

  Tensor loss() const { return loss_with_gradient(w, {3.0f, 4.0f}); }
  void scaled_backward() { scaler.scale(loss()).backward(); }

  /// Runs fn, which must throw an OrderError that says all `parts`, and change nothing.
  void expect_refused(const std::function<void()>& fn,
                      std::initializer_list<std::string_view> parts) {
    const auto before = snapshot(optimizer, scaler);
    expect_says(message_of<OrderError>(fn), parts);
    EXPECT_EQ(snapshot(optimizer, scaler), before) << "the call that threw has changed something";
  }
  /// That everything which uses gradients refuses them, saying all `parts`.
  void expect_refused_by_all(std::initializer_list<std::string_view> parts) {
    const std::vector<Parameter>& all = optimizer.parameters();
    expect_refused([&] { optimizer.step(); }, parts);
    expect_refused([&] { optim::compute_global_l2_norm(all); }, parts);
    expect_refused([&] { optim::clip_global_l2_norm(all, 1.0); }, parts);
    expect_refused([&] { optim::clip_grad_norm_(all, 1.0); }, parts);
    expect_refused([&] { optim::clip_grad_value_(all, 1.0); }, parts);
  }
};

/// Two parameters with an optimizer each, and one scaler that multiplies by 1024.
struct TwoOptimizers : ::testing::Test {
  Parameter a = make_parameter("a.weight", {1.0f, 1.0f});
  Parameter b = make_parameter("b.weight", {1.0f, 1.0f});
  optim::AdamW first{{a}};
  optim::SGD second{{b}};
  amp::GradScaler scaler{Device::cpu(), {.init_scale = 1024.0, .growth_interval = 1}};

  void backward(const Parameter& parameter, std::initializer_list<float> gradient) {
    scaler.scale(loss_with_gradient(parameter, gradient)).backward();
  }
  void expect_refused(const std::function<void()>& fn,
                      std::initializer_list<std::string_view> parts) {
    const auto before = snapshot(first, second, scaler);
    expect_says(message_of<OrderError>(fn), parts);
    EXPECT_EQ(snapshot(first, second, scaler), before) << "the call that threw changed something";
  }
};

}  // namespace halfstep::test
