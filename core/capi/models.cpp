// Library: models by name or by file.
//
// Theory of operation: a file gets a name out of what is in it (and where it lies, for files beside it), so that processes which load
// the same file share one version, and different files of one name do not push each other out. The host keeps what was
// loaded without LAIKA_MODEL_PERSISTENT for as long as a connection holds it ("hold" in src/teal/host/wire.py): a process that dies
// cannot leave a model behind.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "base/error.hpp"
#include "base/sha256.hpp"
#include "capi/library.hpp"
#include "capi/pin.hpp"

namespace teal::capi {
namespace {

constexpr std::size_t longest_source = 4095;
constexpr std::uint64_t first_room = 4096;  // for the strings of an output
constexpr std::size_t longest_name = 128;  // repository.py: check_name

bool ends_like_file(std::string_view source) { return source.ends_with(".onnx") || source.ends_with(".safetensors"); }

// Only what a model's name may have.
std::string as_name(std::string_view text) {
    std::string name;
    for (const char c : text) {
        const bool good = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == '-' || c == '.';
        if (good && !(c == '.' && name.ends_with('.')) && !(name.empty() && !(c >= '0' && c != '_'))) name += c;
        else if (!name.empty() && !name.ends_with('-')) name += '-';
    }
    return name;
}

struct File {
    Fd fd;
    std::string path;    // absolute
    std::string digest;  // of its bytes
    std::string name;
};

File open_model(const std::string& source, const std::string& pool) {
    File file;
    file.fd = Fd(::open(source.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file.fd) throw Failure(LAIKA_ERR_NOT_FOUND, "source: " + source + ": " + ::strerrordesc_np(errno) + "; expected a model file that this process can read");
    struct stat status {};
    if (::fstat(file.fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) throw Failure(LAIKA_ERR_INVALID, "source: " + source + ": not a regular file");
    const std::unique_ptr<char, decltype(&std::free)> real(::realpath(source.c_str(), nullptr), &std::free);
    file.path = real ? real.get() : source;
    Sha256 contents;
    std::vector<std::byte> chunk(1u << 20);
    for (off_t at = 0;;) {
        const ssize_t got = ::pread(file.fd.get(), chunk.data(), chunk.size(), at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) throw Failure(LAIKA_ERR_INVALID, "source: reading " + source + ": " + ::strerrordesc_np(errno));
        if (got == 0) break;
        contents.add({chunk.data(), static_cast<std::size_t>(got)});
        at += got;
    }
    file.digest = contents.hex();
    Sha256 both;
    const std::string where = file.digest + file.path + (pool.empty() ? "" : "\n" + pool);
    both.add(std::as_bytes(std::span(where)));
    std::string_view stem(file.path);
    stem.remove_prefix(stem.rfind('/') + 1);
    if (const std::size_t dot = stem.rfind('.'); dot != std::string_view::npos) stem = stem.substr(0, dot);
    std::string name = as_name(stem.substr(0, longest_name - 20));
    if (name.empty()) name = "model";
    file.name = name + "-" + both.hex().substr(0, 16);
    return file;
}

void hold_or_keep(Writer& out, bool persistent) {
    out.text(persistent ? "keep" : "hold");
    out.boolean(true);
}

}  // namespace

Signature Library::lookup(const std::string& name, const Wanted& wanted) {
    Signature found = parse_signature(control_->ask([&](Writer& out) {
        out.map(3);
        out.text("t"); out.text("lookup");
        out.text("name"); out.text(name);
        hold_or_keep(out, wanted.persistent);
    }));
    found.name = name;  // what we asked for, whatever the host calls it
    if (wanted.pool.empty() || found.pool == wanted.pool) return found;
    if (!wanted.persistent) release_name(name);
    throw Failure(LAIKA_ERR_INVALID, "options.pool: '" + wanted.pool + "', model '" + name + "' is in pool '" + found.pool + "'; unload it there first, or leave the pool out");
}

Signature Library::load(const std::string& name, const std::string& source, int fd, const Wanted& wanted) {
    const std::string& pool = wanted.pool.empty() ? home_->pool : wanted.pool;
    Signature loaded = parse_signature(control_->ask(
        [&](Writer& out) {
            out.map(3 + (source.empty() ? 0 : 1) + (fd >= 0 ? 1 : 0) + (wanted.persistent ? 0 : 1));
            out.text("t"); out.text("load");
            out.text("name"); out.text(name);
            if (!source.empty()) { out.text("source"); out.text(source); }
            if (fd >= 0) { out.text("has_file"); out.boolean(true); }
            out.text("pool"); out.text(pool);
            if (!wanted.persistent) { out.text("hold"); out.boolean(true); }
        },
        fd));
    loaded.name = name;
    return loaded;
}

Signature Library::find_or_load(const std::string& source, const Wanted& wanted) {
    const bool is_file = source.find('/') != std::string::npos || ends_like_file(source);
    const bool is_reference = !is_file && source.find(':') != std::string::npos;
    File file;
    // What gets its name here has another one in each pool that is named, as a name is in one pool only.
    if (is_file) file = open_model(source, wanted.pool);
    const std::string name = is_file ? file.name : is_reference ? as_name(wanted.pool.empty() ? source : source + "-" + wanted.pool) : source;
    std::string not_found;
    try {
        const Signature found = lookup(name, wanted);
        if (!is_file || found.digest.empty() || found.digest == file.digest) return found;
    } catch (const Failure& failure) {
        if (failure.status() != LAIKA_ERR_NOT_FOUND) throw;
        not_found = failure.what();
    }
    if (is_file) return load(name, file.path, file.fd.get(), wanted);
    if (is_reference) return load(name, source, -1, wanted);
    try {
        return load(name, "", -1, wanted);  // from the host's repository, if it has one
    } catch (const Failure& failure) {
        if (failure.status() == LAIKA_ERR_INVALID) throw Failure(LAIKA_ERR_NOT_FOUND, "source: " + not_found + "; load it (`teal load`), or give the path of a file");
        throw;
    }
}

laika_status_t Library::model_load(const char* source, unsigned flags, const laika_options_t* options, laika_model_t* handle) {
    if (handle == nullptr) throw Failure(LAIKA_ERR_POINTER, "model: NULL, expected where to put the handle");
    handle->id = 0;
    if (source == nullptr) throw Failure(LAIKA_ERR_POINTER, "source: NULL, expected a name, a path or builtin:…");
    if ((flags & ~LAIKA_MODEL_PERSISTENT) != 0) throw Failure(LAIKA_ERR_INVALID, "flags: " + std::to_string(flags) + ", expected LAIKA_MODEL_DEFAULT or LAIKA_MODEL_PERSISTENT");
    const std::string text(source, ::strnlen(source, longest_source + 1));
    if (text.empty() || text.size() > longest_source) throw Failure(LAIKA_ERR_INVALID, "source: " + std::to_string(text.size()) + " bytes or more, expected 1 to 4095");
    const Wanted wanted{pool_named(options), (flags & LAIKA_MODEL_PERSISTENT) != 0};
    const Stay stay(*this);
    check_host();
    auto model = std::make_shared<Model>();
    model->signature = find_or_load(text, wanted);
    model->held = !wanted.persistent;
    const std::size_t n_out = model->signature.outputs.size();
    model->rooms = std::make_unique<std::atomic<std::uint64_t>[]>(n_out);
    for (std::size_t i = 0; i < n_out; ++i) model->rooms[i].store(first_room, std::memory_order_relaxed);
    enter_pool(*model);
    // An engine that uses every core has none left for a caller that spins while it waits.
    if (model->signature.threads < std::thread::hardware_concurrency()) model->expected = std::make_shared<Expectation>();
    place(std::move(model), handle);
    return LAIKA_OK;
}

// The session with the model's pool. Throws what the host says, and lets go of the model then.
void Library::enter_pool(Model& model) {
    try {
        model.pool = &pool_session(model.signature.pool);
    } catch (...) {
        if (model.held) release_name(model.signature.name);
        throw;
    }
    ClientSession& session = *model.pool->session;
    model.stages = session.stages_of(model.signature.index);
    if (model.signature.idle_ns > 0) session.raise_idle(model.signature.idle_ns);
}

void Library::place(std::shared_ptr<Model> model, laika_model_t* handle) {
    const std::lock_guard lock(models_);
    for (std::uint32_t i = 0; i < most_models; ++i) {
        ModelEntry& entry = entries_[i];
        if (entry.id.load(std::memory_order_relaxed) != 0 || entry.model != nullptr) continue;
        if (model->held) ++held_[model->signature.name];
        entry.model = std::move(model);
        handle->id = new_id() | i;
        // SYNC: seq_cst pairs with the load in Pin: the model is there.
        entry.id.store(handle->id, std::memory_order_seq_cst);
        return;
    }
    throw Failure(LAIKA_ERR_QUOTA, std::to_string(most_models) + " models are loaded in this process, the most there can be; unload some");
}

// The entry's id was cleared: nobody comes in. Waits for who is inside; the entry is then anybody's.
std::shared_ptr<Model> Library::leave_entry(ModelEntry& entry) noexcept {
    // SYNC: seq_cst pairs with Pin: it pins, then looks at the id.
    for (std::uint32_t pins = entry.pins.load(std::memory_order_seq_cst); pins != 0; pins = entry.pins.load(std::memory_order_seq_cst)) entry.pins.wait(pins);
    const std::lock_guard lock(models_);
    return std::move(entry.model);
}

laika_status_t Library::model_unload(laika_model_t handle) {
    const Stay stay(*this);
    ModelEntry& entry = entries_[handle.id % most_models];
    std::uint64_t seen = handle.id;
    // SYNC: seq_cst pairs with Pin: it pins, then looks at the id; we clear the id, then look at the pins.
    if (handle.id == 0 || !entry.id.compare_exchange_strong(seen, 0, std::memory_order_seq_cst))
        throw Failure(LAIKA_ERR_HANDLE, "model: not a loaded model of this process, or unloaded already");
    const std::shared_ptr<Model> model = leave_entry(entry);
    // SYNC: pairs with give_back_late().
    model->unloaded.fetch_add(1, std::memory_order_seq_cst);
    clear_shelf(*model);
    release_model(*model);
    return LAIKA_OK;
}

void Library::release_model(const Model& model) {
    if (!model.held) return;
    {
        const std::lock_guard lock(models_);
        const auto found = held_.find(model.signature.name);
        if (found == held_.end() || --found->second > 0) return;
        held_.erase(found);
    }
    control_release(model.signature.name);
}

void Library::release_name(const std::string& name) {
    {
        const std::lock_guard lock(models_);
        if (held_.contains(name)) return;  // another handle of ours is for it
    }
    control_release(name);
}

void Library::control_release(const std::string& name) {
    if (host_gone_.load(std::memory_order_relaxed)) return;
    control_->ask([&](Writer& out) {
        out.map(2);
        out.text("t"); out.text("release");
        out.text("name"); out.text(name);
    });
}

laika_status_t Library::specs(laika_model_t handle, bool outputs, laika_spec_t* specs, std::size_t capacity, std::size_t* count) {
    if (count == nullptr) throw Failure(LAIKA_ERR_POINTER, "count: NULL, expected where to put how many there are");
    if (specs == nullptr && capacity > 0) throw Failure(LAIKA_ERR_POINTER, "specs: NULL, expected room for " + std::to_string(capacity));
    const Pin pin(*this, handle);
    const Signature& signature = pin.entry.model->signature;
    const std::vector<TensorSpec>& list = outputs ? signature.outputs : signature.inputs;
    for (std::size_t i = 0; i < std::min(capacity, list.size()); ++i) {
        const TensorSpec& from = list[i];
        laika_spec_t& to = specs[i];
        to = {};
        const TensorSpec& shaped = from.like >= 0 ? signature.inputs[static_cast<std::size_t>(from.like)] : from;
        from.name.copy(to.name, LAIKA_MAX_NAME - 1);
        to.dtype = static_cast<std::int32_t>(shaped.dtype);
        to.ndim = shaped.ranked ? static_cast<std::int32_t>(shaped.shape.size()) : -1;
        for (std::size_t d = 0; d < shaped.shape.size(); ++d) to.shape[d] = shaped.shape[d].size;
        to.optional = from.optional ? 1 : 0;
    }
    *count = list.size();
    return LAIKA_OK;
}

}  // namespace teal::capi
