// Library: preparing a call, and giving up prepared ones.
#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "capi/library.hpp"
#include "capi/strings.hpp"

namespace teal::capi {
namespace {

constexpr std::uint32_t message_bytes = 512;  // ClientSession's

std::string path_of(const Tensors& given, std::size_t i) {
    return i < given.n_in ? "inputs[" + std::to_string(i) + "]" : "outputs[" + std::to_string(i - given.n_in) + "]";
}

// Memory of the caller's own has the alignment that C gives its type; what a worker uses in place has that of its size.
void check_alignment(const laika_tensor_t& tensor, bool shared, const std::string& path) {
    std::uint64_t wanted = tensor.dtype == LAIKA_DTYPE_NONE ? 1 : dtype_info(static_cast<Dtype>(tensor.dtype)).size;
    if (!shared) wanted = std::min<std::uint64_t>(wanted, 8);
    if (reinterpret_cast<std::uintptr_t>(tensor.data) % wanted != 0)
        throw Failure(LAIKA_ERR_POINTER, path + ".data: is not aligned to the " + std::to_string(wanted) + " bytes of its dtype");
}

std::uint64_t slot_bytes(const Plan& plan) {
    std::uint64_t total = descriptor_bytes(plan.inputs.size(), plan.outputs.size(), message_bytes) + 2 * tensor_align;
    for (const auto* list : {&plan.inputs, &plan.outputs})
        for (const TensorPlan& one : *list) {
            std::uint64_t count = 0;
            std::uint64_t bytes = 0;
            if ((one.flags & (tensor_absent | tensor_unplanned)) == 0 && !tensor_bytes(one.dtype, one.shape.data(), one.shape.size(), count, bytes)) continue;
            const std::uint64_t room = std::max(bytes, one.capacity) + tensor_align;
            if (__builtin_add_overflow(total, room, &total)) throw Failure(LAIKA_ERR_QUOTA, "the tensors of one call need more than 2^63 bytes");
        }
    return total;
}

// The descriptor of a tensor that lies in a block of the caller's.
TensorDesc describe(const TensorPlan& plan, const Located& where, const void* data) {
    TensorDesc desc{};
    desc.dtype = static_cast<std::uint8_t>(plan.dtype);
    desc.rank = static_cast<std::uint8_t>(plan.shape.size());
    desc.flags = plan.flags;
    desc.region = where.shm->block->region;
    desc.offset = where.shm->block->offset + static_cast<std::uint64_t>(static_cast<const std::byte*>(data) - where.shm->base);
    desc.capacity = where.bytes;
    desc.nbytes = where.bytes;
    std::uint64_t count = 0;
    if ((plan.flags & tensor_unplanned) == 0) tensor_bytes(plan.dtype, plan.shape.data(), plan.shape.size(), count, desc.nbytes);
    std::copy(plan.shape.begin(), plan.shape.end(), desc.shape);
    return desc;
}

bool is_absent(const TensorPlan& plan) { return (plan.flags & tensor_absent) != 0; }

// One call on its way to being prepared.
struct Preparation {
    const Tensors& given;
    Plan plan;
    std::vector<Located> found;
    std::vector<TensorPlan> placed;  // the plans of those that have their place already

    const std::vector<std::uint64_t>& rooms;

    Preparation(const Tensors& tensors, Plan planned, const std::vector<std::uint64_t>& strings)
        : given(tensors), plan(std::move(planned)), found(tensors.count()), placed(tensors.count()), rooms(strings) {}

    [[nodiscard]] TensorPlan& plan_at(std::size_t i) { return i < given.n_in ? plan.inputs[i] : plan.outputs[i - given.n_in]; }
    [[nodiscard]] bool is_placed(std::size_t i) const { return found[i].shm != nullptr; }

    // Tensors that have their place already get none in the slot.
    void take_out_placed() {
        for (std::size_t i = 0; i < given.count(); ++i) {
            if (i < given.n_in && given[i].data == nullptr && !is_absent(plan_at(i)) && found[i].bytes > 0)
                throw Failure(LAIKA_ERR_POINTER, path_of(given, i) + ".data: NULL, expected " + std::to_string(found[i].bytes) + " bytes");
            if (!is_placed(i)) continue;
            placed[i] = plan_at(i);
            TensorPlan none;
            none.dtype = placed[i].dtype;
            none.flags = tensor_absent;
            plan_at(i) = none;
        }
    }

    void describe_placed(ClientSlot& slot) const {
        for (std::size_t i = 0; i < given.count(); ++i)
            if (is_placed(i)) (i < given.n_in ? slot.inputs[i] : slot.outputs[i - given.n_in]) = describe(placed[i], found[i], given[i].data);
        for (std::size_t i = 0; i < given.n_out; ++i)
            if (slot.in_place[i] >= 0) slot.outputs[i] = slot.inputs[static_cast<std::size_t>(slot.in_place[i])];
    }

    // By what the call is found again.
    void list_tensors(Prepared& made) const {
        made.tensors.reserve(given.count());
        for (std::size_t i = 0; i < given.count(); ++i) {
            made.tensors.push_back(given[i]);
            if (is_strings(given[i]) && rooms[i] != 0) made.tensors[i].data = elsewhere(rooms[i]);
            else if (!is_placed(i) && given[i].data != nullptr) made.tensors[i].data = elsewhere();
        }
    }

    [[nodiscard]] std::byte* place_of_input(const ClientSlot& slot, std::size_t i) const {
        return is_placed(i) ? static_cast<std::byte*>(given[i].data) : slot.base + slot.inputs[i].offset;
    }

    void list_inputs(Prepared& made) const {
        const ClientSlot& slot = *made.slot;
        for (std::size_t i = 0; i < given.n_in; ++i)
            if (!is_placed(i) && !is_absent(plan.inputs[i]))
                made.in.push_back({static_cast<std::uint32_t>(i), place_of_input(slot, i), is_strings(given[i]) ? slot.inputs[i].capacity : slot.inputs[i].nbytes, is_strings(given[i])});
    }

    void list_output(Prepared& made, std::size_t i) const {
        const ClientSlot& slot = *made.slot;
        const bool is_there = is_placed(given.n_in + i);
        const auto index = static_cast<std::uint32_t>(i);
        if (!is_there) {
            const std::int32_t lies_in = slot.in_place[i];
            std::byte* place = lies_in >= 0 ? place_of_input(slot, static_cast<std::size_t>(lies_in)) : slot.base + slot.outputs[i].offset;
            made.out.push_back({index, place, slot.outputs[i].nbytes, is_strings(given.outputs[i])});
        }
        const TensorPlan& planned = is_there ? placed[given.n_in + i] : plan.outputs[i];
        if ((planned.flags & tensor_unplanned) != 0) {
            made.planned = false;
            return;
        }
        laika_tensor_t shape{};
        shape.dtype = static_cast<std::int32_t>(planned.dtype);
        shape.ndim = static_cast<std::int32_t>(planned.shape.size());
        std::copy(planned.shape.begin(), planned.shape.end(), shape.shape);
        const laika_tensor_t& own = given.outputs[i];
        const bool same = own.dtype == shape.dtype && own.ndim == shape.ndim && std::equal(shape.shape, shape.shape + shape.ndim, own.shape);
        if (!same) made.made.push_back({index, shape});
    }
};

}  // namespace

// Where the tensors lie. Throws Failure(pointer) for those that lie nowhere they may.
void Library::locate(PoolSession& pool, const Tensors& given, Located* found) {
    for (std::size_t i = 0; i < given.count(); ++i) {
        const laika_tensor_t& tensor = given[i];
        const std::string path = path_of(given, i);
        found[i] = {nullptr, checked_bytes(tensor, path)};
        if (is_strings(tensor)) {  // an array of pointers: never used in place
            if (tensor.data == nullptr && found[i].bytes > 0 && i >= given.n_in)
                throw Failure(LAIKA_ERR_POINTER, path + ".data: NULL, expected an array of " + std::to_string(found[i].bytes / sizeof(laika_bytes_t)) + " laika_bytes_t");
            check_alignment(tensor, false, path);
            continue;
        }
        if (tensor.data == nullptr || found[i].bytes == 0) {
            if (tensor.data == nullptr && found[i].bytes > 0 && i >= given.n_in)
                throw Failure(LAIKA_ERR_POINTER, path + ".data: NULL, expected memory for " + std::to_string(found[i].bytes) + " bytes");
            continue;
        }
        Shm* shm = blocks_.find(tensor.data, found[i].bytes, path);
        if (shm == nullptr && touches(tensor.data, found[i].bytes)) Blocks::refuse(tensor.data, path);
        check_alignment(tensor, shm != nullptr, path);
        if (shm == nullptr || shm->pool != &pool) continue;  // memory of another pool is copied like any
        const unsigned wanted = i < given.n_in ? LAIKA_SHM_INPUT : LAIKA_SHM_OUTPUT;
        if ((shm->flags & wanted) == 0)
            throw Failure(LAIKA_ERR_INVALID, path + ".data: lies in shared memory that was allocated without " +
                          (wanted == LAIKA_SHM_INPUT ? "LAIKA_SHM_INPUT" : "LAIKA_SHM_OUTPUT"));
        found[i].shm = shm;
    }
}

std::shared_ptr<ClientSlot> Library::slot_with_room(PoolSession& pool, const Plan& plan) {
    const std::uint64_t bytes = slot_bytes(plan);
    const auto give_back = [session = pool.session](ClientSlot* slot) { session->destroy_slot(std::unique_ptr<ClientSlot>(slot)); };
    bool cleared = false;
    for (int attempt = 0; attempt < 64; ++attempt) {  // another thread may be faster and take the room
        try {
            if (auto slot = pool.session->make_slot(plan.inputs, plan.outputs)) return {slot.release(), give_back};
            pool.memory->grow(bytes);
            continue;
        } catch (const Error& error) {
            if (error.code() != Code::quota_exceeded || cleared) throw;
        } catch (const Failure& failure) {
            if (failure.status() != LAIKA_ERR_QUOTA || cleared) throw;
        }
        cleared = true;  // of memory, or of completion lines: prepared calls at rest hold some
        clear_shelves();
    }
    throw Failure(LAIKA_ERR_QUOTA, "no room for " + std::to_string(bytes) + " bytes in this process's shared memory");
}

// memory_ is held: from here on the blocks cannot be freed under it.
void Library::use(Prepared& prepared, const Tensors& given, const Located* found) {
    for (std::size_t i = 0; i < given.count(); ++i) {
        if (found[i].shm == nullptr) continue;
        if (found[i].shm->users.insert(&prepared).second) prepared.used.push_back(found[i].shm);
    }
}

Prepared* Library::prepare(Model& model, const Tensors& given, const Rooms& rooms) {
    Preparation work(given, plan_call(model.signature, given.inputs, given.n_in, given.outputs, given.n_out, rooms), rooms);
    auto owned = std::make_unique<Prepared>();
    Prepared& made = *owned;
    made.session = model.pool->session;
    made.n_in = given.n_in;
    made.shelf = &model.shelf;
    {
        const std::lock_guard lock(memory_);
        sweep_limbo();
        locate(*model.pool, given, work.found.data());
        use(made, given, work.found.data());
    }
    struct Undo {  // unless it succeeds
        Library& library;
        std::unique_ptr<Prepared>& owned;
        ~Undo() { if (owned) library.dispose(owned.release()); }
    } undo{*this, owned};
    work.take_out_placed();
    made.slot = slot_with_room(*model.pool, work.plan);
    made.slot->expected = model.expected;
    work.describe_placed(*made.slot);
    work.list_tensors(made);
    work.list_inputs(made);
    for (std::size_t i = 0; i < given.n_out; ++i) work.list_output(made, i);
    made.restore_block();
    made.slot->stamp = made.session->next_stamp();
    made.key = hash_of({made.tensors.data(), given.n_in, made.tensors.data() + given.n_in, given.n_out});
    counters_.prepared.fetch_add(1, std::memory_order_relaxed);
    Prepared* evicted = nullptr;
    model.shelf.add(&made, evicted);
    if (evicted != nullptr) dispose(evicted);
    return owned.release();
}

// ---- giving up -------------------------------------------------------------------------------------------------------

void Library::dispose(Prepared* prepared) noexcept {
    const std::lock_guard lock(memory_);
    dispose_locked(prepared);
}

void Library::dispose_locked(Prepared* prepared) noexcept {
    if (prepared->slot && !ClientSession::quiescent(*prepared->slot) && !prepared->session->closed()) {
        limbo_.push_back(prepared);
        return;
    }
    for (Shm* shm : prepared->used) shm->users.erase(prepared);
    delete prepared;
}

void Library::sweep_limbo() noexcept {
    std::vector<Prepared*> resting;
    resting.swap(limbo_);
    for (Prepared* prepared : resting) dispose_locked(prepared);
}

void Library::clear_shelf(Model& model) noexcept {
    while (Prepared* prepared = model.shelf.clear_one()) dispose(prepared);
}

void Library::clear_shelves() noexcept {
    std::vector<std::shared_ptr<Model>> models;
    {
        const std::lock_guard lock(models_);
        for (std::uint32_t i = 0; i < most_models; ++i)
            if (entries_[i].id.load(std::memory_order_relaxed) != 0) models.push_back(entries_[i].model);
    }
    for (const auto& model : models) clear_shelf(*model);
    const std::lock_guard lock(memory_);
    sweep_limbo();
}

}  // namespace teal::capi
