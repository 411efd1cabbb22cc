// What fuzz_calls works on: four parameters, an optimizer of each kind and a scaler, and all that
// can be seen of them as text.
#pragma once

#include <memory>
#include <optional>

#include "halfstep/halfstep.h"
#include "halfstep/tests/fuzz/fuzz.h"

namespace halfstep::fuzz {

inline std::string text_of(const StateDict& state) {
  std::string out;
  for (const auto& [key, value] : state.tensors) out += key + bits(value);
  for (const auto& [key, value] : state.numbers) {
    out += key + std::to_string(std::bit_cast<uint64_t>(value));
  }
  return out;
}

struct Things {
  /// `kinds` has a bit for each choice.
  explicit Things(uint8_t kinds) {
    for (const int64_t size : {3, 1, 2, 5}) {
      const bool is_half = size == 2 && (kinds & 1) != 0;
      Tensor value = Tensor::full({size}, 1.0, is_half ? DType::BF16 : DType::F32);
      value.set_requires_grad();
      parameters_.push_back({cat("p", size), value});
    }
    optimizers_[0] = std::make_unique<optim::SGD>(
        std::vector<Parameter>{parameters_[0], parameters_[1]},
        optim::SGDOptions{.lr = 0.125, .momentum = (kinds & 2) != 0 ? 0.5 : 0.0});
    optimizers_[1] = std::make_unique<optim::AdamW>(std::vector<optim::AdamWGroup>{
        {{parameters_[2]}, {.amsgrad = (kinds & 4) != 0}}, {{parameters_[3]}, {.lr = 0.5}}});
    scaler_.emplace(Device::cpu(),
                    amp::GradScalerOptions{
                        .init_scale = 1024.0, .growth_interval = 2, .enabled = (kinds & 8) == 0});
  }

  std::string values_text() const {
    std::string out;
    for (const Parameter& p : parameters_) out += bits(p.value);
    return out;
  }

  /// All that a call which throws must leave alone.
  std::string state() const {
    const amp::GradScaler& s = *scaler_;
    std::string out = cat(s.get_scale(), " ", s.growth_tracker(), " ", s.consecutive_skips(), " ",
                          s.growth_factor(), " ", s.backoff_factor(), " ", s.growth_interval(), " ",
                          s.min_scale(), " ", s.max_scale());
    for (const Parameter& p : parameters_) {
      const GradTag& tag = p.value.leaf_state().tag;
      out += bits(p.value) + bits(p.value.grad());
      out += cat(static_cast<int>(tag.kind), " ", tag.scale, " ", tag.scaler, " ", tag.epoch);
    }
    for (const auto& o : optimizers_) out += text_of(o->state_dict()) + cat(o->step_count());
    return out;
  }

  std::vector<Parameter> parameters_;
  std::unique_ptr<optim::Optimizer> optimizers_[2];
  std::optional<amp::GradScaler> scaler_;
};

}  // namespace halfstep::fuzz
