// Programs as boxes get them: images and initial stacks, of sessions and of judged runs.
#include "bindings/duck_image.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.hpp"
#include "cpu/clock.hpp"
#include "elf/stack.hpp"

namespace teal {
namespace {

constexpr std::uint64_t stack_room = 64 << 10;  // of the initial stack, for what lies on it

void set_stack(box::Image& image, const elf::Stack& stack, std::uint64_t end) {
    const auto skipped = static_cast<std::ptrdiff_t>(stack.pointer - stack.address);
    image.stack.assign(stack.bytes.begin() + skipped, stack.bytes.end());
    image.stack_end = end;
}

box::Image image_of(const DuckProgram& program) {
    const elf::Program& p = *program.program;
    box::Image image;
    image.fd = program.place->fd();
    image.steps = program.place->steps();
    image.entry = p.entry + program.bias;
    image.narrow = !p.is_64();
    image.tls_address = p.tls_bytes == 0 ? 0 : p.tls_address + program.bias;
    image.tls_file_bytes = p.tls_file_bytes;
    image.tls_bytes = p.tls_bytes;
    image.tls_align = std::max<std::uint64_t>(p.tls_align, 1);
    return image;
}

box::Image linux_image(const DuckProgram& program, bool resident) {
    box::Image image = image_of(program);
    elf::StackWish wish;
    wish.top = image.narrow ? box::layout::low_top : box::layout::stack_top(0);
    wish.room = stack_room;
    wish.arguments = {"program"};
    wish.capabilities = elf::host_capabilities();
    if (resident) wish.more.push_back({elf::at_teal, box::layout::duck});
    set_stack(image, elf::linux_stack(*program.program, program.bias, wish), wish.top);
    return image;
}

}  // namespace

box::Image resident_image(const DuckProgram& program) {
    if (!program.program->resident())
        throw Error(Code::invalid_argument, "the program has no duck_call(): compile it with `teal duck cc`, or run it once with `teal duck run`");
    return linux_image(program, true);
}

box::RunRecord judge_run(box::Yard& yard, const DuckProgram& program, const RunAsked& asked) {
    box::RunOrder order;
    order.abi = box::Abi::linux_static;
    order.image = linux_image(program, false);
    order.time_limit_ns = asked.time_ns;
    order.memory_bytes = asked.memory_bytes;
    order.in = asked.in;
    order.out = asked.out;
    order.err = asked.err;
    order.out_limit = order.err_limit = asked.output_bytes;
    return yard.judge(order);
}

}  // namespace teal
