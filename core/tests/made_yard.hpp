// What tests of boxes begin with: the programs beside them, loaded, and a yard.
#pragma once

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "box/caller.hpp"
#include "box/image.hpp"
#include "box/yard.hpp"

namespace teal::box::test {

struct Loaded {
    std::shared_ptr<elf::Place> place;
    Image image;
};

inline std::shared_ptr<elf::Place> load(const std::string& name) {
    const std::string path = std::string(TEAL_BOX_PROGRAMS) + "/" + name;
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const auto program = elf::read_program(std::as_bytes(std::span(bytes)), name.c_str());
    auto place = std::make_shared<elf::Place>(program->image.size());
    place->load(program, bias_for(*program));
    return place;
}

inline Loaded load_resident(const std::string& name) {
    Loaded loaded{load(name), {}};
    loaded.image = resident_image(*loaded.place);
    return loaded;
}

inline YardOptions yard_options() {
    YardOptions options;
    options.program = TEAL_BOX;
    return options;
}

}  // namespace teal::box::test
