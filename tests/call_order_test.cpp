// Every sequence of calls, depth first, against a small model of what is legal: no wrong order runs
// silently, and no right one is refused. A branch ends at its first error, after checking that the
// call that threw has changed nothing. The losses are linear, so that the model can follow every
// gradient and parameter as a number.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <optional>

#include "halfstep/halfstep.h"

namespace halfstep {
namespace {

constexpr double kScale = 1024.0;
constexpr double kLr = 0.125;
constexpr double kMaxNorm = 1.0;
// d loss[l] / d parameter[p]: the first loss reaches both parameters, the second only the second.
constexpr double kSlope[2][2] = {{3.0, 0.5}, {0.0, 2.0}};

enum class Call {
  kScaledBackward,
  kBackward,
  kUnscale,
  kClip,
  kNorm,
  kStep,
  kUpdate,
  kZeroGrad,
  kPlainStep,
  kSetGrad
};
struct Action {
  Call call;
  int which;  // the loss of a backward, else the optimizer
};

std::string name_of(const Action& action) {
  constexpr const char* kNames[] = {"scale+backward", "backward", "unscale_", "clip",
                                    "norm",           "step",     "update",   "zero_grad",
                                    "optimizer.step", "set_grad"};
  return cat(kNames[static_cast<int>(action.call)], action.which);
}

// The model: per parameter (each has an optimizer of its own) a tag and a value, per optimizer a
// stage. kOld means that update() has come since.
enum class Tag { kAbsent, kPlain, kScaled, kScaledOld, kUnscaled, kUnscaledOld, kMixed };
enum class Stage { kReady, kUnscaled, kStepped };

struct Model {
  Tag tag[2] = {Tag::kAbsent, Tag::kAbsent};
  Stage stage[2] = {Stage::kReady, Stage::kReady};
  double grad[2] = {0.0, 0.0};
  double value[2] = {1.0, 1.0};
  int updates = 0;

  static Tag join(Tag a, Tag b) { return a == Tag::kAbsent || a == b ? b : Tag::kMixed; }
  static bool carries_scale(Tag t) {
    return t == Tag::kScaled || t == Tag::kScaledOld || t == Tag::kMixed;
  }

  void accumulate(int loss, double factor, Tag arriving) {
    for (int p = 0; p < 2; ++p) {
      if (kSlope[loss][p] == 0.0) continue;
      tag[p] = join(tag[p], arriving);
      grad[p] += kSlope[loss][p] * factor;
    }
  }
  bool unscale(int o) {
    if (stage[o] != Stage::kReady) return false;
    if (tag[o] == Tag::kAbsent) return true;
    if (tag[o] != Tag::kScaled) return false;
    grad[o] /= kScale;
    tag[o] = Tag::kUnscaled;
    stage[o] = Stage::kUnscaled;
    return true;
  }
  void descend(int o) { value[o] -= kLr * grad[o]; }

  /// Applies the call; false if it must throw (the model is then spent).
  bool apply(const Action& action) {
    const int o = action.which;
    switch (action.call) {
      case Call::kScaledBackward:
        accumulate(o, kScale, Tag::kScaled);
        return true;
      case Call::kBackward:
        accumulate(o, 1.0, Tag::kPlain);
        return true;
      case Call::kUnscale:
        return unscale(o);
      case Call::kClip:
        if (carries_scale(tag[o])) return false;
        if (const double norm = std::fabs(grad[o]); norm > kMaxNorm) grad[o] *= kMaxNorm / norm;
        return true;
      case Call::kNorm:
        return !carries_scale(tag[o]);
      case Call::kStep:
        if (stage[o] == Stage::kStepped) return false;
        if (stage[o] == Stage::kReady) {
          if (tag[o] == Tag::kAbsent) return true;  // nothing to do
          if (!unscale(o)) return false;
        }
        if (tag[o] != Tag::kUnscaled) return false;
        descend(o);
        stage[o] = Stage::kStepped;
        return true;
      case Call::kUpdate:
        if (stage[0] == Stage::kReady && stage[1] == Stage::kReady) return false;
        for (int p = 0; p < 2; ++p) {
          stage[p] = Stage::kReady;
          if (tag[p] == Tag::kScaled) tag[p] = Tag::kScaledOld;
          if (tag[p] == Tag::kUnscaled) tag[p] = Tag::kUnscaledOld;
        }
        ++updates;
        return true;
      case Call::kZeroGrad:
        tag[o] = Tag::kAbsent;
        grad[o] = 0.0;
        return true;
      case Call::kPlainStep:
        if (carries_scale(tag[o])) return false;
        if (tag[o] != Tag::kAbsent) descend(o);
        return true;
      case Call::kSetGrad:
        tag[o] = Tag::kPlain;
        grad[o] = 0.25;
        return true;
    }
    return false;
  }
};

// The real thing, made of one-element parameters.
class Loop {
 public:
  Loop() {
    for (int p = 0; p < 2; ++p) {
      Tensor value = Tensor::full({1}, 1.0);
      value.set_requires_grad();
      parameters_.push_back({cat("p", p), value});
      optimizers_.push_back(std::make_unique<optim::SGD>(std::vector<Parameter>{parameters_.back()},
                                                         optim::SGDOptions{.lr = kLr}));
    }
  }

  void apply(const Action& action) {
    const size_t o = static_cast<size_t>(action.which);
    const std::span<const Parameter> own(&parameters_[o], 1);
    switch (action.call) {
      case Call::kScaledBackward:
        return scaler_.scale(loss(action.which)).backward();
      case Call::kBackward:
        return loss(action.which).backward();
      case Call::kUnscale:
        return scaler_.unscale_(*optimizers_[o]);
      case Call::kClip:
        optim::clip_global_l2_norm(own, kMaxNorm);
        return;
      case Call::kNorm:
        optim::compute_global_l2_norm(own);
        return;
      case Call::kStep:
        scaler_.step(*optimizers_[o]);
        return;
      case Call::kUpdate:
        return scaler_.update();
      case Call::kZeroGrad:
        return optimizers_[o]->zero_grad();
      case Call::kPlainStep:
        return optimizers_[o]->step();
      case Call::kSetGrad:
        return parameters_[o].value.set_grad(Tensor::full({1}, 0.25));
    }
  }

  /// All that a call may change, as bits.
  std::string state() const {
    std::string out = cat(scaler_.get_scale(), " ", scaler_.growth_tracker());
    for (const Parameter& p : parameters_) {
      out += cat(" ", p.value.item());
      if (const Tensor grad = p.value.grad(); grad.defined()) {
        const GradTag& tag = p.value.leaf_state().tag;
        out += cat(" g ", grad.item(), " ", static_cast<int>(tag.kind), " ", tag.scale, " ",
                   tag.epoch);
      }
    }
    return out;
  }

  void expect_equals(const Model& model) const {
    for (size_t p = 0; p < 2; ++p) {
      EXPECT_NEAR(parameters_[p].value.item(), model.value[p], 1e-5);
      const Tensor grad = parameters_[p].value.grad();
      EXPECT_EQ(grad.defined(), model.tag[p] != Tag::kAbsent);
      if (grad.defined()) {
        EXPECT_NEAR(grad.item(), model.grad[p], 1e-6 * std::fabs(model.grad[p]));
      }
    }
    EXPECT_EQ(scaler_.growth_tracker(), model.updates);
  }

 private:
  Tensor loss(int l) const {
    Tensor total = sum(parameters_[1].value * kSlope[l][1]);
    if (kSlope[l][0] != 0.0) total = total + sum(parameters_[0].value * kSlope[l][0]);
    return total;
  }

  std::vector<Parameter> parameters_;
  std::vector<std::unique_ptr<optim::SGD>> optimizers_;
  amp::GradScaler scaler_{Device::cpu(), {.init_scale = kScale}};
};

struct Tally {
  int64_t legal = 0;
  int64_t refused = 0;
};

// Extends the legal sequence `path` by every action. Each sequence runs from the start on a new
// Loop.
void explore(const std::vector<Action>& alphabet, size_t depth, std::vector<Action>& path,
             const Model& model, Tally& tally) {
  if (path.size() == depth) return;
  for (const Action& action : alphabet) {
    Model next = model;
    const bool legal = next.apply(action);
    Loop loop;
    for (const Action& earlier : path) loop.apply(earlier);
    const std::string before = loop.state();
    std::string error;
    try {
      loop.apply(action);
    } catch (const OrderError& e) {
      error = e.what();
    }
    path.push_back(action);
    if (legal) {
      ++tally.legal;
      EXPECT_EQ(error, "");
      loop.expect_equals(next);
      if (!testing::Test::HasFailure()) explore(alphabet, depth, path, next, tally);
    } else {
      ++tally.refused;
      EXPECT_NE(error, "");
      EXPECT_EQ(loop.state(), before);
    }
    if (testing::Test::HasFailure()) {  // one sequence is enough to say what is wrong
      std::string calls;
      for (const Action& a : path) calls += name_of(a) + " ";
      ADD_FAILURE() << "in: " << calls << "\nerror: " << error;
      return;
    }
    path.pop_back();
  }
}

Tally explore_all(const std::vector<Action>& alphabet, size_t depth) {
  std::vector<Action> path;
  Tally tally;
  explore(alphabet, depth, path, {}, tally);
  return tally;
}

TEST(CallOrder, one_optimizer_up_to_six_calls) {
  std::vector<Action> alphabet;
  for (int call = 0; call <= static_cast<int>(Call::kSetGrad); ++call) {
    // The loss that reaches one parameter only.
    alphabet.push_back({static_cast<Call>(call), 1});
  }
  const Tally tally = explore_all(alphabet, 6);
  EXPECT_GT(tally.legal, 10000);
  EXPECT_GT(tally.refused, 10000);
  RecordProperty("legal", static_cast<int>(tally.legal));
  RecordProperty("refused", static_cast<int>(tally.refused));
}

TEST(CallOrder, two_optimizers_and_two_losses_up_to_five_calls) {
  std::vector<Action> alphabet;
  for (int call = 0; call <= static_cast<int>(Call::kSetGrad); ++call) {
    alphabet.push_back({static_cast<Call>(call), 0});
    if (static_cast<Call>(call) != Call::kUpdate) alphabet.push_back({static_cast<Call>(call), 1});
  }
  const Tally tally = explore_all(alphabet, 5);
  EXPECT_GT(tally.legal, 10000);
  EXPECT_GT(tally.refused, 10000);
  RecordProperty("legal", static_cast<int>(tally.legal));
  RecordProperty("refused", static_cast<int>(tally.refused));
}

}  // namespace
}  // namespace halfstep
