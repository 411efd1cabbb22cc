// Pictures of a run, drawn by gnuplot from its CSV.
#pragma once

#include <string>

namespace halfstep::demo {

/// Whether the ending of a path is one that can be drawn: .svg or .png.
bool can_draw(const std::string& path);

/// Draws the log `csv_path` to `plot_path`, which it replaces in one step, with a line at
/// `threshold` (0: none) beside the gradient norm. Returns why there is no picture, in one line, or
/// nothing: a run is not lost because gnuplot is missing.
std::string draw_plot(const std::string& plot_path, const std::string& csv_path, double threshold);

}  // namespace halfstep::demo
