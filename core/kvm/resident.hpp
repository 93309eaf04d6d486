// A resident program in a guest: a box (core/box) whose inside is a virtual machine.
//
// Theory of operation. This process is what the yard takes for a box: it gets the same message, maps the same region at the same addresses,
// says the same words and ends in the same ways, but the program runs in ring 3 of a guest that has nothing else in it. Each core is a
// thread that stays in the guest while it computes and polls; calls never leave it. A core that is idle leaves by a system call and sleeps
// here on the same words as a process box. A trap of the program ends this process by the signal that Linux would have sent; exit() ends it
// with that status.
// Input buffers are inputs.hpp's. Orders come over the yard's socket and are taken when the loop in the guest says that there is one.
#pragma once

#if defined(__x86_64__)

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "duck/include/duck.h"

#include "box/box.hpp"
#include "box/message.hpp"
#include "kvm/calls.hpp"
#include "kvm/guest.hpp"
#include "kvm/inputs.hpp"
#include "kvm/serve_page.hpp"

namespace teal::kvm {

class Resident {
public:
    struct Order {
        box::BecomeMessage message;
        std::vector<elf::Step> steps;
        std::vector<std::byte> stack;
        int image = -1, control = -1;               // descriptors; not kept
        int socket = -1;                            // of the yard
        std::span<const std::byte> loop;            // the code of inside/serve.cpp
        std::unique_ptr<Machine> machine;           // made ahead; null: not
    };

    // The guest with all that the order says in it. Throws Error; stage() then says how far it came.
    explicit Resident(Order order);
    ~Resident();
    Resident(const Resident&) = delete;
    Resident& operator=(const Resident&) = delete;

    // Runs the program: core 0 on this thread. Returns its exit status, or ends the process by a signal.
    int run();
    static box::BecomeStage stage() noexcept;

private:
    [[nodiscard]] std::uint64_t count_tables() const noexcept;
    [[nodiscard]] std::uint64_t heap_bytes() const noexcept;
    [[nodiscard]] std::uint64_t tls_distance() const noexcept;
    [[nodiscard]] std::uint64_t tls_room() const noexcept;
    void map_region();
    void map_image();
    void map_stacks();
    void map_loop();
    std::uint64_t make_tls(std::uint32_t core);
    void begin_core(std::uint32_t core, std::uint64_t thread_pointer);
    void follow(std::uint32_t core);
    // False: the program has ended.
    bool answer(std::uint32_t core, const Event& event);
    std::uint64_t answer_loop(std::uint64_t number, std::uint64_t argument);
    void take_orders();
    int obey(const box::OrderMessage& message, int fd);
    void say(const char* text) noexcept;               // a line in the session's log
    [[noreturn]] void die(const Event& event, int number) noexcept;

    Order order_;
    box::ControlPage* control_ = nullptr;
    std::byte* duck_ = nullptr;
    LoopState* loop_ = nullptr;
    std::uint64_t heap_ = 0;
    bool closing_ = false;
    std::unique_ptr<Guest> guest_;
    std::unique_ptr<Inputs> inputs_;
    std::mutex calls_mutex_;                           // guards calls_: cores may make Linux calls at once
    std::unique_ptr<Calls> calls_;
    std::vector<std::thread> threads_;
};

}  // namespace teal::kvm

#endif
