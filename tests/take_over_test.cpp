// The second half of a load does not throw: it takes over what was read without asking for memory.
// For the state of a whole run on a data file, in the middle of an epoch.
#include <gtest/gtest.h>

#include "halfstep/demo/session.h"
#include "halfstep/demo/settings.h"
#include "halfstep/tests/faults.h"

namespace halfstep::test {
namespace {

TEST(TakeOver, asks_for_no_memory) {
  for (const char* optimizer : {"adamw", "sgd"}) {
    const demo::DemoOptions options = demo::make_options({{"data", {AMP_DEMO_DIGITS_CSV}},
                                                          {"epochs", {"1"}},
                                                          {"precision", {"fp16"}},
                                                          {"optimizer", {optimizer}}});
    demo::Session saved(options);
    for (int step = 0; step < 3; ++step) saved.step();
    const StateDict state = saved.state_dict();
    demo::Session loaded(options);
    const TakeOver take_over = loaded.prepare_load(state);
    FaultRecord record;
    start_faults({}, record);
    take_over();
    stop_faults();
    EXPECT_EQ(record.count(Fault::kNew), 0) << optimizer;
    EXPECT_EQ(record.count(Fault::kMemory), 0) << optimizer;
    EXPECT_EQ(loaded.next_step(), 3);
  }
}

}  // namespace
}  // namespace halfstep::test
