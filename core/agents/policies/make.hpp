// The shipped policies, one file each.
#pragma once

#include <memory>

#include "agents/policy.hpp"

namespace teal {

std::unique_ptr<Policy> make_fifo();
std::unique_ptr<Policy> make_fifo_per_worker();
std::unique_ptr<Policy> make_edf();
std::unique_ptr<Policy> make_fair();
std::unique_ptr<Policy> make_shinjuku();
std::unique_ptr<Policy> make_composite();

// The setting, or Error(invalid_argument) that names the settings there are.
void set_or_throw(Policy& policy, std::string_view name, std::string_view value);

}  // namespace teal
