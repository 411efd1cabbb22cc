// amp_demo: the safe mixed-precision training step as a program.
#include "halfstep/demo/program.h"

int main(int argc, char** argv) { return halfstep::demo::run_program(argc, argv); }
