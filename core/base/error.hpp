// The one exception type of the core, used on cold paths only.
//
// Theory of operation: set-up code (regions, sessions, files) throws Error with a code out of the
// tree in docs/errors.md; the Python seam turns each code into the class of the same name. Code that
// runs once per request never throws: it stores an Outcome (queue/request.hpp) instead.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace teal {

enum class Code : std::uint8_t {
    invalid_argument,
    not_found,
    quota_exceeded,
    would_block,
    deadline_exceeded,
    cancelled,
    peer_died,
    closed,
    busy,
    kernel_failed,
    version_mismatch,
    internal_error,
};

class Error : public std::exception {
public:
    Error(Code code, std::string message) : code_(code), message_(std::move(message)) {}
    [[nodiscard]] Code code() const noexcept { return code_; }
    [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }

private:
    Code code_;
    std::string message_;
};

// "memfd_create: Too many open files (errno 24)": the system's own words after ours.
std::string system_message(const char* what, int error_number);

}  // namespace teal
