#include "capi/pool_session.hpp"

namespace teal::capi {

std::unique_ptr<PoolSession> open_session(Control& control, const std::string& pool) {
    Answer answer = control.ask([&](Writer& out) {
        out.map(2);
        out.text("t"); out.text("open_session");
        out.text("pool"); out.text(pool);
    });
    Reader reader = answer.body();
    std::uint64_t index = UINT64_MAX;
    std::uint64_t epoch = UINT64_MAX;
    std::uint64_t slots = 0;
    std::uint64_t idle_ns = 0;
    std::uint32_t entries = 0;
    bool good = reader.map(entries);
    for (; good && entries > 0; --entries) {
        std::string_view key;
        good = reader.text(key) && (key == "index"     ? reader.number(index)
                                    : key == "epoch"   ? reader.number(epoch)
                                    : key == "slots"   ? reader.number(slots)
                                    : key == "idle_ns" ? reader.number(idle_ns)
                                                       : reader.skip());
    }
    if (!good || index > UINT32_MAX || epoch > UINT32_MAX || slots == 0 || slots > 65536 || idle_ns > 3600'000'000'000u)
        throw Failure(LAIKA_ERR_INTERNAL, "the host describes the session in a way that is not understood");
    auto map = map_session(answer.take_fd().take(), static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(slots));
    auto made = std::make_unique<PoolSession>();
    made->pool = pool;
    made->index = static_cast<std::uint32_t>(index);
    made->session = std::make_shared<ClientSession>(std::move(map), idle_ns, control.socket());
    made->memory = std::make_unique<Memory>(made->session, control, made->index, pool);
    return made;
}

}  // namespace teal::capi
