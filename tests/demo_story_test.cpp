// The story of the project, run by its own configs, and the script that draws logs side by side.
#include <cstdlib>

#include "halfstep/tests/demo_testing.h"

namespace halfstep::demo {
namespace {

class Story : public Demo {
 protected:
  Result tell(const std::string& name) const {
    Result result = run({"--config", HALFSTEP_SOURCE_DIR "/demo/configs/story-" + name + ".json",
                         "--csv", path(name + ".csv"), "--quiet"});
    EXPECT_EQ(result.status, 0) << result.err;
    for (const std::string& line : split(read_file(path(name + ".csv")), '\n')) {
      result.rows.push_back({split(line + ",", ',')});
    }
    result.rows.erase(result.rows.begin());  // the header
    EXPECT_EQ(result.rows.size(), 400u);
    return result;
  }

  static constexpr size_t kBadBatch = 200;
};

TEST_F(Story, unclipped_the_loss_goes_vertical_and_stays) {
  const Result result = tell("unclipped");
  EXPECT_NEAR(result.rows[kBadBatch].pre(), 4200.0, 200.0);
  EXPECT_EQ(result.rows[kBadBatch].pre(), result.rows[kBadBatch].post());
  EXPECT_LT(result.rows[kBadBatch - 1].loss(), 0.1);
  for (size_t i = kBadBatch + 1; i < 400; ++i) EXPECT_GT(result.rows[i].loss(), 1000.0) << i;
}

TEST_F(Story, clipped_the_same_batch_makes_a_unit_step_and_the_loss_stays_on_its_trend) {
  const Result result = tell("clipped");
  EXPECT_NEAR(result.rows[kBadBatch].pre(), 4200.0, 200.0);
  EXPECT_NEAR(result.rows[kBadBatch].post(), 1.0, 1e-9);
  for (size_t i = kBadBatch + 1; i < 400; ++i) EXPECT_LT(result.rows[i].loss(), 0.15) << i;
}

TEST_F(Story, fp16_without_belts_ends_with_nan_in_the_weights) {
  const Result result = tell("fp16-bare");
  EXPECT_TRUE(std::isfinite(result.rows[kBadBatch].loss()));
  for (size_t i = 300; i < 400; ++i) {
    EXPECT_EQ(result.rows[i].fields[4], "nan");
    EXPECT_EQ(result.rows[i].fields[2], "nan");
    EXPECT_FALSE(result.rows[i].skipped());
  }
}

TEST_F(Story, fp16_with_belts_skips_the_batch_and_stays_on_its_trend) {
  const Result result = tell("fp16-belts");
  EXPECT_EQ(result.summary("skips ").at(0), 1);
  EXPECT_TRUE(result.rows[kBadBatch].skipped());
  EXPECT_EQ(result.rows[kBadBatch + 1].scale(), result.rows[kBadBatch].scale() / 2);
  for (size_t i = kBadBatch + 1; i < 400; ++i) EXPECT_LT(result.rows[i].loss(), 0.15) << i;
}

TEST_F(Story, is_one_picture_of_several_logs_drawn_by_the_script) {
  if (std::system("gnuplot --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no gnuplot";
  tell("clipped");
  tell("fp16-belts");
  const auto plot = [this](const std::string& arguments) {
    return std::system(("cd " + path("") + " && " HALFSTEP_SOURCE_DIR "/scripts/plot " + arguments +
                        " > said 2>&1")
                           .c_str());
  };
  EXPECT_EQ(plot("--max-norm 1 clipped.csv fp16-belts.csv new/story.svg"), 0)
      << read_file(path("said"));
  const std::string picture = read_file(path("new/story.svg"));
  for (const char* text : {"clipped", "fp16-belts", "loss scale", "threshold 1", "</svg>"}) {
    EXPECT_NE(picture.find(text), std::string::npos) << text;
  }
  write_file(path("other.csv"), "a,b\n1,2\n");
  EXPECT_NE(plot("other.csv out.svg"), 0);
  EXPECT_NE(read_file(path("said")).find("other.csv does not begin with the header"),
            std::string::npos);
  EXPECT_NE(plot("missing.csv out.svg"), 0);
  EXPECT_NE(plot("clipped.csv out.pdf"), 0);
  EXPECT_FALSE(std::filesystem::exists(path("out.svg")));
}

}  // namespace
}  // namespace halfstep::demo
