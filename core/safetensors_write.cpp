// Writing safetensors: the header, and the elements from where they lie.
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "halfstep/core/error.h"
#include "halfstep/core/file.h"
#include "halfstep/core/kernels.h"
#include "halfstep/core/safetensors.h"
#include "halfstep/core/safetensors_format.h"
#include "halfstep/core/text.h"

namespace halfstep {
namespace {

using nlohmann::json;
using namespace safetensors;

constexpr const char* kWrite = "write_safetensors";

std::string as_json(const std::string& path, const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    fail<ArgumentError>(kWrite, path, ": a name or a text of the metadata is not UTF-8");
  }
}

/// An object of values that are JSON already. Written without a json object, whose destructor may
/// allocate (see ClearJson).
std::string json_object(const std::string& path, const std::map<std::string, std::string>& values) {
  std::string out;
  for (const auto& [key, value] : values) {
    out += cat(out.empty() ? "{" : ",", as_json(path, key), ":", value);
  }
  return out.empty() ? "{}" : out + "}";
}

}  // namespace

void write_safetensors(const std::string& path, const Safetensors& contents) {
  std::map<std::string, std::string> entries, metadata;  // JSON by name
  for (const auto& [key, value] : contents.metadata) metadata[key] = as_json(path, value);
  if (!metadata.empty()) entries[kMetadata] = json_object(path, metadata);
  std::vector<Tensor> on_host;  // keeps copies of device memory until it is written
  std::vector<std::span<const std::byte>> pieces(2);
  uint64_t end = 0;
  for (const DType dtype : kByWidth) {
    for (const auto& [name, x] : contents.tensors) {
      HS_CHECK(x.defined() && name != kMetadata, ArgumentError, kWrite, "tensor ", one_line(name),
               " is ", x, "; it must hold a tensor, under another name than ", kMetadata);
      if (x.dtype() != dtype) continue;
      Tensor host = x;
      if (!x.device().is_cpu()) {
        host = Tensor::empty(x.shape(), dtype);
        kernels(x.device()).copy_to_host(x.raw_data(), host.mutable_raw_data(), byte_count(x));
        on_host.push_back(host);
      }
      const uint64_t begin = std::exchange(end, end + byte_count(x));
      std::string shape;
      for (const int64_t dim : x.shape().dims()) shape += cat(shape.empty() ? "" : ",", dim);
      entries[name] = cat(R"({"data_offsets":[)", begin, ",", end, R"(],"dtype":")",
                          format_name(dtype), R"(","shape":[)", shape, "]}");
      pieces.emplace_back(static_cast<const std::byte*>(host.raw_data()), byte_count(x));
    }
  }

  std::string text = json_object(path, entries);
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');  // aligns the data
  HS_CHECK(text.size() <= kMostHeaderBytes, ArgumentError, kWrite, path, ": the header would take ",
           text.size(), " bytes; at most ", kMostHeaderBytes, " are allowed");
  const uint64_t length = text.size();
  pieces[0] = std::as_bytes(std::span(&length, 1));
  pieces[1] = std::as_bytes(std::span(text));
  write_file(kWrite, path, pieces);
}

}  // namespace halfstep
