// What tests of boxes begin with: the programs beside them, loaded, and a yard.
#pragma once

#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "box/actor.h"
#include "box/caller.hpp"
#include "box/image.hpp"
#include "box/yard.hpp"

namespace teal::box::test {

struct Loaded {
    std::shared_ptr<elf::Place> place;
    Image image;
};

inline std::shared_ptr<elf::Place> load(const std::string& name, const elf::Rules& rules = {}) {
    const std::string path = std::string(TEAL_BOX_PROGRAMS) + "/" + name;
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const auto program = elf::read_program(std::as_bytes(std::span(bytes)), name.c_str(), rules);
    auto place = std::make_shared<elf::Place>(program->image.size());
    place->load(program, bias_for(*program));
    return place;
}

inline Loaded load_resident(const std::string& name) {
    Loaded loaded{load(name), {}};
    loaded.image = resident_image(*loaded.place);
    return loaded;
}

struct Opened {
    std::shared_ptr<Session> session;
    std::unique_ptr<Caller> caller;
    Answer call(std::initializer_list<std::uint64_t> words, std::uint64_t deadline = 0) {
        return caller->call(words.begin(), words.size() * 8, deadline);
    }
};

inline Opened open(Yard& yard, const SessionOrder& order) {
    Opened opened;
    opened.session = yard.open(order);
    opened.caller = std::make_unique<Caller>(opened.session->control_fd(), opened.session->fate_fd(), opened.session->facts());
    return opened;
}

inline SessionOrder order_of(const Loaded& loaded) {
    SessionOrder order;
    order.image = loaded.image;
    order.call_limit_ns = 20'000'000'000;
    return order;
}

template <class Value>
Value output(Caller& caller) {
    Value value{};
    std::memcpy(&value, caller.output(), sizeof value);
    return value;
}

// The session next door: answers whatever happens to others.
inline bool answers(Opened& opened) {
    const Answer answer = opened.call({act_echo, 77});
    return answer.outcome == Outcome::done && answer.result == 8 && output<std::uint64_t>(*opened.caller) == 77;
}

inline YardOptions yard_options() {
    YardOptions options;
    options.program = TEAL_BOX;
    return options;
}

}  // namespace teal::box::test
