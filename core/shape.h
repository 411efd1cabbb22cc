// Shape: the extents of a contiguous row-major tensor, held inline.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "halfstep/core/error.h"

namespace halfstep {

class Shape {
 public:
  static constexpr int kMaxRank = 6;

  /// Rank 0: a scalar, one element.
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  /// Throws ShapeError for a negative extent, a rank above kMaxRank or more than 2^62 elements.
  explicit Shape(std::span<const int64_t> dims) : rank_(static_cast<int>(dims.size())) {
    HS_CHECK(dims.size() <= kMaxRank, ShapeError, "shape", "rank ", dims.size(), " given; at most ",
             kMaxRank, " dimensions are supported");
    for (int i = 0; i < rank_; ++i) {
      const int64_t dim = dims[static_cast<size_t>(i)];
      HS_CHECK(dim >= 0, ShapeError, "shape", "dimension ", i, " is ", dim,
               "; extents must not be negative");
      HS_CHECK(dim == 0 || numel_ <= (int64_t{1} << 62) / dim, ShapeError, "shape",
               "the extents multiply to more than 2^62 elements; is a dimension mistyped?");
      dims_[static_cast<size_t>(i)] = dim;
      numel_ *= dim;
    }
  }

  int rank() const { return rank_; }
  int64_t numel() const { return numel_; }
  int64_t operator[](int i) const { return dims_[static_cast<size_t>(i)]; }
  /// Extent of dimension i; a negative i counts from the end. Throws ShapeError out of range.
  int64_t dim(int i) const { return dims_[static_cast<size_t>(axis(i, "shape"))]; }
  /// Turns a possibly negative dimension number into 0..rank-1; throws ShapeError in `op`'s name.
  int axis(int i, std::string_view op) const {
    HS_CHECK(i >= -rank_ && i < rank_, ShapeError, op, "dimension ", i, " of shape ", str(),
             "; it must be in [", -rank_, ", ", rank_ - 1, "]");
    return i < 0 ? i + rank_ : i;
  }
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<size_t>(rank_)}; }

  friend bool operator==(const Shape& a, const Shape& b) {
    return std::ranges::equal(a.dims(), b.dims());
  }

  /// "[2, 3]"; "[]" for a scalar.
  std::string str() const {
    std::string out = "[";
    for (int i = 0; i < rank_; ++i) detail::append(out, cat(i ? ", " : "", (*this)[i]));
    return out + "]";
  }

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
  int64_t numel_ = 1;
};

}  // namespace halfstep
