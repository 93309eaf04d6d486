// Calls that go from the client to a resident device kernel, and back, with nobody in between (host/client.hpp).
#include "base/error.hpp"
#include "cpu/clock.hpp"
#include "host/client.hpp"

namespace teal {

bool ClientSession::submit_direct(ClientSlot& slot) {
    if (slot.device == nullptr) return false;
    const ReplyLine& reply = slot.device->reply;
    // The stamp is this slot's alone in its session, so it names model, version and tensors at once: the worker that was called with
    // it wrote it there, and takes the line from the kernel before any of them changes.
    // SYNC: acquire pairs with the kernel's release of reply.state: what the worker wrote before it told the kernel of the line is seen.
    if (reply.state.load(std::memory_order_acquire) != static_cast<std::uint32_t>(LineState::resident)) return false;
    if (reply.stamp.load(std::memory_order_relaxed) != slot.stamp) return false;
    // What the completion word says has to stay true of the call that comes.
    // SYNC: acquire pairs with end_request().
    const std::uint64_t word = slot.line->word.load(std::memory_order_acquire);
    if (!(slot.submitted || slot.tried) || !has_ended(word, slot.generation) || state_of(word) != State::done) return false;
    // Slower than the worker thinks right, and not once: the ring this time, so that the worker sees it too.
    const std::uint32_t limit = reply.limit_ns.load(std::memory_order_relaxed);
    if (limit != 0 && slot.direct_ns > limit) {
        slot.direct_ns = 0;
        return false;
    }
    if (closed()) throw Error(Code::closed, "the connection to the host is closed");
    if (!quiescent(slot)) throw Error(Code::busy, "this slot's previous request is still out; wait for it, or use another slot");
    slot.direct = true;
    slot.device_generation = slot.device->request.generation.load(std::memory_order_relaxed) + 1;
    if (uses_.concerns(slot)) {
        try {
            uses_.admit(slot);
        } catch (...) {
            slot.direct = false;
            throw;
        }
    }
    slot.submitted_ticks = ticks();
    ask(*slot.device);
    return true;
}

Answer ClientSession::wait_direct(ClientSlot& slot, std::uint64_t ns, std::uint64_t spin_ns) noexcept {
    const Answer answer = await(*slot.device, slot.device_generation, ns, spin_ns);
    if (answer != Answer::late) slot.direct = false;
    return answer;
}

void ClientSession::saw_direct_end(ClientSlot& slot, ClientStages& stages) noexcept {
    const std::uint64_t now = ticks();
    stages.requests.fetch_add(1, std::memory_order_relaxed);
    stages.direct.fetch_add(1, std::memory_order_relaxed);
    if (now <= slot.submitted_ticks) return;
    const auto took = static_cast<std::uint64_t>(ticks_to_ns(now - slot.submitted_ticks));
    stages.total.add(took);
    slot.direct_ns += (took >> 3) - (slot.direct_ns >> 3);
}

}  // namespace teal
