// amp_demo --explain: what autocast does to this model, and on what it runs.
#pragma once

#include <string>

#include "halfstep/demo/session.h"

namespace halfstep::demo {

/// The autocast table; every op of one step with the dtypes that it had in forward and has in
/// backward, read off the graph of that step; the scaler's settings; SIMD target, BLAS core,
/// threads and GPU. Draws a batch from the session.
std::string explain(Session& session);

}  // namespace halfstep::demo
