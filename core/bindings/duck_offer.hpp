// What the network loop offers for direct calls, on its way to the yard that opens the session.
#pragma once

#include <unistd.h>

#include <utility>

#include "duck/direct.hpp"

namespace teal {

struct DuckOffer {
    duck::DirectOffer offer;
    explicit DuckOffer(duck::DirectOffer given) : offer(std::move(given)) {}
    ~DuckOffer() {
        if (offer.fd >= 0) ::close(offer.fd);
    }
    DuckOffer(const DuckOffer&) = delete;
    DuckOffer& operator=(const DuckOffer&) = delete;
};

}  // namespace teal
