// LeafState: what a leaf keeps beside its value: the gradient with its scale tag and the record of
// the last sweep over it, and the low-precision copies that autocast made. Serves steps 3, 6 and 7.
#pragma once

#include <cstdint>
#include <string>

#include "halfstep/core/kernels.h"
#include "halfstep/core/ref.h"

namespace halfstep {

struct TensorImpl;

// Compiled out only to measure what the tags cost (bench/): every wrong order is silent then.
#ifdef HALFSTEP_WITHOUT_GRAD_TAGS
inline constexpr bool kGradTags = false;
#else
inline constexpr bool kGradTags = true;
#endif

/// By what a gradient is multiplied, as far as the framework can know.
struct GradTag {
  enum class Kind : uint8_t {
    kEmpty,     ///< no gradient, or zeros written by zero_grad: takes on whatever arrives
    kNone,      ///< a plain gradient: no scaler was involved
    kScaled,    ///< multiplied by `scale` of scaler `scaler` in its epoch `epoch`
    kUnscaled,  ///< was scaled, and unscale_ has divided it, in epoch `epoch`
    kMixed,     ///< different tags were added up; no factor makes it right
  };
  Kind kind = Kind::kEmpty;
  float scale = 1.0f;
  uint64_t scaler = 0;
  uint64_t epoch = 0;

  friend bool operator==(const GradTag&, const GradTag&) = default;

  static constexpr GradTag none() { return {Kind::kNone, 1.0f, 0, 0}; }
  /// The tag of a sum of gradients tagged a and b.
  static GradTag join(const GradTag& a, const GradTag& b) {
    if constexpr (!kGradTags) return {};
    if (a.kind == Kind::kEmpty) return b;
    if (b.kind == Kind::kEmpty || a == b) return a;
    return {Kind::kMixed, 1.0f, 0, 0};
  }
};

/// The record of the last sweep, valid while the gradient's storage has this version.
struct GradRecord {
  bool valid = false;
  bool has_sum = false;  // sum_squares is current; a clip keeps finiteness but not the sum
  uint64_t version = 0;
  SweepRecord sweep{0.0, -1, 0.0f};
};

/// A low-precision copy of the leaf's value and the version of the value that it was made from.
struct CastCopy {
  Ref<TensorImpl> value;
  uint64_t made_from = 0;
};

struct LeafState : Pooled {
  Ref<TensorImpl> grad;
  GradTag tag;
  GradRecord record;
  uint64_t zeroed_version = 0;  // of the gradient's storage when it was last known to be all zeros
  CastCopy copies[2];           // F16, BF16
  uint64_t last_visit = 0;      // of a walk over parameters, so that each counts once
  int64_t pending_index = -1;   // the engine's scratch during one backward

  /// The tag, but `none` for zeros of zero_grad that have been written to since.
  GradTag current_tag() const;
  CastCopy& copy(DType low) { return copies[low == DType::F16 ? 0 : 1]; }
};

}  // namespace halfstep
