#include "elf/place.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace teal::elf {
namespace {

constexpr std::uint64_t most_place_bytes = std::uint64_t{1} << 40;
constexpr std::uint64_t address_end = std::uint64_t{1} << 47;

std::uint64_t now_ns() {
    timespec at{};
    ::clock_gettime(CLOCK_MONOTONIC, &at);
    return static_cast<std::uint64_t>(at.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(at.tv_nsec);
}

// It can be mapped executable and never be executed as a file; kernels before 6.3 do not know that flag.
int make_memfd() {
    int fd = ::memfd_create("teal-place", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) fd = ::memfd_create("teal-place", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) throw Error(Code::quota_exceeded, system_message("memfd_create for a place", errno));
    return fd;
}

bool all_zeros(const std::byte* page) {
    return page[0] == std::byte{0} && std::memcmp(page, page + 1, page_bytes - 1) == 0;
}

void check_bias(const Program& program, std::uint64_t bias) {
    if (program.kind == Kind::fixed) {
        if (bias == 0) return;
        throw Error(Code::invalid_argument, "a program with a fixed address was given bias " + std::to_string(bias) + ": expected 0");
    }
    std::uint64_t end = 0;
    if (bias % page_bytes != 0 || !checked_add(program.high, bias, end) || end > address_end)
        throw Error(Code::invalid_argument, "bias " + std::to_string(bias) + " for a program that ends at " + std::to_string(program.high) +
                    ": expected whole pages, and an end below 2^47");
}

bool about(const Step& a, const Step& b) { return a.what == b.what && a.address == b.address && a.bytes == b.bytes && a.offset == b.offset; }

}  // namespace

std::vector<Step> steps_for(const Program& program, std::uint64_t bias) {
    std::vector<Step> steps;
    for (const Range& range : program.ranges) {
        const std::uint64_t file_bytes = range.file_pages * page_bytes;
        if (range.file_pages > 0) steps.push_back({Step::What::map, range.protection, range.address + bias, file_bytes, range.offset});
        if (range.pages > range.file_pages)
            steps.push_back({Step::What::zeros, range.protection, range.address + bias + file_bytes, (range.pages - range.file_pages) * page_bytes, 0});
    }
    return steps;
}

std::vector<Step> steps_between(const Program& before, std::uint64_t before_bias, const Program& after, std::uint64_t after_bias) {
    const std::vector<Step> had = steps_for(before, before_bias);
    const std::vector<Step> wanted = steps_for(after, after_bias);
    std::vector<Step> unmaps, maps, protects, discards;
    for (const Step& step : had)
        if (std::none_of(wanted.begin(), wanted.end(), [&step](const Step& other) { return about(step, other); }))
            unmaps.push_back({Step::What::unmap, 0, step.address, step.bytes, 0});
    for (const Step& step : wanted) {
        const auto same = std::find_if(had.begin(), had.end(), [&step](const Step& other) { return about(step, other); });
        if (same == had.end()) {
            maps.push_back(step);
            continue;
        }
        if (same->protection != step.protection) protects.push_back({Step::What::protect, step.protection, step.address, step.bytes, 0});
        if ((same->protection & writable) != 0) discards.push_back({Step::What::discard, 0, step.address, step.bytes, 0});
    }
    std::vector<Step> steps = std::move(unmaps);
    for (const auto* more : {&maps, &protects, &discards}) steps.insert(steps.end(), more->begin(), more->end());
    return steps;
}

struct Place::State {
    int fd = -1;
    std::byte* memory = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t used = 0;         // bytes that may be other than zero, from the start
    std::uint64_t generation = 0;
    std::uint64_t bias = 0, before_bias = 0;
    std::shared_ptr<const Program> program, before;

    ~State() {
        if (memory != nullptr) ::munmap(memory, bytes);
        if (fd >= 0) ::close(fd);
    }

    void create(std::uint64_t wanted) {
        if (wanted == 0 || wanted > most_place_bytes)
            throw Error(Code::invalid_argument, "a place of " + std::to_string(wanted) + " bytes: expected 1 to 2^40");
        bytes = round_up(wanted, page_bytes);
        fd = make_memfd();
        int result = ::ftruncate(fd, static_cast<off_t>(bytes));
        while (result == 0 && (result = ::fallocate(fd, 0, 0, static_cast<off_t>(bytes))) != 0 && errno == EINTR) result = 0;
        if (result != 0) throw Error(Code::quota_exceeded, "a place of " + std::to_string(bytes) + " bytes: " + system_message("reserving its pages", errno));
        void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
        if (at == MAP_FAILED) throw Error(Code::quota_exceeded, "a place of " + std::to_string(bytes) + " bytes: " + system_message("mmap", errno));
        memory = static_cast<std::byte*>(at);
        // From here on our own mapping is the only one that can be written through.
        if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
            throw Error(Code::internal_error, system_message("sealing a place's memfd (Linux 5.1 or newer has F_SEAL_FUTURE_WRITE)", errno));
    }

    void write(const Program& next, LoadReport& report) {
        for (std::uint64_t at = 0; at < next.image.size(); at += page_bytes) {
            const std::byte* from = next.image.data() + at;
            if (std::memcmp(memory + at, from, page_bytes) == 0) {
                ++report.pages_same;
                continue;
            }
            std::memcpy(memory + at, from, page_bytes);
            ++(all_zeros(from) ? report.pages_zeroed : report.pages_written);
        }
        // What a longer program left: nobody maps it now, but a box is not to find it either.
        for (std::uint64_t at = next.image.size(); at < used; at += page_bytes) {
            if (all_zeros(memory + at)) continue;
            std::memset(memory + at, 0, page_bytes);
            ++report.pages_zeroed;
        }
        used = next.image.size();
    }
};

Place::Place(std::uint64_t bytes) : state_(std::make_unique<State>()) { state_->create(bytes); }
Place::~Place() = default;

LoadReport Place::load(std::shared_ptr<const Program> program, std::uint64_t bias) {
    const std::uint64_t began = now_ns();
    State& s = *state_;
    if (!program) throw Error(Code::invalid_argument, "a place was given no program");
    check_bias(*program, bias);
    if (program->image.size() > s.bytes)
        throw Error(Code::quota_exceeded, "the program has " + std::to_string(program->image.size()) + " bytes of file pages: its place has room for " +
                    std::to_string(s.bytes));
    LoadReport report;
    report.known = s.program && s.program->digest == program->digest && s.program->ranges == program->ranges;
    if (!report.known) s.write(*program, report);
    if (!report.known || bias != s.bias) ++s.generation;
    s.before = std::exchange(s.program, std::move(program));
    s.before_bias = std::exchange(s.bias, bias);
    report.steps = steps_since_last().size();
    report.ns = now_ns() - began;
    return report;
}

const Program* Place::program() const noexcept { return state_->program.get(); }
std::uint64_t Place::bias() const noexcept { return state_->bias; }
std::uint64_t Place::bytes() const noexcept { return state_->bytes; }
std::uint64_t Place::generation() const noexcept { return state_->generation; }
int Place::fd() const noexcept { return state_->fd; }

std::vector<Step> Place::steps() const {
    if (!state_->program) return {};
    return steps_for(*state_->program, state_->bias);
}

std::vector<Step> Place::steps_since_last() const {
    if (!state_->program) return {};
    if (!state_->before) return steps();
    return steps_between(*state_->before, state_->before_bias, *state_->program, state_->bias);
}

}  // namespace teal::elf
