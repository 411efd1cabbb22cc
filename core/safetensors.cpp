// Reading safetensors: the header in JSON (parsed by nlohmann-json), the places of the tensors, and
// their elements.
#include "halfstep/core/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "halfstep/core/clear_json.h"
#include "halfstep/core/error.h"
#include "halfstep/core/file.h"
#include "halfstep/core/safetensors_format.h"
#include "halfstep/core/text.h"

namespace halfstep {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

using nlohmann::json;
using namespace safetensors;

constexpr const char* kRead = "read_safetensors";

/// Where a tensor lies, in bytes after the header.
struct Place {
  std::string name;
  DType dtype;
  Shape shape;
  uint64_t begin;
  uint64_t end;
};

/// A file or a piece of memory: its name, its size, and a function that reads from it.
struct Source {
  const std::string& name;
  uint64_t size;
  std::function<void(uint64_t offset, void* out, size_t bytes)> read;
};

template <class... Parts>
[[noreturn]] void refuse(const Source& source, const Parts&... parts) {
  fail<FileError>(kRead, one_line(cat(source.name, ": ", parts...)));
}

/// Parses the header; refuses duplicate keys, which a JSON object would merge, and deep nesting.
json parse_header(const Source& source, const std::string& text) {
  if (text.empty() || text.front() != '{') {
    refuse(source, "the header does not begin with {; is this a safetensors file?");
  }
  if (text.find('\0') != std::string::npos) {  // where the parser would take the text to end
    refuse(source, "the header is not JSON: it has a zero byte");
  }
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > 3) refuse(source, "the header is nested too deep for one of safetensors");
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) refuse(source, "the header has ", key, " twice");
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& error) {
    refuse(source, "the header is not JSON: ", error.what());
  }
}

std::optional<DType> parse_dtype(const json& field) {
  for (const DType dtype : kByWidth) {
    if (field == json(format_name(dtype))) return dtype;
  }
  return std::nullopt;
}

bool holds_unsigned(const json& field) {
  return field.is_array() &&
         std::ranges::all_of(field, [](const json& x) { return x.is_number_unsigned(); });
}

Shape parse_shape(const Source& source, const std::string& name, const json& field) {
  if (!holds_unsigned(field)) {
    refuse(source, "tensor ", name, " has shape ", field.dump(), "; it must be whole numbers >= 0");
  }
  std::vector<int64_t> dims;
  for (const json& dim : field) {
    const auto value = dim.get<uint64_t>();
    dims.push_back(value > INT64_MAX ? INT64_MAX : static_cast<int64_t>(value));
  }
  try {
    return Shape(dims);
  } catch (const ShapeError& error) {
    refuse(source, "tensor ", name, " has shape ", field.dump(), ": ", error.what());
  }
}

Place parse_place(const Source& source, const std::string& name, const json& entry) {
  const bool complete = entry.is_object() && entry.size() == 3 && entry.contains("dtype") &&
                        entry.contains("shape") && entry.contains("data_offsets");
  if (!complete) {
    refuse(source, "tensor ", name, " must have dtype, shape and data_offsets, and nothing else");
  }
  const std::optional<DType> dtype = parse_dtype(entry["dtype"]);
  if (!dtype) {
    refuse(source, "tensor ", name, " has dtype ", entry["dtype"].dump(),
           "; it must be F64, F32, F16 or BF16");
  }
  const Shape shape = parse_shape(source, name, entry["shape"]);
  const json& offsets = entry["data_offsets"];
  if (!holds_unsigned(offsets) || offsets.size() != 2) {
    refuse(source, "tensor ", name, " has data_offsets ", offsets.dump(),
           "; they must be two whole numbers, [begin, end]");
  }
  const auto begin = offsets[0].get<uint64_t>();
  const auto end = offsets[1].get<uint64_t>();
  const auto elements = static_cast<uint64_t>(shape.numel());
  // No shape has more than 2^62 elements, so the division is the comparison that cannot overflow.
  const bool fits = begin <= end && (end - begin) % size_of(*dtype) == 0 &&
                    (end - begin) / size_of(*dtype) == elements;
  if (!fits) {
    refuse(source, "tensor ", name, " has data_offsets ", offsets.dump(), "; its shape ", shape,
           " of ", format_name(*dtype), " takes another number of bytes");
  }
  return {name, *dtype, shape, begin, end};
}

/// The tensors must fill the bytes after the header: no holes, no overlaps, nothing behind them.
void check_places(const Source& source, std::vector<Place>& places, uint64_t data_bytes) {
  std::ranges::sort(places, {}, [](const Place& p) { return std::pair(p.begin, p.end); });
  uint64_t end = 0;
  for (const Place& place : places) {
    if (place.begin != end) {
      refuse(source, "tensor ", place.name, " begins at byte ", place.begin,
             place.begin < end ? "; it overlaps with the one before, which ends at "
                               : "; there is a hole before it, from ",
             end);
    }
    if (place.end > data_bytes) {
      refuse(source, "tensor ", place.name, " ends at byte ", place.end, " of the data, which has ",
             data_bytes, "; was the file cut short?");
    }
    end = place.end;
  }
  if (end != data_bytes) {
    refuse(source, data_bytes - end, " bytes after the last tensor belong to none");
  }
}

Safetensors parse(const Source& source) {
  uint64_t header_bytes = 0;
  if (source.size < kLengthBytes) {
    refuse(source, "it has ", source.size, " bytes; the header's length takes 8");
  }
  source.read(0, &header_bytes, kLengthBytes);
  if (header_bytes > kMostHeaderBytes) {
    refuse(source, "a header of ", header_bytes, " bytes is announced; at most ", kMostHeaderBytes,
           " are allowed; is this a safetensors file?");
  }
  if (header_bytes > source.size - kLengthBytes) {
    refuse(source, "a header of ", header_bytes, " bytes is announced, and ",
           source.size - kLengthBytes, " follow; was the file cut short?");
  }
  std::string text(header_bytes, '\0');
  source.read(kLengthBytes, text.data(), text.size());

  Safetensors out;
  std::vector<Place> places;
  json header = parse_header(source, text);
  const ClearJson clear_header(header);
  for (const auto& [name, entry] : header.items()) {
    if (name != kMetadata) {
      places.push_back(parse_place(source, name, entry));
      continue;
    }
    if (!entry.is_object()) refuse(source, "__metadata__ must be an object of texts");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) refuse(source, "__metadata__ ", key, " must be a text");
      out.metadata[key] = value.get<std::string>();
    }
  }
  const uint64_t data_begin = kLengthBytes + header_bytes;
  check_places(source, places, source.size - data_begin);
  for (const Place& place : places) {
    Tensor x = Tensor::empty(place.shape, place.dtype);
    source.read(data_begin + place.begin, x.mutable_raw_data(), byte_count(x));
    out.tensors.emplace(place.name, std::move(x));
  }
  return out;
}

}  // namespace

Safetensors parse_safetensors(std::span<const std::byte> bytes, const std::string& name) {
  return parse({name, bytes.size(), [&](uint64_t offset, void* out, size_t count) {
                  if (count > 0) std::memcpy(out, bytes.data() + offset, count);
                }});
}

Safetensors read_safetensors(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0) {
    fail<FileError>(kRead, "cannot open ", path, ": ", system_message(errno));
  }
  HS_CHECK(S_ISREG(status.st_mode), FileError, kRead, path, " is not a regular file");
  const auto read = [&](uint64_t offset, void* out, size_t count) {
    auto* to = static_cast<std::byte*>(out);
    while (count > 0) {
      const ssize_t got = ::pread(file.get(), to, count, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        fail<FileError>(kRead, "cannot read ", path, ": ",
                        got == 0 ? "it became shorter while it was read" : system_message(errno));
      }
      to += got;
      offset += static_cast<uint64_t>(got);
      count -= static_cast<size_t>(got);
    }
  };
  return parse({path, static_cast<uint64_t>(status.st_size), read});
}

}  // namespace halfstep
