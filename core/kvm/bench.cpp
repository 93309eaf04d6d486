#include "kvm/bench.hpp"

#if defined(__x86_64__)

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/mman.h>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "kvm/fuse.hpp"
#include "kvm/trap_page.hpp"

namespace teal::kvm {
namespace {

constexpr unsigned windows = 64;
constexpr std::uint64_t many_pages = 64;    // in a row: given back to the kernel instead of cleared

Access access_of(std::uint32_t protection) noexcept {
    return {.user = true, .write = (protection & elf::writable) != 0, .execute = (protection & elf::executable) != 0};
}

std::uint64_t stack_end_of(const box::RunOrder& order) noexcept {
    return order.image.stack_end != 0 ? order.image.stack_end : box::layout::stack_top(0);
}

bool same_place(const box::RunOrder::Buffer& a, const box::RunOrder::Buffer& b) noexcept {
    return a.address == b.address && a.bytes == b.bytes && a.writable == b.writable && a.counted == b.counted;
}

// Steps as they are when all are done: where two lie over each other, the later one counts.
std::vector<elf::Step> flatten(const std::vector<elf::Step>& steps) {
    std::vector<elf::Step> flat;
    for (const elf::Step& step : steps) {
        const std::uint64_t end = step.address + step.bytes;
        std::vector<elf::Step> kept;
        for (const elf::Step& under : flat) {
            const std::uint64_t under_end = under.address + under.bytes;
            if (under_end <= step.address || under.address >= end) {
                kept.push_back(under);
                continue;
            }
            if (under.address < step.address) {
                kept.push_back(under);
                kept.back().bytes = step.address - under.address;
            }
            if (under_end > end) {
                kept.push_back(under);
                kept.back().address = end;
                kept.back().bytes = under_end - end;
                kept.back().offset += end - under.address;
            }
        }
        kept.push_back(step);
        flat = std::move(kept);
    }
    return flat;
}

void check(bool good, const char* what) {
    if (!good) throw Error(Code::invalid_argument, what);
}

}  // namespace

Bench::~Bench() { clear(); }

void Bench::clear() noexcept {
    for (const Piece& piece : pieces_) {
        if (piece.first != nullptr) ::munmap(const_cast<std::byte*>(piece.first), piece.area->bytes);
    }
    guest_.reset();
    pieces_.clear();
    buffers_.clear();
    image_id_ = 0;
}

bool Bench::fits(const box::RunOrder& order) const noexcept {
    return guest_ != nullptr && order.image.steps == order_.image.steps && order.abi == order_.abi &&
           order.memory_bytes == order_.memory_bytes && order.stack_bytes == order_.stack_bytes &&
           stack_end_of(order) == stack_end_of(order_) &&
           std::equal(order.buffers.begin(), order.buffers.end(), order_.buffers.begin(), order_.buffers.end(), same_place);
}

void Bench::add_piece(std::uint64_t virt, std::uint64_t bytes, Access access, bool image, std::uint64_t offset) {
    pieces_.push_back({&guest_->add(virt, bytes, access), offset, image});
}

// What lies between the image and the stack of a DuckInfo program is its heap, unless its stack is a part of the image; an ordinary
// program's begins behind its image.
void Bench::plan_heap(const box::RunOrder& order) {
    heap_ = system_bytes;
    for (const elf::Step& step : order.image.steps) {
        heap_ = std::max(heap_, step.address + step.bytes);
    }
    heap_bytes_ = round_up(order.memory_bytes, page_bytes);
    if (order.abi == box::Abi::duckinfo) {
        heap_bytes_ = stack_low_ > heap_ && order.stack_bytes != 0 ? std::min(heap_bytes_, stack_low_ - heap_) : 0;
    }
}

void Bench::build(const box::RunOrder& order) {
    check(order.memory_bytes <= std::uint64_t{1} << 36 && order.stack_bytes <= std::uint64_t{1} << 32, "more memory than a run may have");
    clear();
    order_ = order;
    stack_end_ = stack_end_of(order);
    stack_low_ = stack_end_ - round_up(order.stack_bytes, page_bytes);
    check(stack_end_ % page_bytes == 0 && stack_low_ <= stack_end_, "a stack that does not end with a page");
    plan_heap(order);
    std::uint64_t tables = Tables::tables_for(stack_low_, stack_end_ - stack_low_) + Tables::tables_for(heap_, heap_bytes_);
    for (const elf::Step& step : order.image.steps) {
        std::uint64_t end = 0;
        check(checked_add(step.address, step.bytes, end) && end <= box::layout::highest_program, "a program's pages where no program may be");
        check(step.what == elf::Step::What::map || step.what == elf::Step::What::zeros, "a run begins with an empty address space");
    }
    const std::vector<elf::Step> steps = flatten(order.image.steps);
    for (const elf::Step& step : steps) tables += Tables::tables_for(step.address, step.bytes);
    for (const auto& buffer : order.buffers) tables += Tables::tables_for(buffer.address, buffer.bytes);
    guest_ = std::make_unique<Guest>(1, tables, windows);
    statistics_.guests_made += 1;
    for (const elf::Step& step : steps) {
        add_piece(step.address, step.bytes, access_of(step.protection), step.what == elf::Step::What::map, step.offset);
    }
    if (heap_bytes_ > 0) add_piece(heap_, heap_bytes_, {.user = true, .write = true, .execute = false});
    if (stack_low_ < stack_end_) add_piece(stack_low_, stack_end_ - stack_low_, {.user = true, .write = true, .execute = false});
    for (const auto& buffer : order.buffers) {
        buffers_.push_back(&guest_->add(buffer.address, buffer.bytes, {.user = true, .write = buffer.writable, .execute = false}));
    }
    guest_->commit();
}

void Bench::load_image(int fd) {
    for (Piece& piece : pieces_) {
        if (!piece.image) continue;
        void* first = ::mmap(nullptr, piece.area->bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, static_cast<off_t>(piece.offset));
        if (first == MAP_FAILED) {
            throw Error(Code::invalid_argument, system_message("mmap of a program's image", errno));
        }
        if (piece.first != nullptr) ::munmap(const_cast<std::byte*>(piece.first), piece.area->bytes);
        piece.first = static_cast<const std::byte*>(first);
        for (std::uint64_t at = 0; at < piece.area->bytes; at += page_bytes) {
            if (std::memcmp(piece.area->host + at, piece.first + at, page_bytes) != 0) {
                std::memcpy(piece.area->host + at, piece.first + at, page_bytes);
                statistics_.pages_copied += 1;
            }
        }
    }
}

void Bench::map_buffers(const box::RunOrder& order) {
    for (std::size_t i = 0; i < order.buffers.size(); ++i) {
        const auto& buffer = order.buffers[i];
        const int protection = PROT_READ | (buffer.writable ? PROT_WRITE : 0);
        void* at = ::mmap(buffers_[i]->host, buffer.bytes, protection, MAP_SHARED | MAP_FIXED, buffer.fd, static_cast<off_t>(buffer.offset));
        if (at == MAP_FAILED) {
            throw Error(Code::invalid_argument, system_message("mmap of a run's buffer", errno));
        }
    }
}

void Bench::write_stack(const box::RunOrder& order) {
    const std::uint64_t bytes = order.image.stack.size();
    if (bytes > 0) {
        const auto room = guest_->reach(stack_end_ - bytes, bytes, false);
        check(room.size() == bytes, "an initial stack larger than the stack");
        std::memcpy(room.data(), order.image.stack.data(), bytes);
    }
    stack_written_ = bytes;
    start_ = {};
    start_.rip = order.image.entry;
    start_.rsp = stack_end_ - bytes;
    start_.code32 = order.image.narrow;
    start_.zero_tsc = true;
    if (order.abi == box::Abi::duckinfo && !order.image.narrow) {   // as after a sysret
        start_.rcx = start_.rip;
        start_.r11 = start_.rflags;
    }
}

void Bench::prepare(const box::RunOrder& order, std::uint64_t image_id) {
    const std::uint64_t began = wall_ns();
    const bool known = fits(order);
    if (!known) build(order);
    try {
        if (!known || image_id == 0 || image_id != image_id_) {
            image_id_ = 0;
            load_image(order.image.fd);
            image_id_ = image_id;
        }
        map_buffers(order);
        write_stack(order);
    } catch (...) {
        clear();                              // half of one and half of another: begin anew next time
        throw;
    }
    statistics_.prepare_ns = wall_ns() - began;
}

void Bench::restore(Piece& piece, Count& count) {
    std::uint64_t from = 0, pages = 0;        // a row of written pages that are zeros at first
    const auto clear_row = [&] {
        std::byte* at = piece.area->host + from * page_bytes;
        if (pages < many_pages || ::madvise(at, pages * page_bytes, MADV_DONTNEED) != 0) {
            std::memset(at, 0, pages * page_bytes);
        }
        pages = 0;
    };
    guest_->tables().each_touched(piece.area->virt, piece.area->pages(), [&](std::uint64_t page, bool written) {
        count.touched += 1;
        if (!written) return;
        count.written += 1;
        statistics_.pages_restored += 1;
        if (piece.first != nullptr) {
            std::memcpy(piece.area->host + page * page_bytes, piece.first + page * page_bytes, page_bytes);
            return;
        }
        if (pages > 0 && page != from + pages) clear_row();
        if (pages == 0) from = page;
        pages += 1;
    });
    if (pages > 0) clear_row();
}

// What we wrote there before the run is in no bit.
void Bench::clear_stack() {
    const auto written = guest_->reach(stack_end_ - stack_written_, stack_written_, false);
    const auto piece = std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& one) { return one.area->holds(stack_end_ - 1, 1); });
    if (written.empty() || piece == pieces_.end()) return;
    if (piece->first != nullptr) {
        std::memcpy(written.data(), piece->first + (written.data() - piece->area->host), written.size());
    } else {
        std::memset(written.data(), 0, written.size());
    }
}

Count Bench::finish(std::uint64_t report, std::vector<std::byte>& page) {
    const std::uint64_t began = wall_ns();
    if (report != 0) {
        page.resize(page_bytes);
        if (!guest_->read(report, page.data(), page_bytes)) page.clear();
    }
    Count count;
    for (Piece& piece : pieces_) restore(piece, count);
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
        guest_->tables().each_touched(buffers_[i]->virt, buffers_[i]->pages(), [&](std::uint64_t, bool written) {
            count.touched += order_.buffers[i].counted ? 1 : 0;
            count.written += order_.buffers[i].counted && written ? 1 : 0;
        });
    }
    clear_stack();
    guest_->turn();
    statistics_.restore_ns = wall_ns() - began;
    return count;
}

}  // namespace teal::kvm

#endif
