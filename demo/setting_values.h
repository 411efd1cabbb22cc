// From text to checked values of settings. All throw UsageError that names the setting, the text
// and what it must be.
#pragma once

#include <string>
#include <string_view>

#include "halfstep/core/error.h"
#include "halfstep/demo/options.h"
#include "halfstep/demo/parse.h"

namespace halfstep::demo {

template <class... Rule>
[[noreturn]] void refuse_setting(std::string_view name, std::string_view value,
                                 const Rule&... rule) {
  throw UsageError(cat("--", name, " ", quote(value), " given; it must be ", rule...));
}

int64_t integer_in(std::string_view name, std::string_view value, int64_t low, int64_t high);
uint64_t any_unsigned(std::string_view name, std::string_view value);
/// A finite float32 number >= 0.
double not_negative(std::string_view name, std::string_view value);
/// > 0, or inf.
double positive_or_inf(std::string_view name, std::string_view value);
double share(std::string_view name, std::string_view value);
double above_one(std::string_view name, std::string_view value);
double between_0_and_1(std::string_view name, std::string_view value);
/// Within the normal range of float32.
double scale_value(std::string_view name, std::string_view value);
std::string path_from(std::string_view name, std::string_view value);
bool switch_value(std::string_view name, std::string_view value);

DType precision_value(std::string_view name, std::string_view value);
/// "fp32", "bf16" or "fp16".
std::string_view name_of_precision(DType dtype);
Device device_value(std::string_view name, std::string_view value);
OptimizerKind optimizer_value(std::string_view name, std::string_view value);
/// "adamw" or "sgd".
std::string_view name_of(OptimizerKind kind);
amp::Clip clip_value(std::string_view name, std::string_view value);
optim::LrDecay decay_value(std::string_view name, std::string_view value);

}  // namespace halfstep::demo
