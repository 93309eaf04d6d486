// The calling thread in another network namespace, for as long as it lives: sockets that it makes meanwhile belong there.
#pragma once

#include <cerrno>
#include <fcntl.h>
#include <sched.h>
#include <string>
#include <unistd.h>

#include "base/error.hpp"

namespace teal {

class InNamespace {
public:
    // `path`: such as /run/netns/NAME; empty: where it is. Throws invalid_argument: there is none, or this process may not enter it.
    explicit InNamespace(const std::string& path) {
        if (path.empty()) return;
        before_ = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
        const int there = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        const bool entered = before_ >= 0 && there >= 0 && ::setns(there, CLONE_NEWNET) == 0;
        const int error = errno;
        if (there >= 0) ::close(there);
        if (entered) return;
        if (before_ >= 0) ::close(before_);
        throw Error(Code::invalid_argument, system_message(("network namespace " + path).c_str(), error));
    }
    ~InNamespace() {
        if (before_ < 0) return;
        (void)::setns(before_, CLONE_NEWNET);
        ::close(before_);
    }
    InNamespace(const InNamespace&) = delete;
    InNamespace& operator=(const InNamespace&) = delete;

private:
    int before_ = -1;
};

}  // namespace teal
