// The exported functions: each hands over to the Library and turns whatever comes back into a status.
#include "capi/include/laika.h"

#include <atomic>

#include "capi/failure.hpp"
#include "capi/library.hpp"
#include "capi/strings.hpp"

using teal::capi::guarded;
using teal::capi::Library;

namespace {

template <class Body>
laika_status_t with_library(const char* where, Body&& body) noexcept {
    const laika_status_t status = guarded(where, [&] { return body(Library::get()); });
    if (status == LAIKA_ERR_HOST_GONE) [[unlikely]] Library::get().lose_host();
    return status;
}

}  // namespace

extern "C" {

laika_status_t laika_init(const char* address, unsigned flags) {
    return guarded("laika_init", [&] { return Library::init(address, flags, nullptr); });
}

laika_status_t laika_init_with(const char* address, unsigned flags, const laika_options_t* options) {
    return guarded("laika_init_with", [&] { return Library::init(address, flags, options); });
}

laika_status_t laika_finalize(void) {
    return with_library("laika_finalize", [](Library& library) { return library.finalize(); });
}

laika_status_t laika_shm_alloc(size_t bytes, unsigned flags, laika_shm_t* shm) {
    return with_library("laika_shm_alloc", [&](Library& library) { return library.shm_alloc(bytes, flags, nullptr, shm); });
}

laika_status_t laika_shm_alloc_with(size_t bytes, unsigned flags, const laika_options_t* options, laika_shm_t* shm) {
    return with_library("laika_shm_alloc_with", [&](Library& library) { return library.shm_alloc(bytes, flags, options, shm); });
}

laika_status_t laika_shm_map(laika_shm_t shm, void** data) {
    return with_library("laika_shm_map", [&](Library& library) { return library.shm_map(shm, data); });
}

laika_status_t laika_shm_unmap(laika_shm_t shm) {
    return with_library("laika_shm_unmap", [&](Library& library) { return library.shm_unmap(shm); });
}

laika_status_t laika_shm_free(laika_shm_t shm) {
    return with_library("laika_shm_free", [&](Library& library) { return library.shm_free(shm); });
}

laika_status_t laika_model_load(const char* source, unsigned flags, laika_model_t* model) {
    return with_library("laika_model_load", [&](Library& library) { return library.model_load(source, flags, nullptr, model); });
}

laika_status_t laika_model_load_with(const char* source, unsigned flags, const laika_options_t* options, laika_model_t* model) {
    return with_library("laika_model_load_with", [&](Library& library) { return library.model_load(source, flags, options, model); });
}

laika_status_t laika_model_unload(laika_model_t model) {
    return with_library("laika_model_unload", [&](Library& library) { return library.model_unload(model); });
}

laika_status_t laika_model_inputs(laika_model_t model, laika_spec_t* specs, size_t capacity, size_t* count) {
    return with_library("laika_model_inputs", [&](Library& library) { return library.specs(model, false, specs, capacity, count); });
}

laika_status_t laika_model_outputs(laika_model_t model, laika_spec_t* specs, size_t capacity, size_t* count) {
    return with_library("laika_model_outputs", [&](Library& library) { return library.specs(model, true, specs, capacity, count); });
}

laika_status_t laika_infer(laika_model_t model, const laika_tensor_t* inputs, size_t n_inputs, laika_tensor_t* outputs, size_t n_outputs) {
    return with_library("laika_infer", [&](Library& library) { return library.infer(model, inputs, n_inputs, outputs, n_outputs); });
}

laika_status_t laika_infer_async(laika_model_t model, const laika_tensor_t* inputs, size_t n_inputs, laika_tensor_t* outputs, size_t n_outputs, laika_call_t* call) {
    return with_library("laika_infer_async", [&](Library& library) { return library.infer_async(model, inputs, n_inputs, outputs, n_outputs, call); });
}

laika_status_t laika_wait(laika_call_t call, int64_t timeout_ns) {
    return with_library("laika_wait", [&](Library& library) { return library.wait(call, timeout_ns); });
}

laika_status_t laika_cancel(laika_call_t call) {
    return with_library("laika_cancel", [&](Library& library) { return library.cancel(call); });
}

laika_status_t laika_event_create(laika_event_t* event) {
    return with_library("laika_event_create", [&](Library& library) { return library.event_create(event); });
}

laika_status_t laika_event_signal(laika_event_t event) {
    return with_library("laika_event_signal", [&](Library& library) { return library.event_signal(event); });
}

laika_status_t laika_event_wait(laika_event_t event, int64_t timeout_ns) {
    return with_library("laika_event_wait", [&](Library& library) { return library.event_wait(event, timeout_ns); });
}

laika_status_t laika_event_destroy(laika_event_t event) {
    return with_library("laika_event_destroy", [&](Library& library) { return library.event_destroy(event); });
}

laika_status_t laika_infer_after(laika_model_t model, const laika_tensor_t* inputs, size_t n_inputs, laika_tensor_t* outputs, size_t n_outputs,
                                 const laika_event_t* after, size_t n_after, laika_call_t* call) {
    return with_library("laika_infer_after", [&](Library& library) {
        return library.infer_async(model, inputs, n_inputs, outputs, n_outputs, call, {after, n_after});
    });
}

laika_status_t laika_infer_after_all(laika_model_t model, const laika_tensor_t* inputs, size_t n_inputs, laika_tensor_t* outputs, size_t n_outputs,
                                     const laika_event_t* events, size_t n_events, const laika_call_t* calls, size_t n_calls, laika_call_t* call) {
    return with_library("laika_infer_after_all", [&](Library& library) {
        return library.infer_async(model, inputs, n_inputs, outputs, n_outputs, call, {events, n_events, calls, n_calls});
    });
}

laika_status_t laika_bytes_free(laika_tensor_t* tensor) {
    return guarded("laika_bytes_free", [&] {
        teal::capi::give_back_strings(tensor);
        return LAIKA_OK;
    });
}

const char* laika_strerror(int status) { return teal::capi::meaning(status); }

const char* laika_last_error(void) { return teal::capi::last_error(); }

laika_status_t laika_statistics(laika_statistics_t* statistics, size_t size) {
    return with_library("laika_statistics", [&](Library& library) { return library.statistics(statistics, size); });
}

uint32_t laika_version(void) { return LAIKA_VERSION; }

}  // extern "C"
