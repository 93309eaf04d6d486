// A fiber: a stack of its own for one run of a kernel, so that the run can be left in the middle and gone on with later.
//
// Theory of operation. enter() saves the registers that a called function has to keep and goes over to the fiber's stack; leave(), called
// there, does the reverse. Both are a handful of instructions and no system call. Whoever leaves from inside a signal handler leaves the
// rest of the machine's state (all vector registers among them) in the frame that the operating system laid on this very stack; going on
// returns through that frame. Stacks are whole mappings with a page below that faults, and are used again.
//
// A fiber that has left may be discarded: nothing on its stack is destroyed. So what runs there owns nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace teal {

class Fiber {
public:
    using Body = void (*)(void* context);

    static constexpr std::size_t stack_bytes = 256 * 1024;  // of which pages come into being as they are touched

    Fiber();  // throws quota_exceeded: no memory for a stack
    ~Fiber();
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    // What the next enter() runs from its beginning. Whatever ran there before is discarded.
    void prepare(Body body, void* context) noexcept;
    // From a thread's own stack: runs until the body returns or leaves. True: it has returned.
    bool enter() noexcept;
    // On the fiber's stack: enter() returns false. Comes back when it is entered again.
    void leave() noexcept;

    [[nodiscard]] bool done() const noexcept { return done_; }
    // Is the address within its stack?
    [[nodiscard]] bool holds(const void* address) const noexcept;

private:
    static void first(void* self) noexcept;

    std::byte* base_ = nullptr;   // of the mapping: the page that faults
    void* stack_pointer_ = nullptr;
    void* outside_ = nullptr;     // stack pointer of whoever entered
    Body body_ = nullptr;
    void* context_ = nullptr;
    bool done_ = true;
    // What the sanitizers want to be told of stacks; unused otherwise.
    void* shadow_ = nullptr;
    void* outer_shadow_ = nullptr;
    const void* outer_bottom_ = nullptr;
    std::size_t outer_bytes_ = 0;
};

// Fibers that are free to use. One thread's own.
class Fibers {
public:
    std::unique_ptr<Fiber> take();                    // throws quota_exceeded
    void give(std::unique_ptr<Fiber> fiber) noexcept;  // done, or to be discarded

private:
    static constexpr std::size_t most_kept = 64;
    std::vector<std::unique_ptr<Fiber>> free_;
};

}  // namespace teal
