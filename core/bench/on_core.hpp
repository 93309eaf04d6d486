// The calling thread on a core, for as long as it lives; then where it was.
#pragma once

#include <sched.h>

#include <cerrno>
#include <string>

#include "base/error.hpp"

namespace teal {

class OnCore {
public:
    // Throws invalid_argument: there is no such core, or this process may not use it.
    explicit OnCore(int core) {
        cpu_set_t one;
        CPU_ZERO(&one);
        if (core >= 0 && core < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(core), &one);
        ::sched_getaffinity(0, sizeof before_, &before_);
        if (::sched_setaffinity(0, sizeof one, &one) != 0)
            throw Error(Code::invalid_argument, "core " + std::to_string(core) + ": " + system_message("sched_setaffinity", errno));
    }
    ~OnCore() { ::sched_setaffinity(0, sizeof before_, &before_); }
    OnCore(const OnCore&) = delete;
    OnCore& operator=(const OnCore&) = delete;

private:
    cpu_set_t before_{};
};

}  // namespace teal
