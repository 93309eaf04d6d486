#include "box/image.hpp"

#include "base/error.hpp"
#include "elf/stack.hpp"

namespace teal::box {
namespace {

constexpr std::uint64_t most_stack_words = 65536 - 4096;

Image image_of(const elf::Place& place, const elf::StackWish& given) {
    const elf::Program* program = place.program();
    if (program == nullptr) throw Error(Code::invalid_argument, "a place with no program in it; give one that was loaded");
    Image image;
    image.fd = place.fd();
    image.steps = place.steps();
    image.entry = program->entry + place.bias();
    image.narrow = !program->is_64();
    elf::StackWish wish = given;
    wish.top = image.narrow ? layout::low_top : layout::stack_top(0);
    wish.room = most_stack_words;
    wish.capabilities = elf::host_capabilities();
    elf::Stack stack = elf::linux_stack(*program, place.bias(), wish);
    image.stack_end = wish.top;
    image.stack.assign(stack.bytes.begin() + static_cast<std::ptrdiff_t>(stack.pointer - stack.address), stack.bytes.end());
    image.tls_address = program->tls_address + place.bias();
    image.tls_file_bytes = program->tls_file_bytes;
    image.tls_bytes = program->tls_bytes;
    image.tls_align = program->tls_align == 0 ? 1 : program->tls_align;
    return image;
}

}  // namespace

std::uint64_t bias_for(const elf::Program& program) {
    const std::uint64_t bias = program.kind == elf::Kind::position_independent ? layout::bias : 0;
    const std::uint64_t highest = program.is_64() ? layout::highest_program : std::uint64_t{layout::low_top} - (std::uint64_t{1} << 30);
    if (program.low + bias < layout::lowest_program || program.high > highest - bias)
        throw Error(Code::invalid_argument, "the program's addresses, " + std::to_string(program.low) + " to " + std::to_string(program.high) +
                                                ", are not between " + std::to_string(layout::lowest_program) + " and " + std::to_string(highest) +
                                                "; link it at a usual address, or as static PIE");
    return bias;
}

Image resident_image(const elf::Place& place) {
    elf::StackWish wish;
    wish.arguments = {"program"};
    wish.more = {{elf::at_teal, layout::duck}};
    return image_of(place, wish);
}

Image linux_image(const elf::Place& place, const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
    elf::StackWish wish;
    wish.arguments = arguments;
    wish.environment = environment;
    return image_of(place, wish);
}

}  // namespace teal::box
