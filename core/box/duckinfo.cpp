#include "box/duckinfo.hpp"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "box/descriptor.hpp"
#include "cpu/clock.hpp"
#include "elf/stack.hpp"

namespace teal::box {
namespace {

constexpr std::uint64_t page = 4096;

std::uint64_t file_bytes(int fd) {
    struct stat info {};
    if (fd < 0 || ::fstat(fd, &info) != 0) return 0;
    return static_cast<std::uint64_t>(info.st_size);
}

// Where a part ends that begins in whole pages.
std::uint64_t end_of(std::uint64_t offset, std::uint64_t bytes, const char* what) {
    std::uint64_t end = 0;
    if (offset % page != 0 || !checked_add(offset, bytes, end))
        throw Error(Code::invalid_argument, std::string(what) + " of " + std::to_string(bytes) + " bytes at " + std::to_string(offset) + ": expected whole pages");
    return end;
}

void grow(int fd, std::uint64_t bytes, const char* what, std::uint64_t offset = 0) {
    if (bytes == 0) return;
    if (const std::uint64_t end = end_of(offset, bytes, what); file_bytes(fd) < end && ::ftruncate(fd, static_cast<off_t>(end)) != 0)
        throw Error(Code::invalid_argument, system_message((std::string(what) + " of " + std::to_string(bytes) + " bytes").c_str(), errno));
}

void need(int fd, std::uint64_t bytes, const char* what, std::uint64_t offset = 0) {
    if (bytes != 0 && file_bytes(fd) < end_of(offset, bytes, what))
        throw Error(Code::invalid_argument, std::string(what) + ": " + std::to_string(bytes) + " bytes of a run's buffer, its memfd has " + std::to_string(file_bytes(fd)) + "; give a larger one");
}

void clear(int fd, std::uint64_t bytes, std::uint64_t offset) {
    if (bytes == 0) return;
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
    if (at == MAP_FAILED) throw Error(Code::invalid_argument, system_message("map an output buffer to clear it", errno));
    std::memset(at, 0, bytes);
    ::munmap(at, bytes);
}

// The file's first page and the random one, read-only for the program.
Descriptor made_pages(const elf::Program& program) {
    std::byte pages[2 * page] = {};
    std::memcpy(pages, program.header_page.data(), std::min<std::size_t>(program.header_page.size(), page));
    std::memcpy(pages + page, elf::fixed_random.data(), elf::fixed_random.size());
    Descriptor fd(::memfd_create("teal-duckinfo", MFD_CLOEXEC));
    if (!fd || ::write(fd.get(), pages, sizeof pages) != sizeof pages) throw Error(Code::internal_error, system_message("memfd_create", errno));
    return fd;
}

Image duckinfo_image(const elf::Place& place, const elf::Layout& layout) {
    const elf::Program& program = *place.program();
    const elf::Stack stack = elf::duckinfo_stack(program, layout, ticks_per_second(), elf::host_capabilities().hwcap);
    Image image;
    image.fd = place.fd();
    // The whole region is the program's to read and write; what the file says lies over it.
    image.steps.push_back({elf::Step::What::zeros, elf::readable | elf::writable, layout.base, layout.region_bytes, 0});
    for (const elf::Step& step : place.steps()) image.steps.push_back(step);
    image.entry = program.entry + place.bias();
    image.narrow = !program.is_64();
    image.stack_end = layout.base + layout.region_bytes;
    image.stack.assign(stack.bytes.begin() + static_cast<std::ptrdiff_t>(stack.pointer - stack.address), stack.bytes.end());
    return image;
}

void add(RunOrder& order, int fd, std::uint64_t address, std::uint64_t bytes, bool writable, std::uint64_t offset = 0, bool counted = true) {
    if (bytes != 0) order.buffers.push_back({fd, address, round_up(bytes, page), offset, writable, counted});
}

RunRecord judge(Yard& yard, const elf::Place& place, const DuckInfoOrder& given) {
    const elf::Program* program = place.program();
    if (program == nullptr || !program->duckinfo)
        throw Error(Code::invalid_argument, "Can't load ELF: it must be read as a DuckInfo program");
    grow(given.out, given.out_limit, "stdout");
    grow(given.err, given.err_limit, "stderr");
    grow(given.ob, given.ob_bytes, "an output buffer", given.ob_offset);
    need(given.in, given.in_bytes, "stdin", given.in_offset);
    need(given.ib, given.ib_bytes, "an input buffer", given.ib_offset);
    need(given.out, given.out_limit, "stdout");
    need(given.err, given.err_limit, "stderr");
    if (given.clear_ob) clear(given.ob, given.ob_bytes, given.ob_offset);
    const elf::Layout layout =
        elf::layout_of(*program, {given.memory_bytes, given.in_bytes, given.out_limit, given.err_limit, given.ib_bytes, given.ob_bytes});
    const Descriptor pages = made_pages(*program);
    RunOrder order;
    order.abi = Abi::duckinfo;
    order.image = duckinfo_image(place, layout);
    order.time_limit_ns = given.time_limit_ns;
    order.wall_limit_ns = given.wall_limit_ns;
    order.memory_bytes = given.memory_bytes;
    order.stack_bytes = 0;
    order.pin = given.pin;
    order.report_address = layout.stack_page;
    add(order, given.in, layout.stdin_at, given.in_bytes, false, given.in_offset, false);
    add(order, given.out, layout.stdout_at, given.out_limit, true);
    add(order, given.err, layout.stderr_at, given.err_limit, true);
    add(order, given.ib, layout.ib_at, given.ib_bytes, false, given.ib_offset);
    add(order, given.ob, layout.ob_at, given.ob_bytes, true, given.ob_offset);
    add(order, pages.get(), layout.header_page, page, false);
    add(order, pages.get(), layout.random_page, page, false, page);
    RunRecord record = yard.judge(order);
    if (record.report.size() == page) {
        const elf::DuckInfoOutputs outputs = elf::duckinfo_outputs(*program, layout, std::span<const std::byte, page>(record.report.data(), page));
        record.stdout_size = outputs.stdout_bytes;
        record.stderr_size = outputs.stderr_bytes;
        record.stdout_truncated = outputs.stdout_cut;
        record.stderr_truncated = outputs.stderr_cut;
    }
    record.report.clear();
    return record;
}

}  // namespace

RunRecord judge_duckinfo(Yard& yard, const elf::Place& place, const DuckInfoOrder& order) {
    try {
        return judge(yard, place, order);
    } catch (const Error& error) {
        RunRecord record;
        record.reason = error.what();
        return record;
    }
}

}  // namespace teal::box
