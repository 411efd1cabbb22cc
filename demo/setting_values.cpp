// Parsing and limits of the values of settings.
#include "halfstep/demo/setting_values.h"

#include <cmath>
#include <limits>

#include "halfstep/core/kernels.h"

namespace halfstep::demo {
namespace {

constexpr double kLargestFloat = std::numeric_limits<float>::max();
constexpr double kSmallestScale = 0x1p-126;  // what GradScaler allows

/// A number for which `holds` is true; `rule` says so in words.
double number_that(std::string_view name, std::string_view value, bool (*holds)(double),
                   std::string_view rule) {
  const std::optional<double> number = parse_number(value);
  if (!number || !holds(*number)) refuse_setting(name, value, rule);
  return *number;
}

/// The one of `choices` whose name is `value`; `rule` lists them.
template <class T, size_t N>
T one_of(std::string_view name, std::string_view value, const T (&choices)[N],
         std::string_view (*name_of_choice)(T), std::string_view rule) {
  for (const T choice : choices) {
    if (name_of_choice(choice) == value) return choice;
  }
  refuse_setting(name, value, rule);
}

}  // namespace

int64_t integer_in(std::string_view name, std::string_view value, int64_t low, int64_t high) {
  const std::optional<int64_t> number = parse_integer(value);
  if (!number || *number < low || *number > high) {
    refuse_setting(name, value, "a whole number from ", low, " to ", high);
  }
  return *number;
}

uint64_t any_unsigned(std::string_view name, std::string_view value) {
  const std::optional<uint64_t> number = parse_unsigned(value);
  if (!number) refuse_setting(name, value, "a whole number from 0 to 2^64 - 1");
  return *number;
}

double not_negative(std::string_view name, std::string_view value) {
  return number_that(
      name, value, [](double x) { return x >= 0.0 && x <= kLargestFloat; },
      "a finite float32 number >= 0");
}

double positive_or_inf(std::string_view name, std::string_view value) {
  return number_that(
      name, value, [](double x) { return x > 0.0; }, "a number > 0, or inf to never clip");
}

double share(std::string_view name, std::string_view value) {
  return number_that(
      name, value, [](double x) { return x >= 0.0 && x <= 1.0; }, "a number from 0 to 1");
}

double above_one(std::string_view name, std::string_view value) {
  return number_that(
      name, value, [](double x) { return x > 1.0 && std::isfinite(x); }, "a finite number > 1");
}

double between_0_and_1(std::string_view name, std::string_view value) {
  return number_that(
      name, value, [](double x) { return x > 0.0 && x < 1.0; }, "a number between 0 and 1");
}

double scale_value(std::string_view name, std::string_view value) {
  return number_that(
      name, value, [](double x) { return x >= kSmallestScale && x <= kLargestFloat; },
      "a number > 0 within the normal range of float32");
}

std::string path_from(std::string_view name, std::string_view value) {
  if (value.empty() || value.find('\0') != std::string_view::npos) {
    refuse_setting(name, value, name == "target" ? "the name of a column" : "the path of a file");
  }
  return std::string(value);
}

bool switch_value(std::string_view name, std::string_view value) {
  if (value != "true" && value != "false") refuse_setting(name, value, "true or false");
  return value == "true";
}

std::string_view name_of_precision(DType dtype) {
  switch (dtype) {
    case DType::F16:
      return "fp16";
    case DType::BF16:
      return "bf16";
    default:
      return "fp32";
  }
}

DType precision_value(std::string_view name, std::string_view value) {
  constexpr DType kChoices[] = {DType::F32, DType::BF16, DType::F16};
  return one_of(name, value, kChoices, name_of_precision, "fp32, bf16 or fp16");
}

Device device_value(std::string_view name, std::string_view value) {
  constexpr std::string_view kCuda = "cuda";
  if (value != "cpu" && value != kCuda) refuse_setting(name, value, "cpu or cuda");
  const Device device = value == kCuda ? Device::cuda() : Device::cpu();
  if (!is_available(device)) {
    throw UsageError("--device cuda given, but this build has no CUDA; it must be cpu");
  }
  return device;
}

std::string_view name_of(OptimizerKind kind) {
  return kind == OptimizerKind::kAdamW ? "adamw" : "sgd";
}

OptimizerKind optimizer_value(std::string_view name, std::string_view value) {
  constexpr OptimizerKind kChoices[] = {OptimizerKind::kAdamW, OptimizerKind::kSgd};
  return one_of(name, value, kChoices, name_of, "adamw or sgd");
}

amp::Clip clip_value(std::string_view name, std::string_view value) {
  constexpr amp::Clip kChoices[] = {amp::Clip::kNorm, amp::Clip::kValue, amp::Clip::kNone};
  return one_of<amp::Clip>(name, value, kChoices, amp::name_of, "norm, value or none");
}

optim::LrDecay decay_value(std::string_view name, std::string_view value) {
  using optim::LrDecay;
  constexpr LrDecay kChoices[] = {LrDecay::kConstant, LrDecay::kLinear, LrDecay::kCosine};
  return one_of<LrDecay>(name, value, kChoices, optim::name_of, "constant, linear or cosine");
}

}  // namespace halfstep::demo
