#include "capi/failure.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "base/error.hpp"

namespace teal::capi {
namespace {

thread_local char text[1024];  // zero: ""

laika_status_t status_of(Code code) noexcept {
    switch (code) {
        case Code::invalid_argument: return LAIKA_ERR_INVALID;
        case Code::not_found: return LAIKA_ERR_NOT_FOUND;
        case Code::quota_exceeded:
        case Code::would_block: return LAIKA_ERR_QUOTA;
        case Code::deadline_exceeded: return LAIKA_ERR_TIMEOUT;
        case Code::cancelled: return LAIKA_ERR_CANCELLED;
        case Code::peer_died: return LAIKA_ERR_HOST_GONE;
        case Code::closed: return LAIKA_ERR_NOT_INITIALIZED;
        case Code::busy: return LAIKA_ERR_BUSY;
        case Code::kernel_failed: return LAIKA_ERR_KERNEL;
        case Code::version_mismatch: return LAIKA_ERR_VERSION;
        case Code::internal_error: break;
    }
    return LAIKA_ERR_INTERNAL;
}

struct Meaning { laika_status_t status; const char* text; };
constexpr Meaning meanings[] = {
    {LAIKA_OK, "no error"},
    {LAIKA_ERR_INVALID, "an argument breaks a rule"},
    {LAIKA_ERR_POINTER, "a pointer that cannot be used"},
    {LAIKA_ERR_HANDLE, "not a handle of this process, or not any more"},
    {LAIKA_ERR_NOT_INITIALIZED, "laika_init was not called, or laika_finalize was"},
    {LAIKA_ERR_INITIALIZED, "laika_init was called already"},
    {LAIKA_ERR_FORKED, "initialised before fork(): call laika_init in the child"},
    {LAIKA_ERR_NO_HOST, "no host to talk to: start one with `teal serve`"},
    {LAIKA_ERR_HOST_GONE, "the host is gone: laika_finalize, then laika_init"},
    {LAIKA_ERR_VERSION, "library and host are of different builds"},
    {LAIKA_ERR_NOT_FOUND, "no such model or file"},
    {LAIKA_ERR_QUOTA, "a limit of the host or the machine is reached"},
    {LAIKA_ERR_TIMEOUT, "not ended within the time given"},
    {LAIKA_ERR_CANCELLED, "ended before it was done"},
    {LAIKA_ERR_BUSY, "in use by a request"},
    {LAIKA_ERR_KERNEL, "the model reported an error"},
    {LAIKA_ERR_WORKER_DIED, "the process that ran the request ended: try again"},
    {LAIKA_ERR_TOO_SMALL, "an output does not fit the memory given for it"},
    {LAIKA_ERR_UNSUPPORTED, "this library cannot call that model"},
    {LAIKA_ERR_MEMORY, "out of memory"},
    {LAIKA_ERR_INTERNAL, "an error of Teal itself: please report it"},
};

struct HostKind { std::string_view name; laika_status_t status; };
constexpr HostKind host_kinds[] = {
    {"InvalidArgument", LAIKA_ERR_INVALID},     {"NotFound", LAIKA_ERR_NOT_FOUND},   {"QuotaExceeded", LAIKA_ERR_QUOTA},
    {"WouldBlock", LAIKA_ERR_QUOTA},            {"DeadlineExceeded", LAIKA_ERR_TIMEOUT}, {"Cancelled", LAIKA_ERR_CANCELLED},
    {"PeerDied", LAIKA_ERR_WORKER_DIED},        {"Closed", LAIKA_ERR_HOST_GONE},     {"Busy", LAIKA_ERR_BUSY},
    {"KernelFailed", LAIKA_ERR_KERNEL},         {"VersionMismatch", LAIKA_ERR_VERSION},
};

}  // namespace

laika_status_t remember(laika_status_t status, const char* where, std::string_view message) noexcept {
    const int length = static_cast<int>(std::min<std::size_t>(message.size(), sizeof text - 1));
    std::snprintf(text, sizeof text, "%s: %.*s", where, length, message.data());
    for (char* at = text; *at != '\0'; ++at)  // some of it may be somebody else's words: it must stay one line
        if (static_cast<unsigned char>(*at) < 0x20 || *at == 0x7f) *at = ' ';
    return status;
}

laika_status_t remember_current(const char* where) noexcept {
    try {
        throw;
    } catch (const Failure& failure) {
        return remember(failure.status(), where, failure.what());
    } catch (const Error& error) {
        return remember(status_of(error.code()), where, error.what());
    } catch (const std::bad_alloc&) {
        return remember(LAIKA_ERR_MEMORY, where, "this process is out of memory");
    } catch (const std::exception& error) {
        return remember(LAIKA_ERR_INTERNAL, where, error.what());
    } catch (...) {
        return remember(LAIKA_ERR_INTERNAL, where, "an exception of unknown type");
    }
}

const char* last_error() noexcept { return text; }

const char* meaning(int status) noexcept {
    for (const Meaning& one : meanings)
        if (one.status == status) return one.text;
    return "not a code of liblaika";
}

void throw_host_failure(std::string_view kind, std::string_view message) {
    // "host: it is stopping, and takes no more work"
    if (kind == "PeerDied" && message.starts_with("host: ")) throw Failure(LAIKA_ERR_NO_HOST, std::string(message));
    for (const HostKind& one : host_kinds)
        if (one.name == kind) throw Failure(one.status, std::string(message));
    throw Failure(LAIKA_ERR_INTERNAL, "the host says " + std::string(kind) + ": " + std::string(message));
}

}  // namespace teal::capi
