// Fibers: entered, left, gone on with, discarded; what a function keeps is kept.
#include "kernel/fiber.hpp"

#include <cfenv>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/check.hpp"

namespace {

using teal::Fiber;
using teal::Fibers;

struct Scene {
    Fiber* fiber = nullptr;
    int steps = 0;
    int leaves = 0;
};

void step_by_step(void* context) {
    auto& scene = *static_cast<Scene*>(context);
    for (int i = 0; i < scene.leaves; ++i) {
        ++scene.steps;
        scene.fiber->leave();
    }
    ++scene.steps;
}

void runs_to_its_end() {
    Fiber fiber;
    CHECK(fiber.done());
    Scene scene{&fiber, 0, 0};
    for (int i = 1; i <= 3; ++i) {  // used again
        fiber.prepare(step_by_step, &scene);
        CHECK(!fiber.done());
        CHECK(fiber.enter());
        CHECK(fiber.done());
        CHECK_EQ(scene.steps, i);
    }
}

void goes_on_where_it_left() {
    Fiber fiber;
    Scene scene{&fiber, 0, 1000};
    fiber.prepare(step_by_step, &scene);
    for (int i = 1; i <= 1000; ++i) {
        CHECK(!fiber.enter());
        CHECK_EQ(scene.steps, i);
    }
    CHECK(fiber.enter());
    CHECK_EQ(scene.steps, 1001);
}

void many_take_turns() {
    Fibers fibers;
    constexpr int count = 100;
    std::vector<std::unique_ptr<Fiber>> all;
    std::vector<Scene> scenes(count);
    for (int i = 0; i < count; ++i) {
        all.push_back(fibers.take());
        scenes[static_cast<std::size_t>(i)] = {all.back().get(), 0, i};
        all.back()->prepare(step_by_step, &scenes[static_cast<std::size_t>(i)]);
    }
    int running = count;
    while (running > 0)
        for (auto& fiber : all)
            if (!fiber->done() && fiber->enter()) --running;
    for (int i = 0; i < count; ++i) CHECK_EQ(scenes[static_cast<std::size_t>(i)].steps, i + 1);
    for (auto& fiber : all) fibers.give(std::move(fiber));
}

void discarded_in_the_middle() {
    Fibers fibers;
    for (int i = 0; i < 1000; ++i) {
        std::unique_ptr<Fiber> fiber = fibers.take();
        Scene scene{fiber.get(), 0, 5};
        fiber->prepare(step_by_step, &scene);
        CHECK(!fiber->enter());
        CHECK(!fiber->enter());
        CHECK_EQ(scene.steps, 2);
        fibers.give(std::move(fiber));
    }
}

// Rounding is one of the things that a called function keeps.
void control_words_are_its_own() {
    Fiber fiber;
    struct Rounding {
        Fiber* fiber;
        volatile double third;
    } rounding{&fiber, 0};
    const volatile double one = 1;
    const volatile double three = 3;
    const double nearest = one / three;
    fiber.prepare([](void* context) {
        auto& r = *static_cast<Rounding*>(context);
        std::fesetround(FE_UPWARD);
        r.fiber->leave();
        const volatile double a = 1;
        const volatile double b = 3;
        r.third = a / b;
        std::fesetround(FE_TONEAREST);
    }, &rounding);
    CHECK(!fiber.enter());
    CHECK_EQ(one / three, nearest);
    CHECK_EQ(std::fegetround(), FE_TONEAREST);
    CHECK(fiber.enter());
    CHECK(rounding.third > nearest);
    CHECK_EQ(one / three, nearest);
}

void has_room() {
    Fiber fiber;
    struct Deep {
        static std::uint64_t down(unsigned depth) noexcept {
            volatile std::uint64_t frame[16] = {depth};
            return depth == 0 ? frame[0] : down(depth - 1) + frame[0];
        }
    };
    std::uint64_t sum = 0;
    fiber.prepare([](void* context) { *static_cast<std::uint64_t*>(context) = Deep::down(300); }, &sum);
    CHECK(fiber.enter());
    CHECK_EQ(sum, 300 * 301 / 2);
    int here = 0;
    CHECK(!fiber.holds(&here));
}

// Exceptions thrown and caught there find their way.
void exceptions_stay_inside() {
    Fiber fiber;
    int caught = 0;
    fiber.prepare([](void* context) {
        try {
            throw 7;
        } catch (int value) {
            *static_cast<int*>(context) = value;
        }
    }, &caught);
    CHECK(fiber.enter());
    CHECK_EQ(caught, 7);
}

}  // namespace

int main() {
    runs_to_its_end();
    goes_on_where_it_left();
    many_take_turns();
    discarded_in_the_middle();
    control_words_are_its_own();
    has_room();
    exceptions_stay_inside();
    return teal::check::summary();
}
