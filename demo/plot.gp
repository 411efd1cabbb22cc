# Draws the log of one run, or of several for comparison, as one figure with a shared step axis:
#   gnuplot -c plot.gp OUT.svg|OUT.png THRESHOLD RUN.csv [RUN.csv ...]
# THRESHOLD is where the gradient norm is clipped; 0 draws no line. Colours are Okabe and Ito's, which
# colour-blind people can tell apart; curves of one run also differ in dashes and marks.

out = ARG1
threshold = real(ARG2)
runs = ARGC - 2
array Csv[runs]
do for [i = 1:runs] { eval sprintf("Csv[%d] = ARG%d", i, i + 2) }
array Colour[6] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
colour(i) = Colour[(i - 1) % 6 + 1]
name(path) = strstrt(path, "/") > 0 ? name(path[strstrt(path, "/") + 1:*]) : path
base(path) = name(path)[1:strlen(name(path)) - (name(path)[strlen(name(path)) - 3:*] eq ".csv" ? 4 : 0)]

set datafile separator ","
set datafile missing NaN  # left out of a curve, without a gap

# The range of steps. A log without rows has no picture.
step_max = -1
step_min = 1e300
do for [i = 1:runs] {
  stats Csv[i] using 1 skip 1 nooutput
  if (exists("STATS_records")) {  # else there was nothing to count
    step_max = STATS_max > step_max ? STATS_max : step_max
    step_min = STATS_min < step_min ? STATS_min : step_min
  }
}
if (step_max < 0) { print out . ": no rows to draw"; exit status 1 }
if (step_max == step_min) { step_max = step_min + 1 }
# Of a long run some 3,000 points of a curve are drawn, and those that stick out; all skips are.
stride = int((step_max - step_min) / 3000) + 1
seen = 0
curve(x) = x > 0 && x < 1e300 && (int(column(0)) % stride == 0 || x > 3 * seen) ? (seen = x) : NaN

if (out[strlen(out) - 3:] eq ".png") {
  set terminal pngcairo size 1000,1000 font "sans,10" background "white"
} else {
  set terminal svg size 1000,1000 font "sans,12" background "white" dynamic
}
set output out

unchecked(loss, skip_flag) = skip_flag == 0 && (strstrt(loss, "nan") || strstrt(loss, "inf")) ? 1 : NaN
skipped(reason, wanted) = (reason eq wanted) ? 1 : NaN

# Without a value gnuplot refuses to draw an axis: 1 stands in.
array Logged[3] = [5, 3, 8]
array Empty[3] = [1, 1, 1]
do for [c = 1:3] {
  do for [i = 1:runs] {
    stats Csv[i] skip 1 using (curve(column(Logged[c]))) nooutput
    if (exists("STATS_records")) { Empty[c] = 0 }
  }
}

set multiplot
set xrange [step_min:step_max]
set lmargin at screen 0.125
set rmargin at screen 0.80
set key at screen 0.815,0 left top Left reverse samplen 2 spacing 1.15 width -4
set grid xtics ytics back linetype 1 linewidth 0.7 linecolor rgb "#e0e0e0"
set border 3
set tics nomirror out
set format x ""
unset xlabel

# Panels from top to bottom: [top:bottom] of each, as parts of the figure.
panel(top, bottom) = sprintf("set tmargin at screen %f; set bmargin at screen %f; set key at screen 0.815,%f", top, bottom, top)

eval panel(0.980, 0.765)
set logscale y
set format y "10^{%L}"
set yrange [*:*<1e12]  # what grows beyond leaves the panel; the rest stays readable
if (Empty[1]) { set yrange [0.1:10] }
set ylabel "loss" offset -0.5
plot for [i = 1:runs] Csv[i] skip 1 using 1:(curve($5)) with lines \
  linewidth 1.5 linecolor rgb colour(i) title (runs > 1 ? base(Csv[i]) : "loss")

eval panel(0.735, 0.520)
set ylabel "gradient norm" offset -0.5
set yrange [*:*<1e12]
if (Empty[2]) { set yrange [0.1:10] }
if (threshold > 0) {
  set arrow 1 from step_min,threshold to step_max,threshold nohead linecolor "black" dashtype 3 front
}
plot for [i = 1:runs] Csv[i] skip 1 using 1:(curve($3)) with lines linewidth 1.2 \
    linecolor rgb colour(i) title (runs > 1 ? base(Csv[i]) . ", before" : "before clipping"), \
  for [i = 1:runs] Csv[i] skip 1 using 1:(curve($4)) with lines linewidth 1.8 dashtype 2 \
    linecolor rgb (runs > 1 ? colour(i) : "#E69F00") \
    title (runs > 1 ? base(Csv[i]) . ", after" : "after clipping"), \
  keyentry with lines linecolor rgb (threshold > 0 ? "black" : "white") dashtype 3 \
    title (threshold > 0 ? sprintf("threshold %g", threshold) : "")
unset arrow 1

eval panel(0.490, 0.365)
unset logscale y
set format y "%g"
set ylabel "learning rate" offset -0.5
set yrange [0:*]
set offsets 0,0,graph 0.1,0
plot for [i = 1:runs] Csv[i] skip 1 every stride using 1:2 with steps linewidth 1.5 \
  linecolor rgb colour(i) title (runs > 1 ? base(Csv[i]) : "lr")
set yrange [*:*]
unset offsets

eval panel(0.335, 0.185)
set logscale y 2
set format y "2^{%L}"
set ylabel "loss scale" offset -0.5
if (Empty[3]) { set yrange [0.5:2] }
plot for [i = 1:runs] Csv[i] skip 1 using 1:(curve($8)) with steps linewidth 1.5 \
  linecolor rgb colour(i) title (runs > 1 ? base(Csv[i]) : "scale")
unset logscale y

eval panel(0.155, 0.060)
set format x "%g"
set xlabel "step"
set ylabel "skipped" offset -0.5
set yrange [0.5:runs + 0.5]
set format y ""
set ytics 1 scale 0
mark(i, reason) = runs > 1 ? colour(i) : (reason eq "loss" ? "#D55E00" : (reason eq "grad" ? "#0072B2" : "black"))
plot for [i = 1:runs] Csv[i] skip 1 using 1:(skipped(strcol(7), "non_finite_grad") * i) with points \
    pointtype 2 pointsize 0.9 linewidth 1.5 linecolor rgb mark(i, "grad") notitle, \
  for [i = 1:runs] Csv[i] skip 1 using 1:(skipped(strcol(7), "non_finite_loss") * i) with points \
    pointtype 6 pointsize 1.1 linewidth 1.5 linecolor rgb mark(i, "loss") notitle, \
  for [i = 1:runs] Csv[i] skip 1 using 1:(unchecked(strcol(5), $6) * i) with points \
    pointtype 7 pointsize 0.4 linecolor rgb mark(i, "none") notitle, \
  keyentry with points pointtype 2 pointsize 0.9 linewidth 1.5 linecolor rgb mark(1, "grad") \
    title "non-finite gradient", \
  keyentry with points pointtype 6 pointsize 1.1 linewidth 1.5 linecolor rgb mark(1, "loss") \
    title "non-finite loss", \
  keyentry with points pointtype 7 pointsize 0.4 linecolor rgb mark(1, "none") \
    title "taken, loss not finite"
unset multiplot
