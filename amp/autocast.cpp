// Autocast: the scope and the printed table.
#include "halfstep/amp/autocast.h"

#include "halfstep/core/error.h"
#include "halfstep/core/ops.h"

namespace halfstep::amp {

Autocast::Autocast(Device device, DType dtype, bool enabled)
    : type_(device.type), previous_(autocast_state(device.type)) {
  HS_CHECK(
      !enabled || is_half(dtype), ArgumentError, "autocast", name_of(dtype),
      " given as the low-precision dtype; it must be f16 or bf16; to run without autocast pass "
      "enabled = false");
  AutocastState& state = autocast_state(type_);
  state.enabled = enabled;
  if (enabled) state.dtype = dtype;
}

Autocast::~Autocast() { autocast_state(type_) = previous_; }

bool is_autocast_enabled(Device device) { return autocast_state(device.type).enabled; }
DType autocast_dtype(Device device) { return autocast_state(device.type).dtype; }

namespace {

struct PolicyText {
  std::string_view name, inputs, output;
};

PolicyText text_of(CastPolicy policy) {
  switch (policy) {
    case CastPolicy::kLowPrecision:
      return {"low precision", "all cast to the autocast dtype", "autocast dtype"};
    case CastPolicy::kFloat32:
      return {"float32", "halves cast to f32", "f32"};
    case CastPolicy::kWidest:
      return {"widest input", "all cast to the widest among them", "widest input's"};
    case CastPolicy::kFollow:
      break;
  }
  return {"follow the input", "as they are", "input's"};
}

}  // namespace

std::string autocast_table() {
  const auto pad = [](std::string_view text, size_t width) {
    return std::string(text) + std::string(width > text.size() ? width - text.size() : 1, ' ');
  };
  std::string out = pad("op", 12) + pad("policy", 18) + pad("inputs", 36) + "output dtype\n";
  for (const OpInfo& op : kOpInfo) {
    const PolicyText text = text_of(op.policy);
    out += pad(op.name, 12) + pad(text.name, 18) + pad(text.inputs, 36) + std::string(text.output) +
           "\n";
  }
  return out;
}

}  // namespace halfstep::amp
