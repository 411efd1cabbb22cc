// JSON (by nlohmann-json) to settings as text, and back.
#include "halfstep/demo/config.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "halfstep/core/clear_json.h"
#include "halfstep/core/error.h"
#include "halfstep/core/file.h"
#include "halfstep/demo/parse.h"

namespace halfstep::demo {
namespace {

using nlohmann::ordered_json;
using Form = Setting::Form;

/// Whole numbers as such: 100000.0 and 1e5 are 100000.
std::string number_text(double value) {
  const bool is_whole = std::fabs(value) < 0x1p53 && value == std::trunc(value);
  return is_whole ? cat(static_cast<int64_t>(value)) : cat(value);
}

/// The value of a setting as text. Only what reads like its form is taken.
std::vector<std::string> texts_of(const Setting& setting, const ordered_json& value,
                                  const std::string& file) {
  const auto refuse = [&](std::string_view rule) {
    throw UsageError(
        cat(file, ": ", quote(setting.name), " is ", value.dump(), "; it must be ", rule));
  };
  switch (setting.form) {
    case Form::kNumber:
      if (value.is_number_float()) return {number_text(value.get<double>())};
      if (value.is_number()) return {value.dump()};
      if (value.is_string()) return {value.get<std::string>()};  // "inf"
      refuse("a number");
      break;
    case Form::kText:
      if (!value.is_string()) refuse("a text");
      break;
    case Form::kSwitch:
      if (!value.is_boolean()) refuse("true or false");
      return {value.dump()};
    case Form::kList:
      if (value.is_string()) break;
      if (!value.is_array() || value.empty() ||
          !std::ranges::all_of(value, [](const ordered_json& x) { return x.is_string(); })) {
        refuse("a text or a list of texts");
      }
      return value.get<std::vector<std::string>>();
  }
  return {value.get<std::string>()};
}

void check_value(const Setting& setting, const std::vector<std::string>& texts,
                 const std::string& file) {
  DemoOptions ignored;
  try {
    if (setting.set) {
      setting.set(ignored, setting.name, texts.front());
    } else {
      parse_injections(texts);
    }
  } catch (const UsageError& error) {
    throw UsageError(cat(file, ": ", error.what()));
  }
}

ordered_json number_from(const std::string& text) {
  if (const auto whole = parse_integer(text)) return *whole;
  if (const auto whole = parse_unsigned(text)) return *whole;
  const std::optional<double> number = parse_number(text);
  if (number && std::isfinite(*number)) return *number;
  return text;  // JSON has no inf
}

/// A text or a number. Bytes that are not UTF-8 are replaced.
std::string as_json(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

GivenSettings parse_config(const std::string& text, const std::string& file) {
  std::set<std::string> seen;
  const auto check_key = [&](int depth, ordered_json::parse_event_t event, ordered_json& parsed) {
    if (depth > 2) throw UsageError(cat(file, " is nested too deep; it must hold an object"));
    if (event == ordered_json::parse_event_t::key && depth == 1 &&
        !seen.insert(parsed.get<std::string>()).second) {
      throw UsageError(cat(file, ": ", quote(parsed.get<std::string>()), " is there twice"));
    }
    return true;
  };
  ordered_json config;
  const ClearJson clear_config(config);
  try {
    config = ordered_json::parse(text, check_key, true, /*ignore_comments=*/true);
  } catch (const ordered_json::exception& error) {
    throw UsageError(cat(file, " is not JSON: ", error.what()));
  }
  if (!config.is_object()) throw UsageError(cat(file, " must hold an object: {\"lr\": 0.01, ...}"));

  GivenSettings given;
  for (const auto& [name, value] : config.items()) {
    const Setting* setting = find_setting(name);
    if (!setting) {
      throw UsageError(cat(file, ": unknown setting ", quote(name), "; the nearest is ",
                           quote(nearest_setting(name))));
    }
    if (setting->use == Setting::Use::kAlias) {
      throw UsageError(cat(file, ": ", quote(name),
                           " is for the command line; write \"precision\": \"", name, "\""));
    }
    given[name] = texts_of(*setting, value, file);
    check_value(*setting, given[name], file);
  }
  return given;
}

GivenSettings read_config(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  file.peek();  // opening a folder succeeds
  if (!file.is_open() || file.bad()) {
    throw FileError(cat("cannot read ", path, ": ", system_message(errno)));
  }
  return parse_config({std::istreambuf_iterator<char>(file), {}}, path);
}

// Not by a json object, whose destructor may allocate (see ClearJson).
std::string config_text(const GivenSettings& given) {
  std::string out;
  for (const Setting& setting : settings()) {
    const auto found = given.find(setting.name);
    if (found == given.end()) continue;
    const std::vector<std::string>& texts = found->second;
    out += cat(out.empty() ? "{\n" : ",\n", "  \"", setting.name, "\": ");
    switch (setting.form) {
      case Form::kNumber:
        out += as_json(number_from(texts.front()));
        break;
      case Form::kText:
        out += as_json(texts.front());
        break;
      case Form::kSwitch:
        out += texts.front() == "true" ? "true" : "false";
        break;
      case Form::kList:
        for (size_t i = 0; i < texts.size(); ++i) {
          out += cat(i == 0 ? "[\n    " : ",\n    ", as_json(texts[i]));
        }
        out += texts.empty() ? "[]" : "\n  ]";
        break;
    }
  }
  return out + (out.empty() ? "{}\n" : "\n}\n");
}

GivenSettings resumed_settings(const GivenSettings& saved, const GivenSettings& given,
                               const std::string& file) {
  GivenSettings all = merged(saved, given);
  const GivenSettings before = given_settings(make_options(saved));
  const GivenSettings after = given_settings(make_options(all));
  const auto text_in = [](const GivenSettings& from, std::string_view name) {
    const auto found = from.find(name);
    std::string text;
    if (found == from.end()) return text;
    for (const std::string& value : found->second) text += (text.empty() ? "" : " ") + value;
    return text;
  };
  for (const Setting& setting : settings()) {
    if (setting.use != Setting::Use::kRun) continue;
    const std::string was = text_in(before, setting.name);
    const std::string is = text_in(after, setting.name);
    if (was != is) {
      throw UsageError(cat("--", setting.name, " '", is, "' given, but the run in ", file, " has '",
                           was, "'; a resumed run keeps its settings"));
    }
  }
  return all;
}

}  // namespace halfstep::demo
