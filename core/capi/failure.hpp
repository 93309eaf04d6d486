// Why a function of liblaika does not return LAIKA_OK: a code for programs and a sentence for people.
//
// Theory of operation: code below the C functions throws Failure (cold paths only), or lets the core's Error through; `guarded`
// turns whatever comes into a code and keeps the sentence in a buffer of the calling thread, which laika_last_error() shows.
// The buffer is plain thread-local storage: nothing is allocated, nothing is run when the thread ends.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "capi/include/laika.h"

namespace teal::capi {

class Failure : public std::exception {
public:
    Failure(laika_status_t status, std::string message) : status_(status), message_(std::move(message)) {}
    [[nodiscard]] laika_status_t status() const noexcept { return status_; }
    [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }

private:
    laika_status_t status_;
    std::string message_;
};

// Keeps "where: message" for laika_last_error(); returns the status.
laika_status_t remember(laika_status_t status, const char* where, std::string_view message) noexcept;
// The same for the exception that is being handled.
laika_status_t remember_current(const char* where) noexcept;
const char* last_error() noexcept;
const char* meaning(int status) noexcept;

// `body` throws, or returns a status whose message was kept.
template <class Body>
laika_status_t guarded(const char* where, Body&& body) noexcept {
    try {
        return body();
    } catch (...) {
        return remember_current(where);
    }
}

// A host's error by its class (src/teal/errors.py).
[[noreturn]] void throw_host_failure(std::string_view kind, std::string_view message);

}  // namespace teal::capi
