// From a loaded place to what a box is told.
#pragma once

#include <string>
#include <vector>

#include "box/box.hpp"
#include "elf/place.hpp"

namespace teal::box {

// Where a program goes in a box: 0 for one with a fixed address. Throws invalid_argument when its addresses are not a program's.
std::uint64_t bias_for(const elf::Program& program);

// A resident program (AT_TEAL on its stack). The place keeps the descriptor, and is not loaded anew before the box has been opened
// *and has ended*: boxes see a later load in pages that they have not written.
Image resident_image(const elf::Place& place);
// An ordinary static program of a judged run, with its arguments and environment.
Image linux_image(const elf::Place& place, const std::vector<std::string>& arguments, const std::vector<std::string>& environment);

}  // namespace teal::box
