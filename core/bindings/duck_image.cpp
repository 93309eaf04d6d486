// Programs as boxes get them, of sessions and of judged runs.
#include "bindings/duck_image.hpp"

#include "base/error.hpp"
#include "box/image.hpp"

namespace teal {

box::Image resident_image(const DuckProgram& program) {
    if (!program.program->resident())
        throw Error(Code::invalid_argument, "the program has no duck_call(): compile it with `teal duck cc`, or run it once with `teal duck run`");
    return box::resident_image(*program.place);
}

box::RunRecord judge_run(box::Yard& yard, const DuckProgram& program, const RunAsked& asked) {
    box::RunOrder order;
    order.abi = box::Abi::linux_static;
    order.image = box::linux_image(*program.place, {"program"}, {});
    order.time_limit_ns = asked.time_ns;
    order.memory_bytes = asked.memory_bytes;
    order.in = asked.in;
    order.out = asked.out;
    order.err = asked.err;
    order.out_limit = order.err_limit = asked.output_bytes;
    return yard.judge(order);
}

}  // namespace teal
