// The system calls that a box may make: a seccomp filter for each kind of box.
#pragma once

#include "box/message.hpp"

namespace teal::box {

// Installs the filter for this process and what it forks. 0, or an errno. Needs no_new_privs.
int install_filter(BoxKind kind) noexcept;

}  // namespace teal::box
