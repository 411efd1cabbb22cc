// Text to numbers for the command line and for data files: strict (the whole text counts) and
// independent of the locale. Also the error for things that the user has to correct.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "halfstep/core/text.h"

namespace halfstep::demo {

/// The command line asks for something that cannot be: exit status 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A decimal integer with an optional sign; empty if it is anything else or does not fit.
std::optional<int64_t> parse_integer(std::string_view text);
std::optional<uint64_t> parse_unsigned(std::string_view text);
/// A decimal number, inf or nan with an optional sign; empty if it is anything else or outside the
/// range of double.
std::optional<double> parse_number(std::string_view text);

/// `text` as one line (see core/text.h), in single quotes and cut after 40 characters, for text
/// that a message repeats.
std::string quote(std::string_view text);

}  // namespace halfstep::demo
