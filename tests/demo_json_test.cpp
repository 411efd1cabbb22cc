// JSON that is written by hand, because the library's own way allocates where it must not throw:
// headers of safetensors files and configs read as the library would have written them. And configs
// that are out of the ordinary.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "halfstep/core/clear_json.h"
#include "halfstep/core/safetensors.h"
#include "halfstep/demo/config.h"
#include "halfstep/tests/demo_testing.h"

namespace halfstep::demo {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::string complaint_about(const std::string& config) {
  try {
    make_options(parse_config(config, "run.json"));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(WrittenJson, a_header_is_what_the_library_would_write) {
  const std::string path = testing::TempDir() + "written_json_test.safetensors";
  for (const Safetensors& contents :
       {Safetensors{}, Safetensors{.tensors = {{"Z\"\\\n\x01é", Tensor::zeros({2, 3})},
                                               {"a", Tensor::scalar(1.0, DType::F64)},
                                               {"", Tensor::zeros({0}, DType::BF16)}},
                       .metadata = {{"key\t", "value \"1\"\n"}, {"", ""}}}}) {
    write_safetensors(path, contents);
    const std::string file = read_file(path);
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    std::string header = file.substr(8, length);
    header.erase(header.find_last_not_of(' ') + 1);
    EXPECT_EQ(header, json::parse(header).dump());
    EXPECT_EQ(read_safetensors(path).metadata, contents.metadata);
  }
  std::filesystem::remove(path);
}

TEST(WrittenJson, a_config_is_what_the_library_would_write) {
  const GivenSettings some{
      {"lr", {"0.5"}},        {"max-norm", {"inf"}},  {"seed", {"18446744073709551615"}},
      {"no-belts", {"true"}}, {"csv", {"a \"b\"\n"}}, {"inject", {"inf-grad@5", "nan-input@7"}},
      {"quiet", {"false"}}};
  for (const GivenSettings& given : {GivenSettings{}, some, given_settings(DemoOptions{})}) {
    const std::string text = config_text(given);
    EXPECT_EQ(text, ordered_json::parse(text).dump(2) + "\n");
    EXPECT_EQ(parse_config(text, "text"), given);
  }
  EXPECT_EQ(config_text({{"csv", {"\xff"}}}), "{\n  \"csv\": \"\xEF\xBF\xBD\"\n}\n");
}

TEST(WrittenJson, deep_nesting_is_refused_and_not_followed) {
  const std::string deep(300000, '[');
  for (const std::string& config :
       Words{deep, "{\"lr\": " + deep, "{\"lr\": [[[1]]]}", "{\"lr\": {\"a\": {\"b\": {}}}}"}) {
    EXPECT_NE(complaint_about(config).find("run.json"), std::string::npos);
    EXPECT_NE(complaint_about(config).find("nested"), std::string::npos);
  }
}

TEST(WrittenJson, a_value_with_children_is_taken_apart) {
  json value = json::parse(R"({"a": [1, {"b": "text"}, []], "c": null})");
  { const ClearJson<json> clear(value); }
  EXPECT_EQ(value, json::object());
  json number = 3;
  { const ClearJson<json> clear(number); }
  EXPECT_EQ(number, 3);
}

// The default injection lies behind the end of a run of four steps.
TEST(WrittenJson, the_settings_of_a_short_run_are_taken_back) {
  const GivenSettings in_force = given_settings(make_options({{"steps", {"4"}}}));
  EXPECT_EQ(given_settings(make_options(in_force)), in_force);
  EXPECT_EQ(complaint_about(config_text(in_force)), "");
  EXPECT_NE(complaint_about(R"({"steps": 4, "inject": "nan-grad@5"})").find("from 0 to 3"),
            std::string::npos);
}

}  // namespace
}  // namespace halfstep::demo
