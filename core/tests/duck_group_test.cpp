// One blob to several ducks by multicast on the loopback: what arrives that way is not sent again, what does not is repaired.
#include <cstring>
#include <memory>
#include <vector>

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.hpp"
#include "check.hpp"
#include "duck/group.hpp"
#include "duck/net.hpp"

namespace {

using namespace teal;
using namespace teal::duck;

std::unique_ptr<Net> duck(bool listens, bool keyed) {
    NetOptions options;
    if (keyed) options.key.assign(32, std::byte{5});
    if (listens) options.group_interface = "127.0.0.1";
    auto net = std::make_unique<Net>(options);
    net->start();
    return net;
}

std::shared_ptr<Remote> reach(const Net& net, bool keyed) {
    RemoteOptions options;
    if (keyed) options.key.assign(32, std::byte{5});
    options.dead_after_ns = 20'000'000'000;
    return Remote::connect("127.0.0.1:" + std::to_string(net.udp_port()), options);
}

bool has(Net& net, const std::vector<std::byte>& blob) {
    for (;;) {
        NetEvent event;
        if (!net.next_event(event)) {
            pollfd wait{net.event_fd(), POLLIN, 0};
            if (::poll(&wait, 1, 20'000) == 0) return false;
            continue;
        }
        if (event.kind != NetEventKind::blob) continue;
        void* at = ::mmap(nullptr, blob.size(), PROT_READ, MAP_SHARED, event.fd, 0);
        const bool same = event.size == blob.size() && at != MAP_FAILED && std::memcmp(at, blob.data(), blob.size()) == 0;
        if (at != MAP_FAILED) ::munmap(at, blob.size());
        ::close(event.fd);
        return same;
    }
}

void test_group(bool keyed, unsigned port) {
    const auto first = duck(true, keyed), second = duck(true, keyed), deaf = duck(false, keyed);
    const std::shared_ptr<Remote> remotes[] = {reach(*first, keyed), reach(*second, keyed), reach(*deaf, keyed)};
    std::vector<std::byte> blob(3'000'001);
    for (std::size_t i = 0; i < blob.size(); ++i) blob[i] = static_cast<std::byte>((i * 2654435761U + port) >> 13);
    GroupOptions options;
    options.interface = "127.0.0.1";
    options.group = "239.255.84.76:" + std::to_string(port);
    const GroupPut put = put_group(remotes, sha256(blob), blob, options);
    CHECK(has(*first, blob));
    CHECK(has(*second, blob));
    CHECK(has(*deaf, blob));
    CHECK_EQ(put.ducks.size(), 3);
    CHECK_EQ(put.ducks[2].sent_bytes, blob.size());
    CHECK_EQ(deaf->figures().group_bytes, 0);
    for (const int i : {0, 1}) {
        const std::uint64_t came = (i == 0 ? *first : *second).figures().group_bytes;
        CHECK_EQ(came + put.ducks[static_cast<std::size_t>(i)].sent_bytes, blob.size());
        if (came == 0) std::printf("no multicast on the loopback here: everything was repaired\n");
    }
    const GroupPut again = put_group(remotes, sha256(blob), blob, options);
    CHECK_EQ(again.group_bytes, 0);
    for (const PutResult& result : again.ducks) CHECK(result.had);
}

// Three ducks on a link that loses: each gets what it lacks over its own connection.
void test_loss(unsigned port) {
    std::unique_ptr<Net> nets[3];
    std::vector<std::shared_ptr<Remote>> remotes;
    for (auto& net : nets) {
        net = duck(true, true);
        remotes.push_back(reach(*net, true));
    }
    std::vector<std::byte> blob(2'000'003);
    for (std::size_t i = 0; i < blob.size(); ++i) blob[i] = static_cast<std::byte>((i * 2654435761U + port) >> 11);
    GroupOptions options;
    options.interface = "127.0.0.1";
    options.group = "239.255.84.76:" + std::to_string(port);
    options.lost = [](std::uint64_t number) { return number % 7 == 3; };
    const GroupPut put = put_group(remotes, sha256(blob), blob, options);
    for (std::size_t i = 0; i < 3; ++i) {
        CHECK(has(*nets[i], blob));
        CHECK_EQ(nets[i]->figures().group_bytes + put.ducks[i].sent_bytes, blob.size());
        CHECK(put.ducks[i].sent_bytes >= blob.size() / 8);
    }
}

}  // namespace

int main() {
    const unsigned port = 20'000 + static_cast<unsigned>(::getpid()) % 20'000;
    test_group(false, port);
    test_group(true, port + 20'000);
    test_loss(port + 20'001);
    bool refused = false;
    try {
        GroupOptions options;
        options.interface = "::1";
        (void)put_group({}, {}, {}, options);
    } catch (const Error& error) {
        refused = error.code() == Code::invalid_argument;
    }
    CHECK(refused);
    refused = false;
    try {
        GroupOptions options;
        options.interface = "127.0.0.1";
        options.group = "127.0.0.1:9976";
        (void)put_group({}, {}, {}, options);
    } catch (const Error& error) {
        refused = std::string(error.what()).find("no multicast group") != std::string::npos;
    }
    CHECK(refused);
    return check::summary();
}
