// The list of all differentiable ops: enumerators, names and autocast policies, generated from
// elementwise.def and family.def. An op without a policy does not compile.
#pragma once

#include <cstdint>
#include <string_view>

namespace halfstep {

/// What autocast does to the inputs of an op (DType::F64 inputs are always left alone).
enum class CastPolicy : uint8_t {
  kLowPrecision,  ///< all inputs to the autocast dtype
  kFloat32,       ///< half inputs to float32
  kWidest,        ///< all inputs to the widest dtype among them
  kFollow,        ///< none: the output has the input's dtype
};

/// What a backward formula reads besides the incoming gradient.
enum class BackwardNeeds : uint8_t {
  kNothing,
  kInput,
  kOutput,
  kOther,  ///< of a binary op: each operand's gradient reads the other operand only
};

enum class UnaryOp : uint8_t {
#define HS_UNARY(name, ...) name,
#include "halfstep/core/elementwise.def"
};
enum class BinaryOp : uint8_t {
#define HS_BINARY(name, ...) name,
#include "halfstep/core/elementwise.def"
};
enum class Op : uint8_t {
#define HS_UNARY(name, ...) name,
#define HS_BINARY(name, ...) name,
#include "halfstep/core/elementwise.def"
#define HS_FAMILY(name, ...) name,
#include "halfstep/core/family.def"
};

inline constexpr int kUnaryOpCount = 0
#define HS_UNARY(name, ...) +1
#include "halfstep/core/elementwise.def"
    ;
inline constexpr int kBinaryOpCount = 0
#define HS_BINARY(name, ...) +1
#include "halfstep/core/elementwise.def"
    ;

struct OpInfo {
  std::string_view name;
  CastPolicy policy;
};

inline constexpr OpInfo kOpInfo[] = {
#define HS_UNARY(name, policy, ...) {#name, CastPolicy::policy},
#define HS_BINARY(name, policy, ...) {#name, CastPolicy::policy},
#include "halfstep/core/elementwise.def"
#define HS_FAMILY(name, policy) {#name, CastPolicy::policy},
#include "halfstep/core/family.def"
};

constexpr const OpInfo& info_of(Op op) { return kOpInfo[static_cast<int>(op)]; }

}  // namespace halfstep
