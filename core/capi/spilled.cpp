// Library: outputs that were larger than planned. The host has them, all of the call's, in a region of their own.
#include <algorithm>
#include <optional>
#include <string>

#include "base/checked.hpp"
#include "capi/library.hpp"
#include "capi/outputs.hpp"
#include "capi/strings.hpp"

namespace teal::capi {
namespace {

// [output, dtype, shape, offset, bytes]; false: that is none.
bool read_piece(Reader& reader, const Region& region, std::size_t outputs, std::uint64_t& index, MadeOutput& made) {
    std::uint32_t fields = 0;
    std::uint32_t rank = 0;
    std::uint64_t offset = 0;
    std::string_view name;
    if (!reader.array(fields) || fields != 5 || !reader.number(index) || !reader.text(name) || !reader.array(rank) || rank > max_rank) return false;
    made.rank = rank;
    for (std::uint32_t i = 0; i < rank; ++i)
        if (!reader.signed_number(made.shape[i]) || made.shape[i] < 0) return false;
    made.dtype = dtype_from_name(name);
    if (!reader.number(offset) || !reader.number(made.nbytes) || index >= outputs || made.dtype == Dtype::none) return false;
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    if (!tensor_bytes(made.dtype, made.shape, rank, count, bytes) || !within(offset, made.nbytes, region.size())) return false;
    made.bytes = region.base() + offset;
    return made.dtype == Dtype::bytes ? made.nbytes >= bytes : made.nbytes == bytes;
}

// An output that is not among the spilled ones: it was written in its place.
MadeOutput as_planned(const Prepared& prepared, std::size_t i) {
    const TensorDesc& planned = prepared.slot->outputs[i];
    MadeOutput made;
    made.dtype = static_cast<Dtype>(planned.dtype);
    made.rank = planned.rank;
    std::copy(planned.shape, planned.shape + planned.rank, made.shape);
    made.nbytes = planned.nbytes;
    for (const Prepared::Copy& copy : prepared.out)
        if (copy.tensor == i) made.bytes = copy.place;
    return made;
}

}  // namespace

void Library::take_spilled(Model& model, Prepared& prepared, laika_tensor_t* outputs) {
    prepared.restore = true;
    const std::uint32_t number = prepared.slot->line->detail.load(std::memory_order_relaxed);
    Answer answer = control_->ask([&](Writer& out) {
        out.map(4);
        out.text("t"); out.text("take_spill");
        out.text("session"); out.number(model.pool->index);
        out.text("spill"); out.number(number);
        out.text("pool"); out.text(model.pool->pool);
    });
    const auto region = Region::adopt(answer.take_fd().take(), RegionKind::spill, true);  // what is left of the answer says when we let go
    Reader reader = answer.body();
    std::uint32_t count = 0;
    bool good = reader.array(count) && count <= prepared.slot->outputs.size();
    std::vector<std::optional<MadeOutput>> pieces(prepared.slot->outputs.size());
    for (; good && count > 0; --count) {
        std::uint64_t index = 0;
        MadeOutput one;
        good = read_piece(reader, *region, pieces.size(), index, one);
        if (good) pieces[index] = one;
    }
    std::vector<MadeOutput> made;
    for (std::size_t i = 0; good && i < pieces.size(); ++i) {
        good = pieces[i].has_value() || (prepared.slot->outputs[i].flags & tensor_unplanned) == 0;
        if (good) made.push_back(pieces[i] ? *pieces[i] : as_planned(prepared, i));
    }
    if (!good) throw Failure(LAIKA_ERR_INTERNAL, "the host describes spilled outputs in a way that is not understood");
    for (std::size_t i = 0; i < made.size(); ++i)
        if (made[i].dtype == Dtype::bytes && room_for(made[i].nbytes) > model.rooms[i].load(std::memory_order_relaxed))
            model.rooms[i].store(room_for(made[i].nbytes), std::memory_order_relaxed);
    const Moved moved = deliver(prepared, made, model.signature.name, outputs);
    counters_.copies_out.fetch_add(moved.tensors, std::memory_order_relaxed);
    counters_.bytes_out.fetch_add(moved.bytes, std::memory_order_relaxed);
}

}  // namespace teal::capi
