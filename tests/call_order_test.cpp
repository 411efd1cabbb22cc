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
#include "halfstep/tests/call_order_model.h"

namespace halfstep {
namespace {

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
      case Call::kRetainedBackward:
        if (!retained_[o].defined()) retained_[o] = scaler_.scale(loss(action.which));
        return retained_[o].backward({}, true);
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
    std::string out =
        cat(scaler_.get_scale(), " ", scaler_.growth_tracker(), " ", scaler_.consecutive_skips());
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
      EXPECT_EQ(grad.defined(), model.tag[p].kind != Kind::kAbsent);
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
  Tensor retained_[2];
  amp::GradScaler scaler_{Device::cpu(), {.init_scale = kScale}};
};

// The sanitizers look at what each call does, and shorter sequences bring every call into every
// state. The last call makes about nine tenths of the sequences.
#ifdef HALFSTEP_SANITIZE
constexpr size_t kCallsSpared = 1;
constexpr int64_t kManySequences = 1000;
#else
constexpr size_t kCallsSpared = 0;
constexpr int64_t kManySequences = 10000;
#endif

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
    const std::string before = legal ? "" : loop.state();
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
      // Nor has the hidden stage: update() is as legal as it was.
      std::string update_error;
      try {
        loop.apply({Call::kUpdate, 0});
      } catch (const OrderError& e) {
        update_error = e.what();
      }
      EXPECT_EQ(update_error.empty(), model.can_update());
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
  const Tally tally = explore_all(alphabet, 6 - kCallsSpared);
  EXPECT_GT(tally.legal, kManySequences);
  EXPECT_GT(tally.refused, kManySequences);
  RecordProperty("legal", static_cast<int>(tally.legal));
  RecordProperty("refused", static_cast<int>(tally.refused));
}

TEST(CallOrder, two_optimizers_and_two_losses_up_to_five_calls) {
  std::vector<Action> alphabet;
  for (int call = 0; call <= static_cast<int>(Call::kSetGrad); ++call) {
    alphabet.push_back({static_cast<Call>(call), 0});
    const bool once = static_cast<Call>(call) == Call::kUpdate ||
                      static_cast<Call>(call) == Call::kRetainedBackward;
    if (!once) alphabet.push_back({static_cast<Call>(call), 1});
  }
  const Tally tally = explore_all(alphabet, 5 - kCallsSpared);
  EXPECT_GT(tally.legal, kManySequences);
  EXPECT_GT(tally.refused, kManySequences);
  RecordProperty("legal", static_cast<int>(tally.legal));
  RecordProperty("refused", static_cast<int>(tally.refused));
}

}  // namespace
}  // namespace halfstep
