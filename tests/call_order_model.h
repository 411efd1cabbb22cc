// A small model of which calls are legal and what they do, for the test of all call orders. It
// follows two one-element parameters, each with an optimizer of its own, and one scaler, as
// numbers.
#pragma once

#include <cmath>
#include <string>

#include "halfstep/core/error.h"

namespace halfstep {

constexpr double kScale = 1024.0;
constexpr double kLr = 0.125;
constexpr double kMaxNorm = 1.0;
// d loss[l] / d parameter[p]: the first loss reaches both parameters, the second only the second.
constexpr double kSlope[2][2] = {{3.0, 0.5}, {0.0, 2.0}};

enum class Call {
  kScaledBackward,
  kBackward,
  kRetainedBackward,  // again through one graph, scaled when it was made
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

inline std::string name_of(const Action& action) {
  constexpr const char* kNames[] = {
      "scale+backward", "backward", "retained backward", "unscale_",       "clip",    "norm",
      "step",           "update",   "zero_grad",         "optimizer.step", "set_grad"};
  return cat(kNames[static_cast<int>(action.call)], action.which);
}

// The model: per parameter (each has an optimizer of its own) a tag and a value, per optimizer a
// stage. A tag's epoch is the number of updates before it.
enum class Kind { kAbsent, kPlain, kScaled, kUnscaled, kMixed };
struct Tag {
  Kind kind = Kind::kAbsent;
  int epoch = 0;
  friend bool operator==(const Tag&, const Tag&) = default;
};
enum class Stage { kReady, kUnscaled, kStepped };

struct Model {
  Tag tag[2];
  Stage stage[2] = {Stage::kReady, Stage::kReady};
  bool stepped_by_hand[2] = {false, false};  // optimizer.step() after unscale_
  int retained_epoch[2] = {-1, -1};
  double grad[2] = {0.0, 0.0};
  double value[2] = {1.0, 1.0};
  int updates = 0;

  static Tag join(const Tag& a, const Tag& b) {
    return a.kind == Kind::kAbsent || a == b ? b : Tag{Kind::kMixed};
  }
  bool has_grad(int p) const { return tag[p].kind != Kind::kAbsent; }
  bool carries_scale(int p) const {
    return tag[p].kind == Kind::kScaled || tag[p].kind == Kind::kMixed;
  }
  bool can_update() const { return stage[0] != Stage::kReady || stage[1] != Stage::kReady; }

  void accumulate(int loss, double factor, const Tag& arriving) {
    for (int p = 0; p < 2; ++p) {
      if (kSlope[loss][p] == 0.0) continue;
      tag[p] = join(tag[p], arriving);
      grad[p] += kSlope[loss][p] * factor;
    }
  }
  bool unscale(int o) {
    if (stage[o] != Stage::kReady) return false;
    if (!has_grad(o)) return true;
    if (tag[o] != Tag{Kind::kScaled, updates}) return false;
    grad[o] /= kScale;
    tag[o] = {Kind::kUnscaled, updates};
    stage[o] = Stage::kUnscaled;
    stepped_by_hand[o] = false;
    return true;
  }
  void descend(int o) { value[o] -= kLr * grad[o]; }

  /// Applies the call; false if it must throw (the model is then spent).
  bool apply(const Action& action) {
    const int o = action.which;
    switch (action.call) {
      case Call::kScaledBackward:
        accumulate(o, kScale, {Kind::kScaled, updates});
        return true;
      case Call::kBackward:
        accumulate(o, 1.0, {Kind::kPlain});
        return true;
      case Call::kRetainedBackward:
        if (retained_epoch[o] < 0) retained_epoch[o] = updates;
        accumulate(o, kScale, {Kind::kScaled, retained_epoch[o]});
        return true;
      case Call::kUnscale:
        return unscale(o);
      case Call::kClip:
        if (carries_scale(o)) return false;
        if (const double norm = std::fabs(grad[o]); norm > kMaxNorm) grad[o] *= kMaxNorm / norm;
        return true;
      case Call::kNorm:
        return !carries_scale(o);
      case Call::kStep:
        if (stage[o] == Stage::kStepped) return false;
        if (stage[o] == Stage::kReady) {
          if (!has_grad(o)) return true;  // nothing to do
          if (!unscale(o)) return false;
        }
        if (tag[o] != Tag{Kind::kUnscaled, updates} || stepped_by_hand[o]) return false;
        descend(o);
        stage[o] = Stage::kStepped;
        return true;
      case Call::kUpdate:
        if (!can_update()) return false;
        stage[0] = stage[1] = Stage::kReady;
        ++updates;
        return true;
      case Call::kZeroGrad:
        tag[o] = {};
        grad[o] = 0.0;
        return true;
      case Call::kPlainStep:
        if (carries_scale(o)) return false;
        if (has_grad(o)) {
          descend(o);
          stepped_by_hand[o] = true;
        }
        return true;
      case Call::kSetGrad:
        tag[o] = {Kind::kPlain};
        grad[o] = 0.25;
        return true;
    }
    return false;
  }
};

}  // namespace halfstep
