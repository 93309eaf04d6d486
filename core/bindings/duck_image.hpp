// A program as boxes get it: what to map, and the stack that it starts with.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "box/yard.hpp"
#include "elf/place.hpp"
#include "elf/program.hpp"

namespace teal {

struct DuckProgram {
    std::shared_ptr<const elf::Program> program;
    std::unique_ptr<elf::Place> place;
    std::uint64_t bias = 0;
    elf::LoadReport report;
};

// For a resident session. Throws invalid_argument when the program has no duck_call().
box::Image resident_image(const DuckProgram& program);

struct RunAsked {
    std::string abi;  // linux or duckinfo
    std::uint64_t time_ns = 0, memory_bytes = 0, output_bytes = 0;
    int in = -1, out = -1, err = -1;
};
// Of a program for Linux; one that was read as a DuckInfo program is judged by box::judge_duckinfo().
box::RunRecord judge_run(box::Yard& yard, const DuckProgram& program, const RunAsked& asked);

}  // namespace teal
