// Seven training runs of the lesson's model, step by step against PyTorch's: losses, norms, scales,
// skipped steps and their reasons. The bounds are tight enough that an implementation which
// computes in float32 where the low precision was asked for, or leaves only the bias or only the
// weight's gradient in float32, fails; the second half of this file builds such ones and sees them
// fail.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "halfstep/tests/amp_testing.h"
#include "halfstep/tests/golden.h"
#include "halfstep/tests/tolerance.h"

namespace halfstep {
namespace {

using test::json;

/// Largest relative difference of the loss at any step: what a right implementation stays within
/// (2.3e-7, 1.7e-4 and 6.4e-5 over 30 seeds) with room to spare, and a wrong one does not.
double loss_bound(DType dtype) {
  return dtype == DType::F32 ? 1e-6 : dtype == DType::BF16 ? 2.5e-4 : 1e-4;
}

/// The norm is made of rounded gradients, each off by an epsilon of its dtype at most, and follows
/// the residual, so the losses' deviation comes on top.
double norm_bound(DType dtype) { return test::epsilon_of(dtype) + 2.0 * loss_bound(dtype); }

DType dtype_named(const std::string& name) {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    if (name_of(dtype) == name) return dtype;
  }
  fail<ArgumentError>("golden", "dtype ", name, " given");
}

const json& runs() {
  static const json all = test::load_golden("demo_run.json").at("runs");
  return all;
}

/// A run of the file; spike < 0 for the one without a spike.
const json& run_of(std::string_view dtype, int spike, double init_scale = 65536.0) {
  for (const json& run : runs()) {
    const int its_spike = run.at("spike_step").is_null() ? -1 : run.at("spike_step").get<int>();
    if (run.at("dtype") == dtype && its_spike == spike && run.at("init_scale") == init_scale) {
      return run;
    }
  }
  fail<ArgumentError>("golden", "no such run: ", dtype, " ", spike);
}

struct Comparison {
  double worst_loss = 0.0;     // relative
  double worst_norm = 0.0;     // relative, before clipping
  double worst_post = 0.0;     // relative, after clipping
  double worst_param = 0.0;    // absolute, at the end
  std::string first_mismatch;  // a step that was skipped, its reason or its scale
};

/// Trains `model` as `run` says and compares every row.
Comparison replay(const json& run, nn::Module& model, DType dtype) {
  for (Parameter parameter : model.parameters()) {
    parameter.value.copy_(test::golden_tensor(run.at("init").at(parameter.name)));
  }
  const bool is_f16 = run.at("dtype") == "f16";
  optim::AdamW optimizer(model.parameters(),
                         {.lr = run.at("lr"), .weight_decay = run.at("weight_decay")});
  amp::GradScaler scaler(Device::cpu(), {.init_scale = run.at("init_scale"),
                                         .growth_interval = run.at("growth_interval"),
                                         .enabled = is_f16});
  amp::AmpOptions options;
  options.dtype = dtype;
  options.max_norm = run.at("max_norm");
  amp::AmpTrainState state(model, optimizer, scaler, options);
  const Tensor inputs = test::golden_tensor(run.at("inputs"));
  const Tensor targets = test::golden_tensor(run.at("targets"));
  const auto batch = [](const Tensor& all, int64_t s) {
    return reshape(rows(all, s, s + 1), {all.dim(1), all.dim(2)});
  };

  Comparison out;
  const auto relative = [](double got, double want) {
    return std::fabs(got - want) / std::fabs(want);
  };
  for (const json& row : run.at("rows")) {
    const auto s = row.at("step").get<int64_t>();
    Tensor target = batch(targets, s);
    if (run.at("spike_step") == s) target = target * 1e8;
    const amp::StepOrSkipLog log = state.step(batch(inputs, s), target);

    const auto* step = std::get_if<amp::StepLog>(&log);
    const auto* skip = std::get_if<amp::SkipLog>(&log);
    const std::string reason = skip ? std::string(name_of(skip->reason)) : "";
    const double scale = step ? step->scaler_scale : skip->scaler_scale;
    if (out.first_mismatch.empty() && (reason != row.at("skipped").get<std::string>() ||
                                       scale != row.at("scale").get<double>())) {
      out.first_mismatch =
          cat("step ", s, ": skipped for \"", reason, "\" at scale ", scale, ", PyTorch \"",
              row.at("skipped").get<std::string>(), "\" at ", row.at("scale").get<double>());
    }
    const double loss = static_cast<double>(step ? step->loss : skip->loss);
    out.worst_loss = std::max(out.worst_loss, relative(loss, row.at("loss")));
    if (step && row.contains("pre")) {
      const double pre = relative(step->grad_l2_pre_clip, row.at("pre"));
      out.worst_norm = std::max(out.worst_norm, pre);
      out.worst_post = std::max(out.worst_post, relative(step->grad_l2_post_clip, row.at("post")));
    }
  }
  for (const Parameter& parameter : model.parameters()) {
    const auto got = parameter.value.to_vector<double>();
    const auto want = test::golden_tensor(run.at("final").at(parameter.name)).to_vector<double>();
    for (size_t i = 0; i < got.size(); ++i) {
      out.worst_param = std::max(out.worst_param, std::fabs(got[i] - want[i]));
    }
  }
  return out;
}

bool agrees(const json& run, const Comparison& c) {
  return c.first_mismatch.empty() && c.worst_loss <= loss_bound(dtype_named(run.at("dtype")));
}

nn::Sequential make_model() {
  return nn::Sequential{nn::Linear(16, 32), nn::GELU(), nn::Linear(32, 4)};
}

/// AdamW divides each gradient by its own size, so rounding moves a parameter most where a gradient
/// is smallest: of 676 x 20 of them, the smallest is some 13,520 times below a typical one. At most
/// one step goes the other way: 2 lr.
double param_bound(DType dtype, double lr) {
  return lr * std::min(2.0, 676.0 * 20.0 * test::epsilon_of(dtype));
}

void expect_run_as_pytorch(const json& run) {
  const DType dtype = dtype_named(run.at("dtype"));
  nn::Sequential model = make_model();
  const Comparison c = replay(run, model, dtype);
  ::testing::Test::RecordProperty("worst_relative_loss", cat(c.worst_loss));
  ::testing::Test::RecordProperty("worst_relative_norm", cat(c.worst_norm));
  EXPECT_EQ(c.first_mismatch, "");
  EXPECT_LE(c.worst_loss, loss_bound(dtype));
  EXPECT_LE(c.worst_norm, norm_bound(dtype));
  EXPECT_LE(c.worst_post, norm_bound(dtype));
  EXPECT_LE(c.worst_param, param_bound(dtype, run.at("lr")));
}

TEST(golden_demo_run, all_seven_runs_are_in_the_file) { EXPECT_EQ(runs().size(), 7u); }

TEST(golden_demo_run, f32_run_has_pytorchs_losses) { expect_run_as_pytorch(run_of("f32", -1)); }
TEST(golden_demo_run, bf16_run_has_pytorchs_losses) { expect_run_as_pytorch(run_of("bf16", -1)); }
TEST(golden_demo_run, f16_run_has_pytorchs_losses) { expect_run_as_pytorch(run_of("f16", -1)); }

TEST(golden_demo_run, f16_run_skips_the_spike_and_halves_the_scale) {
  expect_run_as_pytorch(run_of("f16", 7));
}
TEST(golden_demo_run, bf16_run_steps_through_the_spike) {
  expect_run_as_pytorch(run_of("bf16", 7));
}
TEST(golden_demo_run, f32_run_steps_through_the_spike) { expect_run_as_pytorch(run_of("f32", 7)); }

TEST(golden_demo_run, f16_run_from_2_to_the_24_backs_off_and_grows_at_pytorchs_steps) {
  expect_run_as_pytorch(run_of("f16", -1, 0x1p24));
}

// The wrong implementations. Each is the model with its casts written out and no autocast.

/// What an implementation rounds to the low precision.
struct Rounds {
  bool weight_gradient = true;  // dW before it reaches the float32 parameter
  bool bias = true;             // b and db
};

/// Linear, every rounding of autocast written out in float32 arithmetic, except as `rounds` says.
class HandCastLinear final : public nn::Module {
 public:
  HandCastLinear(int64_t in, int64_t out, DType low, Rounds rounds) : low_(low), rounds_(rounds) {
    weight_ = register_parameter("weight", Tensor::zeros({out, in}));
    bias_ = register_parameter("bias", Tensor::zeros({out}));
  }
  Tensor forward(const Tensor& x) override {
    const Tensor weight =
        rounds_.weight_gradient ? rounded(weight_) : rounded_forward_only(weight_);
    const Tensor y = linear(rounded(x), weight, rounds_.bias ? rounded(bias_) : bias_);
    return to(y, low_);  // one rounding, as the low-precision op
  }

 private:
  /// To the low precision and back: the gradient is rounded on its way down too.
  Tensor rounded(const Tensor& x) const { return to(to(x, low_), DType::F32); }
  /// The same value, with a gradient that passes unrounded (the difference is exact).
  Tensor rounded_forward_only(const Tensor& x) const {
    return x + (rounded(x.detach()) - x.detach());
  }

  DType low_;
  Rounds rounds_;
  Tensor weight_, bias_;
};

nn::Sequential make_hand_cast_model(DType low, Rounds rounds) {
  return nn::Sequential{HandCastLinear(16, 32, low, rounds), nn::GELU(),
                        HandCastLinear(32, 4, low, rounds)};
}

Comparison replay_hand_cast(const json& run, Rounds rounds) {
  nn::Sequential model = make_hand_cast_model(dtype_named(run.at("dtype")), rounds);
  return replay(run, model, DType::F32);
}

void expect_float32_is_rejected(const json& run) {
  nn::Sequential model = make_model();
  const Comparison c = replay(run, model, DType::F32);
  EXPECT_FALSE(agrees(run, c)) << "worst relative loss " << c.worst_loss;
}

TEST(golden_demo_run, bf16_run_rejects_float32_arithmetic) {
  expect_float32_is_rejected(run_of("bf16", -1));
}
TEST(golden_demo_run, f16_run_from_2_to_the_24_rejects_float32_arithmetic) {
  expect_float32_is_rejected(run_of("f16", -1, 0x1p24));
}

/// How many of the low-precision runs an implementation that rounds so agrees with.
int agreements(Rounds rounds, std::string_view dtype) {
  int count = 0;
  for (const json& run : runs()) {
    if (run.at("dtype") == dtype) count += agrees(run, replay_hand_cast(run, rounds));
  }
  return count;
}

TEST(golden_demo_run, casts_written_by_hand_agree_with_every_run) {
  EXPECT_EQ(agreements({}, "bf16"), 2);
  EXPECT_EQ(agreements({}, "f16"), 3);
}
TEST(DemoRunVariants, a_bias_left_in_float32_is_rejected) {
  EXPECT_EQ(agreements({.bias = false}, "bf16"), 0);
  EXPECT_LT(agreements({.bias = false}, "f16"), 3);
}
TEST(DemoRunVariants, a_weight_gradient_left_in_float32_is_rejected) {
  EXPECT_EQ(agreements({.weight_gradient = false}, "bf16"), 0);
  EXPECT_LT(agreements({.weight_gradient = false}, "f16"), 3);
}

}  // namespace
}  // namespace halfstep
